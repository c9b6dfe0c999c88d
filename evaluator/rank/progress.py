"""Where the rank is: its phase, and the beats that rank 0 writes for whoever watches."""

import json
import time
from enum import StrEnum
from pathlib import Path

PROGRESS_NAME = "progress.jsonl"


class Phase(StrEnum):
    """The parts of a run, in order."""

    SETUP = "setup"
    WARMUP = "warmup"
    TIMED = "timed"
    PROFILE = "profile"
    DONE = "done"


class Progress:
    """The current phase, and one line per beat in the folder if this is rank 0."""

    def __init__(self, folder: Path, *, rank: int) -> None:
        self.phase = Phase.SETUP
        self._path = folder / PROGRESS_NAME if rank == 0 else None

    def beat(self, phase: Phase, step: int | None = None) -> None:
        """Enter a phase, or begin a step (counted from 0 over all phases) in it."""
        self.phase = phase
        if self._path is not None:
            line = {"phase": phase, "step": step, "at_ns": time.perf_counter_ns()}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
