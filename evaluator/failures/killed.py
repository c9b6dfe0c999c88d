"""Which rank a signal ended, as launchers tell it, where the others only say that they lost it."""

import re
import signal
from dataclasses import dataclass
from typing import Final

_TOLD: Final = (
    # torchrun lists how each rank ended, mpirun tells of the first that died.
    re.compile(r"^ *rank *: *(?P<rank>\d+) .*\n *exitcode *: *-(?P<signal>\d+)\b", re.MULTILINE),
    re.compile(r"\bprocess rank (?P<rank>\d+) .{0,300}?\bsignal\s+(?P<signal>\d+)\b", re.DOTALL),
)
_CONSEQUENCES: Final = (signal.SIGTERM, signal.SIGABRT)
"""By which a launcher ends what is left, and a library a rank that lost another."""


@dataclass(frozen=True, slots=True)
class Killed:
    """A rank, and the number of the signal that ended it."""

    rank: int
    signal: int


def killed_rank(log: str) -> Killed | None:
    """The first rank in a command's output that was ended by a signal of its own."""
    for pattern in _TOLD:
        for found in pattern.finditer(log):
            killed = Killed(int(found["rank"]), int(found["signal"]))
            if killed.signal not in _CONSEQUENCES:
                return killed
    return None
