"""The interval algebra against a model that is too slow to be wrong: sets of whole instants."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.intervals import Intervals

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
def test_a_union_covers_what_any_piece_covers(given_pieces):
    assert points(union(given_pieces)) == model(given_pieces)


@given(pieces)
def test_a_union_keeps_its_pieces_apart(given_pieces):
    covered = union(given_pieces)
    assert np.all(covered.start_ns[1:] > covered.end_ns[:-1])


@given(pieces)
def test_the_total_counts_every_instant_once(given_pieces):
    assert union(given_pieces).total_ns == len(model(given_pieces))


@given(pieces, pieces)
def test_unite_is_set_union(left, right):
    assert points(union(left).unite(union(right))) == model(left) | model(right)


@given(pieces, pieces)
def test_intersect_is_set_intersection(left, right):
    assert points(union(left).intersect(union(right))) == model(left) & model(right)


@given(pieces, pieces)
def test_subtract_is_set_difference(left, right):
    assert points(union(left).subtract(union(right))) == model(left) - model(right)


@given(pieces, instants, instants)
def test_clip_keeps_the_instants_of_the_window(given_pieces, start, end):
    window = set(range(start, end))
    assert points(union(given_pieces).clip(start, end)) == model(given_pieces) & window


@given(pieces, pieces, pieces)
def test_results_can_be_used_again(left, middle, right):
    result = union(left).subtract(union(middle)).intersect(union(right))
    assert points(result) == (model(left) - model(middle)) & model(right)


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
