"""Units and significant figures: times written in no more digits than are known."""

import math
from dataclasses import dataclass

MOST_FIGURES = 4
LEAST_UNCERTAINTY_S = 25e-9
"""No clock that is read around a call knows it better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit of time."""

    symbol: str
    word: str
    size_s: float


UNITS = (
    Unit(symbol="s", word="seconds", size_s=1.0),
    Unit(symbol="ms", word="milliseconds", size_s=1e-3),
    Unit(symbol="us", word="microseconds", size_s=1e-6),
    Unit(symbol="ns", word="nanoseconds", size_s=1e-9),
)


def select_unit(seconds: float) -> Unit:
    """Give the largest unit of which a time holds one or more, nanoseconds for what is shorter."""
    return next((unit for unit in UNITS if abs(seconds) >= unit.size_s), UNITS[-1])


def trim(value: float, figures: int) -> float:
    """Round to a number of significant figures."""
    rounded = float(_scientific(value, figures))
    return rounded if math.isfinite(rounded) else value  # the largest float has no room above it


def decimals(value: float, figures: int) -> int:
    """Count the digits after the point that show a value to so many figures."""
    exponent = int(_scientific(value, figures).partition("e")[2])
    return max(figures - 1 - exponent, 0)


def known_figures(value: float, uncertainty: float) -> int:
    """Count the figures of a time that its uncertainty leaves: 1 to 4."""
    known = math.floor(math.log10(value / max(uncertainty, LEAST_UNCERTAINTY_S)))
    return min(max(known, 1), MOST_FIGURES)


def _scientific(value: float, figures: int) -> str:
    if figures < 1 or not math.isfinite(value):
        raise ValueError(
            f"{value} cannot have {figures} figures; give a finite number and 1 or more"
        )
    return f"{value:.{figures - 1}e}"
