"""Steps from ranges that a program marked, which may nest and count from 0 more than once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluator.intervals import Nanoseconds
from evaluator.traces.steps import StepWindows

RENUMBERED = "step numbers do not rise: steps are counted in order of time instead"
"""The caveat of steps whose own numbers could not be kept."""


@dataclass(frozen=True, slots=True)
class MarkedSteps:
    """Steps as they were marked, and whether numbers that they had were not kept."""

    windows: StepWindows
    renumbered: bool

    @property
    def marked_ns(self) -> int:
        """Time that the steps cover."""
        return int(self.windows.duration_ns.sum())


NO_STEPS = MarkedSteps(StepWindows.none(), False)


def marked_steps(
    number: NDArray[np.int64], start_ns: Nanoseconds, end_ns: Nanoseconds
) -> MarkedSteps:
    """Of ranges in order of start the outer ones, with their numbers; -1: a range has none.

    Where numbers are missing or do not rise (every epoch counts from 0) steps are counted from 0.
    """
    if not number.size:
        return NO_STEPS
    reach = np.maximum.accumulate(end_ns)
    outer = np.concatenate(([True], start_ns[1:] >= reach[:-1]))
    number, start_ns, end_ns = number[outer], start_ns[outer], end_ns[outer]
    told = bool(np.all(number >= 0))
    rising = bool(np.all(number[1:] > number[:-1]))
    if not (told and rising):
        number = np.arange(number.size)
    return MarkedSteps(StepWindows.plain(number, start_ns, end_ns), told and not rising)


def longest_steps(
    source: NDArray[np.int64],
    number: NDArray[np.int64],
    start_ns: Nanoseconds,
    end_ns: Nanoseconds,
) -> MarkedSteps:
    """The steps of the source whose ranges cover most time; ranges in order of start."""
    order = np.argsort(source, kind="stable")
    bounds = np.flatnonzero(np.diff(source[order])) + 1
    found = (
        marked_steps(number[rows], start_ns[rows], end_ns[rows]) for rows in np.split(order, bounds)
    )
    return max(found, key=lambda steps: steps.marked_ns)
