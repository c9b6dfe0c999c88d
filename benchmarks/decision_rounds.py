"""The rounds that `decision_recording.py` wrote, as values, and what their noise is made of."""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from evaluator.timing.decision import (
    DecisionRule,
    Noise,
    detectable,
    mean_of_faster_half,
    values_in_turns,
)
from records.machine import Conditions

Kind = Literal["relaunch", "together"]
KINDS: tuple[Kind, ...] = ("relaunch", "together")
JOBS: Mapping[str, int] = {"A": 0, "A2": 0, "B3": 3, "B10": 10}
"""The jobs of a round, and by how many percent each is slowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One measured launch; steps as long as on the slowest rank.

    `position` is its place in the round, None where launches took turns.
    """

    position: int | None
    steps_s: tuple[float, ...]
    wall_s: float
    disturbed: bool
    step_by_step: bool = False
    """Whether a turn was one step."""

    @property
    def median_s(self) -> float:
        """What stands for the launch."""
        return statistics.median(self.steps_s)

    @property
    def mean_s(self) -> float:
        """What training pays."""
        return statistics.fmean(self.steps_s)


Taking = Mapping[str, Taken]
"""One launch of each job, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The whole rounds of one kind, oldest first; `about` is the study and the machine."""

    kind: Kind
    about: Mapping[str, object]
    rounds: tuple[Taking, ...]
    broken_round_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseParts:
    """Standard deviations of logarithms, all of identical jobs.

    `ratio` is of a round's A2 over A, by their medians. That of a launch over the whole session is
    made of what it has of its own, `between`, and of what its steps leave open if none is like the
    one before it, `within`; `between` is None where the steps explain all.
    """

    ratio: float
    ratio_of_means: float
    launch: float
    launch_in_round: float
    between: float | None
    within: float
    step: float
    detectable: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """Ratio of two jobs over all rounds with its 95 % interval."""

    ratio: float
    low: float
    high: float


def read_recordings(path: Path) -> Iterator[Recording]:
    """Give what a file holds of each kind; rounds with a failed launch are only counted."""
    lines = path.read_text(encoding="utf-8").splitlines()
    about = json.loads(lines[0])
    for kind in KINDS:
        rounds: dict[int, dict[str, Taken]] = defaultdict(dict)
        for row in map(json.loads, lines[1:]):
            if row["kind"] == kind:
                measured = row["status"] == "measured"
                rounds[row["round"]] |= {row["which"]: _taken(row)} if measured else {}
        whole = tuple(taken for _, taken in sorted(rounds.items()) if taken.keys() == JOBS.keys())
        if rounds:
            broken = len(rounds) - len(whole)
            yield Recording(kind=kind, about=about, rounds=whole, broken_round_count=broken)


def _taken(row: Mapping[str, Any]) -> Taken:
    conditions = row["conditions"]
    return Taken(
        position=row["position"] if row["kind"] == "relaunch" else None,
        steps_s=tuple(row["step_times_s"]),
        wall_s=row["wall_s"],
        disturbed=bool(conditions and Conditions(**conditions).disturbances),
        step_by_step={*row.get("turn_steps", ())} == {1},
    )


def noise_parts(rounds: Sequence[Taking], rule: DecisionRule) -> NoiseParts:
    """Take the noise of identical jobs apart, over at least two rounds."""
    ratios = _log_ratios(rounds, "A2")
    means = [math.log(each["A2"].mean_s / each["A"].mean_s) for each in rounds]
    sd = float(ratios.std(ddof=1))
    launches = [each[name] for each in rounds for name in ("A", "A2")]
    centres = np.array([np.log(launch.steps_s).mean() for launch in launches])
    differences = centres[::2] - centres[1::2]
    step = math.sqrt(statistics.fmean(np.log(x.steps_s).var(ddof=1) for x in launches))
    within = step / math.sqrt(len(launches[0].steps_s))
    rest = float(centres.var(ddof=1)) - within**2
    return NoiseParts(
        ratio=sd,
        ratio_of_means=statistics.stdev(means),
        launch=float(centres.std(ddof=1)),
        launch_in_round=float(differences.std(ddof=1)) / math.sqrt(2),
        between=math.sqrt(rest) if rest > 0 else None,
        within=within,
        step=step,
        detectable=detectable(Noise(sd=sd, freedom=len(rounds) - 1), rule),
    )


def shift(rounds: Sequence[Taking], name: str) -> Shift:
    """By how much a job was really slower than A, over at least two rounds."""
    logs = _log_ratios(rounds, name)
    mean, error = float(logs.mean()), float(logs.std(ddof=1)) / math.sqrt(logs.size)
    half = error * float(stats.t.ppf(0.975, logs.size - 1))
    return Shift(ratio=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))


def values_s(candidate: Taken, anchor: Taken) -> tuple[float, float]:
    """What stands for the launches of a pair: neighbouring steps, or else the faster halves."""
    if not (candidate.step_by_step and anchor.step_by_step):
        if candidate.position is None:
            return candidate.median_s, anchor.median_s
        return mean_of_faster_half(candidate.steps_s), mean_of_faster_half(anchor.steps_s)
    values = values_in_turns({0: candidate.steps_s, 1: anchor.steps_s})
    return values[0], values[1]


def _log_ratios(rounds: Sequence[Taking], name: str) -> NDArray[np.float64]:
    pairs = [values_s(each[name], each["A"]) for each in rounds]
    return np.array([math.log(candidate / anchor) for candidate, anchor in pairs])
