"""What a race said, as far as whoever proposes needs it."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Raced:
    """A challenger against the trial that led, from launches of both that were interleaved.

    `ratio` is how many times the incumbent's time, or what is compared in its place, the challenger
    takes; below 1 it is the better one. None where no number can be given. `disturbed_count` of
    its rounds were disturbed by other work on the machine.
    """

    challenger: int
    incumbent: int
    verdict: Literal["fast", "slow", "same", "undecided", "unknown"]
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    round_count: int = 0
    disturbed_count: int = 0
