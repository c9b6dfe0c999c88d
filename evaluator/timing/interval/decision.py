"""Whether a candidate launch is faster than a reference one, by the ranges of their samples."""

import math
from dataclasses import replace

from evaluator.timing.interval.estimates import Estimates, change_between, estimates_of
from evaluator.timing.interval.gap import judge_gap
from evaluator.timing.interval.judgement import Judgement, Reason
from evaluator.timing.interval.sameness import judge_sameness
from evaluator.timing.interval.summary import Summary, Unusable, raw_times
from evaluator.timing.interval.thresholds import Thresholds
from evaluator.timing.verdict import Verdict


def judge(
    reference: Summary, candidate: Summary, thresholds: Thresholds, *, confirmation: bool = True
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


def _without_centre(sides: Estimates, reference: Summary, candidate: Summary) -> Judgement | None:
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
