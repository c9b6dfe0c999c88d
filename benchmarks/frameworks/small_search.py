"""Starts a small search of a recipe as a user does, in a folder with its own scripts."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
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
