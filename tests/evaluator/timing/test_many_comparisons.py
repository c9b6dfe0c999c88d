"""Many comparisons together claim no more by chance than one does."""

import math
import random
from dataclasses import replace

import pytest

from evaluator.timing.decision import (
    LOST_AMONG_MANY,
    DecisionRule,
    LaunchValue,
    Round,
    Verdict,
    corrected_for_number,
    decide,
    p_value,
)

GATE = DecisionRule(margin=0.05, look_often=False, max_rounds=6)
SWEEPS, POINTS, ROUNDS = 40, 325, 6
CLAIMS = (Verdict.FAST, Verdict.SLOW)


def sweep(draw, *, slower, noise):
    """One comparison for each point of a sweep over all collectives."""
    return [decide(rounds(draw, slower, noise), GATE) for _ in range(POINTS)]


def rounds(draw, slower, noise):
    def launch(scale):
        return LaunchValue(value=scale * math.exp(draw.gauss(0, noise)))

    return [Round(candidate=launch(slower), anchor=launch(1.0)) for _ in range(ROUNDS)]


def slow_count(found):
    return sum(each.verdict is Verdict.SLOW for each in found)


def corrected(found):
    return corrected_for_number([(each, GATE) for each in found])


def test_equal_sides_of_325_noisy_points_rarely_fail_a_gate():
    draw = random.Random(0)
    sweeps = [sweep(draw, slower=1.0, noise=0.1) for _ in range(SWEEPS)]

    assert sum(slow_count(each) > 0 for each in sweeps) > 0.5 * SWEEPS
    assert sum(slow_count(corrected(each)) > 0 for each in sweeps) <= 0.05 * SWEEPS


def test_what_is_slower_by_a_quarter_is_still_found_among_them():
    found = corrected(sweep(random.Random(1), slower=1.25, noise=0.1))

    assert slow_count(found) > 0


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ((0.01, 0.04), 2),
        ((0.03, 0.04), 0),
        ((0.001, 0.026, 0.03), 1),
        ((0.001, 0.01, 0.04), 3),
        ((0.049,), 1),
    ],
)
def test_claims_are_kept_in_holm_s_order(values, kept):
    found = corrected([with_p(value) for value in values])

    assert [each.verdict in CLAIMS for each in found] == [True] * kept + [False] * (
        len(values) - kept
    )
    assert {each.reason for each in found[kept:]} <= {LOST_AMONG_MANY}


def with_p(wanted):
    """Six rounds whose claim has this p value, found by halving."""
    low, high = 1.05, 100.0
    made = replace(decide(rounds(random.Random(2), 1.5, 0.1), GATE), verdict=Verdict.SLOW)
    for _ in range(100):
        middle = (low + high) / 2
        value = p_value(replace(made, ratio=middle), GATE)
        low, high = (middle, high) if value is not None and value > wanted else (low, middle)
    return replace(made, ratio=high)


@pytest.mark.parametrize("slower", [0.7, 0.95, 1.0, 1.1, 1.3])
def test_a_claim_is_a_p_value_below_alpha(slower):
    draw = random.Random(3)
    for _ in range(200):
        found = decide(rounds(draw, slower, 0.05), GATE)
        value = p_value(found, GATE)
        assert value is not None
        assert (value < GATE.alpha) is (found.verdict in CLAIMS)


def test_what_was_not_tested_has_no_p_value():
    few = decide(rounds(random.Random(4), 2.0, 0.1)[:2], GATE)

    assert p_value(few, GATE) is None
    assert corrected([few]) == [few]
    assert corrected([]) == []
