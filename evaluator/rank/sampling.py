"""How many steps a launch times: until it knows its median, or that it is clearly slower.

It knows no clock and no ranks: it judges the step times of the whole job, so that all ranks that
are given the same numbers decide the same.
"""

from collections.abc import Sequence
from enum import StrEnum
from math import comb
from statistics import median

from evaluator.rank.job import Measure

TAIL = 0.025
"""Chance that the median is below its 95 % interval, and that it is above."""
LEAST_SLOWER_STEPS = 3
BLOCK_STEPS = 5


class Stop(StrEnum):
    """Why no more steps are timed."""

    PRECISE = "precise"
    MOST_STEPS = "most_steps"
    SLOWER = "slower"


def next_block(measure: Measure, timed_count: int) -> int:
    """How many steps to time before the next look; looks cost a collective of all ranks.

    Before the least number of steps there is nothing to find but that they are slower.
    """
    if timed_count >= measure.timed_steps:
        return min(BLOCK_STEPS, measure.most_timed_steps - timed_count)
    left = measure.timed_steps - timed_count
    return left if measure.stop_above_s is None else min(LEAST_SLOWER_STEPS, left)


def reason_to_stop(measure: Measure, step_times_s: Sequence[float]) -> Stop | None:
    """Judge the steps so far, each the time of its slowest rank; None to go on."""
    count, ordered = len(step_times_s), sorted(step_times_s)
    outside = _outside(count)
    if (
        measure.stop_above_s is not None
        and count >= LEAST_SLOWER_STEPS
        and ordered[outside or 0] > measure.stop_above_s
    ):
        return Stop.SLOWER
    if count >= measure.timed_steps and outside is not None:
        half_width_s = (ordered[-1 - outside] - ordered[outside]) / 2
        if half_width_s <= measure.step_precision * median(ordered):
            return Stop.PRECISE
    return Stop.MOST_STEPS if count >= measure.most_timed_steps else None


def _outside(count: int) -> int | None:
    """How many of the smallest samples, and of the largest, are outside the median's interval.

    A sample is below the median as often as a coin shows heads, whatever the distribution. None
    where even the whole range is not sure enough: for fewer than six.
    """
    below = 0
    for outside in range(count):
        below += comb(count, outside)
        if below > TAIL * 2**count:
            return outside - 1 if outside else None
    return None
