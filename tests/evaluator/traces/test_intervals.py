"""The interval algebra against a model that is too slow to be wrong: sets of whole instants."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.traces.intervals import (
    Intervals,
    enclosing,
    first_place,
    latest_window,
    own_time_ns,
)

instants = st.integers(-20, 40)
pieces = st.lists(st.tuples(instants, st.integers(0, 12)), max_size=12)


def union(lengths_by_start: list[tuple[int, int]]) -> Intervals:
    starts = np.array([start for start, _ in lengths_by_start], np.int64)
    lengths = np.array([length for _, length in lengths_by_start], np.int64)
    return Intervals.union(starts, starts + lengths)


def points(intervals: Intervals) -> set[int]:
    covered: set[int] = set()
    for start, end in zip(intervals.start_ns, intervals.end_ns, strict=True):
        covered.update(range(int(start), int(end)))
    return covered


def model(lengths_by_start: list[tuple[int, int]]) -> set[int]:
    return {p for start, length in lengths_by_start for p in range(start, start + length)}


@given(pieces)
def test_a_union_covers_each_instant_of_any_piece_once_in_pieces_apart(given_pieces):
    covered = union(given_pieces)
    assert points(covered) == model(given_pieces)
    assert covered.total_ns == len(model(given_pieces))
    assert np.all(covered.start_ns[1:] > covered.end_ns[:-1])


@given(pieces, pieces, pieces)
def test_operations_are_those_of_sets_and_their_results_can_be_used_again(left, right, more):
    one, other = union(left), union(right)
    assert points(one.unite(other)) == model(left) | model(right)
    assert points(one.intersect(other)) == model(left) & model(right)
    assert points(one.subtract(other)) == model(left) - model(right)
    assert points(one.subtract(other).intersect(union(more))) == (model(left) - model(right)) & (
        model(more)
    )


@given(pieces, st.lists(st.tuples(instants, st.integers(-5, 30)), max_size=6))
def test_many_windows_at_once_cover_what_each_alone_does(given_pieces, windows):
    starts = np.array([start for start, _ in windows], np.int64)
    ends = starts + np.array([length for _, length in windows], np.int64)
    covered = model(given_pieces)
    expected = [len(covered & set(range(start, start + length))) for start, length in windows]
    assert union(given_pieces).covered_ns(starts, ends).tolist() == expected


@given(pieces)
def test_an_instant_is_contained_where_a_piece_covers_it(given_pieces):
    everywhere = np.arange(-25, 60)
    covered = union(given_pieces).contains(everywhere)
    assert set(everywhere[covered].tolist()) == model(given_pieces)


@given(pieces, st.data())
def test_chosen_pieces_are_kept_whole(given_pieces, data):
    covered = union(given_pieces)
    count = covered.start_ns.size
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), np.bool_)
    rest = covered.subtract(covered.chosen(kept))
    assert points(rest) == points(covered.chosen(~kept))


def calls():
    """Nested calls as (own time, calls inside, own time, ...), drawn as trees."""
    leaf = st.tuples(st.integers(0, 5), st.just(()))
    return st.recursive(
        leaf, lambda inner: st.tuples(st.integers(0, 5), st.lists(inner, max_size=3)), max_leaves=8
    )


def laid_out(call, start, track, rows):
    """Lay a tree of calls on a track; rows get (start, end, track, own time)."""
    own, inside = call
    place = len(rows)
    rows.append(None)
    end = start
    for inner in inside:
        end = laid_out(inner, end, track, rows)
    end += own
    rows[place] = (start, end, track, own)
    return end


@given(st.lists(st.tuples(calls(), st.integers(0, 2)), max_size=6))
def test_own_time_is_what_calls_inside_do_not_take(trees):
    rows, ends = [], [0, 0, 0]
    for tree, track in trees:
        ends[track] = laid_out(tree, ends[track], track, rows)
    rows.sort(key=lambda row: row[0])
    starts, stops, tracks, own = np.array(rows, np.int64).reshape(-1, 4).T
    # Calls of one extent cannot be told apart: their own times may change places.
    found = {}
    for extent, expected, given_ns in zip(
        zip(starts, stops, tracks, strict=True),
        own,
        own_time_ns(starts, stops, tracks),
        strict=True,
    ):
        total = found.setdefault(extent, [0, 0])
        total[0] += expected
        total[1] += given_ns
    assert all(expected == given_ns for expected, given_ns in found.values())


@given(st.lists(st.tuples(calls(), st.integers(0, 2)), max_size=6))
def test_the_interval_around_another_is_the_shortest_that_holds_it(trees):
    rows, ends = [], [0, 0, 0]
    for tree, track in trees:
        ends[track] = laid_out(tree, ends[track], track, rows)
    starts, stops, tracks, _ = np.array(rows, np.int64).reshape(-1, 4).T

    around = enclosing(starts, stops, tracks)

    for inner, outer in enumerate(around.tolist()):
        length = stops[inner] - starts[inner]
        holding = (starts <= starts[inner]) & (stops >= stops[inner]) & (tracks == tracks[inner])
        longer = holding & (stops - starts > length)
        if outer >= 0:
            assert holding[outer]
            equal = stops[outer] - starts[outer] == length
            assert equal or stops[outer] - starts[outer] == (stops - starts)[longer].min()
        else:
            assert length == 0 or not longer.any()


def test_absolute_nanoseconds_keep_every_digit():
    epoch = 1_790_857_026_000_000_000
    covered = Intervals.union(np.array([epoch, epoch + 3]), np.array([epoch + 1, epoch + 5]))
    assert covered.total_ns == 3
    assert covered.clip(epoch + 4, epoch + 9).total_ns == 1


def test_an_interval_that_ends_before_it_starts_is_refused():
    with pytest.raises(ValueError, match="ends before it starts"):
        Intervals.union(np.array([5]), np.array([4]))


def test_overlapping_pieces_are_refused():
    with pytest.raises(ValueError, match="disjoint"):
        Intervals(np.array([0, 2]), np.array([3, 4]))


def test_pieces_cannot_be_changed_in_place():
    covered = Intervals.union(np.array([0]), np.array([1]))
    with pytest.raises(ValueError, match="read-only"):
        covered.start_ns[0] = 5


@given(st.lists(st.integers(0, 5)), st.lists(st.integers(0, 5)))
def test_a_number_is_found_where_it_first_stands(offered, wanted):
    found = first_place(np.array(offered, np.int64), np.array(wanted, np.int64))
    assert found.tolist() == [offered.index(n) if n in offered else -1 for n in wanted]


@given(pieces, st.lists(instants))
def test_only_the_last_window_that_began_holds_a_moment(windows, moments):
    starts = np.array([start for start, _ in windows], np.int64)
    ends = starts + np.array([length for _, length in windows], np.int64)
    found = latest_window(starts, ends, np.array(moments, np.int64)).tolist()
    for window, moment in zip(found, moments, strict=True):
        began = [start for start, _ in windows if start <= moment]
        latest = [i for i, (start, _) in enumerate(windows) if began and start == max(began)]
        holds = bool(latest) and moment < ends[latest[-1]]
        assert window == (latest[-1] if holds else -1)
