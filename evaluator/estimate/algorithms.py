"""How the algorithms of collectives pass messages on: rounds, bytes sent, and bytes added up.

Costs are those of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
Operations in MPICH" (2005), each for the rank that has most to do.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, log2
from typing import TypeAlias

from evaluator.estimate.traffic import Traffic
from evaluator.workloads.collectives.operations import Collective, Operation


@dataclass(frozen=True, slots=True)
class Shape:
    """Rounds one after the other; what is sent and added up in them, in sizes of the message."""

    rounds: float
    sent: float
    added: float = 0.0


Algorithm: TypeAlias = Callable[[int], Shape]
"""Its shape for a number of ranks."""


def ring(ranks: int) -> Shape:
    """Parts are added up going round, and their sums go round again."""
    part = (ranks - 1) / ranks
    return Shape(2 * (ranks - 1), 2 * part, part)


def halving_and_doubling(ranks: int) -> Shape:
    """As in a ring, between ranks that are twice as far, or near, every time."""
    part = (ranks - 1) / ranks
    return Shape(2 * doublings(ranks), 2 * part, part)


def doubling(ranks: int) -> Shape:
    """Whole messages between ranks that are twice as far every time."""
    return Shape(doublings(ranks), doublings(ranks), doublings(ranks))


def tree_and_back(ranks: int) -> Shape:
    """Up a tree, then down again."""
    return Shape(2 * doublings(ranks), 2 * doublings(ranks), doublings(ranks))


def root_and_back(ranks: int) -> Shape:
    """One rank takes in all messages, then tells all others."""
    return Shape(2 * (ranks - 1), 2 * (ranks - 1), ranks - 1)


def switches(ranks: int) -> Shape:
    """Sums are made on the way."""
    return Shape(2, 1) if ranks > 1 else Shape(0, 0)


def root(ranks: int) -> Shape:
    """One rank has to do with every other in turn; so has each where all send to all."""
    return Shape(ranks - 1, ranks - 1)


def tree(ranks: int) -> Shape:
    """From one rank to all, or back."""
    return Shape(doublings(ranks), doublings(ranks))


def chain(ranks: int) -> Shape:
    """From rank to rank."""
    return Shape(ranks - 1, 1)


def scattered(ranks: int) -> Shape:
    """Parts are scattered, then gathered in a ring."""
    return Shape(doublings(ranks) + ranks - 1, 2 * (ranks - 1) / ranks)


def joined(ranks: int) -> Shape:
    """Parts for all ranks travel together, in ever larger packets."""
    return Shape(doublings(ranks), ranks - 1)


def pair(ranks: int) -> Shape:
    """There and back."""
    return Shape(2, 2) if ranks > 1 else Shape(0, 0)


def doublings(ranks: int) -> int:
    """How often 1 is doubled until it is no less than the ranks."""
    return ceil(log2(ranks))


_OF_ALL_REDUCE: Mapping[str, Algorithm] = {
    "linear": root_and_back,
    "nonoverlapping": tree_and_back,
    "recursive_doubling": doubling,
    "rabenseifner": halving_and_doubling,
    "tree": tree_and_back,
    "collnetchain": tree_and_back,
    "collnetdirect": switches,
    "nvls": switches,
    "nvlstree": switches,
}
_OF_WHOLE: Mapping[str, Algorithm] = {
    "linear": root,
    "chain": chain,
    "pipeline": chain,
    "ring": chain,
    "scatter_allgather": scattered,
    "scatter_allgather_ring": scattered,
    "rabenseifner": scattered,
}
_OF_PARTS: Mapping[str, Algorithm] = {
    "bruck": joined,
    "modified_bruck": joined,
    "recursive_doubling": joined,
    "recursive_halving": joined,
    "butterfly": joined,
    "binomial": joined,
}


def traffic_of(operation: Operation, algorithm: str, ranks: int, segment_bytes: int = 0) -> Traffic:
    """What a call costs by an algorithm; one that is not known goes as is usual.

    In segments, a part is added up while the next is on its way.
    """
    shape = _algorithm(operation.collective, algorithm.lower())(ranks)
    size = operation.message_bytes
    part = size / ranks
    segments = max(1, ceil(part / segment_bytes)) if segment_bytes else 1
    rounds = shape.rounds * (1 + segments) / 2
    return Traffic(1, rounds, shape.sent * size, shape.added * size / segments)


def _algorithm(collective: Collective, name: str) -> Algorithm:
    match collective:
        case Collective.ALL_REDUCE:
            return _OF_ALL_REDUCE.get(name, ring)
        case Collective.BROADCAST | Collective.REDUCE:
            return _OF_WHOLE.get(name, tree)
        case Collective.BARRIER:
            return tree
        case Collective.SEND_RECV:
            return pair
        case _:
            return _OF_PARTS.get(name, root)
