"""Starts a small search of a recipe as a user does, and the same configurations by hand."""

import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from overhead import print_overhead

STORE = "store"


def run_search(
    name: str,
    python: Path,
    folder: Path,
    study: str,
    files: Sequence[str],
    arguments: Sequence[str],
) -> float | None:
    """Run `cclsearch run --recipe NAME -- torchrun ...`; its seconds, None without a result."""
    for file in files:
        shutil.copy(Path(__file__).parent / file, folder)
    (folder / "study.toml").write_text(study, encoding="utf-8")
    cclsearch = str(Path(sys.executable).parent / "cclsearch")
    torchrun = str(python.parent / "torchrun")
    line = ("--", torchrun, "--nproc_per_node=2", *arguments)
    run = [cclsearch, "run", "--recipe", name, "-c", "study.toml", "--store", STORE, *line]
    began = time.perf_counter()
    ended = subprocess.run(run, cwd=folder, check=False)
    return time.perf_counter() - began if ended.returncode == 0 else None


def sweep(
    lines: Mapping[str, Sequence[str]],
    python: Path,
    folder: Path,
    steps: int,
    searched_s: float | None,
    rounds: int = 2,
) -> None:
    """Launch a script that prints `STEPS` and its times, in turns; print medians in seconds.

    It takes as many `steps`, of which it does not time the first; after a search of `searched_s`
    what a launch of it took beyond one by hand is printed as well.
    """
    ours = {**os.environ, "OMP_NUM_THREADS": "1"}  # noqa: TID251 - a benchmark is started by hand
    torchrun = [str(python.parent / "torchrun"), "--standalone", "--nproc_per_node=2"]
    times_s = defaultdict[str, list[float]](list)
    beside_s = list[float]()
    for _ in range(rounds):
        for name, words in lines.items():
            began = time.perf_counter()
            ended = subprocess.run(
                [*torchrun, *words],
                cwd=folder,
                env=ours,
                capture_output=True,
                text=True,
                check=False,
            )
            found = re.search(r"^STEPS (.*)$", ended.stdout, re.MULTILINE)
            if found is None:
                print(f"by hand: {name} failed: {ended.stderr[-300:]}")
                continue
            took_s = time.perf_counter() - began
            steps_s = [float(word) for word in found[1].split()]
            times_s[name] += steps_s
            beside_s.append(took_s - steps * statistics.median(steps_s))
    for name, seconds in sorted(times_s.items(), key=lambda item: statistics.median(item[1])):
        print(f"by hand: {name}: {statistics.median(seconds):.4f} s of {len(seconds)} steps")
    if searched_s is not None and beside_s:
        print_overhead(folder / STORE, searched_s, beside_s)
