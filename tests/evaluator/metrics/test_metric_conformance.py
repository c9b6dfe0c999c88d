"""Every built-in metric keeps to the contract, and one that does not is caught."""

import pytest

from evaluator.metrics.base import Absent, Formula, MetricError
from evaluator.metrics.registry import metric, metric_names
from evaluator.metrics.testing import MetricConformance

CHECKS = sorted(name for name in vars(MetricConformance) if name.startswith("test_"))


def check(found, name):
    getattr(type("Checked", (MetricConformance,), {"metric": found})(), name)()


@pytest.mark.parametrize("check_name", CHECKS)
@pytest.mark.parametrize("name", metric_names())
def test_every_built_in_metric_conforms(name, check_name):
    check(metric(name), check_name)


class TestAPlugInOfSomebodyElse(MetricConformance):
    metric = Formula(
        name="joules",
        label="Energy",
        unit="J",
        better="lower",
        sources=frozenset({"samples"}),
        description="At 700 W per rank.",
        formula=lambda seen: (
            700.0 * seen.rank_count * sum(seen.step_times_s)
            if seen.rank_count and seen.step_times_s
            else Absent("no step was timed")
        ),
    )


def broken(answer, **changed):
    given = {
        "name": "joules",
        "label": "Energy",
        "unit": "J",
        "better": "lower",
        "sources": frozenset({"samples"}),
        "description": "Theirs.",
        "formula": answer,
    }
    return Formula(**(given | changed))


def spoils(evidence):
    if evidence.traces is None:
        return Absent("nothing was profiled")
    evidence.traces.ranks[0].spans.flops[:] = 0
    return 1.0


def counts(evidence):
    counts.asked += 1
    return float(counts.asked) if evidence.rank_count else Absent("no ranks")


counts.asked = 0


@pytest.mark.parametrize(
    ("found", "check_name"),
    [
        (broken(lambda _: 1.0, unit=""), "test_it_says_what_it_is"),
        (broken(lambda _: 1.0, description="no sentence"), "test_its_texts_are_sentences"),
        (broken(lambda seen: seen.traces.ranks), "test_it_gives_a_finite_value_or_a_reason_for_"),
        (broken(lambda _: Absent("")), "test_it_gives_a_finite_value_or_a_reason_for_"),
        (broken(lambda _: 0.0), "test_it_has_no_value_without_evidence"),
        (broken(counts), "test_it_gives_the_same_answer_twice"),
        (broken(spoils), "test_it_leaves_the_evidence_as_it_was"),
    ],
)
def test_a_metric_that_breaks_the_contract_is_caught(found, check_name):
    (full,) = (name for name in CHECKS if name.startswith(check_name))
    with pytest.raises((AssertionError, MetricError)):
        check(found, full)
