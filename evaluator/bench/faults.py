"""Gathers what is wrong with a question while its words are read."""

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from evaluator.bench.sizes import size_bytes
from records.errors import shown

MOST_DIGITS = 12
MOST_SECONDS = 1_000_000

_Meaning = TypeVar("_Meaning")


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is wrong with a question: a code that stays, and what to do about it."""

    code: str
    message: str

    def __str__(self) -> str:
        return f"E-{self.code}: {self.message}"


class Faults:
    """Every fault found so far; a word that cannot be read is a fault, and None."""

    def __init__(self) -> None:
        self._found: list[Fault] = []

    def __iter__(self) -> Iterator[Fault]:
        return iter(self._found)

    def add(self, code: str, message: str) -> None:
        """Note a fault."""
        self._found.append(Fault(code, message))

    def whole(self, code: str, text: str, *, least: int) -> int | None:
        """The number that an option named like its code was given."""
        digits = text.strip().removeprefix("+")
        if not digits.removeprefix("-").isdecimal() or len(digits) > MOST_DIGITS:
            self.add(code, f"--{code} is {shown(text)}; give a whole number of at least {least}")
            return None
        number = int(digits)
        if number < least:
            self.add(code, f"--{code} is {number}; give at least {least}")
            return None
        return number

    def size(self, code: str, text: str) -> int | None:
        """Bytes of at least 1 that an option named like its code was given."""
        size = size_bytes(text)
        if size is None or size == 0:
            self.add(
                code, f"--{code} is {shown(text)}; give bytes above 0, such as 4096, 64K or 1M"
            )
            return None
        return size

    def seconds(self, code: str, text: str) -> float | None:
        """The time that an option named like its code was given."""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= MOST_SECONDS:
            self.add(
                code, f"--{code} is {shown(text)}; give seconds above 0, {MOST_SECONDS} at most"
            )
            return None
        return value

    def word(self, code: str, text: str, meanings: Mapping[str, _Meaning]) -> _Meaning | None:
        """What one of the known words means."""
        meaning = meanings.get(text)
        if meaning is None:
            self.add(code, f"there is no {spelt(code)} {shown(text)}; {hint(text, meanings)}")
        return meaning


def spelt(code: str) -> str:
    """A code as words in a sentence."""
    return code.replace("-", " ")


def hint(text: str, known: Mapping[str, object] | Sequence[str]) -> str:
    """What to give instead of a word that nobody knows."""
    near = difflib.get_close_matches(text.lower(), list(known), n=1)
    suggestion = f"did you mean {near[0]!r}? " if near else ""
    return f"{suggestion}known are {', '.join(known)}"
