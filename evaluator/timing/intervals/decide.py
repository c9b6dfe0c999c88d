"""Decide whether a candidate launch is faster than a reference by the ranges of their samples.

First by a clear gap between their times, which their cycles must confirm; without one, by whether
both measured the same times.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from evaluator.timing.decision import Verdict
from evaluator.timing.intervals.estimate import (
    ClearGap,
    Estimate,
    Estimates,
    Family,
    RelativeChange,
    Same,
    Samples,
    Thresholds,
    TimeRange,
    TimeRanges,
    TimeSummary,
    Unusable,
    change_between,
    coverages,
    estimates_of,
    interval_of_samples,
    raw_clocks,
    raw_cycles,
    raw_times,
    relative_difference,
    worst_shortfall,
)


class Reason(StrEnum):
    """Why a verdict was given; `short` is its code for a narrow table column."""

    short: str

    def __new__(cls, code: str, short: str) -> Self:
        """A member that is its long code and knows its short one."""
        reason = str.__new__(cls, code)
        reason._value_ = code
        reason.short = short
        return reason

    STATE_SKIPPED = "state_skipped", "state-skip"
    GPU_TIMING_SUMMARIES_MISSING = "gpu_timing_summaries_missing", "summ-miss"
    TIMING_CENTER_MISSING = "timing_center_missing", "center-miss"
    TIMING_CENTER_NONFINITE = "timing_center_nonfinite", "center-nonfin"
    TIMING_CENTER_NONPOSITIVE = "timing_center_nonpositive", "center-nonpos"

    CLEAR_GAP_CONFIRMED_BY_BULK_CYCLES = "clear_gap_confirmed_by_bulk_cycles", "bc-gap"
    BULK_CYCLE_GAP_NOT_CONFIRMED = "bulk_cycle_gap_not_confirmed", "bc-gap-miss"
    CLEAR_GAP_CONFIRMED_BY_SUMMARY_CYCLES = "clear_gap_confirmed_by_summary_cycles", "sc-gap"
    SUMMARY_CYCLE_GAP_NOT_CONFIRMED = "summary_cycle_gap_not_confirmed", "sc-gap-miss"
    CLEAR_GAP_UNCONFIRMED = "clear_gap_unconfirmed", "gap-no-conf"
    MISSING_CLOCK_RATE = "missing_clock_rate", "clk-miss"
    INVALID_CLOCK_RATE = "invalid_clock_rate", "clk-bad"
    BULK_CYCLE_DATA_UNUSABLE = "bulk_cycle_data_unusable", "bc-bad"

    NOISE_UNAVAILABLE = "noise_unavailable", "noise-miss"
    MISSING_INTERVAL = "missing_interval", "int-miss"
    CENTERS_NOT_CLOSE = "centers_not_close", "centers-far"
    WEAK_INTERVAL_OVERLAP = "weak_interval_overlap", "weak-overlap"

    BULK_TIME_DATA_UNUSABLE = "bulk_time_data_unusable", "bt-bad"
    BULK_TIME_SUPPORT_MISMATCH = "bulk_time_support_mismatch", "bt-sup-miss"
    BULK_CYCLE_SUPPORT_MISMATCH = "bulk_cycle_support_mismatch", "bc-sup-miss"
    BULK_SAME = "bulk_same", "bulk-same"
    BULK_TIME_SAME_CONFIRMED_BY_SUMMARY_CYCLES = (
        "bulk_time_same_confirmed_by_summary_cycles",
        "bt-same-sc",
    )
    BULK_TIME_SAME_WITHOUT_CYCLES = "bulk_time_same_without_cycles", "bt-same-no-cyc"

    NOISE_TOO_HIGH = "noise_too_high", "noise-high"
    SAME_CONFIRMED_BY_CYCLES = "same_confirmed_by_cycles", "sc-same"
    CYCLE_SAME_NOT_CONFIRMED = "cycle_same_not_confirmed", "sc-same-miss"
    SAME_WITHOUT_CLOCK_RATE = "same_without_clock_rate", "same-no-clk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict on the candidate, and what it was taken from.

    Estimates are None for a side without a usable centre, `change` without intervals. `severity`
    is by how much the most wanting number misses its threshold, as a fraction.
    """

    verdict: Verdict
    reason: Reason
    message: str
    severity: float = 0.0
    family: Family = Family.NONE
    reference: Estimate | None = None
    candidate: Estimate | None = None
    change: RelativeChange | None = None

    @property
    def guaranteed(self) -> float | None:
        """The least relative change that the intervals allow; None unless FAST or SLOW."""
        if self.change is None:
            return None
        least, most = self.change.relative
        return {Verdict.FAST: most, Verdict.SLOW: least}.get(self.verdict)


def undecided(reason: Reason, message: str, severity: float = 0.0) -> Judgement:
    """A judgement that the evidence is not enough."""
    return Judgement(verdict=Verdict.UNDECIDED, reason=reason, message=message, severity=severity)


CLOCK_FAULTS: Mapping[Reason, str] = {
    Reason.MISSING_CLOCK_RATE: "a clock rate is missing to confirm it",
    Reason.INVALID_CLOCK_RATE: "a clock rate is not a positive number",
}


def both_raw(
    account: Callable[[TimeSummary], Samples | Unusable | None],
    reference: TimeSummary,
    candidate: TimeSummary,
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


def in_cycles(
    intervals: TimeRanges, reference: TimeSummary, candidate: TimeSummary
) -> TimeRanges | Reason:
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


BY_SAMPLES = (Reason.CLEAR_GAP_CONFIRMED_BY_BULK_CYCLES, Reason.BULK_CYCLE_GAP_NOT_CONFIRMED)
BY_CLOCK_RATE = (
    Reason.CLEAR_GAP_CONFIRMED_BY_SUMMARY_CYCLES,
    Reason.SUMMARY_CYCLE_GAP_NOT_CONFIRMED,
)


def judge_gap(
    intervals: TimeRanges,
    reference: TimeSummary,
    candidate: TimeSummary,
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


def _direction(intervals: TimeRanges, limits: ClearGap) -> Verdict | None:
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


def _has_clock(side: TimeSummary) -> bool:
    return side.clock_hz is not None or raw_clocks(side) is not None


# Reasons for SAME when the mean clock rates agree, and when there are none.
WITH_SAMPLES = (
    Reason.BULK_TIME_SAME_CONFIRMED_BY_SUMMARY_CYCLES,
    Reason.BULK_TIME_SAME_WITHOUT_CYCLES,
)
WITHOUT_SAMPLES = (Reason.SAME_CONFIRMED_BY_CYCLES, Reason.SAME_WITHOUT_CLOCK_RATE)


def judge_sameness(
    sides: Estimates, reference: TimeSummary, candidate: TimeSummary, thresholds: Thresholds
) -> Judgement:
    """SAME if centres, intervals, samples and clock rates agree, where there are any."""
    noises = [side.noise for side in (sides.reference, sides.candidate) if side.noise is not None]
    if len(noises) < 2:
        return undecided(Reason.NOISE_UNAVAILABLE, "a usable dispersion is not known of both sides")
    intervals = sides.intervals
    if intervals is None:
        return undecided(Reason.MISSING_INTERVAL, "no interval of one kind is known of both sides")
    unlike = _unlike(intervals, thresholds.same)
    if unlike is not None:
        return unlike
    by_samples = _by_samples(intervals, reference, candidate, thresholds)
    if by_samples is not None:
        return by_samples  # even where the noise is high: its shape was compared
    noise, ceiling = max(noises), thresholds.same.relative_dispersion_ceiling
    if noise > ceiling:
        message = f"the noise is {percent(noise)}, more than {percent(ceiling)}"
        return undecided(Reason.NOISE_TOO_HIGH, message, noise - ceiling)
    return _by_clock_rate(intervals, reference, candidate, thresholds.same, WITHOUT_SAMPLES)


def overlap_fraction(one: TimeRange, other: TimeRange) -> float:
    """Share of the narrower interval that lies in the other; a point lies in it or does not."""
    lower, upper = max(one.lower, other.lower), min(one.upper, other.upper)
    if upper < lower:
        return 0.0
    narrower = min(one.width, other.width)
    return (upper - lower) / narrower if narrower > 0 else 1.0


def _unlike(intervals: TimeRanges, limits: Same) -> Judgement | None:
    """Why two intervals cannot be of the same thing; None if they can."""
    reference, candidate = intervals
    distance = abs(relative_difference(reference.centre, candidate.centre))
    if distance > limits.center_relative:
        allowed = limits.center_relative
        message = f"the centres differ by {percent(distance)}, more than {percent(allowed)}"
        return undecided(Reason.CENTERS_NOT_CLOSE, message, distance - allowed)
    overlap, needed = overlap_fraction(reference, candidate), limits.overlap_fraction
    if overlap < needed:
        message = f"the intervals share {percent(overlap)} of the narrower, under {percent(needed)}"
        return undecided(Reason.WEAK_INTERVAL_OVERLAP, message, needed - overlap)
    return None


def _by_samples(
    intervals: TimeRanges, reference: TimeSummary, candidate: TimeSummary, thresholds: Thresholds
) -> Judgement | None:
    """Compare the raw times, then the raw cycles; None unless both sides have times."""
    times = both_raw(raw_times, reference, candidate)
    if times is None:
        return None
    if isinstance(times, Unusable):
        message = f"{times.channel} cannot be used: {times.why}"
        return undecided(Reason.BULK_TIME_DATA_UNUSABLE, message)
    mismatch = _mismatch(times, thresholds, "times", Reason.BULK_TIME_SUPPORT_MISMATCH)
    if mismatch is not None:
        return mismatch
    cycles = both_raw(raw_cycles, reference, candidate)
    if cycles is None:
        return _by_clock_rate(intervals, reference, candidate, thresholds.same, WITH_SAMPLES)
    if isinstance(cycles, Unusable):
        message = f"{cycles.channel} cannot be used: {cycles.why}"
        return undecided(Reason.BULK_CYCLE_DATA_UNUSABLE, message)
    mismatch = _mismatch(cycles, thresholds, "cycles", Reason.BULK_CYCLE_SUPPORT_MISMATCH)
    if mismatch is not None:
        return mismatch
    message = "the samples cover each other, in time and in cycles"
    return Judgement(verdict=Verdict.SAME, reason=Reason.BULK_SAME, message=message)


def _mismatch(
    samples: tuple[Samples, Samples], thresholds: Thresholds, name: str, reason: Reason
) -> Judgement | None:
    worst = worst_shortfall(coverages(*samples, thresholds), thresholds.bulk)
    if worst is None:
        return None
    what = f"{percent(worst.covered)} of the {worst.side}'s {worst.share} {name}"
    message = f"{what} are near one of the other side, less than {percent(worst.needed)}"
    return undecided(reason, message, worst.size)


def _by_clock_rate(
    intervals: TimeRanges,
    reference: TimeSummary,
    candidate: TimeSummary,
    limits: Same,
    reasons: tuple[Reason, Reason],
) -> Judgement:
    confirmed, unconfirmed = reasons
    cycles = in_cycles(intervals, reference, candidate)
    if cycles is Reason.MISSING_CLOCK_RATE:
        message = "centres and intervals agree; a clock rate is missing to confirm it"
        return Judgement(verdict=Verdict.SAME, reason=unconfirmed, message=message)
    if isinstance(cycles, Reason):
        return undecided(cycles, f"centres and intervals agree, but {CLOCK_FAULTS[cycles]}")
    unlike = _unlike(cycles, limits)
    if unlike is not None:
        message = f"times agree, but in cycles {unlike.message}"
        return undecided(Reason.CYCLE_SAME_NOT_CONFIRMED, message, unlike.severity)
    message = "centres and intervals agree, in time and in cycles"
    return Judgement(verdict=Verdict.SAME, reason=confirmed, message=message)


def judge(
    reference: TimeSummary,
    candidate: TimeSummary,
    thresholds: Thresholds,
    *,
    confirmation: bool = True,
) -> Judgement:
    """Judge the candidate against the reference.

    A clear gap counts only if the confirmation channel (cycles: time by clock rate) shows it too.
    With `confirmation=False` it counts also where neither side has such a channel.
    """
    skipped = (reference.skipped, candidate.skipped)
    if any(skipped):
        return _unknown(Reason.STATE_SKIPPED, skipped, "skipped when it was measured")
    empty = (reference.empty, candidate.empty)
    if any(empty):
        return _unknown(Reason.GPU_TIMING_SUMMARIES_MISSING, empty, "no times were recorded")
    sides = estimates_of(reference, candidate)
    intervals = sides.intervals
    judgement = _without_centre(sides, reference, candidate)
    if judgement is None and intervals is not None:
        judgement = judge_gap(
            intervals, reference, candidate, thresholds.clear_gap, confirmation=confirmation
        )
    if judgement is None:
        judgement = judge_sameness(sides, reference, candidate, thresholds)
    return replace(
        judgement,
        family=sides.family,
        reference=sides.reference,
        candidate=sides.candidate,
        change=None if intervals is None else change_between(*intervals),
    )


def _without_centre(
    sides: Estimates, reference: TimeSummary, candidate: TimeSummary
) -> Judgement | None:
    """UNKNOWN where no two centres can be compared, or one is not a time."""
    if sides.intervals is not None:
        return None
    first, second = sides.reference.centre, sides.candidate.centre
    kinds = ((reference.median, candidate.median), (reference.mean, candidate.mean))
    if first is None or second is None or all(None in kind for kind in kinds):
        message = "no centre of one kind is known of both sides"
        for name, side in (("reference", reference), ("candidate", candidate)):
            times = raw_times(side)
            message += f"; {name}: {times.why}" if isinstance(times, Unusable) else ""
        reason = Reason.TIMING_CENTER_MISSING
        return Judgement(verdict=Verdict.UNKNOWN, reason=reason, message=message)
    infinite = (not math.isfinite(first), not math.isfinite(second))
    if any(infinite):
        return _unknown(Reason.TIMING_CENTER_NONFINITE, infinite, "the centre is not finite")
    negative = (first <= 0, second <= 0)
    if any(negative):
        return _unknown(Reason.TIMING_CENTER_NONPOSITIVE, negative, "the centre is not positive")
    return None


def _unknown(reason: Reason, sides: tuple[bool, bool], what: str) -> Judgement:
    names = [name for name, bad in zip(("reference", "candidate"), sides, strict=True) if bad]
    message = f"{' and '.join(names)}: {what}"
    return Judgement(verdict=Verdict.UNKNOWN, reason=reason, message=message)
