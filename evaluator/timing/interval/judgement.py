"""A verdict on one launch against another, with the reason and the numbers it was taken from."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from evaluator.timing.interval.estimates import Change, Estimate, Family
from evaluator.timing.verdict import Verdict


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
    change: Change | None = None

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
