"""What the evaluator asks of others: recipes, launchers, and who listens to progress."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeAlias

from evaluator.job import Job, JobResult
from records.study import Study
from records.trial import Config


class Recipe(Protocol):
    """Turns a configuration into a job for one framework."""

    def job(self, study: Study, config: Config) -> Job:
        """Give the job; raises `StudyError` when the study lacks what the framework needs."""
        ...


PhaseListener: TypeAlias = Callable[[str], None]
"""Is told which phase a job entered: setup, warmup, timed, profile, done; never raises."""


class Launcher(Protocol):
    """Runs jobs somewhere, one at a time; every process of a job is dead when `run` is left."""

    def run(self, job: Job, workdir: Path, on_phase: PhaseListener) -> JobResult:
        """Run a job in `workdir`, an empty folder; raises `EnvironmentFault` if none can start."""
        ...

    def close(self) -> None:
        """End what was kept warm."""
        ...
