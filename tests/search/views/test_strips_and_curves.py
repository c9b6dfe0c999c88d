"""Charts of samples and of searches, marks that name their trials, axes with enough ticks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.views.charts import (
    MOST_DOTS,
    Curve,
    FrontMark,
    Interval,
    Strip,
    TriedConfig,
    TriedKnob,
    curve_chart,
    front_chart,
    parallel_chart,
    strip_chart,
)
from search.views.svg import LEAST_TICKS, MOST_TICKS, scale_of
from tests.support.report import Element, read_page

HOSTILE = "</title><script>alert(1)</script>"


def marks(drawn: str, *kinds: str) -> list[Element]:
    """The marks of a chart that have a class of these."""
    every = read_page(drawn).all()
    return [each for each in every if (each.attributes.get("class") or "").split()[:1] == [*kinds]]


def test_a_strip_has_a_dot_for_each_sample_and_a_line_at_their_median():
    drawn = strip_chart(
        [Strip(name="own launch", values=(1.0, 2.0, 9.0), is_own=True), Strip(name="x", values=())],
        title="t",
        label="ms",
    )

    dots = [float(each.attributes["cx"]) for each in marks(drawn, "dot") if each.name == "circle"]
    (middle,) = [each for each in marks(drawn, "lead") if float(each.attributes["y1"]) > 20]
    assert len(dots) == 3 + 1  # and the one of the key
    assert middle.attributes["x1"] == middle.attributes["x2"]
    assert float(middle.attributes["x1"]) in dots


def test_very_many_samples_are_thinned():
    strip = Strip(name="x", values=tuple(float(n) for n in range(100_000)))
    drawn = strip_chart([strip], title="t", label="ms")

    assert len(marks(drawn, "dot")) <= MOST_DOTS + 1


def test_curves_are_told_apart_without_colours_and_named_below():
    curves = [Curve(name=HOSTILE, points=((1, 9.0), (3, 1.0)), end=8)] * 2
    page = read_page(curve_chart(curves, title="t", x_label="trials", y_label="%"))

    kinds = [each.attributes["class"] for each in page.all("polyline")]
    assert kinds == ["curve0 mark", "curve1 mark"]
    assert [each.text for each in page.all("text")].count(HOSTILE) == 2


@pytest.mark.parametrize("points", [(), ((1, 0.0),)])
def test_a_search_that_found_nothing_or_one_thing_is_drawn(points):
    drawn = curve_chart([Curve(name="x", points=points, end=1)], title="t", x_label="", y_label="")

    assert len(list(read_page(drawn).all("polyline"))) == len(points)


def test_marks_name_their_trials_where_they_can_be_selected():
    reach = Interval(centre=1.0, low=None, high=None)
    pair = {"x": reach, "y": reach, "is_limited": False, "tip": HOSTILE}
    pairs = [FrontMark(name="7", on_front=front, trial=7, **pair) for front in (True, False)]
    tried = TriedConfig(ordinal=8, places=(0,), value=1.0, rank=0.0, ended="measured", words="")
    knobs = [TriedKnob(name="k", choices=("a", "b"))]

    drawn = front_chart(pairs, x_label="x", y_label="y")
    lines = parallel_chart(knobs, [tried], None, "v")
    assert drawn.count('data-trial="7"') == 2
    assert lines.count('data-trial="8"') == 1


def test_names_on_a_front_do_not_lie_over_each_other():
    def pair(trial: int) -> FrontMark:
        reach = Interval(centre=1.0 if trial < 50 else 2.0, low=None, high=None)
        return FrontMark(
            name=f"t{trial}", x=reach, y=reach, on_front=True, is_limited=False, tip=""
        )

    page = read_page(front_chart([pair(n) for n in range(60)], x_label="x", y_label="y"))

    assert [e.text for e in page.all("text") if e.text.startswith("t")] == ["t0", "t50"]


@given(low=st.floats(0.001, 1e6), width=st.floats(0.05, 15.0))
def test_an_axis_has_some_ticks_and_not_too_many(low, width):
    ticks = scale_of([low, low * (1 + width)], 0.0, 100.0).ticks

    assert LEAST_TICKS - 1 <= len(ticks) <= MOST_TICKS
