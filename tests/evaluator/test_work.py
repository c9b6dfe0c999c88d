from dataclasses import replace

import pytest

from evaluator.evaluate import evidence
from evaluator.metrics.registry import measure_all
from evaluator.samples import other_work, parts_fault, serving
from records.trial import FailureKind, Serving
from records.workload import Workload
from tests.support.records import measured, study

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


S = 10**9
WORKLOAD = Workload(
    name="w", phase="inference", global_batch=4, sequence_length=10, output_length=5
)
ONE_ROUND = [(0, 2 * S, 10 * S), (10 * S, 14 * S, 20 * S)]
TWO_ROUNDS = [(100 * S, 101 * S, 105 * S, 107 * S, 119 * S)]
MEASUREMENT = replace(
    measured().measurement, step_times_s=((8.0, 9.0, 8.0), (8.0, 8.0, 8.0)), tokens_per_step=60
)
SERVED = Serving(
    first_token_times_s=((1.0, 5.0, 2.0), (3.0, 1.0, 1.0)),
    next_token_times_s=((0.1, 0.1, 0.3), (0.2, 0.2, 0.1)),
    output_tokens_per_step=20,
)


def metrics(served: Serving | None) -> dict[str, float]:
    asked = replace(study(), workload=WORKLOAD)
    seen = evidence(asked, replace(MEASUREMENT, serving=served), traces=None)
    return {value.name: value.value for value in measure_all(seen).values}


@pytest.mark.parametrize(
    ("ranks", "answer_length", "first_s", "next_s"),
    [
        ([ONE_ROUND], 5, ((2.0, 4.0),), ((2.0, 1.5),)),
        ([TWO_ROUNDS], 5, (((1 + 7) / 2,),), (((4 + 12) / 2 / 4,),)),  # the second waits
        ([ONE_ROUND[:1], ONE_ROUND[1:]], 5, ((2.0,), (4.0,)), ((2.0,), (1.5,))),
        ([ONE_ROUND], 1, ((2.0, 4.0),), None),
    ],
    ids=["one round", "two rounds", "two ranks", "one token"],
)
def test_a_step_splits_at_the_first_tokens_of_its_rounds(ranks, answer_length, first_s, next_s):
    found = serving(ranks, replace(WORKLOAD, output_length=answer_length))

    assert found == Serving(
        first_token_times_s=first_s,
        next_token_times_s=next_s,
        output_tokens_per_step=4 * answer_length,
    )


@pytest.mark.parametrize(
    ("steps", "changes"),
    [
        (ONE_ROUND, {"phase": "training"}),
        (ONE_ROUND, {"output_length": None}),
        ([(0, S), (S, 2 * S)], {}),
    ],
    ids=["training", "unknown_answers", "no_marks"],
)
def test_where_nothing_is_known_of_tokens_nothing_is_said(steps, changes):
    assert serving([steps], replace(WORKLOAD, **changes)) is None


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([ONE_ROUND, ONE_ROUND], False),
        ([TWO_ROUNDS, TWO_ROUNDS], False),
        ([[(0, 1)], [(0, 2)]], False),
        ([ONE_ROUND, TWO_ROUNDS], True),
        ([[(0, 1)], ONE_ROUND], True),
        ([[(0, 1, 2, 3)]], True),
    ],
)
def test_parts_must_pair_and_be_the_same_everywhere(ranks, expected):
    assert (parts_fault(ranks, ()) is not None) is expected


def test_the_slowest_rank_of_the_middle_step_counts_and_training_has_no_times_of_tokens():
    values = metrics(SERVED)

    assert (values["ttft"], values["tpot"]) == (3.0, 0.2)
    assert values["output_tokens_per_s"] == 20 / 8.0
    assert not {"ttft", "tpot", "output_tokens_per_s"} & metrics(None).keys()
