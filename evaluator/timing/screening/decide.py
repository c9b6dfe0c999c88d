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
from evaluator.timing.screening.estimate import (
    Estimate,
    Estimates,
    Family,
    RelativeChange,
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


CLOCK_FAULTS: Mapping[Reason, str] = {
    Reason.MISSING_CLOCK_RATE: "a clock rate is missing to confirm it",
    Reason.INVALID_CLOCK_RATE: "a clock rate is not a positive number",
}


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
    pair = _Pair(reference, candidate, thresholds)
    if intervals is None:
        judgement = _without_centre(sides, pair)
    else:
        judgement = pair.judge_gap(intervals, confirmation=confirmation)
    return replace(
        judgement or pair.judge_sameness(sides),
        family=sides.family,
        reference=sides.reference,
        candidate=sides.candidate,
        change=None if intervals is None else change_between(*intervals),
    )


def overlap_fraction(one: TimeRange, other: TimeRange) -> float:
    """Share of the narrower interval that lies in the other; a point lies in it or does not."""
    lower, upper = max(one.lower, other.lower), min(one.upper, other.upper)
    if upper < lower:
        return 0.0
    narrower = min(one.width, other.width)
    return (upper - lower) / narrower if narrower > 0 else 1.0


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two launches, and the limits by which they are compared."""

    reference: TimeSummary
    candidate: TimeSummary
    thresholds: Thresholds

    def judge_gap(self, intervals: TimeRanges, *, confirmation: bool) -> Judgement | None:
        """FAST or SLOW for a clear gap that the cycles show too, UNDECIDED where they do not.

        None without a clear gap.
        """
        verdict = self._direction(intervals)
        if verdict is None:
            return None
        least = min(abs(bound) for bound in change_between(*intervals).relative)
        apart = f"the times lie {_percent(least)} apart"
        sides = (self.reference, self.candidate)
        has_clock = any(each.clock_hz is not None or raw_clocks(each) is not None for each in sides)
        if not confirmation and not has_clock:
            message = f"{apart}; no clock rate was recorded that could confirm it"
            return Judgement(verdict=verdict, reason=Reason.CLEAR_GAP_UNCONFIRMED, message=message)
        samples = self._raw(raw_cycles)
        if isinstance(samples, Unusable) and not samples.is_gone:
            message = f"{apart}, but {samples.channel} cannot be used: {samples.why}"
            return _undecided(Reason.BULK_CYCLE_DATA_UNUSABLE, message)
        if samples is None or isinstance(samples, Unusable):
            agreed = Reason.CLEAR_GAP_CONFIRMED_BY_SUMMARY_CYCLES
            disagreed = Reason.SUMMARY_CYCLE_GAP_NOT_CONFIRMED
            cycles = self._in_cycles(intervals)
        else:
            agreed = Reason.CLEAR_GAP_CONFIRMED_BY_BULK_CYCLES
            disagreed = Reason.BULK_CYCLE_GAP_NOT_CONFIRMED
            cycles = interval_of_samples(samples[0]), interval_of_samples(samples[1])
        if isinstance(cycles, Reason):
            return _undecided(cycles, f"{apart}, but {CLOCK_FAULTS[cycles]}")
        if self._direction(cycles) is not verdict:
            return _undecided(disagreed, f"{apart}, but the cycles do not")
        return Judgement(verdict=verdict, reason=agreed, message=f"{apart}, and so do the cycles")

    def judge_sameness(self, sides: Estimates) -> Judgement:
        """SAME if centres, intervals, samples and clock rates agree, where there are any."""
        if sides.reference.noise is None or sides.candidate.noise is None:
            message = "a usable dispersion is not known of both sides"
            return _undecided(Reason.NOISE_UNAVAILABLE, message)
        intervals = sides.intervals
        if intervals is None:
            message = "no interval of one kind is known of both sides"
            return _undecided(Reason.MISSING_INTERVAL, message)
        found = self._difference(intervals) or self._judge_samples(intervals)
        if found is not None:
            return found  # even where the noise is high: its shape was compared
        noise = max(sides.reference.noise, sides.candidate.noise)
        ceiling = self.thresholds.same.relative_dispersion_ceiling
        if noise > ceiling:
            message = f"the noise is {_percent(noise)}, more than {_percent(ceiling)}"
            return _undecided(Reason.NOISE_TOO_HIGH, message, noise - ceiling)
        return self._judge_clock_rates(
            intervals, Reason.SAME_CONFIRMED_BY_CYCLES, Reason.SAME_WITHOUT_CLOCK_RATE
        )

    def _direction(self, intervals: TimeRanges) -> Verdict | None:
        reference, candidate = intervals
        for verdict, slower, faster in (
            (Verdict.FAST, reference, candidate),
            (Verdict.SLOW, candidate, reference),
        ):
            clear = slower.lower > faster.upper
            least = self.thresholds.clear_gap.relative
            if clear and relative_difference(slower.lower, faster.upper) >= least:
                return verdict
        return None

    def _difference(self, intervals: TimeRanges) -> Judgement | None:
        """Why two intervals cannot be of the same thing; None if they can."""
        reference, candidate = intervals
        limits = self.thresholds.same
        distance = abs(relative_difference(reference.centre, candidate.centre))
        allowed = limits.center_relative
        if distance > allowed:
            message = f"the centres differ by {_percent(distance)}, more than {_percent(allowed)}"
            return _undecided(Reason.CENTERS_NOT_CLOSE, message, distance - allowed)
        overlap, needed = overlap_fraction(reference, candidate), limits.overlap_fraction
        if overlap < needed:
            shares = f"{_percent(overlap)} of the narrower, under {_percent(needed)}"
            message = f"the intervals share {shares}"
            return _undecided(Reason.WEAK_INTERVAL_OVERLAP, message, needed - overlap)
        return None

    def _judge_samples(self, intervals: TimeRanges) -> Judgement | None:
        """Compare the raw times, then the raw cycles; None unless both sides have times."""
        times = self._raw(raw_times)
        if times is None:
            return None
        unlike = self._mismatch(
            times, "times", Reason.BULK_TIME_DATA_UNUSABLE, Reason.BULK_TIME_SUPPORT_MISMATCH
        )
        if unlike is not None:
            return unlike
        cycles = self._raw(raw_cycles)
        if cycles is None:
            return self._judge_clock_rates(
                intervals,
                Reason.BULK_TIME_SAME_CONFIRMED_BY_SUMMARY_CYCLES,
                Reason.BULK_TIME_SAME_WITHOUT_CYCLES,
            )
        message = "the samples cover each other, in time and in cycles"
        return self._mismatch(
            cycles, "cycles", Reason.BULK_CYCLE_DATA_UNUSABLE, Reason.BULK_CYCLE_SUPPORT_MISMATCH
        ) or Judgement(verdict=Verdict.SAME, reason=Reason.BULK_SAME, message=message)

    def _mismatch(
        self,
        samples: tuple[Samples, Samples] | Unusable,
        name: str,
        unusable: Reason,
        mismatch: Reason,
    ) -> Judgement | None:
        """Why samples do not show that both sides are the same; None if they do."""
        if isinstance(samples, Unusable):
            return _undecided(unusable, f"{samples.channel} cannot be used: {samples.why}")
        worst = worst_shortfall(coverages(*samples, self.thresholds), self.thresholds.bulk)
        if worst is None:
            return None
        what = f"{_percent(worst.covered)} of the {worst.side}'s {worst.share} {name}"
        message = f"{what} are near one of the other side, less than {_percent(worst.needed)}"
        return _undecided(mismatch, message, worst.size)

    def _judge_clock_rates(
        self, intervals: TimeRanges, confirmed: Reason, unconfirmed: Reason
    ) -> Judgement:
        cycles = self._in_cycles(intervals)
        if cycles is Reason.MISSING_CLOCK_RATE:
            message = f"centres and intervals agree; {CLOCK_FAULTS[cycles]}"
            return Judgement(verdict=Verdict.SAME, reason=unconfirmed, message=message)
        if isinstance(cycles, Reason):
            return _undecided(cycles, f"centres and intervals agree, but {CLOCK_FAULTS[cycles]}")
        unlike = self._difference(cycles)
        if unlike is not None:
            message = f"times agree, but in cycles {unlike.message}"
            return _undecided(Reason.CYCLE_SAME_NOT_CONFIRMED, message, unlike.severity)
        message = "centres and intervals agree, in time and in cycles"
        return Judgement(verdict=Verdict.SAME, reason=confirmed, message=message)

    def _raw(
        self, account: Callable[[TimeSummary], Samples | Unusable | None]
    ) -> tuple[Samples, Samples] | Unusable | None:
        """Raw samples of both sides, or why one is unusable; None unless both exist."""
        first, second = account(self.reference), account(self.candidate)
        if first is None or second is None:
            return None
        if isinstance(first, Unusable):
            return replace(first, why=f"reference: {first.why}")
        if isinstance(second, Unusable):
            return replace(second, why=f"candidate: {second.why}")
        return first, second

    def _in_cycles(self, intervals: TimeRanges) -> TimeRanges | Reason:
        """Both intervals times the mean clock rate of their side, or why that cannot be."""
        if self.reference.clock_hz is None or self.candidate.clock_hz is None:
            return Reason.MISSING_CLOCK_RATE
        first = intervals[0].scaled(self.reference.clock_hz)
        second = intervals[1].scaled(self.candidate.clock_hz)
        if first is None or second is None:
            return Reason.INVALID_CLOCK_RATE
        return first, second


def _without_centre(sides: Estimates, pair: _Pair) -> Judgement | None:
    """UNKNOWN where no two centres can be compared, or one is not a time."""
    first, second = sides.reference.centre, sides.candidate.centre
    reference, candidate = pair.reference, pair.candidate
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


def _undecided(reason: Reason, message: str, severity: float = 0.0) -> Judgement:
    return Judgement(verdict=Verdict.UNDECIDED, reason=reason, message=message, severity=severity)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.3g} %"
