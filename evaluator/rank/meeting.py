"""The folder in which the ranks of one launch meet, and meet those who watch over them.

It is on a local disk, lives as long as the launch, and holds the ranks' rendezvous, their temporary
files, a pipe for each log, and from each rank a file that its stacks can be asked into.
"""

import faulthandler
import os
import signal
import tempfile
from pathlib import Path

VARIABLE = "CCLSEARCH_MEETING"
STACKS_SIGNAL = signal.SIGRTMAX - 3  # ordinary ones are the user's own


def meet(folder: Path, rank: int) -> None:
    """Send what this process prints to its log, and let it be asked for its stacks."""
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(folder / log_name(rank), os.O_WRONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    tempfile.tempdir = None  # a forked rank inherits that of its parent
    stacks = os.open(folder / stacks_name(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(stacks, f"{os.getpid()}\n".encode())
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)


def log_name(rank: int) -> str:
    """What a rank's log is called, and here the pipe to it."""
    return f"rank{rank}.log"


def stacks_name(rank: int) -> str:
    """What the file of a rank's stacks is called; here its first line is the process's number."""
    return f"rank{rank}.stacks.txt"
