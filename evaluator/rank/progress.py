"""Where the rank is: its phase, and the beats that it leaves for whoever watches."""

import json
import os
import time
from enum import StrEnum
from pathlib import Path


class Phase(StrEnum):
    """The parts of a run, in order."""

    SETUP = "setup"
    WARMUP = "warmup"
    TIMED = "timed"
    PROFILE = "profile"
    DONE = "done"


class Progress:
    """The current phase, and one line per beat in the folder, `rank{r}.progress.jsonl`."""

    def __init__(self, folder: Path, *, rank: int) -> None:
        self.phase = Phase.SETUP
        path = folder / progress_name(rank)
        # Left open to the process's end: a beat is one write between two steps.
        self._beats = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def beat(self, phase: Phase, step: int | None = None) -> None:
        """Enter a phase, or begin a step (counted from 0 over all phases) in it.

        Without a step the rank is between steps, where it may take its time.
        """
        self.phase = phase
        line = {"phase": phase, "step": step, "at_ns": time.perf_counter_ns()}
        os.write(self._beats, json.dumps(line).encode() + b"\n")


def progress_name(rank: int) -> str:
    """What the file with a rank's beats is called."""
    return f"rank{rank}.progress.jsonl"
