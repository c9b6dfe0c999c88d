"""Forks ranks from one process that has imported torch, for it takes longer than what they do.

Each line of the standard input is a launch, a folder and the program, environment and log of each
rank; the line of output that answers it holds their exit statuses.
"""

import json
import os
import runpy
import signal
import sys
import time
import traceback
from typing import NoReturn

import evaluator.workloads.collectives.sweep

MAIN = evaluator.workloads.collectives.sweep.__file__
END_S = 120


def be_a_rank(folder: str, program: list[str], environment: dict[str, str], log: str) -> NoReturn:
    status = 1
    try:
        os.chdir(folder)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.environ.clear()  # noqa: TID251 - a rank's own
        os.environ.update(environment)  # noqa: TID251 - a rank's own
        sys.argv = program
        runpy.run_path(program[0], run_name="__main__")
        status = 0
    except BaseException:  # noqa: BLE001 - the end of a process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def statuses(ranks: list[int]) -> list[int]:
    """How they ended; those that have not in time are killed."""
    deadline_s = time.monotonic() + END_S
    ended: dict[int, int] = {}
    while len(ended) < len(ranks):
        for rank in set(ranks) - ended.keys():
            pid, status = os.waitpid(rank, os.WNOHANG)
            if pid:
                ended[rank] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline_s:
                os.kill(rank, signal.SIGKILL)
        time.sleep(0.01)
    return [ended[rank] for rank in ranks]


def main() -> None:
    for line in sys.stdin:
        launch = json.loads(line)
        ranks = []
        for rank in launch["ranks"]:
            ranks.append(os.fork())
            if ranks[-1] == 0:
                be_a_rank(launch["folder"], **rank)
        sys.stdout.write(json.dumps(statuses(ranks)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
