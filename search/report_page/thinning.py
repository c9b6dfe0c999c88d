"""Fewer marks where there are more than can be told apart."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

MOST_MARKS = 2000


def thinned(items: Sequence[T], keeps: Callable[[T], bool], most: int = MOST_MARKS) -> list[T]:
    """The items in their order: those that it keeps, and `most` of the others, evenly spread."""
    others = [place for place, item in enumerate(items) if not keeps(item)]
    every = max(1, -(-len(others) // most))
    dropped = set(others) - set(others[::every])
    return [item for place, item in enumerate(items) if place not in dropped]


def left_out_words(shown: int, count: int) -> str:
    """How many are not shown, as a sentence to follow another; nothing where all are."""
    return f" {count - shown} of {count} are left out of the chart." if shown < count else ""
