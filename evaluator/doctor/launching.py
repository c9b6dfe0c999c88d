"""Whether ranks really start, meet and train here, and how much equal launches differ."""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evaluator.doctor.finding import Finding, State
from evaluator.evaluate import TrialEvaluator
from evaluator.timing.noise import pooled
from evaluator.timing.paired import Rule, detectable
from records.conditions import Conditions
from records.errors import EnvironmentFault
from records.study import Study
from records.trial import Config, Failed

TOLD_CHARS = 300
NOISY = 0.05
ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """One launch that was measured: the whole of it, and its steps on their slowest ranks."""

    wall_s: float
    step_times_s: tuple[float, ...]
    conditions: Conditions | None


def launch_repeatedly(
    evaluator: TrialEvaluator, study: Study, config: Config, folder: Path, count: int
) -> tuple[Launched, ...] | str:
    """Launch the same job several times in folders below this one; the cause when one fails."""
    launches: list[Launched] = []
    for number in range(count):
        workdir = folder / str(number)
        workdir.mkdir()
        started_s = time.perf_counter()
        try:
            outcome = evaluator.evaluate(study, config, workdir)
        except EnvironmentFault as fault:
            return str(fault)
        if isinstance(outcome, Failed):
            return str(outcome)
        launches.append(
            Launched(
                wall_s=time.perf_counter() - started_s,
                step_times_s=outcome.measurement.slowest_rank_s,
                conditions=outcome.measurement.conditions,
            )
        )
    return tuple(launches)


def launch_finding(subject: str, launches: Sequence[Launched] | str, *, needed: bool) -> Finding:
    """Whether a launch works; the first of several also started the warm process."""
    if isinstance(launches, str):
        return Finding(
            subject=subject,
            state=State.MISSING,
            told=launches[:TOLD_CHARS],
            remedy="a search cannot measure anything here until this works",
            needed=needed,
        )
    again_s = statistics.median(launch.wall_s for launch in launches[1:])
    return Finding(
        subject=subject,
        state=State.OK,
        told=f"ranks meet and train; {launches[0].wall_s - again_s:.1f} s to start the warm "
        f"process, {again_s:.2f} s for each launch",
        needed=needed,
    )


def noise_finding(launches: Sequence[Launched]) -> Finding:
    """How much equal launches differ, and what difference a search could still tell."""
    within = statistics.median(_quartile_range(launch.step_times_s) for launch in launches)
    medians = [statistics.median(launch.step_times_s) for launch in launches]
    told_apart = smallest_difference(medians, ROUNDS)
    noisy = told_apart > NOISY
    disturbed = [x.conditions.disturbances for x in launches if x.conditions is not None]
    causes = sorted({cause for causes in disturbed for cause in causes})
    return Finding(
        subject="noise",
        state=State.WARN if noisy else State.OK,
        told=f"steps of one launch differ by {within:.0%} (quartiles), {len(launches)} launches by "
        f"{max(medians) / min(medians) - 1:.0%} (slowest to fastest); with {ROUNDS} rounds a "
        f"search tells {told_apart:.0%} apart",
        remedy=(causes[0] if causes else "end other programs; take more rounds") if noisy else None,
    )


def smallest_difference(values: Sequence[float], rounds: int) -> float:
    """The least relative difference that paired rounds of such launches show, four times of five.

    `values` are positive, one for each of at least two launches of the same job.
    """
    noise = pooled([[[value] for value in values]])
    if noise is None:
        raise ValueError(f"{len(values)} launches tell no difference")
    ratio = detectable(noise, Rule(min_rounds=rounds, max_rounds=rounds))
    return math.inf if ratio is None else ratio - 1


def _quartile_range(values: Sequence[float]) -> float:
    low, centre, high = np.quantile(values, (0.25, 0.5, 0.75))
    return float((high - low) / centre)
