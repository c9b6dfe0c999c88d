"""The trials of a study as whoever proposes the next one sees them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from records.raced import Raced
from records.trial import Config, Repeat, Trial


@dataclass(frozen=True, slots=True)
class History:
    """The trials of a study, oldest first: the only view of the past that a proposer gets.

    Of trials that are measured at once a later one may end first: until the others have, ordinals
    have gaps.

    `costs` are those of trials that were launched again, by ordinal, which count more than the one
    launch that a trial had; `again` are the values that those launches gave its objective.
    `incumbent` is the trial that was shown to be the best, None while nothing was: then the lowest
    cost leads. `pending` are configurations that are being measured, `raced` what races said, in
    the order in which they were run, and `repeats` the launches that were made again, for races and
    else, as far as they count. `front` are the ordinals of trials that no other beats in all of
    several objectives, best in the main one first; `weights` say by how much each objective counts
    where `costs` stand for all of them.
    """

    trials: tuple[Trial, ...] = field(default=())
    costs: Mapping[int, float] = field(default_factory=dict)
    incumbent: int | None = None
    pending: tuple[Config, ...] = ()
    raced: tuple[Raced, ...] = ()
    repeats: tuple[Repeat, ...] = ()
    front: tuple[int, ...] = ()
    weights: tuple[tuple[str, float], ...] = ()
    again: Mapping[int, tuple[float, ...]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Trial]:
        return iter(self.trials)

    def __len__(self) -> int:
        return len(self.trials)

    def append(self, trial: Trial) -> "History":
        """Give the history with one more trial, in its place, which is pending no more."""
        return replace(
            self,
            trials=tuple(sorted((*self.trials, trial), key=lambda each: each.ordinal)),
            pending=tuple(config for config in self.pending if config != trial.config),
        )

    def before(self, ordinal: int) -> "History":
        """Give the history with the trials before this one only."""
        return replace(self, trials=tuple(t for t in self.trials if t.ordinal < ordinal))

    def find(self, ordinal: int) -> Trial | None:
        """The trial with this ordinal; None while it has not ended, though later ones may have."""
        return next((trial for trial in self.trials if trial.ordinal == ordinal), None)

    @property
    def measured(self) -> tuple[Trial, ...]:
        """Trials with a score."""
        return tuple(trial for trial in self.trials if trial.score is not None)

    @property
    def launched_count(self) -> int:
        """Launches to charge to the budget."""
        return sum(trial.launched for trial in self.trials)

    @property
    def admissible(self) -> tuple[Trial, ...]:
        """Measured trials that break no limit."""
        return tuple(t for t in self.measured if t.score is not None and not t.score.broken)

    @property
    def ranked(self) -> tuple[Trial, ...]:
        """Admissible trials, best first; ties keep their order."""
        return tuple(sorted(self.admissible, key=self._rank))

    @property
    def best(self) -> Trial | None:
        """The incumbent, or else the admissible trial with the lowest cost."""
        return min(self.admissible, key=self._rank, default=None)

    def cost(self, trial: Trial) -> float:
        """Cost of a measured trial by all that is known, lower is better."""
        if trial.score is None:
            raise ValueError(f"trial {trial.ordinal} has no score")
        return self.costs.get(trial.ordinal, trial.score.cost)

    def values(self, trial: Trial) -> tuple[float, ...]:
        """Objective of a trial in each launch that counts; empty where it has no score."""
        if trial.score is None:
            return ()
        return self.again.get(trial.ordinal) or (trial.score.value,)

    def _rank(self, trial: Trial) -> tuple[bool, float]:
        return trial.ordinal != self.incumbent, self.cost(trial)

    def tried(self, config: Config) -> Trial | None:
        """The launched trial of this configuration, if there is one."""
        same = (t for t in self.trials if t.launched and t.config == config)
        return next(same, None)
