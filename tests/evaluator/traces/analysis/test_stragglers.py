"""Clocks brought together by matched collectives, and who waits for whom by durations alone."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.traces.analysis.breakdown import job_split
from evaluator.traces.analysis.collectives import match
from evaluator.traces.analysis.stragglers import align_clocks, imbalance, stragglers
from evaluator.traces.model import Activity, Alignment, CollectiveKind, Device, RankGroup, TraceSet
from evaluator.traces.testing import Span, rank_trace
from tests.support.traces import PAIR, communication, job, named_cases, value_of

REDUCE = CollectiveKind.ALL_REDUCE
THREE = RankGroup("0", (0, 1, 2))


def call(start, end, kind=REDUCE, group=THREE):
    return communication(kind, start, end, group)


def compute(start, end):
    return Span(Activity.COMPUTE, start, end, lane=1)


def found(traces):
    return stragglers(traces, match(traces))


@pytest.mark.parametrize("steps", [((0, 0, 100),), ()], ids=["in a step", "without steps"])
def test_the_rank_that_is_in_a_collective_shortest_came_last(steps):
    told = found(job([call(0, 30)], [call(20, 30)], [call(5, 30)], steps=steps))
    assert (told.straggler, told.step_count) == (1, 1)
    assert [row.last_share for row in told.ranks] == [0, 1, 0]
    assert [row.caused_wait_s for row in told.ranks] == [0, pytest.approx(35e-9), 0]
    assert [row.waited_s for row in told.ranks] == pytest.approx([20e-9, 0, 15e-9])


def test_shares_are_of_the_collectives_that_a_rank_joins_and_waits_at_once_one_time():
    late = [call(20, 30), call(35, 45, group=PAIR)]
    told = found(job([call(0, 30), call(40, 45, group=PAIR)], late, [call(5, 30)]))
    assert [row.last_share for row in told.ranks] == [0.5, 0.5, 0]
    assert [row.collective_count for row in told.ranks] == [2, 2, 1]
    assert [row.chance_share for row in told.ranks] == pytest.approx([5 / 12, 5 / 12, 1 / 3])
    early = [call(0, 50, group=PAIR), replace(call(10, 50, group=PAIR), lane=1)]
    told = found(job(early, [replace(each, start_ns=40) for each in early]))
    assert told.ranks[0].waited_s == pytest.approx(70e-9)
    assert told.waiting_share == pytest.approx(0.4)


def test_barriers_and_common_steps_tell_and_broadcasts_do_not():
    ends = [call(20, 30, CollectiveKind.BARRIER)], [call(0, 30, CollectiveKind.BARRIER)]
    assert found(job(*ends)).straggler == 0
    rooted = [call(20, 30, CollectiveKind.BROADCAST)], [call(0, 30, CollectiveKind.BROADCAST)]
    assert found(job(*rooted)) is None
    long = rank_trace([call(0, 30), call(120, 130)], steps=((1, 0, 100), (2, 100, 200)))
    short = rank_trace([call(20, 30)], steps=((1, 0, 100),), rank=1)
    assert found(TraceSet(ranks=(long, short))).collective_count == 1


def test_costs_are_per_step_and_shares_of_the_time_in_steps():
    spans = [[call(0, 30), call(100, 130)], [call(20, 30), call(110, 130)]]
    told = found(job(*spans, steps=((1, 0, 100), (2, 100, 200))))
    assert told.ranks[1].caused_wait_s == pytest.approx(15e-9)
    assert told.waiting_share == pytest.approx(30 / 200)


@pytest.mark.parametrize(
    ("starts", "shares", "straggler"),
    [((0, 20, 20), [0, 0.5, 0.5], 1), ((0, 0, 0), [1 / 3] * 3, None)],
    ids=["two are last", "nobody waits"],
)
def test_ranks_that_tie_share_being_last(starts, shares, straggler):
    told = found(job(*([call(start, 30)] for start in starts)))
    assert [row.last_share for row in told.ranks] == pytest.approx(shares)
    assert told.straggler == straggler


def test_waiting_under_compute_costs_nothing():
    told = found(job([call(0, 50), compute(0, 30)], [call(40, 50), compute(0, 40)]))
    assert told.waiting_share == pytest.approx(0.4)
    assert told.exposed_share == pytest.approx(0.1)
    ranks = job([call(0, 50)], [call(40, 50)], [call(40, 50)])
    assert value_of("straggler", ranks) == pytest.approx(0.2)


def test_start_times_tell_the_last_on_one_clock_only():
    traces = job([call(0, 30)], [call(20, 30)], [call(5, 30)])
    apart = found(traces).ranks
    assert {(row.latest_start_share, row.mean_lateness_s) for row in apart} == {(None, None)}
    alignment = Alignment(offsets_ns=(0, 0, 0), residual_ns=0, matched_count=9)
    together = found(replace(traces, alignment=alignment)).ranks
    assert [row.latest_start_share for row in together] == [0, 1, 0]
    assert [row.mean_lateness_s for row in together] == pytest.approx([0, 20e-9, 5e-9])


@pytest.mark.parametrize(
    ("name", "traces", "words"),
    [
        ("straggler", None, "nothing was profiled"),
        ("straggler", job([call(0, 30)]), "takes two"),
        ("straggler", job([], []), "no collective ran"),
        ("straggler", job([call(0, 30)], []), "1 are not equally many on all ranks"),
        ("straggler", job([call(0, 30)], [call(9, 30)]), "in the traces of all ranks"),
        ("load_imbalance_ratio", None, "nothing was profiled"),
        ("load_imbalance_ratio", job([compute(0, 30)]), "takes two"),
        ("load_imbalance_ratio", job([compute(0, 30)], [call(0, 30)]), "computes nothing"),
    ],
)
def test_what_compares_ranks_needs_ranks_to_compare(name, traces, words):
    assert words in value_of(name, traces)


def test_imbalance_is_of_compute_and_not_of_waiting():
    told = imbalance(
        job_split(job([compute(0, 20), call(20, 100)], [compute(0, 80), call(80, 100)]))
    )
    assert told.max_over_min == pytest.approx(4)
    assert told.max_over_mean == pytest.approx(1.6)
    assert told.busiest == 1


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


US, MS, SECOND = 1000, 1_000_000, 1_000_000_000
EPOCH = 1_790_000_000 * SECOND
REDUCE = CollectiveKind.ALL_REDUCE
ON_DEVICES = {
    "device": Device(name="one"),
    "backend": "nccl",
    "steps": [(0, EPOCH, EPOCH + 10_000 * MS)],
}


def job_on_one_clock(world_size, count=8, *, groups=None, jitter_ns=0, **told):
    """Ranks whose collectives end together, one after the other in each group."""
    groups = groups or [RankGroup("0", tuple(range(world_size)), world_size)]
    spans = [[] for _ in range(world_size)]
    for number, (turn, group) in enumerate(product(range(count), groups)):
        end_ns = EPOCH + (number + 1) * MS
        for rank in group.ranks:
            end = end_ns + ((rank * 7 + turn * 3) % 5 - 2) * jitter_ns
            start = end - (50 + 10 * rank) * US
            spans[rank].append(communication(REDUCE, start, end, group, 1000))
    return job(*spans, **(ON_DEVICES | {"world_size": world_size} | told))


def skewed(traces, ahead_ns):
    ranks = (trace.shifted(ahead) for trace, ahead in zip(traces.ranks, ahead_ns, strict=True))
    return replace(traces, ranks=tuple(ranks))


def clocks_apart_ns(before, after):
    """What is left of what each clock was apart from that of rank 0."""
    pairs = zip(before.ranks, after.ranks, strict=True)
    apart = [b.spans.start_ns[0] - a.spans.start_ns[0] for a, b in pairs]
    return [int(each - apart[0]) for each in apart]


def test_clocks_that_agree_stay_as_they_are():
    traces = job_on_one_clock(4)
    found = align_clocks(traces)
    assert found.ranks == traces.ranks
    assert found.alignment == Alignment(offsets_ns=(0, 0, 0, 0), residual_ns=0, matched_count=8)


TP = [RankGroup("tp0", (0, 1), 2), RankGroup("tp1", (2, 3), 2)]
DP = [RankGroup("dp0", (0, 2), 2), RankGroup("dp1", (1, 3), 2)]
CHAIN = [RankGroup("a", (0, 1), 2), RankGroup("b", (1, 2), 2), RankGroup("c", (2, 3), 2)]


@named_cases(
    ("groups", "ahead_us", "offsets_us"),
    {
        "the clock of most ranks is kept": (None, [0, 0, 250, 0], [0, 0, -250, 0]),
        "one of two clocks is kept": (None, [0, 3_000_000], [0, -3_000_000]),
        "few groups between hosts outweigh many within them": (
            TP * 5 + DP,
            [0, 0, 700, 700],
            [0, 0, -700, -700],
        ),
        "offsets carry over ranks that share no group": (
            CHAIN,
            [0, 100, 300, 600],
            [100, 0, -200, -500],
        ),
        "hosts that nothing connects keep their clocks": (TP, [0, 0, 700, 700], [0, 0, 0, 0]),
        "a rank that shares no collective keeps its clock": (TP[:1], [0, 250, 250], [0, -250, 0]),
    },
)
def test_offsets_are_against_the_clock_of_most(groups, ahead_us, offsets_us):
    traces = job_on_one_clock(len(ahead_us), groups=groups)
    found = align_clocks(skewed(traces, [US * ahead for ahead in ahead_us]))
    assert found.alignment.offsets_ns == tuple(US * offset for offset in offsets_us)


@given(st.lists(st.integers(-3600 * SECOND, 3600 * SECOND), min_size=4, max_size=4))
def test_whatever_clocks_are_apart_is_undone(ahead_ns):
    traces = job_on_one_clock(4)
    found = align_clocks(skewed(traces, ahead_ns))
    # Collectives that all end in whole microseconds may be off by a part of one.
    assert np.ptp(clocks_apart_ns(traces, found)) <= 4 * US
    assert found.alignment.residual_ns <= 4 * US


def test_noise_of_the_ends_is_the_residual_and_moves_no_rank():
    found = align_clocks(job_on_one_clock(4, jitter_ns=5 * US))
    assert found.alignment.offsets_ns == (0, 0, 0, 0)
    assert 5 * US <= found.alignment.residual_ns <= 20 * US


@given(st.lists(st.integers(-9 * US, 9 * US), min_size=4, max_size=4))
def test_offsets_of_microseconds_are_undone_where_many_collectives_agree(ahead_ns):
    traces = job_on_one_clock(4, count=100, jitter_ns=300)
    found = align_clocks(skewed(traces, ahead_ns))
    assert np.ptp(clocks_apart_ns(traces, found)) <= 2 * US


def test_what_only_collectives_of_one_kind_show_is_no_offset_of_a_clock():
    kinds = (REDUCE, CollectiveKind.ALL_GATHER)
    spans = [
        [
            communication(kind, at, at + 50 * US + later, size=1000)
            for turn in range(40)
            for at, kind in [(EPOCH + turn * MS, kinds[turn % 2])]
            for later in [rank * 5 * US * (kind == REDUCE) + turn % 3]
        ]
        for rank in (0, 1)
    ]
    assert align_clocks(job(*spans, **ON_DEVICES)).alignment.offsets_ns == (0, 0)


def test_ranks_of_one_host_are_shifted_alike():
    traces = skewed(job_on_one_clock(8, count=40, jitter_ns=2 * US), [0] * 5 + [400 * US] * 3)
    found = align_clocks(traces)
    assert found.alignment.offsets_ns[:5] == (0,) * 5
    assert len(set(found.alignment.offsets_ns[5:])) == 1
    assert found.alignment.offsets_ns[5] == pytest.approx(-400 * US, abs=5 * US)


def test_ranks_that_are_known_to_share_a_clock_are_one():
    within_us = [0, 22, 0, 22]  # the one rank always ends later than the other
    traces = skewed(job_on_one_clock(4), [ahead * US for ahead in within_us])
    assert align_clocks(traces, clocks=[0, 0, 0, 0]) is traces
    found = align_clocks(skewed(traces, [0, 0, SECOND, SECOND]), clocks=[0, 0, 1, 1])
    assert found.alignment.offsets_ns == (0, 0, -SECOND, -SECOND)
    assert found.alignment.residual_ns == 22 * US


ROOTED = [
    communication(kind, EPOCH + number * MS, EPOCH + number * MS + US)
    for number, kind in enumerate(
        (CollectiveKind.SEND_RECV, CollectiveKind.BROADCAST, CollectiveKind.BARRIER) * 10
    )
]


@named_cases(
    "traces",
    {
        "one rank": job_on_one_clock(1),
        "few matches": job_on_one_clock(2, count=4),
        "gloo": job_on_one_clock(2, backend="gloo"),
        "gloo beside nccl": job_on_one_clock(2, backend="cpu:gloo,cuda:nccl"),
        "on the host": job_on_one_clock(2, device=None, backend=None),
        "no such kind": job(ROOTED, ROOTED, **ON_DEVICES),
    },
)
def test_where_nothing_tells_of_clocks_nothing_is_done(traces):
    traces = skewed(traces, [90 * US] * len(traces.ranks))
    assert align_clocks(traces) is traces
