"""The same account of both sides, where both have it."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from evaluator.timing.interval.estimates import Intervals
from evaluator.timing.interval.judgement import Reason
from evaluator.timing.interval.summary import Samples, Summary, Unusable

CLOCK_FAULTS: Mapping[Reason, str] = {
    Reason.MISSING_CLOCK_RATE: "a clock rate is missing to confirm it",
    Reason.INVALID_CLOCK_RATE: "a clock rate is not a positive number",
}


def both_raw(
    account: Callable[[Summary], Samples | Unusable | None], reference: Summary, candidate: Summary
) -> tuple[Samples, Samples] | Unusable | None:
    """Raw samples of both sides, or why those of a side cannot be used; None unless both exist."""
    first, second = account(reference), account(candidate)
    if first is None or second is None:
        return None
    if isinstance(first, Unusable):
        return replace(first, why=f"reference: {first.why}")
    if isinstance(second, Unusable):
        return replace(second, why=f"candidate: {second.why}")
    return first, second


def in_cycles(intervals: Intervals, reference: Summary, candidate: Summary) -> Intervals | Reason:
    """Both intervals times the mean clock rate of their side, or why that cannot be."""
    if reference.clock_hz is None or candidate.clock_hz is None:
        return Reason.MISSING_CLOCK_RATE
    first = intervals[0].scaled(reference.clock_hz)
    second = intervals[1].scaled(candidate.clock_hz)
    if first is None or second is None:
        return Reason.INVALID_CLOCK_RATE
    return first, second


def percent(fraction: float) -> str:
    """A fraction as a person reads it."""
    return f"{100 * fraction:.3g} %"
