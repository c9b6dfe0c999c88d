"""Where values lie along an axis, and which of them are written beside it."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from search.words.trial import number

LEAST_TICKS, FEW_TICKS, MOST_TICKS = 3, 4, 12
NARROWER: Final = {10: 5, 5: 2, 2: 1, 1: 0.5}
"""The next smaller step, for an axis on which a round one leaves too few."""
WIDE: Final = 20.0
"""Largest over smallest value from which on an axis counts factors instead of differences."""
MARGIN: Final = 0.04
LARGEST: Final = sys.float_info.max
SIZES: Final = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
FEW_DIGITS, MANY_DIGITS = 1e5, 1e15

Tick: TypeAlias = tuple[float, str]
"""A place along the axis, and what is written there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Values from `low` to `high` on the way from `start` to `end`; what lies beyond stays there.

    Where it is `logarithmic` all values are above zero.
    """

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Where a value lies."""
        low, high, at = (self._sized(each) for each in (self.low, self.high, value))
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))

    @property
    def ticks(self) -> tuple[Tick, ...]:
        """Round values along the axis, or its ends where there are none."""
        values = _factors(self.low, self.high) if self.logarithmic else _steps(self.low, self.high)
        told = {brief(value): self.place(value) for value in values or (self.low, self.high)}
        return tuple((place, label) for label, place in told.items())

    def _sized(self, value: float) -> float:
        # Halves, because the difference of two floats may be beyond floats.
        return math.log(value) if self.logarithmic else value / 2


def scale_of(values: Sequence[float], start: float, end: float, *, zero: bool = False) -> Scale:
    """An axis that holds all of these values with a little room, from zero on if that is asked."""
    low, high = max(min(values, default=0.0), -LARGEST), min(max(values, default=1.0), LARGEST)
    if zero:
        return Scale(low=min(low, 0.0), high=high if high > 0 else 1.0, start=start, end=end)
    if low > 0 and high / low > WIDE:
        return Scale(low=low, high=high, start=start, end=end, logarithmic=True)
    room = MARGIN * (high / 2 - low / 2) or abs(high) * MARGIN or 0.5
    ends = low - room, high + room
    if not all(map(math.isfinite, ends)):
        ends = low, high
    return Scale(low=ends[0], high=ends[1], start=start, end=end)


def brief(value: float) -> str:
    """A number as short as an axis needs it: `250`, `4 G`."""
    if FEW_DIGITS <= abs(value) < MANY_DIGITS:
        letter, size = next((name, size) for name, size in SIZES if abs(value) >= size)
        return f"{value / size:.4g} {letter}"
    return number(value)


def _steps(low: float, high: float) -> list[float]:
    rough = (high / 2 - low / 2) / FEW_TICKS * 2
    if not 0 < rough < math.inf:
        return []
    unit = 10.0 ** math.floor(math.log10(rough))
    if not unit:
        return []
    wide = next((factor for factor in (1, 2, 5) if factor * unit >= rough), 10)
    found = _multiples(low, high, wide * unit)
    return found if len(found) >= LEAST_TICKS else _multiples(low, high, unit * NARROWER[wide])


def _multiples(low: float, high: float, step: float) -> list[float]:
    first = math.ceil(low / step)
    values = ((first + count) * step for count in range(MOST_TICKS))
    return [value for value in values if low <= value <= high]


def _factors(low: float, high: float) -> list[float]:
    """Powers of ten, with 2 and 5 times them where there are few."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    decades = math.log10(high) - math.log10(low)
    every = math.ceil(len(exponents) / MOST_TICKS)
    firsts = (1, 2, 5) if decades < FEW_TICKS - 1 else (1,)
    values = [float(f"{first}e{power}") for power in exponents[::every] for first in firsts]
    return [value for value in values if low <= value <= high]
