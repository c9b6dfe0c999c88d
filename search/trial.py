"""One turn of the search: from an intent on record to a finished trial."""

import shutil
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
        outcome: Outcome = retries(self.launch_once, self._study, config)
        attempts = int(retries.statistics["attempt_number"])
        reference = history.measured[0].outcome if history.measured else None
        if isinstance(outcome, Measured) and isinstance(reference, Measured):
            difference = other_work(outcome.measurement, reference.measurement, self._study)
            if difference is not None:
                return replace(difference, artifacts=outcome.artifacts), attempts
        return outcome, attempts

    def launch_once(self, study: Study, config: Config) -> Outcome:
        """Launch a configuration as `study` says and keep what it left.

        Raises `StoreError` when its files cannot be written or kept.
        """
        try:
            shutil.rmtree(self._workdir, ignore_errors=True)
            self._workdir.mkdir(parents=True)
            outcome = self._evaluator.evaluate(study, config, self._workdir)
            kept = self._keep_files()
            shutil.rmtree(self._workdir)
        except OSError as error:
            raise StoreError(
                f"cannot work in {self._workdir}: {error}; free space there"
            ) from error
        return replace(outcome, artifacts=kept)

    def _keep_files(self) -> tuple[Artifact, ...]:
        found = {path for kind in KEPT_FILES for path in self._workdir.rglob(kind)}
        paths = sorted(path for path in found if path.is_file() and not path.is_symlink())
        return tuple(
            self._artifacts.keep(path, path.relative_to(self._workdir).as_posix()) for path in paths
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
