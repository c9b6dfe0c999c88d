"""Clocks are brought together by matched collectives, and left alone where these tell nothing."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.traces.analysis.stragglers import align_clocks
from evaluator.traces.model import Activity, CollectiveKind, Device, RankGroup, TraceSet
from evaluator.traces.testing import ALL, Span, rank_trace

US, MS, SECOND = 1000, 1_000_000, 1_000_000_000
EPOCH = 1_790_000_000 * SECOND
REDUCE, TO_ALL = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL


def job(world_size, count=8, *, groups=None, jitter_ns=0, **told):
    """Ranks of one clock: collectives that end together, one after the other in each group."""
    groups = groups or [RankGroup(ALL.name, tuple(range(world_size)), world_size)]
    spans = [[] for _ in range(world_size)]
    for number, (turn, group) in enumerate(product(range(count), groups)):
        end_ns = EPOCH + (number + 1) * MS
        for rank in group.ranks:
            end = end_ns + ((rank * 7 + turn * 3) % 5 - 2) * jitter_ns
            started = end - (50 + 10 * rank) * US
            spans[rank].append(communication(started, end, group))
    steps = [(0, EPOCH, EPOCH + 10_000 * MS)]
    told = {"device": Device(name="one"), "backend": "nccl", "world_size": world_size} | told
    ranks = (rank_trace(own, steps=steps, rank=rank, **told) for rank, own in enumerate(spans))
    return TraceSet(ranks=tuple(ranks))


def communication(start_ns, end_ns, group, kind=REDUCE):
    return Span(
        Activity.COMMUNICATION, start_ns, end_ns, collective=kind, group=group, payload_bytes=1000
    )


def shifted(traces, ahead_ns):
    ranks = (trace.shifted(ahead) for trace, ahead in zip(traces.ranks, ahead_ns, strict=True))
    return replace(traces, ranks=tuple(ranks))


def starts(traces):
    return [trace.spans.start_ns.tolist() for trace in traces.ranks]


def clocks_apart_ns(before, after):
    """What is left of what each clock was apart from that of rank 0."""
    pairs = zip(before.ranks, after.ranks, strict=True)
    apart = [b.spans.start_ns[0] - a.spans.start_ns[0] for a, b in pairs]
    return [int(each - apart[0]) for each in apart]


def test_clocks_that_agree_stay_as_they_are():
    traces = job(4)
    found = align_clocks(traces)
    assert starts(found) == starts(traces)
    assert found.alignment.offsets_ns == (0, 0, 0, 0)
    assert found.alignment.residual_ns == 0
    assert found.alignment.matched_count == 8


@given(st.lists(st.integers(-3600 * SECOND, 3600 * SECOND), min_size=4, max_size=4))
def test_whatever_clocks_are_apart_is_undone(ahead_ns):
    traces = job(4)
    found = align_clocks(shifted(traces, ahead_ns))
    # Collectives that all end in whole microseconds may be off by a part of one.
    assert np.ptp(clocks_apart_ns(traces, found)) <= 4 * US
    assert found.alignment.residual_ns <= 4 * US


def test_the_clock_of_most_ranks_is_kept():
    found = align_clocks(shifted(job(4), [0, 0, 250 * US, 0]))
    assert found.alignment.offsets_ns == (0, 0, -250 * US, 0)


def test_one_of_two_clocks_is_kept():
    found = align_clocks(shifted(job(2), [0, 3 * SECOND]))
    assert sorted(found.alignment.offsets_ns) == [-3 * SECOND, 0]


def test_noise_of_the_ends_is_the_residual_and_moves_no_rank():
    found = align_clocks(job(4, jitter_ns=5 * US))
    assert found.alignment.offsets_ns == (0, 0, 0, 0)
    assert 5 * US <= found.alignment.residual_ns <= 20 * US


@given(st.lists(st.integers(-9 * US, 9 * US), min_size=4, max_size=4))
def test_offsets_of_microseconds_are_undone_where_many_collectives_agree(ahead_ns):
    traces = job(4, count=100, jitter_ns=300)
    found = align_clocks(shifted(traces, ahead_ns))
    assert np.ptp(clocks_apart_ns(traces, found)) <= 2 * US


def test_what_only_collectives_of_one_kind_show_is_no_offset_of_a_clock():
    kinds = (REDUCE, CollectiveKind.ALL_GATHER)
    group = RankGroup(ALL.name, (0, 1), 2)
    spans = [
        [
            communication(at, at + 50 * US + later, group, kind)
            for turn in range(40)
            for at, kind in [(EPOCH + turn * MS, kinds[turn % 2])]
            for later in [rank * 5 * US * (kind == REDUCE) + turn % 3]
        ]
        for rank in (0, 1)
    ]
    told = {"device": Device(name="one"), "steps": [(0, EPOCH, EPOCH + SECOND)]}
    ranks = tuple(rank_trace(own, rank=rank, **told) for rank, own in enumerate(spans))
    assert align_clocks(TraceSet(ranks=ranks)).alignment.offsets_ns == (0, 0)


def test_ranks_of_one_host_are_shifted_alike():
    traces = shifted(job(8, count=40, jitter_ns=2 * US), [0] * 5 + [400 * US] * 3)
    found = align_clocks(traces)
    assert found.alignment.offsets_ns[:5] == (0,) * 5
    assert len(set(found.alignment.offsets_ns[5:])) == 1
    assert found.alignment.offsets_ns[5] == pytest.approx(-400 * US, abs=5 * US)


def test_ranks_that_are_known_to_share_a_clock_are_one():
    within_us = [0, 22, 0, 22]  # the one rank always ends later than the other
    traces = shifted(job(4), [ahead * US for ahead in within_us])
    assert align_clocks(traces, clocks=[0, 0, 0, 0]) is traces
    found = align_clocks(shifted(traces, [0, 0, SECOND, SECOND]), clocks=[0, 0, 1, 1])
    assert found.alignment.offsets_ns == (0, 0, -SECOND, -SECOND)
    assert found.alignment.residual_ns == 22 * US


def test_few_groups_between_hosts_outweigh_many_within_them():
    within = [RankGroup("tp0", (0, 1), 2), RankGroup("tp1", (2, 3), 2)]
    between = [RankGroup("dp0", (0, 2), 2), RankGroup("dp1", (1, 3), 2)]
    traces = job(4, groups=within * 5 + between)
    found = align_clocks(shifted(traces, [0, 0, 700 * US, 700 * US]))
    assert found.alignment.offsets_ns == (0, 0, -700 * US, -700 * US)


def test_offsets_carry_over_ranks_that_share_no_group():
    chain = [RankGroup("a", (0, 1), 2), RankGroup("b", (1, 2), 2), RankGroup("c", (2, 3), 2)]
    ahead_ns = [0, 100 * US, 300 * US, 600 * US]
    found = align_clocks(shifted(job(4, groups=chain), ahead_ns))
    assert np.diff(found.alignment.offsets_ns).tolist() == [-100 * US, -200 * US, -300 * US]


def test_hosts_that_nothing_connects_keep_their_clocks():
    apart = [RankGroup("tp0", (0, 1), 2), RankGroup("tp1", (2, 3), 2)]
    found = align_clocks(shifted(job(4, groups=apart), [0, 0, 700 * US, 700 * US]))
    assert found.alignment.offsets_ns == (0, 0, 0, 0)


def test_a_rank_that_shares_no_collective_keeps_its_clock():
    traces = job(3, groups=[RankGroup("most", (0, 1), 2)])
    found = align_clocks(shifted(traces, [0, 250 * US, 250 * US]))
    assert found.alignment.offsets_ns[2] == 0


@pytest.mark.parametrize(
    "traces",
    [
        job(1),
        job(2, count=4),
        job(2, backend="gloo"),
        job(2, backend="cpu:gloo,cuda:nccl"),
        job(2, device=None, backend=None),
    ],
    ids=["one rank", "few matches", "gloo", "gloo beside nccl", "on the host"],
)
def test_where_nothing_tells_of_clocks_nothing_is_done(traces):
    found = align_clocks(shifted(traces, [90 * US] * len(traces.ranks)))
    assert found.alignment is None
    assert starts(found) == starts(shifted(traces, [90 * US] * len(traces.ranks)))


def test_transfers_and_broadcasts_tell_of_no_clock():
    group = RankGroup(ALL.name, (0, 1), 2)
    kinds = (CollectiveKind.SEND_RECV, CollectiveKind.BROADCAST, CollectiveKind.BARRIER)
    spans = [
        communication(EPOCH + number * MS, EPOCH + number * MS + US, group, kind)
        for number, kind in enumerate(kinds * 10)
    ]
    told = {"device": Device(name="one"), "steps": [(0, EPOCH, EPOCH + SECOND)]}
    traces = TraceSet(ranks=tuple(rank_trace(spans, rank=rank, **told) for rank in (0, 1)))
    assert align_clocks(traces).alignment is None


def test_durations_and_windows_move_with_the_clock():
    traces = job(2)
    found = align_clocks(shifted(traces, [0, SECOND]))
    one = found.ranks[1]
    assert one.steps.start_ns[0] - one.spans.start_ns[0] == (
        traces.ranks[1].steps.start_ns[0] - traces.ranks[1].spans.start_ns[0]
    )
    assert one.spans.duration_ns.tolist() == traces.ranks[1].spans.duration_ns.tolist()
