"""What the loop asks of others: proposers, evaluators, observers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from evaluator.timing.noise import Noise
from records.exchange import Exchange
from records.history import History
from records.study import Measure, Study
from records.trial import Config, Outcome, Policy, Repeat, Trial
from search.standing import Race


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The next policy, and the LLM exchange behind it if there was one."""

    policy: Policy
    exchange: Exchange | None = None


class Proposer(Protocol):
    """Gives the next policy from the study and its history.

    A pure function of its arguments and its construction, except for talking to a model; raises
    `CclsearchError` only when the study cannot go on (for example a rejected key).
    """

    @property
    def name(self) -> str:
        """Name under which its policies are recorded."""
        ...

    def propose(self, study: Study, history: History) -> Proposal | None:
        """Give the next policy; None when there is nothing left to try."""
        ...


class Observer(Protocol):
    """Is told what happens; returns nothing and never raises."""

    def study_started(self, study_id: str, study: Study, strategy: str) -> None:
        """A run begins or continues."""
        ...

    def trial_started(self, ordinal: int, policy: Policy) -> None:
        """A policy was proposed and recorded."""
        ...

    def config_decided(self, ordinal: int, config: Config) -> None:
        """The policy gave a valid configuration that is about to be launched."""
        ...

    def phase(self, name: str, ordinal: int | None) -> None:
        """A job entered a phase: setup, warmup, timed, profile.

        `ordinal` is that of its trial; None where earlier trials are launched again.
        """
        ...

    def trial_finished(self, trial: Trial, history: History) -> None:
        """A trial ended and is on record."""
        ...

    def noise_measured(self, noise: Noise, measure: Measure) -> None:
        """Equal launches were compared: how much a round's ratio varies by itself."""
        ...

    def repeat_finished(self, repeat: Repeat) -> None:
        """One launch of an earlier trial's configuration ended and is on record."""
        ...

    def race_decided(self, race: Race) -> None:
        """A challenger was raced against the trial that led."""
        ...

    def notice(self, words: str) -> None:
        """Something happened that a person should know now; the search goes on."""
        ...


class Evaluator(Protocol):
    """Measures one configuration of a study."""

    def evaluate(self, study: Study, config: Config, workdir: Path) -> Outcome:
        """Launch and measure; the files it names as artifacts stay in `workdir` for the caller."""
        ...

    def evaluate_together(
        self, study: Study, configs: Sequence[Config], workdirs: Sequence[Path], seed: int
    ) -> tuple[Outcome, ...]:
        """Launch all at once, their steps in turns; outcomes in the order of `configs`."""
        ...
