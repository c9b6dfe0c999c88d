"""The beats of ranks, read as they are written, and when silence means that they hang.

They were written by a job under test: nothing in them is believed without a check.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from evaluator.rank.progress import Phase, progress_name

READ_BYTES = 1 << 20
PATIENCE = 2.0
"""How many times its longest step a rank may be silent for, if that is longer than the limit."""


@dataclass(frozen=True, slots=True)
class Sign:
    """What a rank had entered at `at_s` of the monotonic clock; a step counts over all phases."""

    phase: Phase
    step: int | None
    at_s: float


class Beats:
    """One rank's beats: the last one, and the longest time between two that it has shown."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self.last: Sign | None = None
        self.longest_step_s = 0.0
        self._path = folder / progress_name(rank)
        self._started_s = time.monotonic()
        self._read_bytes = 0

    def read(self) -> Iterator[Sign]:
        """Beats that came since the last look."""
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            piece = file.read(READ_BYTES)
        whole, newline, _ = piece.rpartition(b"\n")
        self._read_bytes += len(whole) + len(newline)
        if not newline and len(piece) == READ_BYTES:
            self._read_bytes += len(piece)  # no beat is as long as that
        for line in whole.splitlines():
            sign = self._sign(line)
            if sign is not None:
                self._note(sign)
                yield sign

    def silent_s(self, now_s: float) -> float:
        """How long ago the last beat was, or the start if there was none."""
        return now_s - (self.last.at_s if self.last else self._started_s)

    def _note(self, sign: Sign) -> None:
        if self.last is not None and self.last.step is not None:
            self.longest_step_s = max(self.longest_step_s, sign.at_s - self.last.at_s)
        self.last = sign

    def _sign(self, line: bytes) -> Sign | None:
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            told = json.loads(line)
            phase, step, at_ns = Phase(told["phase"]), told["step"], told["at_ns"]
            if isinstance(at_ns, int) and (step is None or isinstance(step, int)):
                earliest_s = self.last.at_s if self.last else self._started_s
                return Sign(phase, step, min(max(at_ns / 1e9, earliest_s), time.monotonic()))
        return None


def all_hang(ranks: Sequence[Beats], hang_after_s: float, now_s: float) -> bool:
    """Whether ranks that are at work were all silent for too long, and one of them in a step.

    The first step is let pass: in it, programs are compiled and connections made.
    """
    at_work = [beats for beats in ranks if beats.last and beats.last.phase is not Phase.DONE]
    in_a_step = any(beats.last is not None and beats.last.step for beats in at_work)
    longest_s = max((beats.longest_step_s for beats in at_work), default=0.0)
    limit_s = max(hang_after_s, PATIENCE * longest_s)
    return in_a_step and all(beats.silent_s(now_s) > limit_s for beats in at_work)
