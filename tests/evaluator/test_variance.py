"""Known components are found again, and the repetition they call for is the textbook's."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evaluator.timing.variance import (
    Components,
    components,
    correlation_time,
    effective_steps,
    launches_needed,
    steps_per_launch,
)

KNOWN = Components(within=0.0004, between=0.0001, tau=4.0, launch_count=10, step_count=1000)
LAUNCH = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30)


def simulated(sizes, *, within_sd, between_sd, memory=0.0, seed=7):
    """Launches of log-normal step times; neighbouring steps correlate by `memory`."""
    rng = np.random.default_rng(seed)
    launches = []
    for size in sizes:
        steps = rng.normal(0, within_sd * math.sqrt(1 - memory**2), size)
        steps[0] = rng.normal(0, within_sd)
        for step in range(1, size):
            steps[step] += memory * steps[step - 1]
        launches.append(0.05 * np.exp(rng.normal(0, between_sd) + steps))
    return launches


@pytest.mark.parametrize("sizes", [[100] * 400, [20, 180] * 200], ids=["even", "uneven"])
@pytest.mark.parametrize("memory", [0.0, 0.5])
def test_simulated_components_are_found_again(sizes, memory):
    found = components(simulated(sizes, within_sd=0.03, between_sd=0.02, memory=memory))
    assert math.sqrt(found.within) == pytest.approx(0.03, rel=0.03)
    assert math.sqrt(found.between) == pytest.approx(0.02, rel=0.1)
    assert found.tau == pytest.approx((1 + memory) / (1 - memory), rel=0.1)
    assert (found.launch_count, found.step_count) == (400, 40_000)
    assert found.effective_steps == pytest.approx(40_000 / found.tau)


@pytest.mark.parametrize("sizes", [[8] * 6, [3, 9, 5, 12]], ids=["even", "uneven"])
@pytest.mark.parametrize("seed", range(5))
def test_the_split_is_that_of_one_way_analysis_of_variance(sizes, seed):
    launches = simulated(sizes, within_sd=0.02, between_sd=0.05, seed=seed)
    found = components(launches)
    ratio = stats.f_oneway(*map(np.log, launches)).statistic
    steps = (sum(sizes) - sum(size**2 for size in sizes) / sum(sizes)) / (len(sizes) - 1)
    assert found.between == pytest.approx(found.within * max(ratio - found.tau, 0) / steps)


def test_equal_launches_have_the_pooled_variance_within():
    launches = simulated([50, 50], within_sd=0.02, between_sd=0.0)
    pooled = np.mean([np.var(np.log(launch), ddof=1) for launch in launches])
    assert components(launches).within == pytest.approx(pooled)


def test_launches_that_differ_less_than_chance_have_no_variance_between():
    launch = simulated([50], within_sd=0.02, between_sd=0.0)[0]
    assert components([launch, launch[::-1]]).between == 0


def test_constant_launches_differ_only_between():
    found = components([[0.1] * 10, [0.3] * 10])
    assert (found.within, found.tau) == (0.0, 1.0)
    assert found.between == pytest.approx(math.log(3) ** 2 / 2)


@pytest.mark.parametrize("launches", [[], [[1.0, 2.0]], [[1.0], [2.0]]])
def test_too_little_to_split_has_no_components(launches):
    assert components(launches) is None


@given(launches=st.lists(LAUNCH, min_size=2, max_size=6), scale=st.floats(1e-3, 1e3))
def test_components_are_never_negative_and_know_no_unit(launches, scale):
    found = components(launches)
    scaled = components([[time * scale for time in launch] for launch in launches])
    if found is not None:
        assert min(found.within, found.between) >= 0
        assert 1 <= found.tau <= 2 * max(map(len, launches))
        assert scaled.within == pytest.approx(found.within, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("memory", [0.0, 0.3, 0.8])
def test_the_correlation_time_of_a_first_order_process_is_known(memory):
    times = simulated([60_000], within_sd=0.05, between_sd=0.0, memory=memory)[0]
    known = (1 + memory) / (1 - memory)
    assert correlation_time(times) == pytest.approx(known, rel=0.1)
    assert effective_steps(times) == pytest.approx(60_000 / known, rel=0.1)


def test_steps_that_alternate_are_worth_no_more_than_independent_ones():
    assert correlation_time([1.0, 2.0] * 20) == 1.0


@pytest.mark.parametrize("times", [[], [0.0, 1.0], [math.nan, 1.0], [math.inf, 1.0]])
def test_what_is_no_time_is_refused(times):
    with pytest.raises(ValueError, match="positive and finite"):
        correlation_time(times)


def test_steps_per_launch_balances_cost_and_variance():
    # sqrt(90 / 0.1 * 4 * 0.0004 / 0.0001) = sqrt(900 * 16)
    assert steps_per_launch(KNOWN, launch_cost_s=90.0, step_cost_s=0.1) == 120


@pytest.mark.parametrize(
    ("changed", "steps"),
    [
        ({"between": 0.0}, 500),
        ({"within": 0.0}, 20),
        ({"between": 1.0}, 20),
        ({"between": 1e-12}, 500),
        ({"within": 0.0, "between": 0.0}, 20),
    ],
)
def test_steps_per_launch_stays_in_its_range(changed, steps):
    parts = dataclasses.replace(KNOWN, **changed)
    assert steps_per_launch(parts, launch_cost_s=90.0, step_cost_s=0.1) == steps


def test_the_range_of_steps_is_the_callers():
    parts = dataclasses.replace(KNOWN, between=0.0)
    assert steps_per_launch(parts, launch_cost_s=1.0, step_cost_s=0.1, least=2, most=30) == 30


def test_the_steps_chosen_give_the_least_variance_for_their_cost():
    launch_s, step_s = 10.0, 0.1

    def variance_per_second(steps):
        variance = KNOWN.between + KNOWN.tau * KNOWN.within / steps
        return variance * (launch_s + steps * step_s)

    chosen = steps_per_launch(KNOWN, launch_cost_s=launch_s, step_cost_s=step_s, least=1)
    assert chosen == min(range(1, 501), key=variance_per_second)


@pytest.mark.parametrize(
    "costs",
    [
        {"launch_cost_s": -1.0, "step_cost_s": 1.0},
        {"launch_cost_s": 1.0, "step_cost_s": 0.0},
        {"launch_cost_s": math.inf, "step_cost_s": 1.0},
        {"launch_cost_s": 1.0, "step_cost_s": 1.0, "least": 30, "most": 20},
        {"launch_cost_s": 1.0, "step_cost_s": 1.0, "least": 0},
    ],
)
def test_costs_and_ranges_that_are_none_are_refused(costs):
    with pytest.raises(ValueError, match="give"):
        steps_per_launch(KNOWN, **costs)


@pytest.mark.parametrize(("size", "rounds"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10)])
def test_rounds_needed_are_those_of_the_power_tables(size, rounds):
    assert launches_needed(1 / size, math.e) == rounds
    assert launches_needed(1 / size, 1 / math.e) == rounds


def test_simulated_rounds_have_the_power_asked_for():
    rounds = launches_needed(0.03, 1.03)
    logs = np.random.default_rng(5).normal(math.log(1.03), 0.03, (4000, rounds))
    shown = stats.ttest_1samp(logs, 0.0, axis=1).pvalue < 0.05
    assert 0.78 < shown.mean() < 0.87


@pytest.mark.parametrize(("noise", "ratio", "rounds"), [(0.0, 1.1, 2), (0.1, 1.0, None)])
def test_no_noise_needs_two_rounds_and_no_effect_no_number(noise, ratio, rounds):
    assert launches_needed(noise, ratio) == rounds


@given(noise=st.floats(0, 1), log_ratio=st.floats(1e-3, 1))
def test_more_noise_never_needs_fewer_rounds(noise, log_ratio):
    ratio = math.exp(log_ratio)
    assert 2 <= launches_needed(noise, ratio) <= launches_needed(2 * noise, ratio)


@pytest.mark.parametrize(
    ("noise", "ratio", "options"),
    [
        (-0.1, 1.1, {}),
        (math.nan, 1.1, {}),
        (0.1, 0.0, {}),
        (0.1, 1.1, {"alpha": 0.6}),
        (0.1, 1.1, {"power": 1.0}),
    ],
)
def test_what_has_no_power_is_refused(noise, ratio, options):
    with pytest.raises(ValueError, match="give"):
        launches_needed(noise, ratio, **options)
