"""Work of two ranks that goes wrong as the job's `misdeed.json` asks: what, where and when.

Runs inside ranks, so it knows only the standard library, torch and the rank's own modules.
"""

import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from throwing import THROWING

from evaluator.rank.main import RankContext

STEPS = {"warmup": 0, "timed": 2, "profile": 6}
SLOW_STEP_S = 0.15
CLONE_NEWNET = 0x40000000
LINK_FLAGS, SET_LINK_FLAGS = struct.pack("16sh", b"lo", 0), 0x8914


class Sums:
    """Steps in which all ranks wait for each other."""

    def __init__(self, context: RankContext) -> None:
        workload = context.job.workload
        tokens = workload.global_batch * workload.sequence_length
        self.tokens = tokens // context.job.world_size
        self.device = context.device
        self.losses: list[float] = []
        self.before_step: Callable[[int], object] = lambda _index: None

    def step(self, index: int) -> int:
        """Add up ones."""
        self.before_step(index)
        total = torch.ones(1, device=self.device)
        dist.all_reduce(total)
        self.losses.append(total.item())
        return self.tokens

    def global_losses(self) -> list[float]:
        """One sum for each step."""
        return self.losses


def misbehave(context: RankContext) -> Sums:
    """Give work that goes wrong on the ranks and in the phase that are asked for."""
    asked = json.loads(Path("misdeed.json").read_text(encoding="utf-8"))
    Path(f"rank{context.rank}.pid").write_text(str(os.getpid()), encoding="ascii")
    work = Sums(context)
    if context.rank not in asked["ranks"]:
        return work
    misdeed = MISDEEDS[asked["what"]]

    def act() -> None:
        misdeed(work) if asked["argument"] is None else misdeed(work, asked["argument"])

    match asked["phase"]:
        case "setup":
            act()
        case "end":
            _do_at_the_end(act)
        case phase:
            work.before_step = lambda index: act() if index == STEPS[phase] else None
    return work


def _do_at_the_end(act: Callable[[], object]) -> None:
    """Act when all ranks have written everything, before they part."""
    meet = dist.barrier

    def barrier() -> None:
        meet()
        act()

    dist.barrier = barrier  # type: ignore[assignment] # the last call that every rank makes


def _signal(_work: Sums, name: str) -> None:
    os.kill(os.getpid(), signal.Signals[name])


def _throw(_work: Sums, name: str) -> None:
    THROWING[name]()


def _exit(_work: Sums, status: object) -> None:
    sys.exit(status)  # type: ignore[arg-type] # a number or a text, as asked


def _exit_at_once(_work: Sums, status: int) -> None:
    os._exit(status)


def _allocate(work: Sums, size_bytes: int) -> None:
    torch.empty(size_bytes, dtype=torch.uint8, device=work.device).fill_(1)


def _read_freed_memory(work: Sums) -> None:
    freed = torch.ones(1 << 20, device=work.device)
    freed.untyped_storage().resize_(0)
    freed.add(1).sum().item()


def _index_out_of_range(work: Sums) -> None:
    beyond = torch.tensor([1 << 20], device=work.device)
    torch.ones(8, device=work.device)[beyond].sum().item()


def _allocate_bytes(_work: Sums, size_bytes: int) -> None:
    bytearray(size_bytes)


def _allocate_bit_by_bit(_work: Sums, size_bytes: int) -> None:
    held = [torch.ones(size_bytes // 4)]
    while True:
        held.append(held[-1] + 1)


def _sleep(_work: Sums) -> None:
    while True:
        time.sleep(60)


def _ignore_signals(work: Sums) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _sleep(work)


def _leave_for_another_session(work: Sums) -> None:
    os.setsid()
    _ignore_signals(work)


def _spin(_work: Sums) -> None:
    while True:
        pass


def _sleep_in_c(_work: Sums) -> None:
    ctypes.PyDLL(None).sleep(60)  # without giving up the interpreter's lock


def _lock_twice(_work: Sums) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _receive_what_nobody_sends(_work: Sums) -> None:
    dist.recv(torch.ones(1), src=0)


def _call_another_collective(_work: Sums) -> None:
    dist.broadcast(torch.ones(1), src=1)
    dist.barrier()


def _reduce_another_shape(_work: Sums, size: int) -> None:
    dist.all_reduce(torch.ones(size))


def _lose_number(work: Sums, value: str) -> None:
    work.losses.append(float(value))


def _feed_less(work: Sums, tokens: int) -> None:
    work.tokens -= tokens


def _harm_file(_work: Sums, how: str) -> None:
    name, _, harm = how.partition(": ")
    path = Path(name)
    match harm:
        case "delete":
            path.unlink()
        case "truncate":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        case "empty":
            path.write_bytes(b"")
        case "replace by a folder":
            path.unlink()
            path.mkdir()
        case "replace by an endless file":
            path.unlink()
            path.symlink_to("/dev/zero")
        case "replace by a pipe":
            path.unlink()
            os.mkfifo(path)
        case "replace by that of the other rank":
            shutil.copy(name.replace("rank1", "rank0"), path)
        case text:
            path.write_text(text, encoding="utf-8")


def _leave_children(work: Sums, then: str) -> None:
    """Leave a child, one in a session of its own and one whose parent has gone, then fail."""
    for leave in (_ignore_signals, _leave_for_another_session, _leave_an_orphan):
        if os.fork() == 0:
            leave(work)
    THROWING[then]()


def _leave_an_orphan(work: Sums) -> None:
    if os.fork() == 0:
        _leave_for_another_session(work)
    os._exit(0)


def _write_much(_work: Sums, size_bytes: int) -> None:
    with Path("much.bin").open("wb") as file:
        file.write(bytes(size_bytes))


def _write_many(work: Sums, count: int) -> None:
    for number in range(count):
        Path(f"much{number}.bin").write_bytes(os.urandom(8 << 20))
    _sleep(work)


def _part_networks(_work: Sums) -> None:
    """Leave rank 0's network for an empty one, where nobody can be reached, and connect anew."""
    if dist.get_rank() == 1:
        ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET)
    dist.new_group([0, 1])


def _take_link_down(_work: Sums) -> None:
    with socket.socket() as asking:
        fcntl.ioctl(asking, SET_LINK_FLAGS, LINK_FLAGS)


MISDEEDS: dict[str, Callable[..., object]] = {
    "signal": _signal,
    "throw": _throw,
    "exit": _exit,
    "exit at once": _exit_at_once,
    "allocate": _allocate,
    "read freed memory": _read_freed_memory,
    "index out of range": _index_out_of_range,
    "allocate bytes": _allocate_bytes,
    "allocate bit by bit": _allocate_bit_by_bit,
    "sleep": _sleep,
    "ignore signals": _ignore_signals,
    "leave for another session": _leave_for_another_session,
    "spin": _spin,
    "sleep in C": _sleep_in_c,
    "lock twice": _lock_twice,
    "receive what nobody sends": _receive_what_nobody_sends,
    "call another collective": _call_another_collective,
    "reduce another shape": _reduce_another_shape,
    "slow down": lambda work: setattr(work, "before_step", lambda _: time.sleep(SLOW_STEP_S)),
    "lose number": _lose_number,
    "feed less": _feed_less,
    "harm file": _harm_file,
    "leave children": _leave_children,
    "write much": _write_much,
    "write many": _write_many,
    "part networks": _part_networks,
    "take link down": _take_link_down,
}
