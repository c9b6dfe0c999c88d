"""A warm process: torch is imported once, then the ranks of one job after another are forked.

Speaks JSON lines: a request in, the numbers of the forked processes out. It never runs an operation
of torch itself, so that it has a single thread when it forks. The ranks become children of the
process that started it, which has to adopt orphans; it ends when its input closes.
"""

import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from evaluator.rank.main import run
from evaluator.rank.protocol import (
    JOB_FILE,
    Confinement,
    Launch,
    confine,
    die_with,
    join_rendezvous,
    read_lines,
    write_line,
)

REQUESTS = 0
ADOPTION_POLL_S = 0.0002


class Request(Launch):
    """A launch, with what each of its ranks is held to."""

    limits: Confinement


def serve(modules: Sequence[str]) -> None:
    """Import `modules`, then fork jobs until standard input closes."""
    events = os.dup(1)
    os.dup2(2, 1)  # what an import prints must not stand between the events
    # A compiler with threads of its own, or CUDA once it was asked for its devices, would not
    # survive a fork.
    given = dict(os.environ)
    os.environ.update(TORCHINDUCTOR_COMPILE_THREADS="1", PYTORCH_NVML_BASED_CUDA_CHECK="1")
    for module in modules:
        importlib.import_module(module)
        if sum(1 for _ in Path("/proc/self/task").iterdir()) > 1:
            _begin_without(module, modules, events, given)
    for name in os.environ.keys() - given.keys():
        del os.environ[name]
    os.environ.update(given)
    gc.collect()
    gc.freeze()  # a rank's collector would otherwise touch, and so copy, all that is shared
    write_line(events, {"pids": [], "error": None})
    for line in read_lines(REQUESTS):
        write_line(events, _fork_ranks(json.loads(line)))


def _begin_without(
    module: str, modules: Sequence[str], events: int, environment: Mapping[str, str]
) -> NoReturn:
    """Begin again without a module that starts threads: each rank imports it for itself."""
    words = f"importing {module} starts a thread, which no fork keeps: ranks import it themselves"
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()
    os.dup2(events, 1)
    command = sys.orig_argv[1 : -len(modules)]
    left = [each for each in modules if each != module]
    os.execve(sys.executable, [sys.executable, *command, *left], environment)


def _fork_ranks(request: Request) -> Mapping[str, object]:
    """Fork all ranks through a process that ends immediately, so that our parent adopts them."""
    reader, writer = os.pipe()
    adopter = os.getppid()
    pid = os.fork()
    if pid == 0:
        _fork_all(request, adopter, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        line = answer.readline()
    os.waitpid(pid, 0)
    answered: dict[str, object] = json.loads(line or '{"error": "it was killed"}')
    return {"pids": [], "error": None} | answered


def _fork_all(request: Request, adopter: int, writer: int) -> NoReturn:
    """Fork the ranks into a separate session and send their numbers."""
    os.setsid()
    leader, pids = os.getpid(), list[int]()
    try:
        for local_rank in range(request["rank_count"]):
            pid = os.fork()
            if pid == 0:
                _live_as_rank(local_rank, request, leader, adopter)
            pids.append(pid)
        write_line(writer, {"pids": pids})
    except OSError as error:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        write_line(writer, {"error": str(error)})
    finally:
        os._exit(0)


def _live_as_rank(local_rank: int, request: Request, leader: int, adopter: int) -> NoReturn:
    status = 1
    try:
        _become_rank(local_rank, request, leader, adopter)
        status = run(JOB_FILE)
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


def _become_rank(local_rank: int, request: Request, leader: int, adopter: int) -> None:
    os.closerange(3, 256)
    rendezvous, rank = Path(request["rendezvous"]), request["first_rank"] + local_rank
    os.environ.update(request["environment"])
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(local_rank),
        WORLD_SIZE=str(request["world_size"]),
        CCLSEARCH_INIT_METHOD=request["init_method"] or f"file://{rendezvous}/store",
    )
    while os.getppid() == leader:
        time.sleep(ADOPTION_POLL_S)
    die_with(adopter)
    join_rendezvous(rendezvous, rank)
    os.chdir(request["folder"])
    confine(request["limits"])


if __name__ == "__main__":
    serve(sys.argv[1:])
