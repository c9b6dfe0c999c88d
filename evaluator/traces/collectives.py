"""The collectives and transfers of one rank: which, how large, and between whom."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray


class CollectiveKind(IntEnum):
    """What a communication span does."""

    OTHER = 0
    """Unknown, or several at once."""
    ALL_REDUCE = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    ALL_TO_ALL = 4
    BROADCAST = 5
    REDUCE = 6
    GATHER = 7
    SCATTER = 8
    SEND = 9
    RECV = 10
    SEND_RECV = 11
    """A transfer between two ranks whose direction is not told."""
    BARRIER = 12
    PUT = 13
    """A copy into the memory of another rank: one side makes it alone, and waits for nobody."""


TRANSFERS: Final = (
    CollectiveKind.SEND,
    CollectiveKind.RECV,
    CollectiveKind.SEND_RECV,
    CollectiveKind.PUT,
)
"""Between two ranks; all other kinds are collectives."""

SYNCHRONISING: Final = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.BARRIER,
)
"""Kinds that no rank can leave before the last one has come."""


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that communicate: their numbers in order and how many, as far as the trace tells."""

    name: str
    ranks: tuple[int, ...] | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Collectives:
    """Columns of shape (collectives,), in order of start: one row per communication span.

    `span` is the row of the span; `kind` holds `CollectiveKind` values; `group_id` indexes
    `groups`.
    """

    span: NDArray[np.int64]
    kind: NDArray[np.int8]
    group_id: NDArray[np.int32]
    bytes: NDArray[np.int64]
    """S of nccl-tests: the whole buffer, that is the input of an all-reduce, reduce-scatter or
    all-to-all, the output of an all-gather, the message of a transfer; 0: not told."""
    sequence: NDArray[np.int64]
    """Number of the collective within its group, equal on all its ranks; -1: not told."""
    groups: tuple[Group, ...]

    def __post_init__(self) -> None:
        columns = (self.span, self.kind, self.group_id, self.bytes, self.sequence)
        if len({column.shape for column in columns}) != 1:
            raise ValueError("columns must be arrays of one length")
        if np.any(self.span[1:] <= self.span[:-1]):
            raise ValueError("collectives must be in order of their spans")

    @classmethod
    def none(cls) -> Self:
        """No communication at all."""
        empty = np.empty(0, np.int64)
        return cls(
            span=empty,
            kind=np.empty(0, np.int8),
            group_id=np.empty(0, np.int32),
            bytes=empty,
            sequence=empty,
            groups=(),
        )

    @property
    def count(self) -> int:
        """Number of collectives and transfers."""
        return int(self.span.size)
