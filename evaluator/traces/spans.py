"""The spans of one rank as columns: what ran, when, on which stream or thread, and its size."""

from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray

from evaluator.intervals import Intervals, Nanoseconds


class Activity(IntEnum):
    """What a span did; the reader of a format decides, nothing after it looks at names.

    Up to FILL it is the work of the rank: of its device, or of the host where there is none.
    """

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2
    FILL = 3
    WAIT = 4
    """Waiting or handing over work inside a compute span of the same thread: not compute."""
    LAUNCH = 5
    """The host hands work to the device: the call that work of the same correlation came from."""
    SYNC = 6
    """The host waits for the device."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Where spans run one after the other: a stream of a device, or a thread of the host."""

    process: str
    thread: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spans:
    """Columns of shape (spans,), in order of start; what a trace does not tell is 0 or NaN.

    Times are nanoseconds since the Unix epoch on the rank's own clock, or since any moment where
    the trace has no such clock. `name_id` indexes `names`, `lane_id` indexes `lanes`, `activity`
    holds `Activity` values.
    """

    start_ns: Nanoseconds
    end_ns: Nanoseconds
    name_id: NDArray[np.int32]
    lane_id: NDArray[np.int32]
    activity: NDArray[np.int8]
    correlation: NDArray[np.int64]
    """Equal for a launch and the work that it launched; 0 where there is none."""
    bytes: NDArray[np.int64]
    """Moved by a copy or fill, or read and written by an operation that says so; 0: not told."""
    flops: NDArray[np.float64]
    """Floating-point operations of the span; NaN: not told."""
    blocks_per_sm: NDArray[np.float32]
    """Blocks of a kernel over the multiprocessors of its device; NaN: not told."""
    occupancy: NDArray[np.float32]
    """Estimated share of the warps that fit on a multiprocessor, 0 to 1; NaN: not told."""
    names: tuple[str, ...]
    lanes: tuple[Lane, ...]

    def __post_init__(self) -> None:
        shapes = {column.shape for column in self.columns().values()}
        if len(shapes) != 1 or len(shapes.pop()) != 1:
            raise ValueError("columns must be arrays of one length")
        if np.any(self.start_ns[1:] < self.start_ns[:-1]) or np.any(self.end_ns < self.start_ns):
            raise ValueError("spans must be in order of start and none may end before it starts")

    @classmethod
    def build(
        cls,
        *,
        start_ns: Nanoseconds,
        end_ns: Nanoseconds,
        name_id: NDArray[np.int32],
        lane_id: NDArray[np.int32],
        activity: NDArray[np.int8],
        names: tuple[str, ...],
        lanes: tuple[Lane, ...],
        correlation: NDArray[np.int64] | None = None,
        bytes: NDArray[np.int64] | None = None,
        flops: NDArray[np.float64] | None = None,
        blocks_per_sm: NDArray[np.float32] | None = None,
        occupancy: NDArray[np.float32] | None = None,
    ) -> Self:
        """From columns in order of start; a column that is not given is told by no span."""
        count = start_ns.size
        return cls(
            start_ns=start_ns,
            end_ns=end_ns,
            name_id=name_id,
            lane_id=lane_id,
            activity=activity,
            correlation=np.zeros(count, np.int64) if correlation is None else correlation,
            bytes=np.zeros(count, np.int64) if bytes is None else bytes,
            flops=np.full(count, np.nan) if flops is None else flops,
            blocks_per_sm=(
                np.full(count, np.nan, np.float32) if blocks_per_sm is None else blocks_per_sm
            ),
            occupancy=np.full(count, np.nan, np.float32) if occupancy is None else occupancy,
            names=names,
            lanes=lanes,
        )

    @property
    def count(self) -> int:
        """Number of spans."""
        return int(self.start_ns.size)

    @property
    def duration_ns(self) -> Nanoseconds:
        """How long each span took."""
        return self.end_ns - self.start_ns

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """Every column by its name."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in {"names", "lanes"}
        }

    def kept(self, chosen: NDArray[np.bool_]) -> Self:
        """Only the chosen spans; all names and lanes stay."""
        return replace(
            self,
            start_ns=self.start_ns[chosen],
            end_ns=self.end_ns[chosen],
            name_id=self.name_id[chosen],
            lane_id=self.lane_id[chosen],
            activity=self.activity[chosen],
            correlation=self.correlation[chosen],
            bytes=self.bytes[chosen],
            flops=self.flops[chosen],
            blocks_per_sm=self.blocks_per_sm[chosen],
            occupancy=self.occupancy[chosen],
        )

    def doing(self, *activities: Activity) -> NDArray[np.bool_]:
        """Which spans do one of these, bool of shape (spans,)."""
        return np.isin(self.activity, activities)

    def union(self, chosen: NDArray[np.bool_]) -> Intervals:
        """Time in which at least one of the chosen spans ran."""
        return Intervals.union(self.start_ns[chosen], self.end_ns[chosen])
