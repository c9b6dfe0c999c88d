"""An objective is settled before any launch, and a trial it cannot score is a failure."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.metrics.base import Formula
from evaluator.objective import (
    UNITS,
    limit,
    may_vary_work,
    metrics_read,
    scoring,
    scoring_of,
    which_is_better,
)
from records.errors import StudyError
from records.expression import ExpressionError, parse
from records.study import Command, Launch, Objective
from records.trial import Failed, FailureKind, Measured, MetricValue, Score, Stage
from tests.support import records as testing


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


KNOWN = {"peak_memory": 40e9, "memory_peak": 40e9, "step_time": 0.7, "mfu": 0.3, "rank_count": 3.0}
METRIC_OF = {"size": "peak_memory", "time": "step_time", "share": "mfu"}


def metrics(**numbers):
    return [
        MetricValue(name=name, value=value, unit="?", better="lower", version=1)
        for name, value in numbers.items()
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("peak_memory < 30 GiB", "peak_memory < 30 GiB is broken: peak_memory is 37.2529 GiB"),
        ("memory_peak<30GiB", "memory_peak<30GiB is broken: memory_peak is 37.2529 GiB"),
        ("step_time <= 500 ms", "step_time <= 500 ms is broken: step_time is 700 ms"),
        ("mfu > 40%", "mfu > 40% is broken: mfu is 30%"),
        ("rank_count % 2 == 0", "rank_count % 2 == 0 is broken: rank_count is 3 ranks"),
        ("1 s < step_time < 2 s", "1 s < step_time < 2 s is broken: step_time is 0.7 s"),
        ("peak_memory\n< 3e10", "peak_memory < 3e10 is broken: peak_memory is 4e+10 bytes"),
        ("peak_memory < 50 GB", None),
        ("50 GB > peak_memory", None),
        ("step_time * rank_count < 3 s", None),
    ],
)
def test_a_broken_limit_is_told_with_numbers_in_the_units_that_were_written(text, words):
    assert limit(text).broken(KNOWN, {}) == words


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("peak_memori < 30 GiB", "no metric is called 'peak_memori'; did you mean 'peak_memory'?"),
        ("peak_memory", "compares nothing with <, <=, >, >= or ==; write it as in 'peak_memory <"),
        ("peak_memory < 3 GiB and mfu > 1 %", "compares nothing"),
        ("peak_memory in (1, 2)", "compares nothing"),
        ("1 < 2", "names no metric"),
        ("step_time < 30 GiB", "GiB is a unit of size, but step_time is in s"),
        ("rank_count < 30 s", "s is a unit of time, but rank_count is in ranks"),
        ("peak_memory < 30 gb", "'gb' is not a unit; known are B, KiB, MiB, GiB"),
        ("peak_memory < 30 * GiB", "no metric is called 'GiB'"),
        ("peak_memory <", "is not an expression"),
        ("", "is not an expression"),
    ],
)
def test_what_is_no_limit_is_refused_in_one_line(text, sentence):
    with pytest.raises(StudyError) as refused:
        limit(text)
    assert sentence in str(refused.value)
    assert str(refused.value).startswith(f"limit {text!r}: ")
    assert "\n" not in str(refused.value)


@given(st.sampled_from(sorted(UNITS)), st.floats(0.001, 1000), st.floats(1.001, 10))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_every_unit_means_its_size(unit, amount, factor):
    measures, size = UNITS[unit]
    name = METRIC_OF[measures]
    below = limit(f"{name} < {amount!r} {unit}")
    assert below.broken({name: amount * size / factor}, {}) is None
    assert f"{name} is " in (below.broken({name: amount * size * factor}, {}) or "")


def test_a_limit_that_cannot_be_checked_is_broken_and_says_why():
    words = limit("mfu > 40 %").broken({"step_time": 1.0}, {"mfu": "nothing tells the peak"})
    assert words == "mfu > 40 % cannot be checked without mfu (mfu: nothing tells the peak)"
    divided = limit("1 / step_time < 3").broken({"step_time": 0.0}, {})
    assert divided is not None
    assert "cannot be checked: " in divided


def test_a_trial_that_breaks_a_limit_keeps_its_score():
    limits = ("step_time < 1 s", "peak_memory < 1 KiB")
    ready = scoring_of(replace(testing.study(), limits=limits))
    assert ready.score(metrics(step_time=0.5, peak_memory=1000.0)).broken == ()
    score = ready.score(metrics(step_time=2.0, peak_memory=2048.0))
    assert score == Score(
        cost=2.0,
        value=2.0,
        unit="s",
        broken=(
            "step_time < 1 s is broken: step_time is 2 s",
            "peak_memory < 1 KiB is broken: peak_memory is 2 KiB",
        ),
    )
    assert ready.shown_metrics == {"peak_memory"}


def test_a_name_of_what_the_seed_had_stands_for_its_value():
    seed, trial = (
        Measured(measurement=testing.measured().measurement, metrics=tuple(metrics(**values)))
        for values in ({"step_time": 0.5, "rank_count": 4.0}, {"step_time": 0.25})
    )
    ready = scoring(Objective(expression="step_time/step_time@seed + 0*gpus@seed"))
    assert ready.lower_is_better
    assert ready.against([testing.failed(), seed, trial]).score(trial.metrics).value == 0.5
    assert ready.against([seed]).score(seed.metrics).value == 1.0
    assert ready.score(seed.metrics).message == (
        "the objective needs gpus@seed, step_time@seed, which this trial has not "
        "(gpus@seed: the seed has no value of it; step_time@seed: the seed has no value of it)"
    )


def test_an_alias_is_the_metric_and_the_published_objective_works_as_typed():
    ready = scoring(Objective(expression="0.5*(16/gpus)+0.5*(0.44/step_time)"))
    assert not ready.lower_is_better
    assert ready.score(metrics(rank_count=8.0, step_time=0.22)).value == 2.0
    assert ready.shown_metrics == {"rank_count", "step_time"}
    absent = ready.score(metrics(step_time=1.0), {"rank_count": "nothing tells"})
    assert absent.message.endswith("needs gpus, which this trial has not (gpus: nothing tells)")
    assert scoring(Objective(expression="gpus")).unit == "ranks"


LOWER, HIGHER = ("step_time", "rank_count"), ("tokens_per_s", "mfu")
LEAVES = st.one_of(
    st.sampled_from([*LOWER, *HIGHER, "step_time@seed"]),
    st.integers(-3, 5).map(lambda number: f"({number})"),
    st.sampled_from(["0.5", "16"]),
)


def _compound(inner):
    infix = st.sampled_from(["+", "-", "*", "/"])
    return st.one_of(
        st.tuples(inner, infix, inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(
            lambda p: f"{p[0]}({p[1]}, {p[2]})"
        ),
    )


EXPRESSIONS = st.recursive(LEAVES, _compound, max_leaves=6)
AMOUNTS = st.floats(0.01, 100)


METRICS = metrics_read(parse(" + ".join([*LOWER, *HIGHER, "gpus", "step_time@seed"])))


def better(text):
    return which_is_better(parse(text).body, METRICS)


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ("0.5*(16/gpus)+0.5*(0.44/step_time)", "higher"),
        ("step_time/step_time@seed", "lower"),
        ("tokens_per_s / rank_count", "higher"),
        ("step_time * rank_count", "lower"),
        ("max(step_time, 1 / tokens_per_s)", "lower"),
    ],
)
def test_metrics_that_agree_decide_which_way_is_better(text, way):
    assert better(text) == way


@pytest.mark.parametrize(
    "text",
    [
        "step_time * tokens_per_s",
        "step_time - rank_count",
        "1 / (1 - step_time)",
        "-step_time",
        "log(step_time)",
        "step_time ** 2",
        "3 * 2",
    ],
)
def test_where_they_disagree_or_an_operation_may_reverse_them_there_is_no_answer(text):
    assert better(text) is None


@given(EXPRESSIONS, st.tuples(AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS), st.floats(1.01, 10))
@settings(deadline=None, derandomize=True, max_examples=300)
def test_a_metric_that_gets_better_never_makes_the_whole_worse(text, amounts, factor):
    way, expression = better(text), parse(text)
    values = dict(zip([*LOWER, *HIGHER], amounts, strict=True)) | {"step_time@seed": 0.5}
    improved = {name: {**values, name: values[name] / factor} for name in LOWER}
    improved |= {name: {**values, name: values[name] * factor} for name in HIGHER}
    sign = {"lower": 1, "higher": -1, None: 0}[way]
    for after in improved.values():
        try:
            before_cost, after_cost = (sign * expression.number(v) for v in (values, after))
        except ExpressionError:
            continue
        assert after_cost <= before_cost + 1e-9 * abs(before_cost)


def test_nothing_is_known_about_the_sign_of_a_metric_that_is_not_ours():
    gain = Formula(
        name="gain",
        label="Gain",
        unit="x",
        better="higher",
        sources=frozenset({"samples"}),
        description="May be negative.",
        formula=lambda _: 1.0,
    )
    ways = [
        which_is_better(parse(text).body, {"gain": gain})
        for text in ("gain", "1 / gain", "gain * gain")
    ]
    assert ways == ["higher", None, None]


@pytest.mark.parametrize(
    ("recipe", "objectives", "may_vary"),
    [
        ("command", ("tokens_per_s",), True),
        ("command", ("tokens_per_s / rank_count", "peak_memory"), True),
        ("command", ("rank_seconds_per_token@seed / rank_seconds_per_token",), True),
        ("command", ("step_time",), False),
        ("command", ("tokens_per_s", "step_time"), False),
        ("command", ("tokens_per_s / step_time",), False),
        ("command", ("peak_memory",), False),
        ("builtin", ("tokens_per_s",), False),
    ],
)
def test_work_may_vary_only_where_every_objective_of_a_script_counts_per_token(
    recipe, objectives, may_vary
):
    main, *more = (Objective(expression=expression) for expression in objectives)
    command = Command(run=("train",)) if recipe == "command" else None
    study = replace(
        testing.study(),
        objective=main,
        more_objectives=tuple(more),
        launch=Launch(recipe=recipe),
        command=command,
    )

    assert may_vary_work(study) is may_vary
