"""Where the processes of a job are in their programs, asked of them while they still live."""

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from evaluator.rank.meeting import STACKS_SIGNAL, stacks_name

ANSWER_LIMIT_S = 1.0
POLL_S = 0.02
SPY_LIMIT_S = 5.0
SPIED_COUNT = 16


def take_stacks(
    processes: Sequence[int],
    *,
    meeting: Path,
    folder: Path,
    world_size: int,
    environment: Mapping[str, str],
) -> None:
    """Write `rank{r}.stacks.txt` for ranks that can be asked, `process{pid}.stacks.txt` of others.

    Others are those that py-spy, if the job's PATH has it, can look into.
    """
    asked = _ask(processes, [meeting / stacks_name(rank) for rank in range(world_size)])
    for path, header_bytes in asked.values():
        stacks = path.read_bytes()[header_bytes:]
        if stacks:
            (folder / path.name).write_bytes(stacks)
    spy = shutil.which("py-spy", path=environment.get("PATH", os.defpath))
    if spy is not None:
        _spy(spy, [pid for pid in processes if pid not in asked][:SPIED_COUNT], folder)


def _ask(processes: Sequence[int], paths: Sequence[Path]) -> dict[int, tuple[Path, int]]:
    """Signal each rank that said it listens; gives its file and where in it the stacks begin."""
    asked: dict[int, tuple[Path, int]] = {}
    for path in paths:
        with suppress(OSError, ValueError):
            header = path.read_bytes()
            pid = int(header)
            if pid in processes:
                os.kill(pid, STACKS_SIGNAL)
                asked[pid] = path, len(header)
    _await_answers([*asked.values()])
    return asked


def _await_answers(asked: Sequence[tuple[Path, int]]) -> None:
    """Wait until every file has grown beyond its header, and then grown no more for a moment."""
    deadline_s = time.monotonic() + ANSWER_LIMIT_S
    sizes: list[int] = []
    while asked and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
        before, sizes = sizes, [path.stat().st_size for path, _ in asked]
        answered = all(size > header for size, (_, header) in zip(sizes, asked, strict=True))
        if answered and sizes == before:
            return


def _spy(spy: str, processes: Sequence[int], folder: Path) -> None:
    deadline_s = time.monotonic() + SPY_LIMIT_S
    for pid in processes:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return
        with suppress(subprocess.SubprocessError, OSError):
            told = subprocess.run(
                [spy, "dump", "--pid", str(pid)],
                capture_output=True,
                check=True,
                timeout=left_s,
                stdin=subprocess.DEVNULL,
            )
            (folder / f"process{pid}.stacks.txt").write_bytes(told.stdout)
