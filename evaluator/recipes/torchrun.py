"""The commands that start ranks cold: of one rank, and of all by torchrun."""

import sys
from pathlib import Path

JOB_FILE = "job.json"


def rank_program(python: str) -> tuple[str, ...]:
    """The command of one rank, run by this interpreter."""
    return (python, "-P", "-m", "evaluator.rank.main", JOB_FILE)


def torchrun_command(world_size: int) -> tuple[str, ...]:
    """The command that starts all ranks of a job here; it names no path of this machine."""
    python = Path(sys.executable).name
    return (
        *(python, "-P", "-m", "torch.distributed.run", "--standalone"),
        *(f"--nproc-per-node={world_size}", "--no-python"),
        *rank_program(python),
    )
