"""Who waits for whom, told by durations alone, against answers by hand and the known truth."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.metrics.base import Absent, Evidence
from evaluator.metrics.registry import metric
from evaluator.traces.analysis.breakdown import job_split
from evaluator.traces.analysis.collectives import match
from evaluator.traces.analysis.stragglers import imbalance, stragglers
from evaluator.traces.model import Activity, Alignment, CollectiveKind, RankGroup, TraceSet
from evaluator.traces.readers.read import read_traces
from evaluator.traces.testing import Span, rank_trace

SYNTHETIC = Path(__file__).parents[3] / "data" / "traces" / "synth_fsdp_4rank_straggler2"
REDUCE = CollectiveKind.ALL_REDUCE


def call(start, end, kind=REDUCE, group=None):
    return Span(
        Activity.COMMUNICATION,
        start,
        end,
        collective=kind,
        group=group or RankGroup("0", (0, 1, 2)),
        payload_bytes=8,
    )


def compute(start, end):
    return Span(Activity.COMPUTE, start, end, lane=1)


def job(*spans_of_rank, steps=((0, 0, 100),), **changed):
    traces = TraceSet(
        ranks=tuple(
            rank_trace(spans, steps=steps, rank=rank) for rank, spans in enumerate(spans_of_rank)
        )
    )
    return replace(traces, **changed)


def found(traces):
    return stragglers(traces, match(traces))


def measured(name, traces):
    return metric(name).measure(Evidence(traces=traces))


# Who it is and what it costs.


def test_the_rank_that_is_in_a_collective_shortest_came_last():
    told = found(job([call(0, 30)], [call(20, 30)], [call(5, 30)]))
    assert told.straggler == 1
    assert [row.last_share for row in told.ranks] == [0, 1, 0]
    assert [row.caused_wait_s for row in told.ranks] == [0, pytest.approx(35e-9), 0]
    assert [row.waited_s for row in told.ranks] == pytest.approx([20e-9, 0, 15e-9])
    assert told.waiting_share == pytest.approx(35 / 200)


def test_shares_are_of_the_collectives_that_a_rank_joins():
    pair = RankGroup("1", (0, 1))
    told = found(
        job(
            [call(0, 30), call(40, 45, group=pair)],
            [call(20, 30), call(35, 45, group=pair)],
            [call(5, 30)],
        )
    )
    assert [row.last_share for row in told.ranks] == [0.5, 0.5, 0]
    assert [row.collective_count for row in told.ranks] == [2, 2, 1]
    assert [row.chance_share for row in told.ranks] == pytest.approx([5 / 12, 5 / 12, 1 / 3])
    assert told.straggler == 1


def test_costs_are_per_step():
    spans = [[call(0, 30), call(100, 130)], [call(20, 30), call(110, 130)]]
    told = found(job(*spans, steps=((1, 0, 100), (2, 100, 200))))
    assert told.step_count == 2
    assert told.ranks[1].caused_wait_s == pytest.approx(15e-9)


def test_ranks_that_tie_share_being_last():
    told = found(job([call(0, 30)], [call(20, 30)], [call(20, 30)]))
    assert [row.last_share for row in told.ranks] == [0, 0.5, 0.5]


def test_where_nobody_waits_nobody_straggles():
    told = found(job(*[[call(0, 30)]] * 3))
    assert told.straggler is None
    assert told.waiting_share == 0


def test_waits_at_once_are_one_time_of_the_step():
    other = RankGroup("1", (0, 1))
    told = found(
        job(
            [call(0, 50), replace(call(10, 50, group=other), lane=1)],
            [call(40, 50), replace(call(40, 50, group=other), lane=1)],
        )
    )
    assert told.ranks[0].waited_s == pytest.approx(70e-9)
    assert told.waiting_share == pytest.approx(0.4)


def test_waiting_under_compute_costs_nothing():
    told = found(job([call(0, 50), compute(0, 30)], [call(40, 50), compute(0, 40)]))
    assert told.waiting_share == pytest.approx(0.4)
    assert told.exposed_share == pytest.approx(0.1)
    assert measured("straggler", job([call(0, 50)], [call(40, 50)], [call(40, 50)])) == (
        pytest.approx(0.2)
    )


def test_a_barrier_tells_and_a_broadcast_does_not():
    short, long = [call(20, 30, CollectiveKind.BARRIER)], [call(0, 30, CollectiveKind.BARRIER)]
    assert found(job(short, long)).straggler == 0
    rooted = [call(20, 30, CollectiveKind.BROADCAST)], [call(0, 30, CollectiveKind.BROADCAST)]
    assert found(job(*rooted)) is None


def test_without_marked_steps_the_whole_trace_is_looked_at():
    told = found(job([call(0, 30)], [call(20, 30)], [call(5, 30)], steps=()))
    assert told.straggler == 1
    assert told.step_count == 1


def test_steps_that_one_rank_did_not_profile_do_not_count():
    long = rank_trace([call(0, 30), call(120, 130)], steps=((1, 0, 100), (2, 100, 200)))
    short = rank_trace([call(20, 30)], steps=((1, 0, 100),), rank=1)
    assert found(TraceSet(ranks=(long, short))).collective_count == 1


# By start times.


def test_start_times_say_nothing_of_ranks_with_clocks_of_their_own():
    told = found(job([call(0, 30)], [call(20, 30)], [call(5, 30)]))
    assert {row.latest_start_share for row in told.ranks} == {None}
    assert {row.mean_lateness_s for row in told.ranks} == {None}


def test_on_one_clock_the_last_to_start_is_told_too():
    alignment = Alignment(offsets_ns=(0, 0, 0), residual_ns=0, matched_count=9)
    told = found(job([call(0, 30)], [call(20, 30)], [call(5, 30)], alignment=alignment))
    assert [row.latest_start_share for row in told.ranks] == [0, 1, 0]
    assert [row.mean_lateness_s for row in told.ranks] == pytest.approx([0, 20e-9, 5e-9])


# No answer.


@pytest.mark.parametrize(
    ("traces", "words"),
    [
        (None, "nothing was profiled"),
        (job([call(0, 30)]), "takes two"),
        (job([], []), "no collective ran"),
        (job([call(0, 30)], []), "1 are not equally many on all ranks"),
        (job([call(0, 30)], [call(9, 30)]), "in the traces of all ranks"),
    ],
)
def test_a_straggler_needs_ranks_to_compare(traces, words):
    answer = measured("straggler", traces)
    assert isinstance(answer, Absent)
    assert words in answer.reason


@pytest.mark.parametrize(
    ("traces", "words"),
    [
        (None, "nothing was profiled"),
        (job([compute(0, 30)]), "takes two"),
        (job([compute(0, 30)], [call(0, 30)]), "computes nothing"),
    ],
)
def test_an_imbalance_needs_ranks_that_compute(traces, words):
    answer = measured("load_imbalance_ratio", traces)
    assert isinstance(answer, Absent)
    assert words in answer.reason


# Imbalance.


def test_imbalance_is_of_compute_and_not_of_waiting():
    told = imbalance(
        job_split(job([compute(0, 20), call(20, 100)], [compute(0, 80), call(80, 100)]))
    )
    assert told.max_over_min == pytest.approx(4)
    assert told.max_over_mean == pytest.approx(1.6)
    assert told.busiest == 1


# Whatever is asked of all.

durations = st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=1, max_size=8)


def by_durations(rows):
    return job(
        *(
            [call(50 * place, 50 * place + row[rank]) for place, row in enumerate(rows)]
            for rank in range(3)
        ),
        steps=((0, 0, 1000),),
    )


@given(durations)
def test_what_is_caused_is_what_is_waited_and_never_negative(rows):
    told = found(by_durations(rows))
    caused = [row.caused_wait_s for row in told.ranks]
    waited = [row.waited_s for row in told.ranks]
    assert min(caused) >= 0
    assert min(waited) >= 0
    assert sum(caused) == pytest.approx(sum(waited), abs=1e-15)
    assert sum(row.last_share for row in told.ranks) == pytest.approx(1)
    assert 0 <= told.exposed_share <= told.waiting_share <= 1


@given(durations, st.lists(st.integers(-(10**12), 10**12), min_size=3, max_size=3))
def test_the_clocks_of_ranks_do_not_matter(rows, offsets):
    traces = by_durations(rows)
    skewed = TraceSet(
        ranks=tuple(t.shifted(offset) for t, offset in zip(traces.ranks, offsets, strict=True))
    )
    assert found(skewed) == found(traces)


# Files whose answer is known.


def test_the_generator_agrees_on_the_straggler_and_its_cost():
    truth = json.loads((SYNTHETIC / "truth.json").read_text())["ranks"]
    traces = read_traces(sorted(SYNTHETIC.glob("rank*_trace.json.gz")))
    told = found(traces)
    communication_ns = [
        sum(kind["total_dur"] for kind in truth[str(rank)]["collectives"].values())
        for rank in range(4)
    ]
    assert told.straggler == 2
    assert told.collective_count == 90
    for rank in (0, 1, 3):
        expected_s = (communication_ns[rank] - communication_ns[2]) / 5 / 1e9
        assert told.ranks[rank].waited_s == pytest.approx(expected_s, rel=1e-3)
    assert measured("load_imbalance_ratio", traces) == pytest.approx(1.248, rel=1e-3)
    exposed = [truth[str(rank)]["gpu_window"] for rank in (0, 1, 3)]
    bound = sum(row["exposed_comm"] for row in exposed) / sum(row["wall"] for row in exposed)
    assert bound / 2 < measured("straggler", traces) < bound
