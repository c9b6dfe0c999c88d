"""The program of a rank, and the file in which it finds its job."""

import sys
from pathlib import Path

JOB_FILE = "job.json"


def rank_program(python: str = Path(sys.executable).name) -> tuple[str, ...]:
    """The command of one rank; as it stands it names no path of this machine."""
    return (python, "-P", "-m", "evaluator.rank.main", JOB_FILE)
