"""What offline strategies share: the protocol, untried configurations, observations as numbers."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import numpy as np

from evaluator.objective import scoring_of
from policies.space import SAMPLE_COUNT, Space
from records.study import Study
from records.trial import Config, Failed, FailureKind, History, Measured, Trial
from search.loop.inert import equal_configs
from search.strategies.surrogate import Floats
from search.views.format import differing_knobs

Estimates: TypeAlias = Callable[[Config], Mapping[str, float] | None]
"""Estimated seconds of a step of a configuration, by part of the step; None where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A configuration to try next, and why in one line.

    `expected` is the part of it that says how good it should be, empty where unknown. It
    `changes_best` where it is the best so far with some settings changed.
    """

    config: Config
    why: str
    expected: str = ""
    changes_best: bool = False


class Chooser(ABC):
    """Chooses configurations; a pure function of its arguments and its construction.

    Its choices are feasible and untried, so no duplicate costs a launch. `estimates` say what a
    step should take.
    """

    name: ClassVar[str]
    """Name under which its policies are recorded."""

    def __init__(self, space: Space, estimates: Estimates = lambda _: None) -> None:
        self.space = space
        self.estimates = estimates

    def choose(self, study: Study, history: History) -> Choice | None:
        """Return the next configuration; None when every feasible one was tried."""
        left = worth_trying(study, history, untried(self.space, history))
        return self.choice(study, history, left) if left else None

    def candidates(self, study: Study, history: History, count: int) -> tuple[Choice, ...]:  # noqa: ARG002 - most strategies rank nothing
        """Return up to `count` of the most promising configurations, best first."""
        return ()

    def expectation(self, study: Study, history: History, config: Config) -> str:  # noqa: ARG002 - most strategies expect nothing
        """Return what is expected of a configuration against the best; empty where unknown."""
        return ""

    def no_gain(self, study: Study, history: History) -> str | None:  # noqa: ARG002 - most strategies expect nothing
        """Return why no further launch is worth it; None where one may be."""
        return None

    @abstractmethod
    def choice(self, study: Study, history: History, left: list[Config]) -> Choice:
        """Return one of the untried configurations, of which there is at least one."""


def untried(space: Space, history: History) -> list[Config]:
    """Return the feasible configurations that were not launched yet, in the order of the space.

    Of a space that is too large to list, return a sample and the neighbours of the best.
    """
    launched, known = attempted(history), space.candidates
    if len(known) == SAMPLE_COUNT and history.best is not None and history.best.config is not None:
        known = tuple(dict.fromkeys((*known, *space.near(history.best.config))))
    return [config for config in known if config not in launched]


def worth_trying(study: Study, history: History, left: list[Config]) -> list[Config]:
    """Return the configurations that differ from measured ones in more than inert values.

    Where no other is left, return all.
    """
    equal = equal_configs(history, scoring_of(study).over(history), study.measure)
    return [config for config in left if config not in equal] or left


def attempted(history: History) -> Set[Config]:
    """Return the configurations that reached a launch, whatever its result, or are about to."""
    launched = {t.config for t in history if t.config is not None and t.reached_launch}
    return launched | set(history.pending)


def change_words(before: Config, after: Config) -> str:
    """Return the changes between configurations: `pp 1 to 2, schedule (not set) to 1f1b`."""
    return ", ".join(
        f"{knob} {before.values.get(knob, '(not set)')} to {after.values.get(knob, '(not set)')}"
        for knob in differing_knobs(before, after)
    )


RELAUNCHED = 3.0
"""Typical number of launches behind the cost of a repeated trial."""
SPREAD = 0.3
"""Standard deviation that costs without logarithms are scaled to."""


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """Measured configurations with their losses, lower is better, and those that cannot lead.

    A configuration is `barred` if it failed, unless infrastructure or a metric was at fault, or if
    it broke a limit. Losses are logarithms where costs have one sign: of a time itself, of a rate
    with the sign changed. `launch_counts` are the launches behind each loss, `peaks` the binary
    logarithms of the memory that a device had in use, NaN where unknown.
    """

    measured: tuple[Config, ...]
    losses: Floats
    launch_counts: Floats
    peaks: Floats
    barred: tuple[Config, ...]
    shortages: Mapping[Config, "Shortage"]
    """Those of the barred that ran out of memory."""
    sign: int
    """1 where losses are logarithms of the objective, -1 of its inverse, 0 where not logarithms."""

    @classmethod
    def of(cls, history: History) -> "Observations":
        """Read the history; the later of two trials of one configuration counts."""
        measured = {trial.config: trial for trial in history.measured if trial.config is not None}
        failed = {
            trial.config: trial
            for trial in history
            if trial.config is not None and trial.config not in measured and _is_its_doing(trial)
        }
        broken = [
            config for config, trial in measured.items() if trial.score and trial.score.broken
        ]
        costs = np.array([history.cost(trial) for trial in measured.values()])
        losses, sign = _losses(costs)
        counts = [RELAUNCHED if t.ordinal in history.costs else 1.0 for t in measured.values()]
        return cls(
            measured=tuple(measured),
            losses=losses,
            launch_counts=np.array(counts),
            peaks=np.array([_peak(trial) for trial in measured.values()], dtype=np.float64),
            barred=(*broken, *failed),
            shortages={
                config: Shortage.of(trial.outcome.message)
                for config, trial in failed.items()
                if isinstance(trial.outcome, Failed)
                and trial.outcome.kind is FailureKind.OUT_OF_MEMORY
            },
            sign=sign,
        )

    def value(self, loss: float) -> float | None:
        """Return the objective value of a loss; None where losses are not logarithms."""
        return float(np.exp(self.sign * loss)) if self.sign else None

    def with_pending(self, pending: Sequence[Config], losses: Floats) -> "Observations":
        """Return the observations as if pending configurations had their expected losses."""
        return replace(
            self,
            measured=(*self.measured, *pending),
            losses=np.concatenate((self.losses, losses)),
            launch_counts=np.concatenate((self.launch_counts, np.ones(len(pending)))),
            peaks=np.concatenate((self.peaks, np.full(len(pending), np.nan))),
        )


@dataclass(frozen=True, slots=True)
class Shortage:
    """How much memory a device had and how much was needed, in bytes; None where not reported."""

    total_bytes: float | None = None
    needed_bytes: float | None = None

    @classmethod
    def of(cls, message: str) -> "Shortage":
        """Read PyTorch's message: what it could not allocate comes on top of what is in use."""
        total, free, asked = (_size(pattern, message) for pattern in (TOTAL, FREE, ASKED))
        if total is None or free is None or asked is None:
            return cls(total)
        return cls(total, total - free + asked)


ASKED = re.compile(r"Tried to allocate ([\d.]+) ([KMG])iB")
TOTAL = re.compile(r"total capacity of ([\d.]+) ([KMG])iB|([\d.]+) ([KMG])iB total capacity")
FREE = re.compile(r"([\d.]+) ([KMG])iB (?:is )?free")
BINARY = {"K": 2**10, "M": 2**20, "G": 2**30}


def _size(pattern: re.Pattern[str], message: str) -> float | None:
    found = pattern.search(message)
    if found is None:
        return None
    number, unit = filter(None, found.groups())
    return float(number) * BINARY[unit] if number.count(".") < 2 else None


def _peak(trial: Trial) -> float:
    """Return the binary logarithm of what the fullest device had in use; NaN where unknown."""
    outcome = trial.outcome
    if not isinstance(outcome, Measured) or outcome.measurement.device == "cpu":
        return math.nan
    peak = max(outcome.measurement.peak_memory_bytes, default=0)
    return math.log2(peak) if peak > 0 else math.nan


def _is_its_doing(trial: Trial) -> bool:
    outcome = trial.outcome
    if not trial.launched or not isinstance(outcome, Failed):
        return False
    return outcome.kind is not FailureKind.METRIC_ERROR and not outcome.kind.is_infrastructure


def _losses(costs: Floats) -> tuple[Floats, int]:
    if (costs > 0).all():
        return np.log(costs), 1
    if (costs < 0).all():
        return -np.log(-costs), -1
    return (costs - costs.mean()) / (costs.std() or 1.0) * SPREAD, 0
