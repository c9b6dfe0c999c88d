"""A launcher that stays warm over all tests, and jobs for it that go wrong on request."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from evaluator.job import Job, JobResult
from evaluator.launchers.local import LocalLauncher
from evaluator.recipes.builtin import BuiltinRecipe
from records.study import Environment, Launch, Measure, Study, Workload
from records.trial import Config
from search.builtin import builtin_study

HERE = Path(__file__).parent
A_TIMED_STEP = 2


@dataclass(frozen=True, slots=True)
class Launched:
    """A finished launch, the phases it was seen in, and its folder."""

    result: JobResult
    phases: list[str]

    @property
    def folder(self) -> Path:
        return self.result.workdir

    @property
    def children(self) -> list[int]:
        return [int(pid) for pid in (self.folder / "children.txt").read_text().split()]


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
        measure=Measure(warmup_steps=1, timed_steps=5, profiled_steps=1, timeout_s=60),
        launch=Launch(**launch),
    )


@pytest.fixture(scope="session")
def study() -> Study:
    return small_study()


@pytest.fixture(scope="session")
def launch_environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """All that ranks see: where programs are, the folder of these tests, a temporary folder."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
        "PYTHONPATH": str(HERE),
        "TMPDIR": str(tmp_path_factory.mktemp("meetings")),
    }


@pytest.fixture(scope="session")
def launcher(launch_environment: Mapping[str, str]) -> Iterator[LocalLauncher]:
    launcher = LocalLauncher(launch_environment, threads_per_rank=1)
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
        timeout_s: float = 60,
        profiled_steps: int = 0,
        memory_budget_bytes: int | None = None,
        **misdeed: object,
    ) -> Job:
        study = small_study(memory_budget_bytes=memory_budget_bytes)
        measure = replace(study.measure, profiled_steps=profiled_steps)
        job = BuiltinRecipe().job(replace(study, measure=measure), Config({"dp_replicate": 2}))
        document = json.loads(job.files["job.json"]) | {"entry": f"bad_entries:{entry}"}
        files = {"job.json": json.dumps(document), "misdeed.json": json.dumps(misdeed)}
        return replace(job, files=files, module="bad_entries", timeout_s=timeout_s)

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
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        job = job_of("misbehave" if what else "good", what=what, rank=rank, step=step, **more)
        phases: list[str] = []
        return Launched(launcher.run(job, folder, phases.append), phases)

    return run


@pytest.fixture
def processes() -> Callable[[], list[int]]:
    """Gives the processes below this one, in order of their start, without those that ended."""
    return lambda: living_descendants(os.getpid())


def living_descendants(pid: int) -> list[int]:
    parents: dict[int, int] = {}
    started: dict[int, tuple[int, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            child = int(path.parent.name)
            parents[child] = int(fields[1])
            started[child] = int(fields[19]), child
    found = [pid]
    for parent in found:
        found += [child for child in parents if parents[child] == parent]
    return sorted(found[1:], key=lambda child: started[child])
