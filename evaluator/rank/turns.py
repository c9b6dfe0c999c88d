"""Turns: where several jobs are on one machine, only one of them steps at any moment.

Between its turns each rank waits at a gate, a named pipe, where it takes no time of a processor.
Whoever gives the turns holds all pipes open, for reading and for writing.
"""

import os
from pathlib import Path

VARIABLE = "CCLSEARCH_TURNS"
ANSWERS = "answers"
READY = b"r"
GO = b"g"
NO_MORE = b"n"


class Gate:
    """One rank's gate, in the folder of its job's pipes."""

    def __init__(self, folder: Path, *, rank: int) -> None:
        self._answers = os.open(folder / ANSWERS, os.O_WRONLY | os.O_CLOEXEC)
        self._orders = os.open(folder / gate_name(rank), os.O_RDONLY | os.O_CLOEXEC)

    def wait(self) -> bool:
        """Say that this rank is at its gate, and wait there; whether it gets another turn."""
        os.write(self._answers, READY)
        return os.read(self._orders, 1) == GO


def open_gate(rank: int) -> Gate | None:
    """The gate that the environment names; None for a job that has the machine to itself."""
    folder = os.environ.get(VARIABLE)
    return None if folder is None else Gate(Path(folder), rank=rank)


def gate_name(rank: int) -> str:
    """What the pipe to a rank is called."""
    return f"gate{rank}"
