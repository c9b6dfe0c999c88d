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
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

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
    requests = _Requests()
    while (request := requests.next()) is not None:
        _say(events, {"event": "ended", **_run_job(request, requests)})


def _run_job(request: Request, requests: "_Requests") -> dict[str, object]:
    started = time.monotonic()
    ranks = [_fork(number, request) for number in range(request["world_size"])]
    group = ranks[0].pid
    for rank in ranks:
        _join_group(rank.pid, group)
    reason = _wait(ranks, request, requests, started)
    _kill_group(group)
    exits = [_reap(rank) for rank in ranks]
    _sweep_descendants()
    return {"reason": reason, "ranks": exits, "wall_s": time.monotonic() - started}


def _wait(ranks: list[Rank], request: Request, requests: "_Requests", started: float) -> str:
    """Wait until every rank ended, or for the reason to end them; gives that reason."""
    deadline, reason = started + request["timeout_s"], "timeout"
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        for rank in ranks:
            selector.register(rank.pidfd, selectors.EVENT_READ, rank)
        running = len(ranks)
        while running:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                return reason
            for key, _ in ready:
                if not isinstance(key.data, Rank):
                    return "stopped"
                selector.unregister(key.fileobj)
                running -= 1
                if reason == "timeout" and _failed(key.data):
                    grace_end = time.monotonic() + request["grace_s"]
                    deadline, reason = min(deadline, grace_end), "rank_failed"
    return reason if reason == "rank_failed" else "finished"


def _fork(number: int, request: Request) -> Rank:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            _become_rank(number, request, parent)
            status = run(request["job"])
        except OSError:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            # Leave without joining threads: one may wait for a peer that is gone.
            os._exit(status)
    return Rank(number, pid, os.pidfd_open(pid))


def _become_rank(number: int, request: Request, parent: int) -> None:
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
        RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(request["world_size"])
    )


def _join_group(pid: int, group: int) -> None:
    try:
        os.setpgid(pid, group)
    except ProcessLookupError:
        return  # it ended already


def _failed(rank: Rank) -> bool:
    """Whether an ended rank failed; leaves it to be reaped, so that its group's number stays."""
    ended = os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return ended is not None and ended.si_status != 0


def _reap(rank: Rank) -> dict[str, int | None]:
    _, status = os.waitpid(rank.pid, 0)
    os.close(rank.pidfd)
    code = os.waitstatus_to_exitcode(status)
    return {
        "rank": rank.number,
        "status": code if code >= 0 else None,
        "signal": -code if code < 0 else None,
    }


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _sweep_descendants() -> None:
    """Kill what a rank left behind, also in a session of its own: orphans come to us."""
    while children := list(_children()):
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _children() -> Iterator[int]:
    listing = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    return (int(pid) for pid in listing.split())


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _say(events: int, event: Mapping[str, object]) -> None:
    try:
        os.write(events, json.dumps(event).encode() + b"\n")
    except BrokenPipeError:
        return  # nobody listens any more; the closed input ends the loop


class _Requests:
    """Request lines from standard input; readable while a job runs means: stop it."""

    def __init__(self) -> None:
        self._pending = b""

    def fileno(self) -> int:
        return REQUESTS

    def next(self) -> Request | None:
        """Wait for the next request; None when the input has closed."""
        while True:
            line, newline, rest = self._pending.partition(b"\n")
            if newline:
                self._pending = rest
                message = json.loads(line)
                if message.get("stop"):
                    continue  # the job it was meant for has ended
                request: Request = message
                return request
            data = os.read(REQUESTS, 1 << 16)
            if not data:
                return None
            self._pending += data


if __name__ == "__main__":
    serve(sys.argv[1:])
