"""A warm process: torch is imported once, then the ranks of one job after another are forked.

Speaks JSON lines: one request in, events out. It never runs an operation of torch itself, so that
it has a single thread when it forks. When whoever started it goes away, it kills what runs and
ends; when it is killed itself, its ranks die with it.
"""

import ctypes
import importlib
import json
import os
import selectors
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypedDict

from evaluator.rank.main import run

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
REQUESTS = 0


class Request(TypedDict):
    """What starts one job; `grace_s` is how long peers of a failed rank may go on."""

    folder: str
    job: str
    world_size: int
    environment: dict[str, str]
    timeout_s: float
    grace_s: float


@dataclass(frozen=True, slots=True)
class Rank:
    """One forked rank and a descriptor that becomes readable when it ends."""

    number: int
    pid: int
    pidfd: int


def serve(modules: Sequence[str]) -> None:
    """Import `modules`, then run jobs until standard input closes."""
    events = os.dup(1)
    os.dup2(2, 1)  # what an import prints must not stand between the events
    for module in modules:
        importlib.import_module(module)
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    if threads > 1:
        raise RuntimeError(f"importing {modules} started {threads - 1} threads; cannot fork safely")
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _say(events, {"event": "ready"})
    for request in _requests():
        _say(events, {"event": "ended", **_run_job(request)})


def _requests() -> Iterator[Request]:
    """Requests as they arrive, one a line, until the input closes."""
    pending = b""
    while data := os.read(REQUESTS, 1 << 16):
        *lines, pending = (pending + data).split(b"\n")
        yield from (json.loads(line) for line in lines)


def _run_job(request: Request) -> dict[str, object]:
    started = time.monotonic()
    before = _memory_kill_count()
    # Ranks meet through a file with locks, which a network's file system may lack: not in the job's
    # folder.
    with tempfile.TemporaryDirectory(prefix="cclsearch-") as meeting:
        ranks: list[Rank] = []
        for number in range(request["world_size"]):
            ranks.append(_fork(number, ranks[0].pid if ranks else 0, request, meeting))
        reason, ended_s = _wait(ranks, request, started)
        _kill(ranks)
        exits = [_reap(rank, ended_s.get(rank.number)) for rank in ranks]
        _sweep_descendants()
    after = _memory_kill_count()
    return {
        "reason": reason,
        "ranks": exits,
        "wall_s": time.monotonic() - started,
        "memory_kill_count": None if after is None or before is None else after - before,
    }


def _wait(ranks: list[Rank], request: Request, started: float) -> tuple[str, dict[int, float]]:
    """Wait until every rank ended, or for the reason to end them.

    Gives that reason, and by number when each rank ended by itself, seconds after the start.
    """
    deadline, failed = started + request["timeout_s"], False
    ended_s: dict[int, float] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(REQUESTS, selectors.EVENT_READ)
        for rank in ranks:
            selector.register(rank.pidfd, selectors.EVENT_READ, rank)
        while len(ended_s) < len(ranks):
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                return "rank_failed" if failed else "timeout", ended_s
            now = time.monotonic()
            for key, _ in ready:
                if key.data is None:
                    return "stopped", ended_s  # nobody sends while a job runs: the input closed
                selector.unregister(key.fileobj)
                ended_s[key.data.number] = now - started
                if not failed and _failed(key.data):
                    deadline, failed = min(deadline, now + request["grace_s"]), True
    return "rank_failed" if failed else "finished", ended_s


def _fork(number: int, group: int, request: Request, meeting: str) -> Rank:
    """Fork one rank into a process group, its own if `group` is 0."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _live_as_rank(number, group, request, meeting, parent)
    # Both sides do it: whichever is first, the group is whole before anyone relies on it.
    with suppress(PermissionError):  # it has done so, and called exec or setsid since
        os.setpgid(pid, group)
    return Rank(number, pid, os.pidfd_open(pid))


def _live_as_rank(number: int, group: int, request: Request, meeting: str, parent: int) -> NoReturn:
    status = 1
    try:
        os.setpgid(0, group)
        _become_rank(number, request, meeting, parent)
        status = run(request["job"])
    except SystemExit as leaving:
        traceback.print_exc()
        if leaving.code is None or isinstance(leaving.code, int):
            status = leaving.code or 0
    except BaseException:  # noqa: BLE001 - nothing may climb into the server's own code
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            # Leave without joining threads: one may wait for a peer that is gone.
            os._exit(status)


def _become_rank(number: int, request: Request, meeting: str, parent: int) -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.chdir(request["folder"])
    log = os.open(f"rank{number}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, 256)
    # The kernel's out-of-memory killer takes a rank before anything else of the user's.
    Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    os.environ.update(request["environment"])
    os.environ.update(
        RANK=str(number),
        LOCAL_RANK=str(number),
        WORLD_SIZE=str(request["world_size"]),
        CCLSEARCH_INIT_METHOD=f"file://{meeting}/store",
    )


def _failed(rank: Rank) -> bool:
    """Whether an ended rank failed; leaves it to be reaped, so that its group's number stays."""
    ended = os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return ended is not None and ended.si_status != 0


def _kill(ranks: list[Rank]) -> None:
    """Kill the group, and each rank by itself: it may have left the group for another session."""
    with suppress(ProcessLookupError):
        os.killpg(ranks[0].pid, signal.SIGKILL)
    for rank in ranks:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(rank.pidfd, signal.SIGKILL)


def _reap(rank: Rank, ended_s: float | None) -> dict[str, object]:
    _, status = os.waitpid(rank.pid, 0)
    os.close(rank.pidfd)
    code = os.waitstatus_to_exitcode(status)
    return {
        "rank": rank.number,
        "status": code if code >= 0 else None,
        "signal": -code if code < 0 else None,
        "ended_s": ended_s,
    }


def _sweep_descendants() -> None:
    """Kill what a rank left behind, also in a session of its own: orphans come to us."""
    while children := list(_children()):
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _children() -> Iterator[int]:
    listing = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    return (int(pid) for pid in listing.split())


def _memory_kill_count() -> int | None:
    """How many processes the kernel has killed for want of memory; None where it does not say."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _say(events: int, event: Mapping[str, object]) -> None:
    try:
        os.write(events, json.dumps(event).encode() + b"\n")
    except BrokenPipeError:
        return  # nobody listens any more; the closed input ends the loop


if __name__ == "__main__":
    serve(sys.argv[1:])
