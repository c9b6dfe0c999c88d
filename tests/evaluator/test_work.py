from dataclasses import replace

import pytest

from evaluator.samples import other_work
from records.trial import FailureKind
from tests.support.records import measured

REFERENCE = replace(measured().measurement, losses=(4.0, 3.9, 3.8))


def trained(*losses):
    return replace(REFERENCE, losses=losses)


@pytest.mark.parametrize(
    "losses",
    [
        (4.0, 3.9, 3.8),
        (4.0 * 1.0019, 3.9 / 1.0019, 3.8),
        (4.0, 3.9),  # fewer steps than the reference
        (4.0, 3.9, 3.8, 3.7),
        (),  # a job that tells no losses
    ],
)
def test_losses_that_differ_by_rounding_are_the_same_work(losses, study):
    assert other_work(trained(*losses), REFERENCE, study) is None


def test_losses_that_differ_by_more_than_rounding_are_other_work(study):
    failed = other_work(trained(4.0, 3.9, 3.8 * 1.003), REFERENCE, study)

    assert failed.kind is FailureKind.INVALID_CONFIG
    assert failed.message == (
        "computed something else: loss 3.8114 at step 2, the first measured trial had 3.8000"
    )


@pytest.mark.parametrize(("precision", "same"), [("fp32", False), ("bf16", True), ("fp8", True)])
def test_a_coarser_precision_allows_for_more_rounding(precision, same, study):
    coarse = replace(study, workload=replace(study.workload, precision=precision))

    failed = other_work(trained(4.0 * 1.04), REFERENCE, coarse)

    assert (failed is None) is same
