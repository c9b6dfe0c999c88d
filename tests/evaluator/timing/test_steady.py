"""Warm-up is cut, a level that changes late is not trusted, and lone spikes change nothing."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.timing.steady import SteadyPart, _segments, _truncation, steady_part

LENGTHS = st.integers(1, 80)
ANY_TIMES = st.lists(st.floats(min_value=0, exclude_min=True, allow_infinity=False), min_size=1)
USUAL_TIMES = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=80)


def noisy(size, *, seed=1, sd=0.02, level=0.1):
    return level * np.exp(np.random.default_rng(seed).normal(0, sd, size))


@given(times=ANY_TIMES)
def test_any_series_of_positive_times_has_an_answer_that_keeps_half(times):
    part = steady_part(times)
    assert 0 <= part.first <= len(times) // 2


@given(time=st.floats(1e-9, 1e6), size=LENGTHS)
def test_a_constant_series_is_kept_whole(time, size):
    assert steady_part([time] * size) == SteadyPart(first=0, late_shift=0.0)


@given(times=USUAL_TIMES, power=st.integers(-40, 40))
def test_the_unit_of_time_does_not_matter(times, power):
    assert steady_part([time * 2.0**power for time in times]) == steady_part(times)


@given(
    head=st.lists(st.floats(1.2, 50), min_size=1, max_size=20),
    rest=st.integers(20, 80),
    seed=st.integers(0, 1000),
)
def test_a_decaying_head_is_cut(head, rest, seed):
    times = np.concatenate([0.1 * np.sort(head)[::-1], noisy(rest, seed=seed, sd=0.01)])
    assert steady_part(times).first >= len(head)


@pytest.mark.parametrize("size", [9, 12, 20, 60, 300, 2300])
@pytest.mark.parametrize("ratio", [0.7, 1.3])
@pytest.mark.parametrize("seed", range(2))
def test_a_level_that_changes_in_the_final_third_is_not_settled(size, ratio, seed):
    times = noisy(size, seed=seed)
    times[-max(size // 5, 3) :] *= ratio
    assert steady_part(times).late_shift == pytest.approx(abs(math.log(ratio)), abs=0.05)


@pytest.mark.parametrize("size", [12, 20, 60, 300, 2300])
@pytest.mark.parametrize("ratio", [0.7, 1.3])
def test_an_early_change_of_level_is_cut_and_settled(size, ratio):
    times = noisy(size)
    times[: size // 3] *= ratio
    part = steady_part(times)
    assert part.first >= size // 3
    assert part.settled


@pytest.mark.parametrize("size", [20, 100, 500])
def test_a_change_between_half_and_two_thirds_drops_half_and_is_settled(size):
    times = noisy(size)
    times[size * 11 // 20 :] *= 1.3
    assert steady_part(times) == SteadyPart(first=size // 2, late_shift=0.0)


@pytest.mark.parametrize("size", [20, 60, 300])
def test_lone_spikes_are_no_change_of_level(size):
    times = noisy(size)
    times[[size // 3, size * 3 // 4, -4]] *= 8
    part = steady_part(times)
    assert part.settled
    assert part.first < size // 3


@pytest.mark.parametrize("size", [9, 12, 20, 50, 200])
def test_level_noise_is_seldom_found_unsettled(size):
    parts = [steady_part(noisy(size, seed=seed, sd=0.05)) for seed in range(200)]
    assert sum(not part.settled for part in parts) <= 12
    assert np.mean([part.first for part in parts]) < 0.2 * size


@pytest.mark.parametrize("size", [50, 200, 500])
def test_noise_that_lasts_for_some_steps_is_seldom_found_unsettled(size):
    unsettled = 0
    for seed in range(40):
        logs = np.random.default_rng(seed).normal(0, 0.018, size)
        for step in range(1, size):
            logs[step] += 0.8 * logs[step - 1]
        unsettled += not steady_part(0.1 * np.exp(logs)).settled
    assert unsettled <= 10


def test_a_warm_up_too_faint_for_a_level_is_truncated():
    times = noisy(200, sd=0.001)
    times[:40] *= 1.008
    part = steady_part(times)
    assert 40 <= part.first < 60
    assert part.settled


@pytest.mark.parametrize("size", [20, 200])
def test_a_change_too_small_to_matter_is_settled(size):
    times = np.full(size, 0.1)
    times[-size // 5 :] *= 1.005
    assert steady_part(times).settled


@pytest.mark.parametrize("times", [[], [0.0], [-1.0], [math.nan], [1.0, math.inf]])
def test_what_is_no_time_is_refused(times):
    with pytest.raises(ValueError, match="positive and finite"):
        steady_part(times)


def test_truncation_has_the_least_standard_error_of_the_first_half():
    logs = np.random.default_rng(3).normal(0, 1, 200)
    logs[:32] += np.linspace(4, 0, 32)
    means = logs.reshape(40, 5).mean(axis=1)
    errors = [np.std(means[cut:]) / math.sqrt(40 - cut) for cut in range(21)]
    assert _truncation(logs) == 5 * int(np.argmin(errors))


@given(seed=st.integers(0, 500), size=st.integers(6, 9))
def test_segments_cost_the_least_of_all_partitions(seed, size):
    points = np.random.default_rng(seed).normal(0, 3, size)
    allowed = [[0], *([0, cut] for cut in range(3, size - 2)), *([[0, 3, 6]] if size == 9 else [])]

    def cost(starts):
        parts = np.split(points, starts[1:])
        return sum(part.size * part.var() for part in parts) + len(parts) * 4 * math.log(size)

    assert cost(_segments(points, 1.0)) == pytest.approx(min(map(cost, allowed)))
