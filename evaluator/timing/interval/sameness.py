"""Whether two launches that are not clearly apart took the same time."""

from evaluator.timing.interval.coverage import coverages, worst_shortfall
from evaluator.timing.interval.estimates import Estimates, Interval, Intervals, relative_difference
from evaluator.timing.interval.evidence import CLOCK_FAULTS, both_raw, in_cycles, percent
from evaluator.timing.interval.judgement import Judgement, Reason, undecided
from evaluator.timing.interval.summary import Samples, Summary, Unusable, raw_cycles, raw_times
from evaluator.timing.interval.thresholds import Same, Thresholds
from evaluator.timing.verdict import Verdict

# Reasons for SAME when the mean clock rates agree, and when there are none.
WITH_SAMPLES = (
    Reason.BULK_TIME_SAME_CONFIRMED_BY_SUMMARY_CYCLES,
    Reason.BULK_TIME_SAME_WITHOUT_CYCLES,
)
WITHOUT_SAMPLES = (Reason.SAME_CONFIRMED_BY_CYCLES, Reason.SAME_WITHOUT_CLOCK_RATE)


def judge_sameness(
    sides: Estimates, reference: Summary, candidate: Summary, thresholds: Thresholds
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


def overlap_fraction(one: Interval, other: Interval) -> float:
    """Share of the narrower interval that lies in the other; a point lies in it or does not."""
    lower, upper = max(one.lower, other.lower), min(one.upper, other.upper)
    if upper < lower:
        return 0.0
    narrower = min(one.width, other.width)
    return (upper - lower) / narrower if narrower > 0 else 1.0


def _unlike(intervals: Intervals, limits: Same) -> Judgement | None:
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
    intervals: Intervals, reference: Summary, candidate: Summary, thresholds: Thresholds
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
    intervals: Intervals,
    reference: Summary,
    candidate: Summary,
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
