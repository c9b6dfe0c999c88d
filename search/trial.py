"""One turn of the search: from an intent on record to a finished trial."""

import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_attempt, wait_exponential

from evaluator.objective import Scoring
from evaluator.together import fits_together
from policies.space import Space
from records.artifacts import Artifacts
from records.errors import StoreError
from records.history import History
from records.instants import now
from records.rows import Intent
from records.study import Study
from records.trial import (
    Artifact,
    Config,
    Failed,
    FailureKind,
    Measured,
    Outcome,
    Score,
    Stage,
    Trial,
)
from search.context_launches import other_work_anywhere
from search.contexts import decided
from search.judging import UNDER_WAY, same_as
from search.ports import Evaluator
from search.rounds import is_step_time

KEPT_FILES = ("*.json", "*.json.gz", "*.jsonl", "*.xplane.pb", "*.log", "*.stacks.txt")


Fits: TypeAlias = Callable[[Study, Sequence[tuple[int, ...]]], bool]
"""Whether launches of a study that took so much on each rank may be on the machine at once."""


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
        fits: Fits = fits_together,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._study = study
        self._space = space
        self._scoring = scoring
        self._evaluator = evaluator
        self._artifacts = artifacts
        self._workdir = workdir
        self._fits = fits
        self._sleep = sleep

    def decide(self, intent: Intent, history: History) -> Config | Trial:
        """Give the configuration that a proposal chose, or the trial that ends without a launch."""
        answer = decided(intent.policy, self._study, self._space)
        if isinstance(answer, Failed):
            return self._ended(intent, None, answer, history)
        if (earlier := history.tried(answer)) is not None:
            return self._ended(intent, answer, _duplicate(same_as(earlier)), history)
        if answer in history.pending:
            return self._ended(intent, answer, _duplicate(UNDER_WAY), history)
        return answer

    def run(self, intent: Intent, config: Config, history: History, folder: str = "") -> Trial:
        """Launch, measure and score what a proposal chose.

        Trials that have a `folder` each may be run at once, each in a thread. Raises `StoreError`
        when files cannot be written or kept.
        """
        outcome, attempts = self._launch(config, history, folder)
        return self._ended(intent, config, outcome, history, attempts)

    def clear(self) -> None:
        """Remove what launches left in the way, those too of a process that was killed."""
        shutil.rmtree(self._workdir, ignore_errors=True)

    def _ended(
        self,
        intent: Intent,
        config: Config | None,
        outcome: Outcome,
        history: History,
        attempts: int = 0,
    ) -> Trial:
        outcome, score = self._scored(outcome, history)
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

    def _launch(self, config: Config, history: History, folder: str) -> tuple[Outcome, int]:
        """Launch until it is not the infrastructure that fails, or the retries are used."""
        retries = Retrying(
            retry=retry_if_result(_is_infrastructure),
            stop=stop_after_attempt(1 + self._study.measure.infrastructure_retries),
            wait=wait_exponential(multiplier=1, max=30),
            sleep=self._sleep,
            retry_error_callback=_last_outcome,
        )
        outcome: Outcome = retries(self.launch_once, self._raced(history), config, folder)
        attempts = int(retries.statistics["attempt_number"])
        reference = history.measured[0].outcome if history.measured else None
        if isinstance(outcome, Measured) and isinstance(reference, Measured):
            difference = other_work_anywhere(outcome, reference, self._study)
            if difference is not None:
                files, launched = outcome.artifacts, outcome.launched
                return replace(difference, artifacts=files, launched=launched), attempts
        return outcome, attempts

    def _raced(self, history: History) -> Study:
        """The study for a launch that may end early, once it is clearly slower than the best.

        The best is as slow as all its launches show, not only the first. In one of several contexts
        a launch may be slower and still be better in all.
        """
        measure, best = self._study.measure, history.best
        if best is None or measure.race_ratio <= 1 or not is_step_time(self._scoring):
            return self._study
        if self._study.contexts:
            return self._study
        first_s = best.outcome.metric("step_time") if isinstance(best.outcome, Measured) else None
        if first_s is None or best.score is None:
            return self._study
        slower = history.cost(best) / best.score.cost
        best_s = first_s * (slower if self._scoring.lower_is_better else 1 / slower)
        limit_s = min(measure.race_ratio * best_s, measure.stop_above_s or math.inf)
        return replace(self._study, measure=replace(measure, stop_above_s=limit_s))

    def launch_once(self, study: Study, config: Config, folder: str = "") -> Outcome:
        """Launch a configuration as `study` says and keep what it left.

        Raises `StoreError` when its files cannot be written or kept.
        """
        with self._folders(self._workdir / folder, 1) as (place,):
            outcome = self._evaluator.evaluate(study, config, place)
            return replace(outcome, artifacts=self._keep_files(place))

    def fits_together(self, study: Study, peak_memory_bytes: Sequence[tuple[int, ...]]) -> bool:
        """Whether launches that took so much on each rank may be on the machine at once."""
        return self._fits(study, peak_memory_bytes)

    def launch_together(
        self, study: Study, configs: Sequence[Config], seed: int
    ) -> tuple[Outcome, ...]:
        """Launch configurations at once, whose steps take turns, and keep what each left.

        Raises `StoreError` when their files cannot be written or kept.
        """
        with self._folders(self._workdir, len(configs)) as folders:
            outcomes = self._evaluator.evaluate_together(study, configs, folders, seed)
            return tuple(
                replace(outcome, artifacts=self._keep_files(folder))
                for outcome, folder in zip(outcomes, folders, strict=True)
            )

    @contextmanager
    def _folders(self, root: Path, count: int) -> Iterator[Sequence[Path]]:
        """Empty folders, one for each launch, that are gone afterwards."""
        folders = [root / str(number) for number in range(count)] if count > 1 else [root]
        try:
            shutil.rmtree(root, ignore_errors=True)
            for folder in folders:
                folder.mkdir(parents=True)
            yield folders
            shutil.rmtree(root)
        except OSError as error:
            raise StoreError(f"cannot work in {root}: {error}; free space there") from error

    def _keep_files(self, folder: Path) -> tuple[Artifact, ...]:
        found = {path for kind in KEPT_FILES for path in folder.rglob(kind)}
        paths = sorted(path for path in found if path.is_file() and not path.is_symlink())
        return self._artifacts.keep_all({p: p.relative_to(folder).as_posix() for p in paths})

    def _scored(self, outcome: Outcome, history: History) -> tuple[Outcome, Score | None]:
        if isinstance(outcome, Failed):
            return outcome, None
        past = (trial.outcome for trial in history)
        score = self._scoring.against([*past, outcome]).of(outcome)
        return (score, None) if isinstance(score, Failed) else (outcome, score)


def _duplicate(message: str) -> Failed:
    return Failed(stage=Stage.CHECK, kind=FailureKind.DUPLICATE, message=message)


def _is_infrastructure(outcome: Outcome) -> bool:
    return isinstance(outcome, Failed) and outcome.kind is FailureKind.INFRASTRUCTURE


def _last_outcome(state: RetryCallState) -> Outcome:
    if state.outcome is None:
        raise ValueError("no attempt was made")
    outcome: Outcome = state.outcome.result()
    return outcome
