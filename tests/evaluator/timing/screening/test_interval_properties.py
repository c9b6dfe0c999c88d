"""What holds for any two launches that the interval comparer is shown."""

import math
from dataclasses import fields

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evaluator.timing.decision import Verdict
from evaluator.timing.screening.decide import Judgement, judge
from evaluator.timing.screening.estimate import PRESETS, Thresholds, TimeSummary, summary_of

MIRROR = {Verdict.FAST: Verdict.SLOW, Verdict.SLOW: Verdict.FAST}
LIMITS = st.sampled_from(list(PRESETS.values()))
TIME = st.sampled_from([0.5, 0.9, 0.999, 1.0, 1.001, 1.004, 1.005, 1.01, 1.02, 1.3, 1.9, 2.0])
CLOCK = st.sampled_from([100.0, 100.2, 200.0])
SAMPLES = st.lists(st.tuples(TIME, CLOCK), min_size=1, max_size=6)


def launch(samples: list[tuple[float, float]], clocks: str, clock_hz: float) -> TimeSummary:
    times_s, clocks_hz = zip(*samples, strict=True)
    return summary_of(
        times_s,
        clocks_hz if clocks == "each" else None,
        clock_hz if clocks == "mean" else None,
    )


# Few samples of few values, so that two launches are often close.
LAUNCH = st.builds(launch, SAMPLES, st.sampled_from(["each", "mean", "none"]), CLOCK)
ANY_NUMBER = st.none() | st.floats() | st.sampled_from([0.0, -1.0, 1.0, 1.1, math.inf])
ANY_VECTOR = st.none() | st.lists(st.floats(), max_size=4) | st.lists(TIME, max_size=4)
NUMBERS = [field.name for field in fields(TimeSummary) if field.type == (float | None)]
ANY_SUMMARY = st.builds(
    TimeSummary,
    **dict.fromkeys(NUMBERS, ANY_NUMBER),
    times_s=ANY_VECTOR,
    clocks_hz=ANY_VECTOR,
)


def outcome(found: Judgement) -> tuple[object, ...]:
    return found.verdict, found.reason, found.family


@given(LAUNCH, LAUNCH, LIMITS, st.booleans())
def test_swapping_the_sides_mirrors_the_verdict_and_negates_the_change(
    one: TimeSummary, other: TimeSummary, limits: Thresholds, confirmation: bool
) -> None:
    forward = judge(one, other, limits, confirmation=confirmation)
    back = judge(other, one, limits, confirmation=confirmation)

    assert back.verdict is MIRROR.get(forward.verdict, forward.verdict)
    assert back.reason is forward.reason
    assert back.severity == forward.severity
    assert forward.change is not None and back.change is not None
    low, high = forward.change.relative
    assert back.change.relative == (-high, -low)


@given(LAUNCH, LAUNCH, LIMITS, st.booleans(), st.integers(-30, 30))
def test_another_unit_of_time_changes_nothing(
    one: TimeSummary, other: TimeSummary, limits: Thresholds, confirmation: bool, exponent: int
) -> None:
    def scaled(side: TimeSummary) -> TimeSummary:
        times = np.asarray(side.times_s) * 2.0**exponent
        return summary_of(times, side.clocks_hz, side.clock_hz)

    found = judge(one, other, limits, confirmation=confirmation)
    again = judge(scaled(one), scaled(other), limits, confirmation=confirmation)

    assert outcome(again) == outcome(found)
    assert again.change is not None and found.change is not None
    assert again.change.relative == found.change.relative


@given(LAUNCH, LIMITS, st.booleans())
def test_a_launch_is_never_faster_than_itself(
    side: TimeSummary, limits: Thresholds, confirmation: bool
) -> None:
    found = judge(side, side, limits, confirmation=confirmation)

    assert found.verdict not in (Verdict.FAST, Verdict.SLOW)


@given(LAUNCH, LAUNCH, LIMITS)
def test_waiving_confirmation_only_settles_what_lacked_a_clock(
    one: TimeSummary, other: TimeSummary, limits: Thresholds
) -> None:
    strict = judge(one, other, limits)
    waived = judge(one, other, limits, confirmation=False)

    assert waived == strict or (strict.reason, waived.reason) == (
        "missing_clock_rate",
        "clear_gap_unconfirmed",
    )


@given(LAUNCH, LAUNCH, LIMITS, st.booleans())
def test_a_faster_launch_changed_by_no_less_than_the_clear_gap(
    one: TimeSummary, other: TimeSummary, limits: Thresholds, confirmation: bool
) -> None:
    found = judge(one, other, limits, confirmation=confirmation)

    claimed = found.verdict in (Verdict.FAST, Verdict.SLOW)
    assert claimed == (found.guaranteed is not None)
    assert found.guaranteed is None or abs(found.guaranteed) >= limits.clear_gap.relative


@given(ANY_SUMMARY, ANY_SUMMARY, LIMITS, st.booleans())
def test_any_two_summaries_get_a_verdict(
    one: TimeSummary, other: TimeSummary, limits: Thresholds, confirmation: bool
) -> None:
    found = judge(one, other, limits, confirmation=confirmation)

    assert found.message and "\n" not in found.message
    assert found.reason.short
    assert found.severity >= 0
    assert judge(other, one, limits, confirmation=confirmation).reason is found.reason


def test_the_summaries_above_vary_every_number() -> None:
    assert len(NUMBERS) == 11
