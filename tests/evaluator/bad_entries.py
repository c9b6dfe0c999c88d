"""Work that goes wrong in one rank, as the job's `misdeed.json` asks: what, which rank, which step.

Runs inside ranks, so it knows only the standard library, torch and the rank's own modules.
"""

import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from evaluator.rank.main import RankContext

STEP_S = 0.15


class Sums:
    """Steps in which all ranks wait for each other."""

    def __init__(self, context: RankContext) -> None:
        workload = context.job.workload
        tokens = workload.global_batch * workload.sequence_length
        self._tokens = tokens // context.job.world_size
        self._losses: list[float] = []

    def step(self, index: int) -> int:  # noqa: ARG002 - every step is the same
        total = torch.ones(1)
        dist.all_reduce(total)
        self._losses.append(total.item())
        return self._tokens

    def global_losses(self) -> list[float]:
        return self._losses


def good(context: RankContext) -> Sums:
    return Sums(context)


def misbehave(context: RankContext) -> Sums:
    asked = json.loads(Path("misdeed.json").read_text(encoding="utf-8"))
    work = Sums(context)
    if context.rank != asked["rank"] and asked["rank"] is not None:
        return work
    misdeed = globals()[asked["what"].replace(" ", "_")]
    if asked["step"] is None:
        misdeed()
    plain_step = work.step

    def step(index: int) -> int:
        if asked["step"] in (index, "all"):
            misdeed()
        return plain_step(index)

    work.step = step  # type: ignore[method-assign] # a rank that goes wrong in the middle
    return work


def slow(context: RankContext) -> Sums:
    """Every phase lasts long enough to be met in it."""
    work = Sums(context)
    plain_step = work.step
    time.sleep(2 * STEP_S)

    def step(index: int) -> int:
        time.sleep(STEP_S)
        return plain_step(index)

    work.step = step  # type: ignore[method-assign] # the same work, slower
    return work


def slow_at_first(context: RankContext) -> Sums:
    """The first step is by far the longest."""
    work = slow(context)
    slow_step = work.step

    def step(index: int) -> int:
        if not index:
            time.sleep(2)
        return slow_step(index)

    work.step = step  # type: ignore[method-assign] # the same work, slower
    return work


def fail() -> NoReturn:
    raise ValueError("wrong shape")


def segfault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def end_with_status_0() -> None:
    os._exit(0)


def end_with_status_3() -> None:
    sys.exit(3)


def ask_for_too_much() -> None:
    torch.empty(1 << 30, dtype=torch.uint8).fill_(1)


def ask_for_all_memory() -> None:
    torch.empty(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), dtype=torch.uint8)


def hang() -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)


def sleep() -> NoReturn:
    while True:
        time.sleep(60)


def sleep_in_another_session() -> NoReturn:
    os.setsid()
    sleep()


def clean_up_when_told_to_end() -> NoReturn:
    def clean_up(*_: object) -> NoReturn:
        Path("cleaned_up").touch()
        sys.exit(0)

    signal.signal(signal.SIGTERM, clean_up)
    sleep()


def hang_in_another_session() -> NoReturn:
    os.setsid()
    hang()


def fail_while_peers_hang() -> NoReturn:
    if dist.get_rank() == 1:
        fail()
    hang()


def leave_children() -> None:
    """Start a child, one in a session of its own, and a grandchild whose parent has gone."""
    _start(hang)
    _start(hang_in_another_session)
    os.waitpid(_start(_orphan_a_child), 0)


def leave_a_child_and_a_stray_and_hang() -> NoReturn:
    _start(sleep_in_another_session)
    _start(hang)
    hang()


def leave_a_stray_and_sleep() -> NoReturn:
    _start(sleep_in_another_session)
    sleep()


def leave_shared_memory() -> None:
    """What a rank that was killed does not remove, and something of the user's own."""
    memory = SharedMemory(create=True, size=4096)
    resource_tracker.unregister(f"/{memory.name}", "shared_memory")
    Path("shared_memory.txt").write_text(memory.name, encoding="ascii")


def leave_sockets_and_pipes() -> None:
    with socket.socket(socket.AF_UNIX) as here:
        here.bind("left.sock")
    os.mkfifo("left.pipe")


def flood() -> None:
    """Print more than a log may hold, and know that it was the last."""
    for _ in range(300):
        sys.stdout.write("flood " * 10_000)
    sys.stdout.write("the last words\n")


def _orphan_a_child() -> NoReturn:
    _start(hang_in_another_session)
    os._exit(0)


def _start(what: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        what()
    with Path("children.txt").open("a", encoding="ascii") as children:
        children.write(f"{pid}\n")
    return pid


def write_much() -> None:
    for _ in range(64):
        sys.stdout.write("noise " * 10_000)


def write_much_and_raise() -> NoReturn:
    write_much()
    fail()


def tell_cores() -> None:
    told = json.dumps(sorted(os.sched_getaffinity(0)))
    Path("cores.json").write_text(told, encoding="utf-8")


def make_a_temporary_file() -> None:
    descriptor, path = tempfile.mkstemp()
    os.close(descriptor)
    Path("temporary.txt").write_text(path, encoding="utf-8")


def tell_environment() -> None:
    told = json.dumps(dict(os.environ))  # noqa: TID251 - what a rank sees is what is asked
    Path("environment.json").write_text(told, encoding="utf-8")


def scribble_over_progress() -> None:
    with Path("rank0.progress.jsonl").open("a", encoding="utf-8") as beats:
        beats.write('not JSON\n{"phase": "lunch", "step": 1, "at_ns": 1}\n[]\n\n')
        beats.write('{"phase": "done", "step": "a", "at_ns": NaN}\n{"phase": []}\n')
