"""Plots show what the traces tell, and say so where there is nothing to draw."""

from pathlib import Path

import numpy as np
import pytest

import cclsearch
from evaluator.traces.analysis.breakdown import job_split
from evaluator.traces.model import Activity, CollectiveKind, TraceSet
from evaluator.traces.testing import Span, rank_trace
from records.errors import StudyError
from search.traces.plots import bandwidth_figure, breakdown_figure, png, timeline_figure

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


def test_a_bar_is_as_long_as_its_step_and_there_is_one_more_for_the_mean():
    split = job_split(job(rank_count=3))

    (axes,) = breakdown_figure(split, "job").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        *("rank 0", "rank 1", "rank 2", "mean")
    ]
    ends = {round(patch.get_x() + patch.get_width(), 9) for patch in axes.patches}
    assert max(ends) == pytest.approx(split.mean.window_s * 1e3)


def test_of_a_thousand_ranks_the_first_are_drawn_and_the_rest_is_counted():
    (axes,) = breakdown_figure(job_split(job(rank_count=100)), "job").axes

    assert axes.get_title() == "job (36 more ranks)"


def test_ranks_share_a_time_axis_only_where_their_clocks_meet():
    (same,) = timeline_figure(job(), "job").axes
    (other,) = timeline_figure(job(shift_ns=10**9), "job").axes

    assert same.get_xlabel() == "ms"
    assert other.get_xlabel() == "ms, each rank from its own start"
    assert other.get_xlim()[1] < 1


def test_short_gaps_are_closed_so_that_a_picture_stays_small():
    starts = np.arange(0, 200_000, 2)
    spans = [Span(Activity.COMPUTE, int(start), int(start) + 1) for start in starts]
    traces = TraceSet(ranks=(rank_trace(spans, steps=((0, 0, 200_000),)),))

    (axes,) = timeline_figure(traces, "job").axes

    assert sum(len(collection.get_paths()) for collection in axes.collections) <= 4000


def test_every_kind_of_collective_has_its_mark():
    rows = [
        {"kind": kind, "bytes": size, "bus_bytes_per_s": 1e9}
        for kind in ("all_gather", "all_reduce")
        for size in (10, 1000)
    ]

    (axes,) = bandwidth_figure(rows, "job").axes

    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        *("all_gather (2)", "all_reduce (2)")
    ]


def test_a_name_that_looks_like_mathematics_is_drawn_as_it_is():
    figure = breakdown_figure(job_split(job()), r"$\frac{ $HOME \x1b[2J")

    assert png(figure).startswith(b"\x89PNG")


def test_where_there_is_nothing_to_draw_that_is_said():
    apart = TraceSet(
        ranks=(
            rank_trace([Span(Activity.COMPUTE, 0, 9)], rank=0, steps=[(1, 0, 9)]),
            rank_trace([Span(Activity.COMPUTE, 0, 9)], rank=1, steps=[(2, 0, 9)]),
        )
    )

    with pytest.raises(StudyError, match="job: no step was profiled on every traced rank"):
        breakdown_figure(job_split(apart), "job")
    with pytest.raises(StudyError, match="job: no step was profiled on every traced rank"):
        timeline_figure(apart, "job")
    with pytest.raises(StudyError, match="job: no collective has a known size and time"):
        bandwidth_figure([], "job")


def test_a_trace_draws_itself(tmp_path):
    trace = cclsearch.trace(TRACES / "gloo_ddp_2rank", use_cache=False)

    trace.plot_breakdown(tmp_path / "breakdown.png")
    trace.plot_timeline(str(tmp_path / "timeline.png"))
    trace.plot_bandwidth(tmp_path / "bandwidth.png")

    assert len(list(tmp_path.glob("*.png"))) == 3
