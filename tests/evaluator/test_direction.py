"""Which way is better follows from the metrics of an expression where all of them agree."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.metrics.base import Formula
from evaluator.objective import metrics_read, which_is_better
from records.expression import ExpressionError, parse

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
