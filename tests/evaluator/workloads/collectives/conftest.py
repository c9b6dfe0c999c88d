"""Ranks of a sweep, started as a launcher starts them and ended with the test."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from evaluator.machine import mpirun_command, mpirun_environment
from evaluator.rank.job import DeviceKind, parse
from evaluator.workloads.collectives import sweep as sweep_main
from evaluator.workloads.collectives.operations import (
    POINTS_NAME,
    AdapterName,
    Operation,
    PointSamples,
    SweepFacts,
    SweepRequest,
)

WARM_RANKS = Path(__file__).with_name("warm_ranks.py")
MISBEHAVING = Path(__file__).with_name("misbehaving_rank.py")
MAIN = ("-m", "evaluator.workloads.collectives.sweep")
END_S = 240


def request_for(
    *operations: Operation, adapter: AdapterName = AdapterName.C10D, **options: object
) -> SweepRequest:
    return SweepRequest(
        adapter=adapter,
        backend="mpi" if adapter is AdapterName.MPI else "gloo",
        device=DeviceKind.CPU,
        operations=operations,
        **{"warmup_iterations": 1, "measure_iterations": 5, **options},
    )


@dataclass(frozen=True, slots=True)
class Swept:
    """What a finished sweep left."""

    folder: Path
    statuses: list[int]

    @property
    def facts(self) -> SweepFacts:
        return parse(SweepFacts, self._lines[0])

    @property
    def points(self) -> tuple[PointSamples, ...]:
        return tuple(parse(PointSamples, line) for line in self._lines[1:])

    @property
    def _lines(self) -> list[str]:
        return (self.folder / POINTS_NAME).read_text().splitlines()

    def error(self, rank: int) -> dict[str, str]:
        return json.loads((self.folder / f"rank{rank}.error.json").read_text())

    def said(self, rank: int) -> str:
        return (self.folder / f"rank{rank}.log").read_text()


class WarmRanks:
    """Forks ranks, tells each its numbers as torchrun does, and waits for all.

    Nobody ends a rank because another failed: that each ends by itself is what is tested.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, folder: Path, world_size: int, program: Sequence[str]) -> list[int]:
        """Return the exit statuses; what a rank prints is in its log in the folder."""
        launch = {
            "folder": str(folder),
            "ranks": [
                {
                    "program": program,
                    "environment": {
                        **_environment(folder),
                        "RANK": str(rank),
                        "LOCAL_RANK": str(rank),
                        "WORLD_SIZE": str(world_size),
                        "CCLSEARCH_INIT_METHOD": f"file://{folder}/store",
                    },
                    "log": f"rank{rank}.log",
                }
                for rank in range(world_size)
            ],
        }
        self._process.stdin.write(json.dumps(launch) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@pytest.fixture(scope="session")
def warm_ranks() -> Iterator[WarmRanks]:
    program = (sys.executable, "-P", str(WARM_RANKS))
    environment = {"PATH": os.defpath, "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(program, **pipes, text=True, env=environment) as process:
        yield WarmRanks(process)


@pytest.fixture
def sweep(warm_ranks: WarmRanks, tmp_path: Path) -> Callable[..., Swept]:
    """Sweeps with warm ranks."""

    def start(request: SweepRequest, world_size: int, misdeed: str | None = None) -> Swept:
        (tmp_path / "sweep.json").write_text(json.dumps(asdict(request)))
        main = (sweep_main.__file__,) if misdeed is None else (str(MISBEHAVING), misdeed)
        return Swept(tmp_path, warm_ranks.run(tmp_path, world_size, (*main, "sweep.json")))

    return start


@pytest.fixture
def sweep_by_mpi(tmp_path: Path) -> Callable[[SweepRequest, int], Swept]:
    """Lets mpirun start the ranks; the one status is its own."""

    def start(request: SweepRequest, world_size: int, misdeed: str | None = None) -> Swept:
        command = mpirun_command(world_size, _program(tmp_path, request, misdeed))
        with (tmp_path / "rank0.log").open("wb") as log:
            ended = subprocess.run(
                command,
                cwd=tmp_path,
                env={**_environment(tmp_path), **mpirun_environment()},
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=END_S,
                check=False,
            )
        return Swept(tmp_path, [ended.returncode])

    return start


def _program(folder: Path, request: SweepRequest, misdeed: str | None) -> tuple[str, ...]:
    (folder / "sweep.json").write_text(json.dumps(asdict(request)))
    main = MAIN if misdeed is None else (str(MISBEHAVING), misdeed)
    return (sys.executable, "-P", *main, "sweep.json")


def _environment(folder: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.defpath}"
    return {"PATH": path, "HOME": str(folder), "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
