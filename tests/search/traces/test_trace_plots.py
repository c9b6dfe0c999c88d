"""Plots show what the traces tell, and say so where there is nothing to draw."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import cclsearch
from evaluator.traces.analysis.breakdown import job_split
from evaluator.traces.model import Activity, CollectiveKind, TraceSet
from evaluator.traces.testing import Span, rank_trace
from records.errors import StudyError
from search.traces.plots import bandwidth_chart, breakdown_chart, timeline_chart
from search.views.format import format_number

TRACES = Path(__file__).parents[2] / "data" / "traces"


def job(*, shift_ns=0, rank_count=2, steps=((0, 0, 100),)):
    """Ranks that compute half of a step and communicate in the other; rank 1 on another clock."""
    ranks = []
    for rank in range(rank_count):
        late = shift_ns * rank
        spans = [
            Span(Activity.COMPUTE, late, late + 50),
            Span(
                Activity.COMMUNICATION, late + 50, late + 100, collective=CollectiveKind.ALL_REDUCE
            ),
        ]
        shifted = [(number, start + late, end + late) for number, start, end in steps]
        ranks.append(rank_trace(spans, rank=rank, steps=shifted))
    return TraceSet(ranks=tuple(ranks))


def texts(chart):
    return [each.text for each in ElementTree.fromstring(chart).iter("text")]


def title(chart):
    return ElementTree.fromstring(chart).find("title").text


def test_there_is_a_bar_for_each_of_the_first_ranks_and_one_for_the_mean():
    split = job_split(job(rank_count=3))

    found = texts(breakdown_chart(split, "job"))

    names = [text for text in found if text.startswith("rank") or text == "mean"]
    assert names == ["rank 0", "rank 1", "rank 2", "mean"]
    assert f"{format_number(split.mean.window_s * 1e3)} ms" in found
    hundred = breakdown_chart(job_split(job(rank_count=100)), "</title><b>")
    assert title(hundred) == "</title><b> (36 more ranks)"


def test_ranks_share_a_time_axis_only_where_their_clocks_meet():
    assert "ms" in texts(timeline_chart(job(), "job"))
    assert "ms, each rank from its own start" in texts(timeline_chart(job(shift_ns=10**9), "job"))


def test_short_gaps_are_closed_so_that_a_picture_stays_small():
    starts = np.arange(0, 200_000, 2)
    spans = [Span(Activity.COMPUTE, int(start), int(start) + 1) for start in starts]
    traces = TraceSet(ranks=(rank_trace(spans, steps=((0, 0, 200_000),)),))

    assert len(timeline_chart(traces, "job")) < 100_000


def test_every_kind_of_collective_has_its_mark():
    rows = [
        {"kind": kind, "bytes": size, "bus_bytes_per_s": 1e9}
        for kind in ("all_gather", "all_reduce")
        for size in (10, 1000)
    ]

    chart = bandwidth_chart(rows, "job")

    assert {"all_gather (2)", "all_reduce (2)"} <= set(texts(chart))
    assert "all_reduce, 1 kB: 1 GB/s" in chart


def test_where_there_is_nothing_to_draw_that_is_said():
    apart = TraceSet(
        ranks=(
            rank_trace([Span(Activity.COMPUTE, 0, 9)], rank=0, steps=[(1, 0, 9)]),
            rank_trace([Span(Activity.COMPUTE, 0, 9)], rank=1, steps=[(2, 0, 9)]),
        )
    )

    for draw in (
        lambda: breakdown_chart(job_split(apart), "job"),
        lambda: timeline_chart(apart, "job"),
    ):
        with pytest.raises(StudyError, match="job: no step was profiled on every traced rank"):
            draw()
    with pytest.raises(StudyError, match="job: no collective has a known size and time"):
        bandwidth_chart([], "job")


def test_a_trace_draws_itself(tmp_path):
    trace = cclsearch.trace(TRACES / "gloo_ddp_2rank", use_cache=False)

    shown = trace.plot_breakdown(tmp_path / "breakdown.svg")
    trace.plot_timeline(str(tmp_path / "timeline.html"))

    assert shown._repr_svg_() == (tmp_path / "breakdown.svg").read_text()
    assert "<svg" in (tmp_path / "timeline.html").read_text()
