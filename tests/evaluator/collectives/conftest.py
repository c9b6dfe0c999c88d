"""Ranks of a sweep, started as a launcher starts them and ended with the test."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import pytest

from evaluator.mpi import mpirun_command, mpirun_environment
from evaluator.rank.job_file import parse
from evaluator.workloads.collectives.points_file import POINTS_NAME
from evaluator.workloads.collectives.sweep_request import PointSamples, SweepFacts, SweepRequest

MISBEHAVING = Path(__file__).with_name("misbehaving_rank.py")
MAIN = ("-m", "evaluator.workloads.collectives.main")
END_S = 60


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


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Callable[..., Swept]]:
    """Starts a rank per process, tells it its numbers as torchrun does, and waits for all.

    Nobody ends a rank because another failed: that each ends by itself is what is tested.
    """
    ranks: list[subprocess.Popen[bytes]] = []

    def start(request: SweepRequest, world_size: int, misdeed: str | None = None) -> Swept:
        program = _program(tmp_path, request, misdeed)
        for rank in range(world_size):
            with (tmp_path / f"rank{rank}.log").open("wb") as log:
                ranks.append(_rank(program, tmp_path, rank, world_size, log))
        return Swept(tmp_path, _statuses(ranks))

    yield start
    for rank in ranks:
        rank.kill()
        rank.wait()


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


def _rank(
    program: Sequence[str], folder: Path, rank: int, world_size: int, log: IO[bytes]
) -> subprocess.Popen[bytes]:
    numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    return subprocess.Popen(
        program,
        cwd=folder,
        env={
            **_environment(folder),
            **numbers,
            "CCLSEARCH_INIT_METHOD": f"file://{folder}/store",
        },
        stdout=log,
        stderr=subprocess.STDOUT,
    )


def _environment(folder: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.defpath}"
    return {"PATH": path, "HOME": str(folder), "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}


def _statuses(ranks: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    deadline_s = time.monotonic() + END_S
    return [rank.wait(deadline_s - time.monotonic()) for rank in ranks]
