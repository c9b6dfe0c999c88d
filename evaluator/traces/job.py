"""The traces of one job."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluator.traces.rank import RankTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """How the clocks of ranks were brought together.

    `offsets_ns` were added to the ranks' clocks, in their order; `residual_ns` is what the ends of
    matched collectives still differ by, at the median; `matched_count` is how many there were.
    """

    offsets_ns: tuple[int, ...]
    residual_ns: int
    matched_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSet:
    """The traces of one job, by rising rank; ranks may be missing, none is there twice.

    `alignment` is None where nothing tells how far clocks are apart. `remarks` tell in words what
    concerns no rank alone.
    """

    ranks: tuple[RankTrace, ...]
    alignment: Alignment | None = None
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        numbers = [trace.rank for trace in self.ranks]
        if not numbers or numbers != sorted(set(numbers)):
            raise ValueError(f"ranks must rise and be one at least, not {numbers}")
        sizes = {trace.world_size for trace in self.ranks} - {None}
        if len(sizes) > 1 or any(size is not None and numbers[-1] >= size for size in sizes):
            raise ValueError(f"ranks {numbers} do not fit world sizes {sorted(map(str, sizes))}")

    @property
    def world_size(self) -> int | None:
        """How many ranks the job had; None when no trace says."""
        return next((t.world_size for t in self.ranks if t.world_size is not None), None)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the job without a trace; empty when the size of the job is unknown."""
        present = {trace.rank for trace in self.ranks}
        return tuple(rank for rank in range(self.world_size or 0) if rank not in present)

    @property
    def common_steps(self) -> NDArray[np.int64]:
        """Numbers of the steps that every rank profiled, int64, shape (steps,), rising."""
        numbers = self.ranks[0].steps.number
        for trace in self.ranks[1:]:
            numbers = np.intersect1d(numbers, trace.steps.number, assume_unique=True)
        return numbers

    @property
    def caveats(self) -> tuple[str, ...]:
        """What is wrong with the traces and was mended or left out, in words."""
        missing = self.missing_ranks
        lacking = f"{len(missing)} of {self.world_size} ranks left no trace" if missing else None
        told = (f"rank {trace.rank}: {caveat}" for trace in self.ranks for caveat in trace.caveats)
        return (*self.remarks, *((lacking,) if lacking else ()), *told)
