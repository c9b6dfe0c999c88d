"""Collectives of all ranks are joined into instances, or counted where that would be a guess."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.traces.analysis.collectives import NoMatch, match
from evaluator.traces.model import Activity, CollectiveKind, RankGroup, TraceSet
from evaluator.traces.testing import Span, rank_trace

REDUCE, GATHER, BARRIER = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.BARRIER,
)
SEND, RECV = CollectiveKind.SEND, CollectiveKind.RECV
WORLD = RankGroup("0", (0, 1), 2)


def call(kind, start, end, group=WORLD, size=8, sequence=-1, correlation=0):
    return Span(
        Activity.COMMUNICATION,
        start,
        end,
        collective=kind,
        group=group,
        payload_bytes=size,
        sequence=sequence,
        correlation=correlation,
    )


def job(*calls_of_rank, steps=((0, 0, 100),), world_size=None, ranks=None):
    numbers = range(len(calls_of_rank)) if ranks is None else ranks
    return TraceSet(
        ranks=tuple(
            rank_trace(calls, steps=steps, rank=rank, world_size=world_size)
            for rank, calls in zip(numbers, calls_of_rank, strict=True)
        )
    )


def rows(traces):
    return match(traces).row.tolist()


# What is one instance.


def test_the_kth_of_a_kind_in_a_step_is_one_instance_on_all_ranks():
    found = match(
        job(
            [call(REDUCE, 0, 9), call(GATHER, 10, 19), call(REDUCE, 20, 29)],
            [call(REDUCE, 5, 9), call(GATHER, 15, 19), call(REDUCE, 28, 29)],
        )
    )
    assert found.row.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert found.kind.tolist() == [REDUCE, GATHER, REDUCE]
    assert found.bytes.tolist() == [8, 8, 8]
    assert found.step.tolist() == [0, 0, 0]
    assert found.complete.all()
    assert found.unmatched() == {}


def test_a_number_joins_what_order_would_not():
    found = rows(
        job(
            [call(REDUCE, 0, 9, sequence=4), call(REDUCE, 10, 19, sequence=5)],
            [call(REDUCE, 0, 9, sequence=5), call(REDUCE, 10, 19, sequence=6)],
        )
    )
    assert found == [[0, -1], [1, 0], [-1, 1]]


def test_a_number_that_a_rank_uses_twice_is_not_guessed_at():
    once, twice = [call(REDUCE, 0, 9, sequence=4)], [call(REDUCE, i, 9, sequence=4) for i in (0, 5)]
    assert match(job(once, twice)).unmatched() == {NoMatch.EQUAL_COUNT: 3}


def test_barriers_are_instances():
    assert rows(job([call(BARRIER, 0, 9, size=0)], [call(BARRIER, 3, 9, size=0)])) == [[0, 0]]


def test_groups_of_one_name_with_other_ranks_are_apart():
    left, right = RankGroup("1", (0, 1)), RankGroup("1", (2, 3))
    found = match(job(*([call(REDUCE, 0, 9, group=group)] for group in (left, left, right, right))))
    assert found.row.tolist() == [[0, 0, -1, -1], [-1, -1, 0, 0]]
    assert [found.groups[i].ranks for i in found.group_id] == [(0, 1), (2, 3)]
    assert found.complete.all()


def test_a_rank_that_left_no_trace_leaves_instances_incomplete():
    group = RankGroup("0", (0, 1, 2))
    found = match(
        job(*([call(REDUCE, 0, 9, group=group)] for _ in range(2)), ranks=(0, 2), world_size=3)
    )
    assert found.row.tolist() == [[0, 0]]
    assert found.group_size.tolist() == [3]
    assert not found.complete.any()


def test_a_group_of_which_only_the_name_is_told_is_all_ranks_that_name_it():
    found = match(
        job(*([call(REDUCE, 0, 9, group=RankGroup("a"))] for _ in range(3)), world_size=3)
    )
    assert found.row.tolist() == [[0, 0, 0]]
    assert found.group_size.tolist() == [0]
    assert not found.complete.any()


def test_in_a_world_of_two_every_group_is_both_ranks():
    found = match(job(*([call(REDUCE, 0, 9, group=RankGroup(""))] for _ in range(2)), world_size=2))
    assert found.group_size.tolist() == [2]


def test_a_collective_belongs_to_the_step_that_launched_it():
    def rank(start):
        return rank_trace(
            [
                Span(Activity.LAUNCH, 90, 95, correlation=7),
                call(REDUCE, start, start + 10, correlation=7),
            ],
            steps=((1, 0, 100), (2, 100, 200)),
            rank=0 if start < 100 else 1,
        )

    found = match(TraceSet(ranks=(rank(96), rank(103))))
    assert found.row.tolist() == [[0, 0]]
    assert found.step.tolist() == [1]


# What would be a guess.


def test_a_profile_that_begins_amid_a_step_loses_that_step_only():
    whole = [call(REDUCE, at, at + 5) for at in (10, 30, 110, 130)]
    found = match(job(whole, whole[1:], steps=((1, 0, 100), (2, 100, 200))))
    assert found.row.tolist() == [[2, 1], [3, 2]]
    assert found.unmatched() == {NoMatch.EQUAL_COUNT: 3}


def test_one_kind_too_many_does_not_unmatch_the_others():
    found = match(job([call(REDUCE, 0, 9), call(GATHER, 10, 19)], [call(REDUCE, 0, 9)]))
    assert found.kind.tolist() == [REDUCE]
    assert found.unmatched() == {NoMatch.EQUAL_COUNT: 1}


def test_what_is_not_of_one_size_is_not_one_all_reduce():
    found = match(
        job(
            [call(REDUCE, 0, 9, size=1), call(REDUCE, 10, 19, size=2)],
            [call(REDUCE, 0, 9, size=2), call(REDUCE, 10, 19, size=1)],
        )
    )
    assert found.count == 0
    assert found.unmatched() == {NoMatch.EQUAL_BYTES: 4}


def test_a_size_that_one_rank_does_not_tell_is_that_of_the_others():
    found = match(job([call(REDUCE, 0, 9, size=0)], [call(REDUCE, 0, 9, size=6)]))
    assert found.bytes.tolist() == [6]


def test_ranks_of_an_all_to_all_may_send_unequally_much():
    kind = CollectiveKind.ALL_TO_ALL
    assert match(job([call(kind, 0, 9, size=1)], [call(kind, 0, 9, size=6)])).bytes.tolist() == [6]


def test_collectives_outside_all_steps_are_counted():
    found = match(job(*([call(REDUCE, 300, 309)] for _ in range(2))))
    assert found.count == 0
    assert found.unmatched() == {NoMatch.STEP: 2}


def test_without_steps_the_whole_trace_is_one():
    assert rows(job(*([call(REDUCE, 300, 309)] for _ in range(2)), steps=())) == [[0, 0]]


def test_only_ranks_that_profiled_a_step_must_show_it():
    short = rank_trace([call(REDUCE, 10, 20)], steps=((1, 0, 100),))
    long = rank_trace(
        [call(REDUCE, 10, 20), call(REDUCE, 110, 120)], steps=((1, 0, 100), (2, 100, 200)), rank=1
    )
    assert rows(TraceSet(ranks=(short, long))) == [[0, 0], [-1, 1]]


def test_more_ranks_than_a_group_has_are_not_guessed_at():
    found = match(job(*([call(REDUCE, 0, 9, group=RankGroup("1", None, 2))] for _ in range(4))))
    assert found.count == 0
    assert found.unmatched() == {NoMatch.GROUP: 4}


def test_a_group_of_which_nothing_is_told_may_be_any_ranks():
    found = match(job(*([call(REDUCE, 0, 9, group=RankGroup(""))] for _ in range(3)), world_size=3))
    assert found.count == 0
    assert found.unmatched() == {NoMatch.GROUP: 3}


def test_a_group_as_large_as_the_job_is_all_of_it():
    for world_size in (3, 10**7):
        group = RankGroup("", None, world_size)
        found = match(job(*[[call(REDUCE, 0, 9, group=group)]] * 3, world_size=world_size))
        assert found.row.tolist() == [[0, 0, 0]]
        assert found.group_size.tolist() == [world_size]


@pytest.mark.parametrize("size", [-1, 0, 1 << 31, 1 << 70])
def test_an_absurd_group_size_is_not_told(size):
    found = match(job(*[[call(REDUCE, 0, 9, group=RankGroup("a", None, size))]] * 3))
    assert found.group_size.tolist() == [0]


def test_a_group_that_does_not_list_its_user_is_unclear():
    found = match(job([call(REDUCE, 0, 9)], [call(REDUCE, 0, 9)], [call(REDUCE, 0, 9)]))
    assert found.row.tolist() == [[0, 0, -1]]
    assert found.unmatched() == {NoMatch.GROUP: 1}


# Transfers.


def test_a_send_meets_the_receive_of_its_peer():
    found = match(
        job(
            [call(SEND, 0, 9), call(RECV, 10, 19), call(SEND, 20, 29)],
            [call(SEND, 0, 9), call(RECV, 10, 19), call(RECV, 20, 29)],
        )
    )
    assert found.row.tolist() == [[0, 1], [1, 0], [2, 2]]
    assert found.kind.tolist() == [SEND, SEND, SEND]


def test_a_put_is_made_by_one_side_alone():
    puts = [call(CollectiveKind.PUT, 0, 9), call(CollectiveKind.PUT, 10, 19)]
    found = match(job(puts, puts[:1]))
    assert found.row.tolist() == [[0, -1], [1, -1], [-1, 0]]
    assert found.complete.all()


def test_transfers_in_larger_groups_do_not_tell_their_peers():
    found = match(job(*([call(SEND, 0, 9, group=RankGroup("0", (0, 1, 2)))] for _ in range(3))))
    assert found.count == 0
    assert found.unmatched() == {NoMatch.PEER: 3}


# Whatever is asked of all.


def test_no_collective_gives_no_instance():
    found = match(job([], [Span(Activity.COMPUTE, 0, 9)]))
    assert found.row.shape == (0, 2)
    assert found.unmatched() == {}


def test_times_are_those_of_the_rows_on_clocks_as_they_are():
    traces = job([call(REDUCE, 3, 9)], [call(REDUCE, 5, 9)], [], ranks=(0, 1, 2))
    found = match(traces)
    shifted = TraceSet(ranks=(traces.ranks[0].shifted(100), *traces.ranks[1:]))
    start_ns, end_ns = found.times_ns(shifted)
    assert start_ns.tolist() == [[103, 5, 0]]
    assert end_ns.tolist() == [[109, 9, 0]]


GROUPS = (
    RankGroup("w", (0, 1, 2, 3)),
    RankGroup("t", (0, 1)),
    RankGroup("t", (2, 3)),
    RankGroup("p", (1, 2)),
)
STEPS = ((0, 0, 1000), (1, 1000, 2000))


@st.composite
def jobs(draw):
    """Calls of four ranks: (group, kind, bytes) in one program, some lost at either end."""
    program = draw(
        st.lists(
            st.tuples(
                st.integers(0, 1),
                st.sampled_from(GROUPS),
                st.sampled_from([REDUCE, GATHER, SEND, BARRIER]),
                st.integers(0, 2),
            ),
            max_size=14,
        )
    )
    numbered = draw(st.booleans())
    lost = draw(st.lists(st.integers(0, 3), min_size=4, max_size=4))
    return [
        [
            call(
                kind,
                start := step * 1000 + place * 50,
                start + draw(st.integers(1, 40)),
                group,
                size,
                place if numbered else -1,
            )
            for place, (step, group, kind, size) in enumerate(
                sorted(program, key=lambda row: row[0])
            )
            if rank in group.ranks
        ][missing:]
        for rank, missing in enumerate(lost)
    ]


def instances(found, numbers=None):
    """Each instance as the ranks and rows in it."""
    numbers = numbers or dict(enumerate(found.rank_numbers))
    return {
        frozenset((numbers[place], row) for place, row in enumerate(line) if row >= 0)
        for line in found.row.tolist()
    }


@given(jobs(), st.lists(st.integers(-(10**12), 10**12), min_size=4, max_size=4))
def test_the_clocks_of_ranks_do_not_matter(calls, offsets):
    traces = job(*calls, steps=STEPS)
    skewed = TraceSet(
        ranks=tuple(
            trace.shifted(offset) for trace, offset in zip(traces.ranks, offsets, strict=True)
        )
    )
    expected, found = match(traces), match(skewed)
    assert np.array_equal(found.row, expected.row)
    assert found.unmatched() == expected.unmatched()


@given(jobs(), st.permutations(range(4)))
def test_how_ranks_are_numbered_does_not_matter(calls, order):
    def renamed(row):
        return replace(
            row, group=RankGroup(row.group.name, tuple(order[r] for r in row.group.ranks))
        )

    moved = [[renamed(row) for row in calls[order.index(rank)]] for rank in range(4)]
    names = {order[rank]: rank for rank in range(4)}
    expected, found = match(job(*calls, steps=STEPS)), match(job(*moved, steps=STEPS))
    assert instances(found, names) == instances(expected)
    assert found.unmatched() == expected.unmatched()


@given(jobs(), st.randoms())
def test_how_groups_are_numbered_does_not_matter(calls, random):
    traces = job(*calls, steps=STEPS)
    ranks = []
    for trace in traces.ranks:
        told = trace.collectives
        order = list(range(len(told.groups)))
        random.shuffle(order)
        where = np.array([order.index(place) for place in range(len(order))], np.int32)
        moved = replace(
            told,
            groups=tuple(told.groups[place] for place in order),
            group_id=where[told.group_id] if order else told.group_id,
        )
        ranks.append(replace(trace, collectives=moved))
    expected, found = match(traces), match(TraceSet(ranks=tuple(ranks)))
    assert np.array_equal(found.row, expected.row)
    assert np.array_equal(found.group_id, expected.group_id)


@given(jobs())
def test_every_collective_is_in_one_instance_or_counted(calls):
    traces = job(*calls, steps=STEPS)
    found = match(traces)
    matched = [tuple(pair) for line in instances(found) for pair in line]
    assert len(matched) == len(set(matched)) == int(found.present.sum())
    total = sum(trace.collectives.count for trace in traces.ranks)
    assert len(matched) + sum(found.unmatched().values()) == total


@pytest.mark.parametrize("kind", list(CollectiveKind))
def test_any_kind_is_matched_or_counted(kind):
    found = match(job([call(kind, 0, 9)], [call(kind, 0, 9)]))
    assert int(found.present.sum()) + sum(found.unmatched().values()) == 2
