"""Charts as SVG: inside their frame whatever the values, and true to them."""

import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.views.charts import (
    Bar,
    BestInterval,
    FrontMark,
    HistoryPoint,
    Interval,
    TriedConfig,
    TriedKnob,
    bar_chart,
    front_chart,
    history_chart,
    parallel_chart,
)
from search.views.format import one_line
from search.views.svg import LegendEntry, brief, scale_of

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.text(max_size=20)
ENDED = ("measured", "breaks a limit")


def check(chart):
    """The chart's elements by class, each within the frame and with finite places."""
    root = ElementTree.fromstring(chart)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for element in root.iter():
        get = {name: float(v) for name, v in element.attrib.items() if name in PLACES}
        across = [value for name, value in get.items() if name in {"x", "x1", "x2", "cx"}]
        along = [value for name, value in get.items() if name in {"y", "y1", "y2", "cy"}]
        if element.tag == "rect":
            across.append(get["x"] + get["width"])
            along.append(get["y"] + get["height"])
        for point in element.attrib.get("points", "").split():
            x, y = map(float, point.split(","))
            across.append(x)
            along.append(y)
        assert all(math.isfinite(value) for value in (*get.values(), *across, *along))
        assert all(-0.1 <= value <= width + 0.1 for value in across), element.attrib
        assert all(-0.1 <= value <= height + 0.1 for value in along), element.attrib
    return root


PLACES = ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height")


def marks(root, kind):
    return [each for each in root.iter() if each.get("class", "").split()[:1] == [kind]]


def point(ordinal, value, ended, words=""):
    return HistoryPoint(ordinal=ordinal, value=value, ended=ended, started_at="", words=words)


points = st.lists(
    st.tuples(st.integers(0, 10**6), st.none() | NUMBERS, st.sampled_from(ENDED), WORDS),
    max_size=8,
    unique_by=lambda each: each[0],
).map(
    lambda found: [
        point(n, value, "failed" if value is None else ended, tip)
        for n, value, ended, tip in sorted(found)
    ]
)
intervals = st.none() | st.builds(
    BestInterval,
    ordinal=st.integers(0, 10**6),
    centre=NUMBERS,
    low=st.none() | NUMBERS,
    high=st.none() | NUMBERS,
    tip=WORDS,
)


@given(points, intervals, WORDS, st.booleans())
def test_a_history_stays_in_its_frame(found, best, label, lower_is_better):
    root = check(history_chart(found, best, label=label, lower_is_better=lower_is_better))

    marked = [each for each in root.iter() if each.get("class", "").endswith(" mark")]
    tips = [each.words for each in found] + ([] if best is None else [best.tip])
    assert len(marked) == sum(bool(one_line(tip, 60)) for tip in tips)


reaches = st.builds(Interval, centre=NUMBERS, low=st.none() | NUMBERS, high=st.none() | NUMBERS)
pairs = st.lists(
    st.builds(
        FrontMark,
        name=WORDS,
        x=reaches,
        y=reaches,
        on_front=st.booleans(),
        is_limited=st.booleans(),
        tip=WORDS,
    ),
    max_size=6,
)


@given(pairs, WORDS, WORDS, st.booleans())
def test_a_front_stays_in_its_frame(found, x_label, y_label, line):
    check(front_chart(found, x_label=x_label, y_label=y_label, line=line))


@given(st.lists(st.tuples(st.lists(NUMBERS.map(abs), min_size=2, max_size=2), WORDS), max_size=12))
def test_bars_stay_in_their_frame(found):
    bars = [Bar(name=name, parts=(a, b), words=name, within=a / 2) for (a, b), name in found]
    keys = [LegendEntry(name="one", kind="part0"), LegendEntry(name="two", kind="part1")]

    check(bar_chart(bars, keys, title="bars", label="ms", hatched="hidden"))


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

    lines = list(root.iter("polyline"))
    assert len(lines) == len(tried)


@pytest.mark.parametrize("count", [1, 3, 7, 14])
def test_names_of_parallel_axes_do_not_collide(count):
    names = ["activation_checkpointing", "pipeline_schedule"] * 7
    knobs = [TriedKnob(name=name, choices=("a", "b")) for name in names[:count]]
    root = check(parallel_chart(knobs, [], None, "step_time (s)"))
    places = {}
    for text in marks(root, "name"):
        x, half = float(text.attrib["x"]), len(text.text) * 7.0 / 2
        places.setdefault(text.attrib["y"], []).append((x - half, x + half))

    assert sum(map(len, places.values())) == count + 1
    for row in places.values():
        assert all(end < start for (_, end), (start, _) in pairwise(sorted(row)))


def test_seven_knobs_have_room_for_their_whole_names():
    knobs = [TriedKnob(name=name, choices=("a", "b")) for name in ["activation_checkpointing"] * 7]
    root = check(parallel_chart(knobs, [], None, "step_time"))

    assert [text.text for text in marks(root, "name")][1:7] == ["activation_checkpointing"] * 6


def test_lower_values_lie_lower_and_failures_on_the_axis():
    told = [(0, 4.0), (1, None), (2, 2.0)]
    chart = history_chart(
        [point(n, v, "failed" if v is None else "measured", "t") for n, v in told],
        None,
        label="s",
        lower_is_better=True,
    )
    root = check(chart)

    high, low = (
        float(dot.attrib["cy"]) for dot in marks(root, "dot") if "mark" in dot.get("class")
    )
    (failed,) = (m for m in marks(root, "failure") if "mark" in m.get("class"))
    assert high < low < float(failed.attrib["y"])


@pytest.mark.parametrize(("lower_is_better", "steps"), [(True, [4.0, 2.0]), (False, [4.0, 5.0])])
def test_the_step_line_follows_the_best_so_far(lower_is_better, steps):
    values = [4.0, 5.0 if not lower_is_better else 2.0, 3.0]
    found = [point(n, v, "measured") for n, v in enumerate(values)]
    root = check(history_chart(found, None, label="s", lower_is_better=lower_is_better))

    (line,) = root.iter("polyline")
    heights = {point.split(",")[1] for point in line.attrib["points"].split()}
    assert len(heights) == len(steps)


def test_what_breaks_a_limit_never_leads_the_step_line():
    found = [
        point(0, 4.0, "measured"),
        point(1, 1.0, "breaks a limit"),
    ]

    (line,) = check(history_chart(found, None, label="s", lower_is_better=True)).iter("polyline")

    assert len({point.split(",")[1] for point in line.attrib["points"].split()}) == 1


def test_parts_of_a_bar_are_as_long_as_they_are():
    bars = [Bar(name="a", parts=(1.0, 3.0)), Bar(name="b", parts=(2.0, 0.0))]
    keys = [LegendEntry(name="one", kind="part0"), LegendEntry(name="two", kind="part1")]

    root = check(bar_chart(bars, keys, title="bars", label="ms"))

    widths = [float(each.attrib["width"]) for each in root.iter("rect")]
    assert widths == pytest.approx([widths[0], 3 * widths[0], 2 * widths[0]], abs=0.2)


@given(st.lists(NUMBERS, min_size=1, max_size=20), st.booleans())
def test_a_scale_keeps_the_order_of_values_and_of_its_ticks(values, zero):
    scale = scale_of(values, 100.0, 500.0, zero=zero)

    places = [scale.place(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(100.0 <= place <= 500.0 for place in places)
    ticks = [place for place, _ in scale.ticks]
    assert 1 <= len(ticks) <= 40
    assert ticks == sorted(ticks)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([0.15, 0.43], ["0.2", "0.3", "0.4"]),
        ([1.0, 1000.0], ["1", "10", "100", "1000"]),
        ([5.0], ["4.8", "5", "5.2"]),
        ([2e8, 4e9], ["2 G"]),
    ],
)
def test_ticks_are_round_numbers(values, told):
    ticks = [label for _, label in scale_of(values, 0.0, 1.0).ticks]

    assert set(told) <= set(ticks)
    assert len(ticks) <= 12


def test_long_numbers_are_told_with_a_letter():
    assert [brief(value) for value in (250.0, 4e9, -1.5e6, 1e20)] == [
        "250",
        "4 G",
        "-1.5 M",
        "1e+20",
    ]
