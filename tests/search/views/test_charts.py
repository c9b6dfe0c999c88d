"""Charts as SVG: inside their frame whatever the values, and true to them."""

import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.errors import StudyError
from search.report.explored import (
    Axis,
    BestSoFar,
    HistoryPoint,
    Interval,
    StudyHistory,
    draw_history,
)
from search.views.charts import (
    MOST_STOPS,
    Panel,
    Point,
    Row,
    Series,
    TriedConfig,
    TriedKnob,
    parallel_chart,
    rows_chart,
    stacked,
    xy_chart,
)
from search.views.format import one_line
from search.views.html import write_chart
from search.views.svg import LEAST_TICKS, MOST_TICKS, ChartAxis, LegendEntry

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.text(max_size=20)
HOSTILE = "</title><script>alert(1)</script>"
PLACES = ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r")
X, Y = ChartAxis(label="trials"), ChartAxis(label="s")


def check(chart):
    """The chart's elements, each within the frame and with finite places."""
    root = ElementTree.fromstring(chart)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for element in root.iter():
        get = {name: float(v) for name, v in element.attrib.items() if name in PLACES}
        across = [value for name, value in get.items() if name in {"x", "x1", "x2", "cx"}]
        along = [value for name, value in get.items() if name in {"y", "y1", "y2", "cy"}]
        for point in element.attrib.get("points", "").split():
            x, y = map(float, point.split(","))
            across.append(x)
            along.append(y)
        assert all(math.isfinite(value) for value in (*get.values(), *across, *along))
        assert all(-0.1 <= value <= width + 0.1 for value in across), element.attrib
        assert all(-0.1 <= value <= height + 0.1 for value in along), element.attrib
    return root


def marks(root, kind="mark"):
    return [each for each in root.iter() if kind in each.get("class", "").split()]


def drawn(*series, x=X, y=Y):
    return check(xy_chart(Panel(series=series, x=x, y=y), title="t", about="a"))


ends = st.none() | st.tuples(NUMBERS, NUMBERS)
points = st.lists(
    st.builds(
        Point, x=NUMBERS, y=st.none() | NUMBERS, x_ends=ends, y_ends=ends, name=WORDS, tip=WORDS
    ),
    max_size=8,
)
shapes = st.sampled_from(["dot", "large dot", "square", "diamond", "up", "down", "cross", "tick"])


@given(points, shapes, st.sampled_from(["", "line", "step", "band"]), st.sampled_from(["", "zero"]))
def test_points_and_paths_stay_in_their_frame(found, shape, path, kind):
    series = Series(name="n", kind="best", points=found, shape=shape, path=path)

    root = drawn(series, y=ChartAxis(label="y", kind=kind))

    assert len(marks(root)) == sum(bool(one_line(each.tip, 60)) for each in found)


@given(st.lists(st.tuples(st.lists(NUMBERS.map(abs), min_size=2, max_size=2), WORDS), max_size=12))
def test_bars_stay_in_their_frame(found):
    rows = [
        Row(
            name=name, stretches=stacked((a, b), ("part0", "part1"), a / 2), words=name, points=(a,)
        )
        for (a, b), name in found
    ]
    keys = [LegendEntry(name="hidden", kind="part0", shape="hatched box")]

    check(rows_chart(rows, ChartAxis(label="ms", kind="zero"), keys, title="bars"))


@given(st.data())
def test_parallel_coordinates_stay_in_their_frame(data):
    counts = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))
    knobs = [TriedKnob(name="k", choices=tuple(map(str, range(count)))) for count in counts]
    places = st.tuples(*(st.none() | st.integers(0, count - 1) for count in counts))
    tried = data.draw(
        st.lists(
            st.builds(
                TriedConfig,
                ordinal=st.integers(0, 3),
                places=places,
                value=st.none() | NUMBERS,
                rank=st.none() | st.floats(0, 1),
                ended=st.just("measured"),
                words=WORDS,
            ),
            max_size=6,
        )
    )

    root = check(parallel_chart(knobs, tried, 0, "cost"))

    assert len(marks(root)) == len(tried)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_names_of_parallel_axes_do_not_collide(count):
    names = ["activation_checkpointing", "pipeline_schedule"] * 7
    knobs = [TriedKnob(name=name, choices=("a", "b")) for name in names[:count]]
    root = check(parallel_chart(knobs, [], None, "step_time (s)"))
    places = {}
    for text in marks(root, "name"):
        x, half = float(text.attrib["x"]), len(text.text) * 6.6 / 2
        places.setdefault(text.attrib["y"], []).append((x - half, x + half))

    assert sum(map(len, places.values())) == count + 1
    for row in places.values():
        assert all(end < start for (_, end), (start, _) in pairwise(sorted(row)))


def history(*values, best=(), links=""):
    """The chart of these values, of which `best` led in turn; None is a failed trial."""
    points = [
        HistoryPoint(
            ordinal=n,
            value=value,
            ended="failed" if value is None else "measured",
            started_at="",
            words=f"trial {n}",
        )
        for n, value in enumerate(values)
    ]
    found = StudyHistory(
        axis=Axis(name="step_time", unit="s", lower_is_better=True),
        points=tuple(points),
        best_so_far=tuple(BestSoFar(ordinal=n, value=values[n]) for n in best),
        best=best[-1] if best else None,
        best_again=Interval(centre=2.0, low=1.5, high=2.5) if best else None,
        shown=len(points),
        total=len(points),
    )
    return draw_history(found, links=links)


def test_a_history_has_lower_values_lower_failures_on_the_axis_and_links_to_trials():
    found = marks(check(history(4.0, None, 2.0, links="/trials/")))

    high, low = (float(m.find("circle").get("cy")) for m in found if m.find("circle") is not None)
    (failed,) = (mark.find("path") for mark in found if mark.find("path") is not None)
    assert high < low < float(failed.get("d").split()[1].partition("h")[0])
    assert {(mark.tag, mark.get("href"), mark.find("title").text) for mark in found} == {
        ("a", f"/trials/{n}", f"trial {n}") for n in range(3)
    }


def test_a_history_has_its_best_so_far_as_steps_and_the_best_with_its_interval():
    root = check(history(4.0, 2.0, 3.0, best=(0, 1)))

    paths = [each.get("points").split() for each in marks(root, "path")]
    (steps,) = (points for points in paths if len(points) > 2)
    assert len({point.split(",")[1] for point in steps}) == 2
    (arm,) = marks(root, "arm")
    assert float(arm.get("y2")) < float(arm.get("y1"))


@pytest.mark.parametrize(("count", "stops"), [(MOST_STOPS, MOST_STOPS), (MOST_STOPS + 1, 1)])
def test_keys_stop_at_every_mark_of_few_and_at_the_best_of_many(count, stops):
    found = [Point(x=n, y=n, tip="t", link="#") for n in range(count)]
    others = Series(name="a", kind="measured", points=found[1:])
    best = Series(name="b", kind="best", points=found[:1], is_main=True)

    assert sum(mark.get("tabindex") is None for mark in marks(drawn(others, best))) == stops


def test_texts_of_others_never_become_elements():
    point = Point(x=1, y=1, name=HOSTILE, tip=HOSTILE, link=f"#{HOSTILE}")

    root = drawn(Series(name=HOSTILE, kind="best", points=[point]), x=ChartAxis(label=HOSTILE))

    assert not list(root.iter("script"))
    (mark,) = marks(root)
    assert (mark.get("href"), mark.find("title").text) == (f"#{HOSTILE}", HOSTILE)


def test_names_of_points_do_not_lie_over_each_other():
    found = [Point(x=1.0 if n < 50 else 2.0, y=1.0, name=f"t{n}") for n in range(60)]

    root = drawn(Series(name="", kind="best", points=found))

    names = [each.text or "" for each in root.iter("text")]
    assert [name for name in names if name.startswith("t") and name[1:].isdigit()] == ["t0", "t50"]


@pytest.mark.parametrize("found", [(), (Point(x=1, y=0.0),)])
def test_a_search_that_found_nothing_or_one_thing_is_drawn(found):
    series = Series(name="x", kind="tone0", points=found, shape=None, path="step", until=1)

    assert len(marks(drawn(series), "path")) == 2 * len(found)  # and the one of the legend


def test_parts_of_a_bar_are_as_long_as_they_are():
    rows = [
        Row(name=n, stretches=stacked(p, ("part0", "part1")))
        for n, p in (("a", (1.0, 3.0)), ("b", (2.0, 0.0)))
    ]

    root = check(rows_chart(rows, ChartAxis(label="ms", kind="zero"), (), title="t"))

    widths = [
        float(each.get("d").partition("h")[2].partition("v")[0]) for each in marks(root, "part")
    ]
    assert widths == pytest.approx([widths[0], 3 * widths[0], 2 * widths[0]], abs=0.2)


@given(
    st.sampled_from(["", "linear", "zero"]).flatmap(
        lambda kind: st.tuples(st.just(kind), st.lists(NUMBERS, min_size=1, max_size=20))
    )
    | st.tuples(st.just("log"), st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=20))
)
def test_a_scale_keeps_the_order_of_values_and_of_its_ticks(found):
    kind, values = found
    scale = ChartAxis(label="", kind=kind).scale(values, 100.0, 500.0)

    places = [scale.place(value) for value in sorted(values)]
    ticks = [place for place, _ in scale.ticks]
    assert (places, ticks) == (sorted(places), sorted(ticks))
    assert all(100.0 <= place <= 500.0 for place in (*places, *ticks))
    assert 1 <= len(ticks) <= 40


@given(low=st.floats(0.001, 1e6), width=st.floats(0.05, 15.0))
def test_an_axis_has_some_ticks_and_not_too_many(low, width):
    ticks = ChartAxis(label="").scale([low, low * (1 + width)], 0.0, 100.0).ticks

    assert LEAST_TICKS - 1 <= len(ticks) <= MOST_TICKS


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.15, 0.43], ["0.2", "0.3", "0.4"]),
        ([1.0, 1000.0], ["1", "10", "100", "1000"]),
        ([5.0], ["4.8", "5", "5.2"]),
        ([2e8, 4e9], ["2 G"]),
        ([-1.5e6, 0.0], ["-1 M"]),
        ([1e20, 2e20], ["1.5e+20"]),
    ],
)
def test_ticks_are_round_numbers_long_ones_with_a_letter(values, expected):
    ticks = [label for _, label in ChartAxis(label="").scale(values, 0.0, 1.0).ticks]

    assert set(expected) <= set(ticks)
    assert len(ticks) <= 12


def test_a_chart_is_written_as_svg_or_page_and_as_nothing_else(tmp_path):
    chart = history(4.0, 2.0)
    for name in ("a.svg", "a.html"):
        write_chart(chart, "t", tmp_path / name)

    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert "<svg" in (tmp_path / "a.html").read_text()
    with pytest.raises(StudyError, match=r"a\.png: charts are \.svg or \.html files"):
        write_chart(chart, "t", tmp_path / "a.png")


def test_names_of_different_series_never_lie_over_each_other():
    series = [
        Series(name="", kind=f"tone{n}", points=[Point(x=1, y=value, name=f"{value}")], path="line")
        for n, value in enumerate((100.0, 100.5, 200.0))
    ]
    panel = Panel(series=series, x=ChartAxis(label="x"), y=ChartAxis(label="y"))

    drawn = xy_chart(panel, title="t")

    named = [value for value in ("100.0", "100.5", "200.0") if f">{value}</text>" in drawn]
    assert named == ["100.0", "200.0"]
