"""What the evaluator asks of others: recipes, launchers, and who listens to progress."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from records.study import Study, Value
from records.trial import Config, Failed, Measurement

if TYPE_CHECKING:
    from evaluator.job import Job, JobResult
    from evaluator.traces.job import TraceSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a finished job left, read and checked.

    There are no traces where none were asked for, or the launch was stopped for being slower.
    """

    measurement: Measurement
    traces: "TraceSet | None"


class Recipe(Protocol):
    """Turns a configuration into a job for one framework, and reads what the job left."""

    def complete(self, study: Study) -> Study:
        """Add the rules that the recipe knows of its knobs; a complete study stays as it is."""
        ...

    def derived(self, study: Study) -> Mapping[str, Callable[[Mapping[str, Value]], Value]]:
        """Give more names that rules may use, each from a value of every knob; often none."""
        ...

    def estimate(self, study: Study, config: Config) -> Mapping[str, float] | None:
        """Guess from sizes alone the seconds of a step, by what takes them; None where it cannot.

        It ranks what was not measured, and is never a result.
        """
        ...

    def check(self, study: Study) -> None:
        """Raise `StudyError` or `EnvironmentFault` when no configuration could be launched here."""
        ...

    def inherited(self, study: Study, ours: Mapping[str, str]) -> Mapping[str, str]:
        """Choose what a job may see of our environment, from which secrets are already gone."""
        ...

    def job(self, study: Study, config: Config) -> "Job":
        """Give the job; raises `StudyError` when the study lacks what the framework needs."""
        ...

    def read(
        self, study: Study, job: "Job", result: "JobResult", launched_ns: int
    ) -> Reading | Failed:
        """Read what a job that went well left; raises `TraceError` for a trace it refuses.

        `launched_ns` is the launch in nanoseconds since the Unix epoch, by the clock that dates
        the files in the job's folder.
        """
        ...


PhaseListener: TypeAlias = Callable[[str], None]
"""Is told which phase a job entered: setup, warmup, timed, profile, done; never raises."""


class Launcher(Protocol):
    """Runs jobs somewhere, one at a time; every process of a job is dead when `run` is left."""

    def prepare(self, job: "Job") -> None:
        """Begin to make ready what a job like this needs; returns at once."""
        ...

    def run(self, job: "Job", workdir: Path, on_phase: PhaseListener) -> "JobResult":
        """Run a job in `workdir`, an empty folder; raises `EnvironmentFault` if none can start."""
        ...

    def stop(self) -> None:
        """End the job that another thread waits for: its `run` raises KeyboardInterrupt.

        So does every `run` after it.
        """
        ...

    def close(self) -> None:
        """End what was kept warm."""
        ...
