"""One turn of the search: from an intent on record to a finished trial."""

import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_attempt, wait_exponential

from evaluator.objective import Scoring
from evaluator.work import other_work
from policies.contract import decide
from policies.space import Space
from records.artifacts import Artifacts
from records.errors import StoreError
from records.rows import Intent
from records.store import now
from records.study import Study
from records.trial import (
    Artifact,
    Config,
    Failed,
    FailureKind,
    History,
    Measured,
    Outcome,
    Score,
    Stage,
    Trial,
)
from search.ports import Evaluator, Observer
from search.rounds import is_step_time

KEPT_FILES = ("*.json", "*.json.gz", "*.jsonl", "*.log", "*.stacks.txt")


class Turn:
    """Runs trials of one study in `workdir`, which it empties after each launch."""

    def __init__(
        self,
        *,
        study: Study,
        space: Space,
        scoring: Scoring,
        evaluator: Evaluator,
        artifacts: Artifacts,
        workdir: Path,
        observer: Observer,
    ) -> None:
        self._study = study
        self._space = space
        self._scoring = scoring
        self._evaluator = evaluator
        self._artifacts = artifacts
        self._workdir = workdir
        self._observer = observer

    def run(self, intent: Intent, history: History) -> Trial:
        """Decide, check, launch, measure and score one proposal."""
        study = self._study
        decided = decide(intent.policy, study.workload, study.usable_environment, self._space)
        config = decided if isinstance(decided, Config) else None
        attempts = 0
        if isinstance(decided, Failed):
            outcome: Outcome = decided
        elif (earlier := history.tried(decided)) is not None:
            outcome = _duplicate(earlier)
        else:
            self._observer.config_decided(intent.ordinal, decided)
            outcome, attempts = self._launch(decided, history)
        outcome, score = self._scored(outcome)
        return Trial(
            ordinal=intent.ordinal,
            policy=intent.policy,
            config=config,
            outcome=outcome,
            score=score,
            started_at=intent.started_at,
            ended_at=now(),
            attempts=attempts,
            exchange=intent.exchange,
        )

    def _launch(self, config: Config, history: History) -> tuple[Outcome, int]:
        """Launch until it is not the infrastructure that fails, or the retries are used."""
        retries = Retrying(
            retry=retry_if_result(_is_infrastructure),
            stop=stop_after_attempt(1 + self._study.measure.infrastructure_retries),
            wait=wait_exponential(multiplier=1, max=30),
            retry_error_callback=_last_outcome,
        )
        outcome: Outcome = retries(self.launch_once, self._raced(history), config)
        attempts = int(retries.statistics["attempt_number"])
        reference = history.measured[0].outcome if history.measured else None
        if isinstance(outcome, Measured) and isinstance(reference, Measured):
            difference = other_work(outcome.measurement, reference.measurement, self._study)
            if difference is not None:
                return replace(difference, artifacts=outcome.artifacts), attempts
        return outcome, attempts

    def _raced(self, history: History) -> Study:
        """The study for a launch that may end early, once it is clearly slower than the best."""
        measure, best = self._study.measure, history.best
        if best is None or measure.race_ratio <= 1 or not is_step_time(self._scoring):
            return self._study
        best_s = best.outcome.metric("step_time") if isinstance(best.outcome, Measured) else None
        if best_s is None:
            return self._study
        limit_s = min(measure.race_ratio * best_s, measure.stop_above_s or math.inf)
        return replace(self._study, measure=replace(measure, stop_above_s=limit_s))

    def launch_once(self, study: Study, config: Config) -> Outcome:
        """Launch a configuration as `study` says and keep what it left.

        Raises `StoreError` when its files cannot be written or kept.
        """
        with self._folders(1) as (folder,):
            outcome = self._evaluator.evaluate(study, config, folder)
            return replace(outcome, artifacts=self._keep_files(folder))

    def launch_together(
        self, study: Study, configs: Sequence[Config], seed: int
    ) -> tuple[Outcome, ...]:
        """Launch configurations at once, whose steps take turns, and keep what each left.

        Raises `StoreError` when their files cannot be written or kept.
        """
        with self._folders(len(configs)) as folders:
            outcomes = self._evaluator.evaluate_together(study, configs, folders, seed)
            return tuple(
                replace(outcome, artifacts=self._keep_files(folder))
                for outcome, folder in zip(outcomes, folders, strict=True)
            )

    @contextmanager
    def _folders(self, count: int) -> Iterator[Sequence[Path]]:
        """Empty folders, one for each launch, that are gone afterwards."""
        folders = [self._workdir / str(number) for number in range(count)]
        if count == 1:
            folders = [self._workdir]
        try:
            shutil.rmtree(self._workdir, ignore_errors=True)
            for folder in folders:
                folder.mkdir(parents=True)
            yield folders
            shutil.rmtree(self._workdir)
        except OSError as error:
            raise StoreError(
                f"cannot work in {self._workdir}: {error}; free space there"
            ) from error

    def _keep_files(self, folder: Path) -> tuple[Artifact, ...]:
        found = {path for kind in KEPT_FILES for path in folder.rglob(kind)}
        paths = sorted(path for path in found if path.is_file() and not path.is_symlink())
        return tuple(
            self._artifacts.keep(path, path.relative_to(folder).as_posix()) for path in paths
        )

    def _scored(self, outcome: Outcome) -> tuple[Outcome, Score | None]:
        if isinstance(outcome, Failed):
            return outcome, None
        score = self._scoring.score(outcome.metrics, outcome.absent)
        if isinstance(score, Failed):
            return replace(score, artifacts=outcome.artifacts), None
        return outcome, score


def _duplicate(earlier: Trial) -> Failed:
    match earlier.outcome:
        case Measured():
            score = earlier.score
            result = f"scored {score.value:.6g} {score.unit}" if score else "was measured"
        case Failed() as failed:
            result = f"ended in {failed}"
    return Failed(
        stage=Stage.CHECK,
        kind=FailureKind.DUPLICATE,
        message=f"same configuration as trial {earlier.ordinal}, which {result}",
    )


def _is_infrastructure(outcome: Outcome) -> bool:
    return isinstance(outcome, Failed) and outcome.kind is FailureKind.INFRASTRUCTURE


def _last_outcome(state: RetryCallState) -> Outcome:
    if state.outcome is None:
        raise ValueError("no attempt was made")
    outcome: Outcome = state.outcome.result()
    return outcome
