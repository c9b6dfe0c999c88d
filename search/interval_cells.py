"""Cells of a table of compared times: a column at a time, so that its numbers stand aligned.

Times have three decimals of the greatest unit that they fill; what the numbers of a cell have in
common is written once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from evaluator.timing.interval.estimates import Estimate, is_time
from evaluator.timing.verdict import Verdict

NOT_AVAILABLE: Final = "n/a"
_UNITS: Final = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
_DECIMALS: Final = 3
_LEAST_COMMON_DIGITS: Final = 2


def time_cells(estimates: Sequence[Estimate]) -> list[str]:
    """The centres."""
    return [_time(each.centre) if is_time(each.centre) else NOT_AVAILABLE for each in estimates]


def span_cells(estimates: Sequence[Estimate]) -> list[str]:
    """Widths of the intervals over their centres."""
    return [
        NOT_AVAILABLE
        if each.interval is None
        else f"{each.interval.width / each.interval.centre:.1%}"
        for each in estimates
    ]


def interval_cells(estimates: Sequence[Estimate]) -> list[str]:
    """The centres with what is below and above them: `19.944 [-0.564, +0.564] us`."""
    cells = [_around(each) for each in estimates]
    centres = max((len(cell.centre) for cell in cells if cell), default=0)
    spreads = max((len(cell.spread) for cell in cells if cell and cell.one_unit), default=0)
    return [cell.padded(centres, spreads) if cell else NOT_AVAILABLE for cell in cells]


def bound_cells(estimates: Sequence[Estimate]) -> list[str]:
    """Lower bound, centre and upper bound: `[9.1 / 10.2 / 10.3] ms`, `1.4[34 / 46 / 58] ms`."""
    cells = [_bounds(each) for each in estimates]
    plain = [cell.numbers for cell in cells if cell and not cell.common]
    widths = [max(map(len, place)) for place in zip(*plain, strict=True)]
    return [
        cell.padded(widths) if cell else text
        for cell, text in zip(cells, time_cells(estimates), strict=True)
    ]


def noise_cells(estimates: Sequence[Estimate]) -> list[str]:
    """Noise over the centre."""
    return [NOT_AVAILABLE if each.noise is None else f"{each.noise:.2%}" for each in estimates]


def difference_cell(difference: float | None) -> str:
    """A relative difference with its sign."""
    return NOT_AVAILABLE if difference is None else f"{difference:+.1%}"


def change_cell(verdict: Verdict, guaranteed: float | None) -> str:
    """The least change that a claim stands for, empty where nothing is claimed."""
    signs = {Verdict.FAST: "<=", Verdict.SLOW: ">="}
    if guaranteed is None or verdict not in signs:
        return ""
    return f"{signs[verdict]} {guaranteed:+.1%}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Around:
    """A centre and its interval relative to it, empty without one, each in its unit."""

    centre: str
    unit: str
    spread: str
    spread_unit: str

    @property
    def one_unit(self) -> bool:
        return self.unit == self.spread_unit

    def padded(self, centre_chars: int, spread_chars: int) -> str:
        if not self.one_unit:
            return f"{self.centre} {self.unit} {self.spread} {self.spread_unit}"
        spread = f"{self.spread:>{spread_chars}} " if spread_chars else ""
        return f"{self.centre:>{centre_chars}} {spread}{self.unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """Three numbers of one unit without the digits that they have in common."""

    common: str
    numbers: tuple[str, ...]
    unit: str

    def padded(self, widths: Sequence[int]) -> str:
        aligned = self.numbers
        if not self.common:
            aligned = tuple(map(str.rjust, self.numbers, widths))
        return f"{self.common}[{' / '.join(aligned)}] {self.unit}"


def _around(estimate: Estimate) -> _Around | None:
    if not is_time(estimate.centre):
        return None
    unit, unit_s = _unit(estimate.centre)
    centre = f"{estimate.centre / unit_s:.{_DECIMALS}f}"
    interval = estimate.interval
    if interval is None:
        return _Around(centre=centre, unit=unit, spread="", spread_unit=unit)
    deltas = (interval.lower - interval.centre, interval.upper - interval.centre)
    spread_unit, spread_unit_s = _unit(*deltas)
    # As fine as the centre is shown, in the unit of the spread.
    decimals = max(0, _DECIMALS + round(math.log10(spread_unit_s / unit_s)))
    low, high = (f"{delta / spread_unit_s:+.{decimals}f}" for delta in deltas)
    return _Around(centre=centre, unit=unit, spread=f"[{low}, {high}]", spread_unit=spread_unit)


def _bounds(estimate: Estimate) -> _Bounds | None:
    interval = estimate.interval
    if interval is None:
        return None
    times = (interval.lower, interval.centre, interval.upper)
    unit, unit_s = _unit(*times)
    texts = [f"{time / unit_s:.{_DECIMALS}f}" for time in times]
    # Each number keeps a digit of its own.
    common = _common_start(texts)[: min(map(len, texts)) - 1]
    whole, point, fraction = common.partition(".")
    if not (point and fraction and len(whole + fraction) >= _LEAST_COMMON_DIGITS):
        common = ""
    numbers = tuple(text.removeprefix(common) for text in texts)
    return _Bounds(common=common, numbers=numbers, unit=unit)


def _time(seconds: float) -> str:
    unit, unit_s = _unit(seconds)
    return f"{seconds / unit_s:.{_DECIMALS}f} {unit}"


def _unit(*seconds: float) -> tuple[str, float]:
    """The greatest unit that the longest of these times fills, and its length in seconds."""
    longest = max(map(abs, seconds))
    return next((unit for unit in _UNITS if longest >= unit[1]), _UNITS[-1])


def _common_start(texts: Sequence[str]) -> str:
    places = zip(*texts, strict=False)
    return "".join(place[0] for place in takewhile(lambda place: len({*place}) == 1, places))
