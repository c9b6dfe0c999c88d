"""Whether the times of two launches lie clearly apart, and whether their cycles do."""

from evaluator.timing.interval.estimates import (
    Intervals,
    change_between,
    interval_of_samples,
    relative_difference,
)
from evaluator.timing.interval.evidence import CLOCK_FAULTS, both_raw, in_cycles, percent
from evaluator.timing.interval.judgement import Judgement, Reason, undecided
from evaluator.timing.interval.summary import Summary, Unusable, raw_clocks, raw_cycles
from evaluator.timing.interval.thresholds import ClearGap
from evaluator.timing.verdict import Verdict

BY_SAMPLES = (Reason.CLEAR_GAP_CONFIRMED_BY_BULK_CYCLES, Reason.BULK_CYCLE_GAP_NOT_CONFIRMED)
BY_CLOCK_RATE = (
    Reason.CLEAR_GAP_CONFIRMED_BY_SUMMARY_CYCLES,
    Reason.SUMMARY_CYCLE_GAP_NOT_CONFIRMED,
)


def judge_gap(
    intervals: Intervals,
    reference: Summary,
    candidate: Summary,
    limits: ClearGap,
    *,
    confirmation: bool,
) -> Judgement | None:
    """FAST or SLOW for a clear gap that the cycles show too, UNDECIDED for one that they do not.

    None without a clear gap. `confirmation=False` lets a gap count where neither side has clocks.
    """
    verdict = _direction(intervals, limits)
    if verdict is None:
        return None
    least = min(abs(bound) for bound in change_between(*intervals).relative)
    apart = f"the times lie {percent(least)} apart"
    if not confirmation and not _has_clock(reference) and not _has_clock(candidate):
        message = f"{apart}; no clock rate was recorded that could confirm it"
        return Judgement(verdict=verdict, reason=Reason.CLEAR_GAP_UNCONFIRMED, message=message)
    samples = both_raw(raw_cycles, reference, candidate)
    if isinstance(samples, Unusable) and not samples.is_gone:
        message = f"{apart}, but {samples.channel} cannot be used: {samples.why}"
        return undecided(Reason.BULK_CYCLE_DATA_UNUSABLE, message)
    if samples is not None and not isinstance(samples, Unusable):
        first, second = (interval_of_samples(side) for side in samples)
        return _compared(verdict, _direction((first, second), limits), BY_SAMPLES, apart)
    cycles = in_cycles(intervals, reference, candidate)
    if isinstance(cycles, Reason):
        return undecided(cycles, f"{apart}, but {CLOCK_FAULTS[cycles]}")
    return _compared(verdict, _direction(cycles, limits), BY_CLOCK_RATE, apart)


def _direction(intervals: Intervals, limits: ClearGap) -> Verdict | None:
    reference, candidate = intervals
    for verdict, slower, faster in (
        (Verdict.FAST, reference, candidate),
        (Verdict.SLOW, candidate, reference),
    ):
        clear = slower.lower > faster.upper
        if clear and relative_difference(slower.lower, faster.upper) >= limits.relative:
            return verdict
    return None


def _compared(
    verdict: Verdict, by_cycles: Verdict | None, reasons: tuple[Reason, Reason], apart: str
) -> Judgement:
    agreed, disagreed = reasons
    if by_cycles is verdict:
        return Judgement(verdict=verdict, reason=agreed, message=f"{apart}, and so do the cycles")
    return undecided(disagreed, f"{apart}, but the cycles do not")


def _has_clock(side: Summary) -> bool:
    return side.clock_hz is not None or raw_clocks(side) is not None
