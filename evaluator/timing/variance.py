"""How much step times vary within launches and between them, and what repetition that calls for.

All variances are of log times, so that their square roots read as shares: 0.03 is about 3 %.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from evaluator.timing.steady import Array, log_times

MANY_ROUNDS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """Variance of log step times within a launch, and of launches around their common level.

    `tau` is the integrated autocorrelation time: how many steps tell as much as one independent
    step would.
    """

    within: float
    between: float
    tau: float
    launch_count: int
    step_count: int

    @property
    def effective_steps(self) -> float:
        """Independent steps that would tell as much as all steps of all launches."""
        return self.step_count / self.tau


def components(launches: Sequence[Sequence[float]]) -> Components | None:
    """Split the variance of steady step times by the method of moments; launches may be uneven.

    The mean square between launches holds `tau` times the variance within, which is taken off; a
    difference below zero is chance and counts as zero. None where nothing can be split: fewer than
    two launches, or none with two steps. Launches should be much longer than `tau`, or it is
    underestimated, and so is the variance within.
    """
    logs = [log_times(times) for times in launches]
    sizes = np.array([launch.size for launch in logs], dtype=np.float64)
    count, total = len(logs), int(sizes.sum())
    if count < 2 or total == count:
        return None
    means = np.array([launch.mean() for launch in logs])
    deviations = [_deviations(launch) for launch in logs]
    within = sum(float(launch @ launch) for launch in deviations) / (total - count)
    common = float(sizes @ means) / total
    mean_square = float(sizes @ (means - common) ** 2) / (count - 1)
    # Steps per launch; for uneven launches a little less than their mean.
    steps = (total - float(sizes @ sizes) / total) / (count - 1)
    tau = _correlation_time(deviations)
    between = max(mean_square - tau * within, 0.0) / steps
    return Components(within=within, between=between, tau=tau, launch_count=count, step_count=total)


def correlation_time(times_s: Sequence[float]) -> float:
    """Integrated autocorrelation time of one launch's steady log step times, in steps."""
    return _correlation_time([_deviations(log_times(times_s))])


def effective_steps(times_s: Sequence[float]) -> float:
    """Independent steps that would tell as much as these."""
    return len(times_s) / correlation_time(times_s)


def steps_per_launch(
    parts: Components,
    *,
    launch_cost_s: float,
    step_cost_s: float,
    least: int = 20,
    most: int = 500,
) -> int:
    """Steps that buy the most precision per second of launches and steps (Kalibera and Jones).

    sqrt(launch cost / step cost * tau * within / between), between `least` and `most`; launches
    that do not differ are worth `most`. The launch cost is what a launch takes without its timed
    steps, warm-up included.
    """
    if not (0 <= launch_cost_s < math.inf and 0 < step_cost_s < math.inf):
        raise ValueError(
            f"a launch of {launch_cost_s} s and a step of {step_cost_s} s are no costs; "
            "give finite seconds, more than zero for the step"
        )
    if not 1 <= least <= most:
        raise ValueError(f"{least} to {most} steps is no range; give 1 <= least <= most")
    noise = parts.tau * parts.within
    if noise == 0:
        return least
    if parts.between == 0:
        return most
    best = math.sqrt(launch_cost_s / step_cost_s * noise / parts.between)
    return round(min(max(best, least), most))


def launches_needed(
    noise_sd: float, effect_ratio: float, *, alpha: float = 0.05, power: float = 0.80
) -> int | None:
    """Rounds that show a true ratio with this power: Student's t, two-sided, one fixed look.

    `noise_sd` is the standard deviation of a round's log ratio, `effect_ratio` candidate over
    anchor; to clear a practical margin, give the part beyond it. None for a ratio of 1, which no
    number of rounds tells from none.
    """
    if not (0 <= noise_sd < math.inf and 0 < effect_ratio < math.inf):
        raise ValueError(
            f"noise {noise_sd} or ratio {effect_ratio} is out of range; "
            "give a finite deviation and a positive ratio"
        )
    if not (0 < alpha < 0.5 and alpha < power < 1):
        raise ValueError(
            f"alpha {alpha} or power {power} is out of range; give 0 < alpha < power < 1"
        )
    effect = abs(math.log(effect_ratio))
    if effect == 0:
        return None
    size = noise_sd / effect
    # The count for a known deviation is a lower bound, close for few and as good as it for many.
    quantiles = float(stats.norm.ppf(1 - alpha / 2)) + float(stats.norm.ppf(power))
    rounds = max(math.ceil((quantiles * size) ** 2), 2)
    while size > 0 and rounds < MANY_ROUNDS and _power(rounds, 1 / size, alpha) < power:
        rounds += 1
    return rounds


def _power(rounds: int, effect: float, alpha: float) -> float:
    """Chance that a t test of so many rounds shows an effect given in standard deviations.

    The chance to show it the wrong way round is not counted.
    """
    critical = stats.t.ppf(1 - alpha / 2, rounds - 1)
    return float(stats.nct.sf(critical, rounds - 1, effect * math.sqrt(rounds)))


def _correlation_time(deviations: Sequence[Array]) -> float:
    """Sum of autocorrelations over lags of both signs, as far as they stand out from noise.

    Geyer's initial positive sequence: sums of two neighbouring autocorrelations are positive for a
    reversible chain; the first that is not is noise, and ends the sum. At least 1: steps that
    alternate are not credited for it.
    """
    longest = max(launch.size for launch in deviations)
    lags = _autocovariance(deviations, longest)
    if lags[0] == 0:
        return 1.0
    pairs = (lags[: longest // 2 * 2] / lags[0]).reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs <= 0)
    used = pairs[: negative[0]] if negative.size else pairs
    return max(2 * float(used.sum()) - 1, 1.0)


def _autocovariance(deviations: Sequence[Array], longest: int) -> Array:
    """Sum over launches of the products of deviations that are 0, 1, 2... steps apart."""
    total = np.zeros(longest)
    for launch in deviations:
        spectrum = np.fft.rfft(launch, 2 * longest)
        total += np.fft.irfft(np.abs(spectrum) ** 2, 2 * longest)[:longest]
    return total


def _deviations(logs: Array) -> Array:
    # From the first step on, so that equal times deviate by exactly nothing.
    rises: Array = logs - logs[0]
    return rises - float(rises.mean())
