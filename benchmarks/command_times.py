"""How long commands take that only read: user and system seconds, the least of several runs.

The store is any with studies; of the newest, or of `--study`, the last two trials are compared.
The exit code is 1 where a command takes longer than half a second. Modules that Python may not
keep compiled (PYTHONDONTWRITEBYTECODE) are compiled in each run, which is part of the time.

    python benchmarks/command_times.py .cclsearch
    python benchmarks/command_times.py .cclsearch --study 20260505 --times 15
"""

import argparse
import sys
from contextlib import closing
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from subprocess import DEVNULL, run

from records.store.store import Store

TIMES = 7
MOST_S = 0.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--study", default="", help="id or its beginning [default: the newest]")
    parser.add_argument("--times", type=int, default=TIMES)
    given = parser.parse_args()
    slowest = 0.0
    for command in commands(given.store, given.study):
        seconds = min(cpu_seconds(command) for _ in range(given.times))
        slowest = max(slowest, seconds)
        print(f"{seconds:.3f} s  cclsearch {' '.join(command)}")
    return 1 if slowest > MOST_S else 0


def commands(root: Path, begins: str) -> list[list[str]]:
    with closing(Store(root)) as store:
        study = store.find(begins) if begins else store.studies(limit=1)[0]
        last = len(store.history(study.id)) - 1
    pair = f"compare trial:{study.id}:{last - 1} trial:{study.id}:{last}"
    reading = ["list", f"show {study.id}", f"best {study.id}", f"trial show {study.id} {last}"]
    without_store = ["--help", "--version", "metrics list", "policy check sharded"]
    return [
        *(text.split() for text in without_store),
        *([*text.split(), "--store", str(root)] for text in (*reading, pair, "leaderboard")),
    ]


def cpu_seconds(command: list[str]) -> float:
    before = getrusage(RUSAGE_CHILDREN)
    run([sys.executable, "-m", "search", *command], stdout=DEVNULL, stderr=DEVNULL, check=True)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
