"""Starts a small search of a recipe as a user does, and the same configurations by hand."""

import os
import re
import shutil
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_search(
    name: str,
    python: Path,
    folder: Path,
    study: str,
    files: Sequence[str],
    arguments: Sequence[str],
) -> bool:
    """Run `cclsearch run --recipe NAME -- torchrun ...`; false where it measured nothing."""
    for file in files:
        shutil.copy(Path(__file__).parent / file, folder)
    (folder / "study.toml").write_text(study, encoding="utf-8")
    cclsearch = str(Path(sys.executable).parent / "cclsearch")
    torchrun = str(python.parent / "torchrun")
    line = ("--", torchrun, "--nproc_per_node=2", *arguments)
    run = [cclsearch, "run", "--recipe", name, "-c", "study.toml", *line]
    return subprocess.run(run, cwd=folder, check=False).returncode == 0


def sweep(lines: Mapping[str, Sequence[str]], python: Path, folder: Path, rounds: int = 2) -> None:
    """Launch a script that prints `STEPS` and its times, in turns; print medians in seconds."""
    ours = {**os.environ, "OMP_NUM_THREADS": "1"}  # noqa: TID251 - a benchmark is started by hand
    torchrun = [str(python.parent / "torchrun"), "--standalone", "--nproc_per_node=2"]
    times_s = defaultdict[str, list[float]](list)
    for _ in range(rounds):
        for name, words in lines.items():
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
            times_s[name] += map(float, found[1].split())
    for name, seconds in sorted(times_s.items(), key=lambda item: statistics.median(item[1])):
        print(f"by hand: {name}: {statistics.median(seconds):.4f} s of {len(seconds)} steps")
