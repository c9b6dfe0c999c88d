"""The first difference between two requests to a model, in one line that a person can use."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from operator import eq

BEFORE_CHARS, AFTER_CHARS = 24, 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What was asked in place of what is on record; `distance` orders several, nearest first."""

    words: str
    distance: tuple[int, int]

    def __str__(self) -> str:
        return self.words


def difference(asked: object, recorded: object) -> Difference:
    """Where two JSON values differ first, block by block in the order of the one asked."""
    ours, theirs = dict(_blocks(asked)), dict(_blocks(recorded))
    paths = [path for path in {**ours, **theirs} if ours.get(path) != theirs.get(path)]
    if not paths:
        return Difference(words="nothing differs", distance=(0, 0))
    first = paths[0]
    if first not in theirs:
        words = f"{first} is asked, {_excerpt(ours[first], 0)}, and not on record"
        return Difference(words=words, distance=(len(paths), len(ours[first])))
    if first not in ours:
        words = f"{first} is on record, {_excerpt(theirs[first], 0)}, and not asked"
        return Difference(words=words, distance=(len(paths), len(theirs[first])))
    one, other = ours[first], theirs[first]
    at = _shared(one, other)
    ends = _shared(one[:at:-1], other[:at:-1])
    return Difference(
        words=(
            f"{first} differs from character {at}: "
            f"asked {_excerpt(one, at)}, on record {_excerpt(other, at)}"
        ),
        distance=(len(paths), max(len(one), len(other)) - at - ends),
    )


def _shared(one: str, other: str) -> int:
    """Characters that both begin with."""
    return sum(takewhile(bool, map(eq, one, other)))


def _blocks(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Every text, number and truth value inside a value, as text, by where it is."""
    match value:
        case Mapping():
            for key, inner in value.items():
                yield from _blocks(inner, f"{path}.{key}" if path else str(key))
        case list():
            for number, inner in enumerate(value):
                yield from _blocks(inner, f"{path}[{number}]")
        case str():
            yield path, value
        case _:
            yield path, json.dumps(value)


def _excerpt(text: str, at: int) -> str:
    """The text around a character, in quotes and on one line."""
    start, end = max(0, at - BEFORE_CHARS), at + AFTER_CHARS
    cut = json.dumps(text[start:end], ensure_ascii=False)[1:-1]
    return f'"{"..." if start else ""}{cut}{"..." if end < len(text) else ""}"'
