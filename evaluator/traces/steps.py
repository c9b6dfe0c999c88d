"""The steps of one rank: when each began and ended, and what kind of step it was."""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray

from evaluator.intervals import Nanoseconds


class StepKind(IntEnum):
    """What a step does."""

    PLAIN = 0
    """A training step, or one that does not say."""
    PREFILL = 1
    DECODE = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepWindows:
    """When each profiled step ran, [start, end); arrays of shape (steps,), by rising number.

    `kind` holds `StepKind` values.
    """

    number: NDArray[np.int64]
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    kind: NDArray[np.int8]

    def __post_init__(self) -> None:
        if np.any(self.number[1:] <= self.number[:-1]) or np.any(self.end_ns < self.start_ns):
            raise ValueError("step numbers must rise and no step may end before it starts")

    @classmethod
    def plain(cls, number: NDArray[np.int64], start_ns: Nanoseconds, end_ns: Nanoseconds) -> Self:
        """Steps that do not say what they do."""
        return cls(
            number=number, start_ns=start_ns, end_ns=end_ns, kind=np.zeros(number.size, np.int8)
        )

    @classmethod
    def none(cls) -> Self:
        """No step at all."""
        empty = np.empty(0, np.int64)
        return cls.plain(empty, empty, empty)

    @property
    def count(self) -> int:
        """Number of steps."""
        return int(self.number.size)

    @property
    def of_a_server(self) -> bool:
        """Whether any of them says that it answers requests."""
        return bool(np.any(self.kind != StepKind.PLAIN))

    @property
    def duration_ns(self) -> Nanoseconds:
        """How long each step took."""
        return self.end_ns - self.start_ns

    def among(self, numbers: NDArray[np.int64]) -> Self:
        """Only the steps of these numbers."""
        return self._kept(np.isin(self.number, numbers))

    def of_kind(self, kind: StepKind) -> Self:
        """Only the steps of this kind."""
        return self._kept(self.kind == kind)

    def shifted(self, offset_ns: int) -> Self:
        """The same steps on a clock that reads more by `offset_ns`."""
        return replace(self, start_ns=self.start_ns + offset_ns, end_ns=self.end_ns + offset_ns)

    def _kept(self, kept: NDArray[np.bool_]) -> Self:
        return replace(
            self,
            number=self.number[kept],
            start_ns=self.start_ns[kept],
            end_ns=self.end_ns[kept],
            kind=self.kind[kept],
        )
