"""Launches that end as they ended before."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from evaluator.timing.noise import Noise
from records.errors import CclsearchError
from records.history import History
from records.study import Measure, Study
from records.trial import (
    Config,
    Failed,
    FailureKind,
    Outcome,
    Policy,
    Purpose,
    Repeat,
    Stage,
    Trial,
)
from search.replay.recorded import Recorded
from search.rounds import took_turns
from search.standing import Race

_UNTOLD = Failed(
    stage=Stage.LAUNCH,
    kind=FailureKind.INFRASTRUCTURE,
    message="an attempt of which only the number is on record",
)


class OffRecord(CclsearchError):
    """The replayed search launches what the recorded one did not."""


class Progress:
    """An observer that knows how far a replay has come."""

    def __init__(self) -> None:
        self.trials = 0
        self.repeats = 0
        self.under_way: int | None = None
        self.begun = 0

    def study_started(self, study_id: str, study: Study, strategy: str) -> None:
        """Nothing is counted."""

    def trial_started(self, ordinal: int, policy: Policy) -> None:  # noqa: ARG002 - the port
        """It is the last that was begun."""
        self.begun = ordinal

    def config_decided(self, ordinal: int, config: Config) -> None:  # noqa: ARG002 - the port
        """The next launches are those of this trial."""
        self.under_way = ordinal

    def phase(self, name: str, ordinal: int | None) -> None:
        """Nothing is counted."""

    def trial_finished(self, trial: Trial, history: History) -> None:  # noqa: ARG002 - the port
        """Count it; the next launches are of earlier trials."""
        self.trials += 1
        self.under_way = None

    def noise_measured(self, noise: Noise, measure: Measure) -> None:
        """Nothing is counted."""

    def repeat_finished(self, repeat: Repeat) -> None:  # noqa: ARG002 - the port
        """Count it."""
        self.repeats += 1

    def race_decided(self, race: Race) -> None:
        """Nothing is counted."""

    def notice(self, words: str) -> None:
        """Nothing is counted."""


class RecordedEvaluator:
    """Ends each launch as it ended in the record, in whose order launches have to come.

    Raises `OffRecord` for any other launch; `before_launch` may raise before each.
    """

    def __init__(
        self, record: Recorded, progress: Progress, before_launch: Callable[[], None]
    ) -> None:
        self._trials = {trial.ordinal: trial for trial in record.trials}
        self._repeats = record.repeats
        self._retries = record.row.study.measure.infrastructure_retries
        self._progress = progress
        self._before_launch = before_launch
        self._attempts = Counter[int]()

    def evaluate(self, study: Study, config: Config, workdir: Path) -> Outcome:  # noqa: ARG002 - the port
        """Give the outcome of the next launch; it leaves nothing in `workdir`."""
        self._before_launch()
        ordinal = self._progress.under_way
        return self._again(config, 0) if ordinal is None else self._own(ordinal, config)

    def evaluate_together(
        self,
        study: Study,  # noqa: ARG002 - the port
        configs: Sequence[Config],
        workdirs: Sequence[Path],  # noqa: ARG002 - the port
        seed: int,  # noqa: ARG002 - the port
    ) -> tuple[Outcome, ...]:
        """Give the outcomes of as many launches."""
        self._before_launch()
        return tuple(self._again(config, number) for number, config in enumerate(configs))

    def took_turns(self, study: Study, peak_memory_bytes: Sequence[tuple[int, ...]]) -> bool:  # noqa: ARG002 - as the machine is asked
        """Whether the next few launches were on the machine at once."""
        first = self._progress.repeats
        return _took_turns(self._repeats[first : first + len(peak_memory_bytes)])

    def _own(self, ordinal: int, config: Config) -> Outcome:
        trial = self._trials.get(ordinal)
        if trial is None or trial.config != config or not trial.reached_launch:
            raise OffRecord(f"trial {ordinal} launches what it did not launch before: {config}")
        # Of its failed attempts a trial keeps only the number, which the budget counts.
        self._attempts[ordinal] += 1
        untold = min(trial.attempts - 1, self._retries)
        return _UNTOLD if self._attempts[ordinal] <= untold else trial.outcome

    def _again(self, config: Config, number: int) -> Outcome:
        place = self._progress.repeats + number
        repeat = self._repeats[place] if place < len(self._repeats) else None
        # In contexts that were held out, a policy decides anew.
        is_held_out = repeat is not None and repeat.purpose is Purpose.HELD_OUT
        if repeat is None or not (is_held_out or self._trials[repeat.ordinal].config == config):
            raise OffRecord(
                f"after trial {self._progress.trials - 1} a configuration is launched again "
                f"that was not: {config}"
            )
        return repeat.outcome


def _took_turns(launched: Sequence[Repeat]) -> bool:
    """Whether these were on the machine at once: their steps tell, or that they have no order.

    Those of a self-test never have one; where none of them was measured it is the same either way.
    """
    if any(took_turns(repeat.outcome) for repeat in launched):
        return True
    in_order = any(repeat.position for repeat in launched)
    is_test = any(repeat.purpose is Purpose.SELF_TEST for repeat in launched)
    return len(launched) > 1 and not in_order and not is_test
