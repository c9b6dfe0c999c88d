"""A launcher that stays warm over all tests, and jobs for it that go wrong on request."""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from math import prod
from pathlib import Path

import psutil
import pytest

from evaluator.launchers.local import LocalLauncher
from evaluator.ports import Job, JobResult, Reading, Recipe
from evaluator.rank.job import Precision
from evaluator.rank.job import Workload as RankWorkload
from evaluator.recipes.builtin import BuiltinRecipe
from records.machine import Conditions
from records.study import (
    Dimension,
    Environment,
    Launch,
    Measure,
    Objective,
    SearchSpace,
    Study,
)
from records.trial import Config, Failed
from records.workload import Message, Workload
from search.study.study_file import builtin_study

HERE = Path(__file__).parent
BUILTIN = BuiltinRecipe()
A_TIMED_STEP = 2
# A launcher restarts its warm process for a job with a module that it lacks, and importing torch
# takes longer than most jobs.
MODULES = (
    "evaluator.workloads.training",
    "evaluator.workloads.inference",
    "evaluator.workloads.collectives.message_step",
    "bad_entries",
    "exchange_entries",
    "work_entries",
)


@dataclass(frozen=True, slots=True)
class Launched:
    """A finished launch, the phases it was seen in, and what its ranks left behind."""

    result: JobResult
    phases: list[str] = field(default_factory=list)

    @classmethod
    def by(cls, launcher: LocalLauncher, job: Job, parent: Path) -> "Launched":
        """Run a job in a new folder below this one."""
        folder = parent / f"{len(list(parent.iterdir()))}"
        folder.mkdir()
        phases: list[str] = []
        return cls(launcher.run(job, folder, phases.append), phases)

    @property
    def folder(self) -> Path:
        return self.result.workdir

    @property
    def children(self) -> list[int]:
        return [int(pid) for pid in (self.folder / "children.txt").read_text().split()]

    def documents(self, suffix: str) -> list[dict]:
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob(f"*{suffix}"))]

    def steps(self) -> list[dict]:
        assert {rank.status for rank in self.result.ranks} == {0}, self.documents(".error.json")
        return self.documents(".steps.json")

    def losses(self) -> list[float]:
        reported = [step["losses"] for step in self.steps() if step["losses"]]
        assert all(losses == reported[0] for losses in reported)
        return reported[0]

    def peak_memory_bytes(self) -> int:
        return max(step["peak_memory_bytes"] for step in self.steps())

    def spans(self, rank: int = 0) -> list[dict]:
        """Everything with a duration in a rank's trace, in order of its beginning."""
        trace = (self.folder / f"rank{rank}_trace.json").read_bytes()
        spans = [event for event in json.loads(trace)["traceEvents"] if event.get("ph") == "X"]
        return sorted(spans, key=lambda span: span["ts"])

    def counts(self, rank: int = 0) -> Counter[str]:
        """How often each name stands in a rank's trace."""
        return Counter(span["name"] for span in self.spans(rank))

    def sent(self, collective: str, rank: int = 0) -> list[tuple[str, list[int]]]:
        """Number format and shape of each message of one kind, in order."""
        return [
            (span["args"]["Input type"][0], span["args"]["Input Dims"][0])
            for span in self.spans(rank)
            if span["name"] == f"gloo:{collective}"
        ]


def small_study(**launch: object) -> Study:
    environment = Environment(
        name="test", device="cpu", accelerator="cpu", world_size=2, ranks_per_node=2
    )
    workload = Workload(
        name="decoder-2L",
        layer_count=2,
        hidden_size=32,
        head_count=2,
        kv_head_count=2,
        ffn_size=64,
        vocab_size=64,
        sequence_length=32,
        global_batch=8,
    )
    return replace(
        builtin_study(environment),
        workload=workload,
        measure=Measure(
            warmup_steps=1, timed_steps=5, max_timed_steps=5, profiled_steps=1, timeout_s=60
        ),
        launch=Launch(**launch),
    )


def rank_workload(**changes: object) -> RankWorkload:
    """A small decoder's work as ranks are given it, but for these changes."""
    sizes = {
        "layer_count": 4,
        "hidden_size": 32,
        "head_count": 4,
        "kv_head_count": 2,
        "ffn_size": 64,
        "vocab_size": 64,
        "sequence_length": 32,
        "global_batch": 8,
    }
    return RankWorkload(**{"precision": Precision.FP32, "seed": 42, **sizes, **changes})


def exchange_study(
    *messages: Message,
    dimensions: Sequence[Dimension] = (),
    device: str = "cpu",
    ranks: int = 2,
    nodes: int = 1,
    measure: Measure | None = None,
    launch: Mapping[str, object] | None = None,
    **space: object,
) -> Study:
    """A study of how these messages are best exchanged."""
    return Study(
        name="exchange",
        workload=Workload(
            name="mix", phase="communication", global_batch=1, sequence_length=1, messages=messages
        ),
        environment=Environment(
            name="m",
            device=device,
            accelerator="a",
            world_size=ranks,
            ranks_per_node=max(1, ranks // nodes),
        ),
        space=SearchSpace(dimensions=tuple(dimensions), **space),
        objective=Objective(expression="step_time"),
        seed_policy="first",
        measure=measure or Measure(),
        launch=Launch(recipe="collectives", **(launch or {})),
    )


def conditions(**known: object) -> Conditions:
    """What else a machine did, of which these are known."""
    return Conditions(**{**{each.name: None for each in fields(Conditions)}, "gpus": (), **known})


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts an `nvidia-smi` on an otherwise empty path that does what a shell script says."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(script: str) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)

    return install


@pytest.fixture(scope="session")
def study() -> Study:
    return small_study()


@pytest.fixture(scope="session")
def launch_environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """All that ranks see: where programs are, the folder of these tests, a temporary folder."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
        "PYTHONPATH": str(HERE),
        "HOME": "/",  # where Open MPI looks for its settings
        "TMPDIR": str(tmp_path_factory.mktemp("meetings")),
    }


@pytest.fixture(scope="session")
def launcher(launch_environment: Mapping[str, str]) -> Iterator[LocalLauncher]:
    launcher = LocalLauncher(launch_environment, threads_per_rank=1)
    launcher.prepare(Job(argv=(), world_size=1, files={}, modules=MODULES, timeout_s=60))
    yield launcher
    launcher.close()


@pytest.fixture(scope="session")
def job_of() -> Callable[..., Job]:
    """Makes the job of two ranks whose entry is a function of `bad_entries`.

    One step warms up, five are timed; only if asked for, because it takes longer than the rest,
    one more is profiled.
    """

    def make(
        entry: str,
        *,
        timeout_s: float = 240,
        profiled_steps: int = 0,
        memory_budget_bytes: int | None = None,
        hang_after_s: float | None = None,
        cold: bool = False,
        **misdeed: object,
    ) -> Job:
        study = small_study(memory_budget_bytes=memory_budget_bytes)
        measure = replace(study.measure, profiled_steps=profiled_steps)
        recipe = OtherEntry(f"bad_entries:{entry}", **misdeed)
        job = recipe.job(replace(study, measure=measure), Config({"dp_replicate": 2}))
        modules = () if cold else ("bad_entries",)
        return replace(job, modules=modules, timeout_s=timeout_s, hang_after_s=hang_after_s)

    return make


@pytest.fixture
def launch(
    launcher: LocalLauncher, job_of: Callable[..., Job], tmp_path: Path
) -> Callable[..., Launched]:
    """Launches a good job, or one in which a rank does `what` in a step (None: in set-up)."""

    def run(
        what: str | None = None,
        *,
        rank: int | None = 1,
        step: object = A_TIMED_STEP,
        **more: object,
    ) -> Launched:
        job = job_of("misbehave" if what else "good", what=what, rank=rank, step=step, **more)
        return Launched.by(launcher, job, tmp_path)

    return run


@pytest.fixture
def command(launcher: LocalLauncher, tmp_path: Path) -> Callable[..., Launched]:
    """Launches a shell script as a user's own command of one rank."""

    def run(script: str, *, timeout_s: float = 240, **environment: str) -> Launched:
        argv = ("sh", "-c", script)
        job = Job(argv=argv, world_size=1, files={}, timeout_s=timeout_s, environment=environment)
        return Launched.by(launcher, job, tmp_path)

    return run


class OtherEntry:
    """A recipe of ours, with the work of another entry in the ranks of some configurations."""

    def __init__(
        self,
        entry: str,
        *,
        only: Config | None = None,
        recipe: Recipe | None = None,
        **misdeed: object,
    ) -> None:
        self._entry, self._only, self._misdeed = entry, only, misdeed
        self._recipe = recipe or BuiltinRecipe()

    def job(self, study: Study, config: Config) -> Job:
        job = self._recipe.job(study, config)
        if self._only not in (None, config):
            return job
        document = json.loads(job.files["job.json"]) | {"entry": self._entry}
        files = {"job.json": json.dumps(document), "misdeed.json": json.dumps(self._misdeed)}
        return replace(job, files=files)

    def read(self, *given: object) -> Reading | Failed:
        return self._recipe.read(*given)


class Ranks:
    """Runs training jobs, each in a folder of its own, and remembers what ran."""

    def __init__(self, launcher: LocalLauncher, folder: Path) -> None:
        self._launcher = launcher
        self._folder = folder
        self._finished: dict[str, Launched] = {}

    def run(
        self,
        config: Mapping[str, object],
        workload: Mapping[str, object],
        *,
        steps: tuple[int, int, int] = (1, 2, 0),
        entry: str = "evaluator.workloads.training:train",
        **changes: object,
    ) -> Launched:
        """Run a job of so many warm-up, timed and profiled steps on the ranks it takes."""
        degrees = ("dp_replicate", "dp_shard", "tp", "cp", "pp")
        document = {
            "entry": entry,
            "world_size": prod(config.get(degree, 1) for degree in degrees),
            "device": "cpu",
            "init_method": "env://",
            "workload": workload,
            "config": config,
            "measure": dict(
                zip(("warmup_steps", "timed_steps", "profiled_steps"), steps, strict=True)
            ),
            **changes,
        }
        text = json.dumps(document)
        if text not in self._finished:
            job = Job(
                argv=(),
                world_size=document["world_size"],
                files={"job.json": text},
                modules=("evaluator.workloads.training",),
                timeout_s=280,
            )
            self._finished[text] = Launched.by(self._launcher, job, self._folder)
        return self._finished[text]


@pytest.fixture(scope="session")
def ranks(launcher: LocalLauncher, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return Ranks(launcher, tmp_path_factory.mktemp("training"))


@pytest.fixture
def processes() -> Callable[[], list[int]]:
    """Gives the processes below this one, in order of their start, without those that ended."""
    return living_descendants


def living_descendants() -> list[int]:
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            is_of_a_launch = not any("warm_ranks" in word for word in child.cmdline())
            if is_of_a_launch and child.status() != psutil.STATUS_ZOMBIE:
                found.append((child.create_time(), child.pid))
    return [pid for _, pid in sorted(found)]
