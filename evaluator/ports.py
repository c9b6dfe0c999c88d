"""What the evaluator exchanges with recipes and launchers: jobs, their results, and the ports."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from evaluator.rank.protocol import Ended
from records.study import Study, Value
from records.trial import Config, Failed, Measurement

if TYPE_CHECKING:
    from evaluator.traces.model import TraceSet


@dataclass(frozen=True, slots=True)
class NodePlace:
    """The number of a node of a job, and where the ranks of all its nodes meet."""

    node_rank: int
    master_addr: str
    master_port: int

    def fill(self, word: str) -> str:
        """Return a word of a command with its places `{node_rank}` and the like filled."""
        for each in fields(self):
            word = word.replace(f"{{{each.name}}}", str(getattr(self, each.name)))
        return word


NODE_PLACES = tuple(each.name for each in fields(NodePlace))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to start: `files` go to the working folder first; `argv` starts it cold.

    A warm process that has imported `modules`, in `python` where that is not ours, can fork the
    ranks instead; without any modules, only `argv` starts the job. A job that was inside its steps
    and whose ranks then give no sign of life for `hang_after_s` hangs; before its steps, and
    without signs of life, only `timeout_s` holds. Each of `folders` is made empty in the working
    folder, for the variable that it is listed under. The processes of a job that `maps_freely` are
    not held to a share of the host's memory: drivers of GPUs map far more than they use. Its
    processes stay on `cores`, if any are given, and on the nodes with the numbers `nodes` of a
    cluster, by default the first. `traces` are patterns of the names of its traces, in one folder.
    """

    argv: tuple[str, ...]
    world_size: int
    files: Mapping[str, str]
    folders: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    python: str | None = None
    timeout_s: float
    hang_after_s: float | None = None
    maps_freely: bool = False
    threads_per_rank: int = 1
    cores: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    traces: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def argv_on(self, place: "NodePlace") -> tuple[str, ...]:
        """Return the command as it starts on one node."""
        return tuple(place.fill(word) for word in self.argv)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult(Ended):
    """How a job ended; its logs and results lie in `workdir`, which the caller owns.

    Logs are `rank{r}.log`, and `job.log` of a command; where ranks were ended for their silence or
    at the time limit, `rank{r}.stacks.txt` or `process{pid}.stacks.txt` say where they were.
    `environment` is what the launcher added to that of every job, in addition to what the job has.
    `hosts` are the nodes that it ran on, in the order of its ranks, and `job_id` is that of the
    scheduler which gave them; there are none where it ran on this machine.
    """

    workdir: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    job_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a finished job left, read and checked.

    There are no traces where none were wanted, or the launch was stopped for being slower.
    """

    measurement: Measurement
    traces: "TraceSet | None"


class Jobs(Protocol):
    """Turns a configuration into a job, and reads what the job left."""

    def job(self, study: Study, config: Config) -> "Job":
        """Return the job; raises `StudyError` when the study lacks what the framework needs."""
        ...

    def read(
        self, study: Study, job: "Job", result: "JobResult", launched_ns: int
    ) -> Reading | Failed:
        """Read what a job that went well left; raises `TraceError` for a trace it refuses.

        `launched_ns` is the launch in nanoseconds since the Unix epoch, by the clock that dates
        the files in the job's folder.
        """
        ...


class Recipe(Jobs, Protocol):
    """What is known of one framework: its knobs, its rules and its jobs."""

    def complete(self, study: Study) -> Study:
        """Add the rules that the recipe knows of its knobs; a complete study is unchanged."""
        ...

    def derived(self, study: Study) -> Mapping[str, Callable[[Mapping[str, Value]], Value]]:
        """Return more names that rules may use, each from a value of every knob; often none."""
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


PhaseListener: TypeAlias = Callable[[str], None]
"""Receives the phase that a job entered: setup, warmup, timed, profile, done; never raises."""


class Launcher(Protocol):
    """Runs jobs somewhere, one at a time; every process of a job is dead when `run` is left."""

    def prepare(self, job: "Job") -> None:
        """Begin to prepare what a job like this needs, without waiting for it."""
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
