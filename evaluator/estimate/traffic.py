"""What collectives cost a rank: calls, rounds with a neighbour, and bytes that it sends.

Rings, which carry large messages everywhere: an all-reduce goes around twice.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traffic:
    """Calls of one rank, their rounds one after the other, bytes sent and bytes added up."""

    calls: float = 0.0
    rounds: float = 0.0
    sent_bytes: float = 0.0
    added_bytes: float = 0.0

    def __add__(self, other: "Traffic") -> "Traffic":
        """Both, one after the other."""
        return Traffic(
            self.calls + other.calls,
            self.rounds + other.rounds,
            self.sent_bytes + other.sent_bytes,
            self.added_bytes + other.added_bytes,
        )

    def __mul__(self, times: float) -> "Traffic":
        """The same so many times."""
        return Traffic(
            self.calls * times,
            self.rounds * times,
            self.sent_bytes * times,
            self.added_bytes * times,
        )


def all_reduce(size_bytes: float, ranks: int, calls: float = 1) -> Traffic:
    """Of a tensor of so many bytes, in so many calls."""
    return _around(2 * (ranks - 1), size_bytes, ranks, calls)


def gather_or_scatter(size_bytes: float, ranks: int, calls: float = 1) -> Traffic:
    """All-gather, reduce-scatter or all-to-all; `size_bytes` is the whole of all parts."""
    return _around(ranks - 1, size_bytes, ranks, calls)


def transfer(size_bytes: float, calls: float = 1) -> Traffic:
    """From one rank to another, in so many calls."""
    return Traffic(calls, calls, size_bytes)


def _around(rounds: int, size_bytes: float, ranks: int, calls: float) -> Traffic:
    if ranks == 1:
        return Traffic()
    return Traffic(calls, calls * rounds, rounds * size_bytes / ranks)
