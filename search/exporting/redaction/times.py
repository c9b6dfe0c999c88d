"""Moves times of a trace a little, so that what followed stays behind what was before."""

import hashlib
import struct
from functools import lru_cache

_SCALES_US = (1e3, 1e4, 1e5, 1e6)
_REMEMBERED = 1 << 16


class Perturbed:
    """Time in microseconds as another clock would tell it whose rate varies by `share` at most.

    It never runs backwards, and is the same function for all ranks of an export; `seed` chooses it.
    """

    def __init__(self, share: float, seed: int) -> None:
        self.share = share
        self._seed = seed
        self._knot = lru_cache(maxsize=_REMEMBERED)(self._knot_shift)

    def at(self, time_us: float) -> float:
        """A moment on that clock, to the nanosecond."""
        return round(time_us + sum(self._shift(time_us, scale) for scale in _SCALES_US), 3)

    def _shift(self, time_us: float, scale_us: float) -> float:
        """Between two knots on a straight line, whose slope is a part of the share at most."""
        cell, part = divmod(time_us, scale_us)
        before, after = self._knot(cell, scale_us), self._knot(cell + 1, scale_us)
        return before + (after - before) * part / scale_us

    def _knot_shift(self, cell: float, scale_us: float) -> float:
        key = struct.pack("<qdd", self._seed, cell, scale_us)
        number = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest())
        largest_us = self.share * scale_us / (2 * len(_SCALES_US))
        return largest_us * (2 * number / 2**64 - 1)
