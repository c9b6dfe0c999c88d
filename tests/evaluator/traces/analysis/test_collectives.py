"""Collectives of all ranks as instances, or counted where that would be a guess; their rates."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.traces.analysis.collectives import NoMatch, bandwidths, match, volume
from evaluator.traces.model import Activity, CollectiveKind, RankGroup, TraceSet
from evaluator.traces.testing import Span
from tests.support.traces import PAIR, communication, job, value_of

REDUCE, GATHER, BARRIER = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.BARRIER,
)
SEND, RECV = CollectiveKind.SEND, CollectiveKind.RECV
PUT, TO_ALL = CollectiveKind.PUT, CollectiveKind.ALL_TO_ALL
LEFT, RIGHT = RankGroup("1", (0, 1)), RankGroup("1", (2, 3))
THREE = RankGroup("0", (0, 1, 2))
TWO_STEPS = {"steps": ((1, 0, 100), (2, 100, 200))}


def calls(*kinds, size=8, group=PAIR, first=0):
    """Calls of these kinds, one each ten ns from the first on."""
    starts = (first + 10 * place for place in range(len(kinds)))
    return [
        communication(kind, start, start + 9, group, size)
        for start, kind in zip(starts, kinds, strict=True)
    ]


def numbered(*numbers):
    return [communication(REDUCE, 10 * i, 10 * i + 9, sequence=n) for i, n in enumerate(numbers)]


def launched(start):
    call = Span(Activity.LAUNCH, 90, 95, correlation=7)
    return [call, communication(REDUCE, start, start + 10, correlation=7)]


def reduce_of(group, count=3):
    return [calls(REDUCE, group=group)] * count


@pytest.mark.parametrize(
    ("ranks", "more", "rows", "group_sizes"),
    [
        ([calls(REDUCE, GATHER, REDUCE)] * 2, {}, [[0, 0], [1, 1], [2, 2]], [2, 2, 2]),
        ([calls(BARRIER, size=0)] * 2, {}, [[0, 0]], [2]),
        ([numbered(4, 5), numbered(5, 6)], {}, [[0, -1], [1, 0], [-1, 1]], [2, 2, 2]),
        (
            [*reduce_of(LEFT, 2), *reduce_of(RIGHT, 2)],
            {},
            [[0, 0, -1, -1], [-1, -1, 0, 0]],
            [2, 2],
        ),
        (reduce_of(THREE, 2), {"ranks": (0, 2), "world_size": 3}, [[0, 0]], [3]),
        (reduce_of(RankGroup("a")), {"world_size": 3}, [[0, 0, 0]], [0]),
        (reduce_of(RankGroup(""), 2), {"world_size": 2}, [[0, 0]], [2]),
        (reduce_of(RankGroup("", None, 3)), {"world_size": 3}, [[0, 0, 0]], [3]),
        (reduce_of(RankGroup("", None, 10**7)), {"world_size": 10**7}, [[0, 0, 0]], [10**7]),
        *(
            (reduce_of(RankGroup("a", None, size)), {}, [[0, 0, 0]], [0])
            for size in (-1, 0, 1 << 31, 1 << 70)
        ),
        ([launched(96), launched(103)], TWO_STEPS, [[0, 0]], [2]),
        ([calls(REDUCE, first=300)] * 2, {"steps": ()}, [[0, 0]], [2]),
        ([calls(SEND, RECV, SEND), calls(SEND, RECV, RECV)], {}, [[0, 1], [1, 0], [2, 2]], [2] * 3),
        ([calls(PUT, PUT), calls(PUT)], {}, [[0, -1], [1, -1], [-1, 0]], [2, 2, 2]),
        ([[], [Span(Activity.COMPUTE, 0, 9)]], {}, [], []),
    ],
    ids=[
        "the kth of a kind in a step is one instance on all ranks",
        "barriers are instances",
        "a number joins what order would not",
        "groups of one name with other ranks are apart",
        "a rank that left no trace leaves instances incomplete",
        "a group of which only the name is told is all ranks that name it",
        "in a world of two every group is both ranks",
        "a group as large as the job is all of it",
        "a group as large as a huge job is all of it",
        *(f"an absurd group size is not told: {bits}" for bits in ("-1", "0", "2^31", "2^70")),
        "a collective belongs to the step that launched it",
        "without steps the whole trace is one",
        "a send meets the receive of its peer",
        "a put is made by one side alone",
        "no collective gives no instance",
    ],
)
def test_calls_of_all_ranks_are_joined_into_instances(ranks, more, rows, group_sizes):
    found = match(job(*ranks, **more))
    assert found.row.tolist() == rows
    assert found.group_size.tolist() == group_sizes
    assert found.unmatched() == {}


def test_an_instance_is_complete_where_every_rank_of_its_group_shows_it():
    puts, reduces = match(job(calls(PUT), calls(PUT))), match(job(*reduce_of(PAIR, 2)))
    assert puts.complete.all()
    assert reduces.complete.all()
    assert (reduces.kind.tolist(), reduces.bytes.tolist()) == ([REDUCE], [8])
    assert reduces.step.tolist() == [0]
    for group, more in ((THREE, {"ranks": (0, 2), "world_size": 3}), (RankGroup("a"), {})):
        assert not match(job(*reduce_of(group, 2), **more)).complete.any()


def in_two_steps(*starts):
    return [communication(REDUCE, start, start + 5) for start in starts]


@pytest.mark.parametrize(
    ("ranks", "more", "rows", "unmatched"),
    [
        ([numbered(4), numbered(4, 4)], {}, [], {NoMatch.EQUAL_COUNT: 3}),
        (
            [in_two_steps(10, 30, 110, 130), in_two_steps(30, 110, 130)],
            TWO_STEPS,
            [[2, 1], [3, 2]],
            {NoMatch.EQUAL_COUNT: 3},
        ),
        ([calls(REDUCE, GATHER), calls(REDUCE)], {}, [[0, 0]], {NoMatch.EQUAL_COUNT: 1}),
        (
            [
                calls(REDUCE, size=1) + calls(REDUCE, size=2, first=10),
                calls(REDUCE, size=2) + calls(REDUCE, size=1, first=10),
            ],
            {},
            [],
            {NoMatch.EQUAL_BYTES: 4},
        ),
        ([calls(REDUCE, first=300)] * 2, {}, [], {NoMatch.STEP: 2}),
        (reduce_of(RankGroup("1", None, 2), 4), {}, [], {NoMatch.GROUP: 4}),
        (reduce_of(RankGroup("")), {"world_size": 3}, [], {NoMatch.GROUP: 3}),
        (reduce_of(PAIR), {}, [[0, 0, -1]], {NoMatch.GROUP: 1}),
        ([calls(SEND, group=THREE)] * 3, {}, [], {NoMatch.PEER: 3}),
    ],
    ids=[
        "a number that a rank uses twice is not guessed at",
        "a profile that begins amid a step loses that step only",
        "one kind too many does not unmatch the others",
        "what is not of one size is not one all-reduce",
        "collectives outside all steps are counted",
        "more ranks than a group has are not guessed at",
        "a group of which nothing is told may be any ranks",
        "a group that does not list its user is unclear",
        "transfers in larger groups do not tell their peers",
    ],
)
def test_what_would_be_a_guess_is_counted_with_its_reason(ranks, more, rows, unmatched):
    found = match(job(*ranks, **more))
    assert found.row.tolist() == rows
    assert found.unmatched() == unmatched


@pytest.mark.parametrize(("kind", "size"), [(REDUCE, 0), (TO_ALL, 1)])
def test_the_largest_size_counts_where_ranks_may_tell_unequal_ones(kind, size):
    found = match(job(calls(kind, size=size), calls(kind, size=6)))
    assert found.bytes.tolist() == [6]


def test_only_ranks_that_profiled_a_step_must_show_it():
    short = job(calls(REDUCE), steps=((1, 0, 100),)).ranks
    long = job([], calls(REDUCE) + calls(REDUCE, first=110), **TWO_STEPS).ranks[1:]
    assert match(TraceSet(ranks=short + long)).row.tolist() == [[0, 0], [-1, 1]]


def test_times_are_those_of_the_rows_on_clocks_as_they_are():
    traces = job([communication(REDUCE, 3, 9)], [communication(REDUCE, 5, 9)], [])
    found = match(traces)
    shifted = TraceSet(ranks=(traces.ranks[0].shifted(100), *traces.ranks[1:]))
    start_ns, end_ns = found.times_ns(shifted)
    assert start_ns.tolist() == [103, 5]
    assert end_ns.tolist() == [109, 9]


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
            communication(
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


@settings(max_examples=40)
@given(jobs(), st.lists(st.integers(-(10**12), 10**12), min_size=4, max_size=4))
def test_clocks_of_ranks_match_nothing_else(calls, offsets):
    traces = job(*calls, steps=STEPS)
    skewed = TraceSet(
        ranks=tuple(
            trace.shifted(offset) for trace, offset in zip(traces.ranks, offsets, strict=True)
        )
    )
    expected, found = match(traces), match(skewed)
    assert np.array_equal(found.row, expected.row)
    assert found.unmatched() == expected.unmatched()


@settings(max_examples=40)
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


@settings(max_examples=40)
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
    assert len(matched) == len(set(matched)) == int(found.shown_count.sum())
    total = sum(trace.collectives.count for trace in traces.ranks)
    assert len(matched) + sum(found.unmatched().values()) == total


@pytest.mark.parametrize("kind", list(CollectiveKind))
def test_any_kind_is_matched_or_counted(kind):
    found = match(job(calls(kind), calls(kind)))
    assert int(found.shown_count.sum()) + sum(found.unmatched().values()) == 2


WORLD = RankGroup("0", (0, 1, 2, 3))
LONG = {"steps": ((0, 0, 10**6),)}


def call(kind, start, end, group=WORLD, size=1000):
    return communication(kind, start, end, group, size)


@pytest.mark.parametrize(
    ("name", "kind", "factor"),
    [
        ("bw_allreduce", REDUCE, 1.5),
        ("bw_allgather", GATHER, 0.75),
        ("bw_reducescatter", CollectiveKind.REDUCE_SCATTER, 0.75),
        ("bw_alltoall", TO_ALL, 0.75),
    ],
)
def test_bus_bandwidth_is_that_of_the_rank_that_waited_for_nobody(name, kind, factor):
    traces = job(*([call(kind, 900 - wait, 1000)] for wait in (0, 50, 200, 700)), **LONG)
    table = bandwidths(traces, match(traces))
    assert table.algorithm_bytes_per_s.tolist() == [1e10]
    assert not table.partial.any()
    assert value_of(name, traces) == pytest.approx(1000 * factor / 100)


SENDS = [call(SEND, 0, 500, LEFT)], [call(RECV, 400, 500, LEFT)]


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("bw_peertopeer", SENDS),
        ("bw_peertopeer", ([call(PUT, 0, 100, RankGroup("", (0, 1)))], [])),
        ("bw_allreduce", [[call(REDUCE, 0, 100, g)] for g in (LEFT, LEFT, RIGHT, RIGHT)]),
        ("bw_allreduce", [[call(REDUCE, 0, 10), call(REDUCE, 100, 200, LEFT)]] * 2),
    ],
    ids=[
        "a transfer moves its message once",
        "a put moves its bytes in its own time",
        "groups of two sizes have factors of their own",
        "what is whole counts where other instances are not",
    ],
)
def test_a_thousand_bytes_in_100_ns_between_two_are_10_gb_per_s(name, ranks):
    assert value_of(name, job(*ranks, **LONG)) == pytest.approx(10)


def test_small_and_large_messages_give_the_rate_of_all_their_bytes():
    small, large = (1_000, 48), (1_000_000, 10_638)  # bytes and ns: 21 and 94 GB/s
    calls = [
        call(GATHER, 20_000 * i, 20_000 * i + time_ns, size=4 * size // 3)
        for i, (size, time_ns) in enumerate([small, large] * 2)
    ]
    value = value_of("bw_allgather", job(*[calls] * 4, **LONG))
    assert value == pytest.approx(1_001_000 / 10_686, rel=1e-3)
    assert value == pytest.approx(93.7, abs=0.1)


def test_ranks_without_a_trace_make_it_a_lower_bound():
    traces = job(*([call(REDUCE, 0, end)] for end in (100, 200)), world_size=4, **LONG)
    table = bandwidths(traces, match(traces))
    assert table.partial.tolist() == [True]
    assert table.bus_bytes_per_s.tolist() == [1.5e10]
    answer = value_of("bw_allreduce", traces)
    assert "at least 15 GB/s" in answer


LONE = [call(REDUCE, 0, 100)]


@pytest.mark.parametrize(
    ("words", "ranks", "steps"),
    [
        ("no all-reduce ran", [[], []], LONG),
        ("do not say how large", [[call(REDUCE, 0, 100, size=0)]] * 4, LONG),
        ("do not say which ranks take part", [[call(REDUCE, 0, 100, RankGroup(""))]] * 4, LONG),
        ("not equally many", [LONE, LONE, LONE, []], LONG),
        ("outside all profiled steps", [LONE] * 4, {"steps": ((0, 500, 900),)}),
        ("how many ranks take part", [[call(REDUCE, 0, 100, RankGroup("a"))]] * 4, LONG),
        ("or how long", [[call(REDUCE, 5, end)] for end in (5, 9, 9, 9)], LONG),
    ],
)
def test_every_lack_of_bandwidth_has_its_reason(words, ranks, steps):
    assert words in value_of("bw_allreduce", job(*ranks, world_size=4, **steps))


def test_collectives_with_a_root_are_not_timed_by_who_leaves_first():
    traces = job(*[[call(CollectiveKind.BROADCAST, 0, 10)]] * 4)
    assert bandwidths(traces, match(traces)).count == 0


def test_volume_is_by_kind_and_group_and_step():
    calls = [
        call(GATHER, 0, 10, size=100),
        call(REDUCE, 20, 30, size=7, group=LEFT),
        call(GATHER, 120, 130, size=300),
        call(CollectiveKind.BARRIER, 140, 150, size=0),
    ]
    traces = job(calls, calls, calls[:1] + calls[2:], steps=((0, 0, 100), (1, 100, 200)))
    found = volume(traces, match(traces))
    rows = {(row.kind, row.group.name): row for row in found.groups}
    gathers, reduces = rows[GATHER, "0"], rows[REDUCE, "1"]
    assert (gathers.per_rank.bytes, gathers.traced_ranks.bytes) == (200, 600)
    assert (reduces.per_rank.bytes, reduces.rank_count, reduces.traced_ranks.bytes) == (3.5, 2, 7)
    assert rows[CollectiveKind.BARRIER, "0"].per_rank.call_count == 0.5
    assert [traffic.bytes for _, traffic in found.by_rank] == [203.5, 203.5, 200]
    assert value_of("communication_volume", traces) == pytest.approx(607 / 3)
    assert value_of("collective_count", traces) == pytest.approx((2 + 2 + 1.5) / 3)


def test_a_size_or_step_that_is_not_told_leaves_no_volume():
    calls = [call(REDUCE, 0, 10), call(REDUCE, 20, 30, size=0)]
    traces = job(calls, calls)
    reason = "2 of 4 collectives do not say their size"
    assert value_of("communication_volume", traces) == reason
    assert value_of("collective_count", traces) == 2
    assert "no marked step" in value_of("communication_volume", job(calls, steps=()))


def test_a_message_counts_where_it_is_sent():
    assert value_of("communication_volume", job(*SENDS, **LONG)) == 500
