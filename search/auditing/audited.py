"""A history as an audit looks at it: who leads, and which trials are effectively the same."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self, TypeAlias

from evaluator.objective import Scoring, scoring_of
from records.history import History
from records.study import Study
from records.trial import Config, Failed, FailureKind, Measured, Repeat, Trial

MOST_NAMED: Final = 8
Said: TypeAlias = tuple[str, tuple[int, ...]]
"""What a check found, in a sentence or two, and the trials that it is about."""


# Not slotted: what several checks share is computed once, by the first that asks.
@dataclass(frozen=True, kw_only=True)
class Audited:
    """A study with its trials; `best` is None where nothing was measured."""

    study: Study
    history: History
    scoring: Scoring
    best: Trial | None
    repeated: frozenset[int]
    """Ordinals of trials that were launched again."""

    @classmethod
    def of(cls, study: Study, history: History, repeats: Sequence[Repeat]) -> Self:
        """Look at a history."""
        return cls(
            study=study,
            history=history,
            scoring=scoring_of(study).over(history),
            best=history.best,
            repeated=frozenset(repeat.ordinal for repeat in repeats),
        )

    @property
    def is_foreign(self) -> bool:
        """Whether another tool conducted the search."""
        return self.study.origin is not None and self.study.origin.kind != "bundle"

    @property
    def dead_knobs(self) -> tuple[str, ...]:
        """Knobs that had no effect, whatever they were set to."""
        return () if self.study.origin is None else self.study.origin.dead_knobs

    def live(self, config: Config) -> Config:
        """The configuration without knobs that had no effect."""
        kept = {knob: v for knob, v in config.values.items() if knob not in self.dead_knobs}
        return Config(kept)

    @cached_property
    def alike(self) -> Mapping[Config, tuple[Trial, ...]]:
        """Admissible trials by what they effectively set."""
        found: dict[Config, list[Trial]] = defaultdict(list)
        for trial in self.history.admissible:
            if trial.config is not None:
                found[self.live(trial.config)].append(trial)
        return {config: tuple(trials) for config, trials in found.items()}

    @cached_property
    def noise(self) -> float | None:
        """Standard deviation of the logarithm of results of equal settings; None if unknown."""
        squares, freedom = 0.0, 0
        for trials in self.alike.values():
            values = [value(trial) for trial in trials]
            if len(values) > 1 and min(values) > 0:
                logs = [math.log(one) for one in values]
                squares += statistics.variance(logs) * (len(logs) - 1)
                freedom += len(logs) - 1
        return math.sqrt(squares / freedom) if freedom else None

    @property
    def best_is_one_number(self) -> bool:
        """Whether nothing stands behind the best but the times that a record tells of launches."""
        best = self.best
        if best is None or not isinstance(best.outcome, Measured):
            return False
        timed = any(one.slowest_rank_s for one in best.outcome.measurements)
        return timed and is_imported(best) and best.ordinal not in self.repeated

    def failures(self, kind: FailureKind) -> tuple[int, ...]:
        """Ordinals of the failures of one kind."""
        failed = ((t.ordinal, t.outcome) for t in self.history)
        return tuple(n for n, one in failed if isinstance(one, Failed) and one.kind is kind)


def value(trial: Trial) -> float:
    """What the objective is for a measured trial."""
    if trial.score is None:
        raise ValueError(f"trial {trial.ordinal} has no score")
    return trial.score.value


def metric_of(trial: Trial, name: str) -> float | None:
    """A metric of a trial, if it was measured and tells it."""
    return trial.outcome.metric(name) if isinstance(trial.outcome, Measured) else None


def is_imported(trial: Trial) -> bool:
    """Whether all that is known of a trial's time is one number of a record."""
    return isinstance(trial.outcome, Measured) and any(
        measurement.imported for measurement in trial.outcome.measurements
    )


def counted(count: int, noun: str) -> str:
    """A number of things in words: `1 failure`, `2 failures`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(ordinals: Sequence[int]) -> str:
    """Trials in words: `trial 3`, `trials 3 and 5`, `trials 3, 5 and 4 more`."""
    if len(ordinals) == 1:
        return f"trial {ordinals[0]}"
    if len(ordinals) > MOST_NAMED:
        named = ", ".join(map(str, ordinals[: MOST_NAMED - 1]))
        return f"trials {named} and {len(ordinals) - MOST_NAMED + 1} more"
    *others, last = map(str, ordinals)
    return f"trials {', '.join(others)} and {last}"
