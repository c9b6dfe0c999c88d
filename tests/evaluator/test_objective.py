"""An objective is settled before any launch, and a trial it cannot score is a failure."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.objective import scoring
from records.errors import StudyError
from records.study import Objective
from records.trial import Failed, FailureKind, MetricValue, Score, Stage


def asked(expression, direction=None):
    return scoring(Objective(expression=expression, direction=direction))


def values(**numbers):
    return [
        MetricValue(name=name, value=value, unit="?", better="lower", version=1)
        for name, value in numbers.items()
    ]


@pytest.mark.parametrize(
    ("expression", "direction", "lower_is_better", "unit"),
    [
        ("step_time", None, True, "s"),
        (" step_time ", None, True, "s"),
        ("tokens_per_s", None, False, "tokens/s"),
        ("tokens_per_s", "minimize", True, "tokens/s"),
        ("step_time", "maximize", False, "s"),
        ("(step_time)", "minimize", True, ""),
        ("tokens_per_s / rank_count", "maximize", False, ""),
        ("0.5 * step_time + 0.5 * peak_memory", "minimize", True, ""),
    ],
)
def test_a_metric_has_its_own_direction_and_the_user_has_the_last_word(
    expression, direction, lower_is_better, unit
):
    ready = asked(expression, direction)
    assert (ready.lower_is_better, ready.unit) == (lower_is_better, unit)


@pytest.mark.parametrize(
    "expression", ["step_time * tokens_per_s", "step_time - peak_memory", "step_time % 2"]
)
def test_an_expression_whose_metrics_disagree_needs_a_direction(expression):
    with pytest.raises(StudyError, match="say which way is better with --minimize or --maximize"):
        asked(expression)


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("steptime", "no metric is called 'steptime'; did you mean 'step_time'?"),
        ("step_time + tokens", "no metric is called 'tokens'"),
        ("zzzzzz", "known are achieved_tflops, "),
        ("1 + 1", "names no metric; metrics are achieved_tflops, "),
        ("'step_time'", "names no metric"),
        ("step_time.real", "is not allowed"),
        ("step_time +", "is not an expression"),
        ("", "is not an expression"),
    ],
)
def test_what_is_no_objective_ends_the_study(expression, sentence):
    with pytest.raises(StudyError) as refused:
        asked(expression, "minimize")
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("direction", "cost"), [("minimize", 4.0), ("maximize", -4.0), (None, 4.0)]
)
def test_cost_is_lower_when_better_and_value_is_what_was_asked_for(direction, cost):
    score = asked("step_time", direction).score(values(step_time=4.0, peak_memory=1.0))
    assert score == Score(cost=cost, value=4.0, unit="s")


@given(
    st.floats(-1e100, 1e100), st.floats(-1e100, 1e100), st.sampled_from(["minimize", "maximize"])
)
@settings(deadline=None)
def test_the_better_value_has_the_lower_cost(one, other, direction):
    ready = asked("step_time", direction)
    a, b = ready.score(values(step_time=one)), ready.score(values(step_time=other))
    better = one < other if direction == "minimize" else one > other
    assert (a.cost < b.cost) is better


def test_an_expression_is_computed_from_the_metrics():
    score = asked("16 / rank_count + 0.44 / step_time", "maximize").score(
        values(rank_count=8.0, step_time=0.22)
    )
    assert score == Score(cost=-4.0, value=4.0, unit="")


def test_a_metric_without_an_answer_is_a_failure_that_names_it():
    failed = asked("idle_fraction + compute_comm_overlap", "minimize").score(values(step_time=1.0))
    assert isinstance(failed, Failed)
    assert (failed.stage, failed.kind) == (Stage.SCORE, FailureKind.METRIC_ERROR)
    assert failed.message == (
        "the objective needs compute_comm_overlap, idle_fraction, which this trial has not"
    )


def test_a_metric_without_an_answer_says_why():
    failed = asked("idle_fraction + mfu", "minimize").score(
        values(step_time=1.0), {"idle_fraction": "no step was profiled", "ttft": "nothing served"}
    )
    assert isinstance(failed, Failed)
    assert failed.message == (
        "the objective needs idle_fraction, mfu, which this trial has not "
        "(idle_fraction: no step was profiled)"
    )


@pytest.mark.parametrize(
    ("expression", "number"),
    [
        ("1 / step_time", 0.0),
        ("log(step_time)", 0.0),
        ("sqrt(step_time)", -1.0),
        ("step_time", float("nan")),
        ("step_time", float("inf")),
        ("step_time * 1e308", 1e10),
        ("(2**64)**64 + 0 * step_time", 1.0),
        ("'fast' if step_time else 'slow'", 1.0),
        ("(step_time, step_time)", 1.0),
        ("step_time < 'a'", 1.0),
    ],
)
def test_what_comes_to_no_finite_number_is_a_failure_and_never_a_score(expression, number):
    failed = asked(expression, "minimize").score(values(step_time=number))
    assert isinstance(failed, Failed)
    assert failed.kind is FailureKind.METRIC_ERROR
    assert "\n" not in failed.message
