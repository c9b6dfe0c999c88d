"""What was measured where, and the figures that rows of one such point give together."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from evaluator.timing.bench_csv import ABSENT, BenchRow, Point

THEIR_CONVENTION = "torchcomms"
"""How files without a column for it reckon bandwidth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePoint:
    """A point and the kind of device it was measured on; results are joined on all of it."""

    point: Point
    device_type: str
    device_name: str

    @property
    def place(self) -> tuple[str, str, int, str, int, str, int, str, str]:
        """Where it stands among others: by collective, then by size."""
        of = self.point
        what = (of.collective, of.operation, of.size_bytes, of.dtype, of.rank_count)
        return (*what, of.dispatch_mode, of.sync_interval, self.device_type, self.device_name)

    @property
    def variant(self) -> "DevicePoint":
        """The same for all sizes, which a curve is drawn through."""
        return replace(self, point=replace(self.point, size_bytes=0))

    @property
    def variant_words(self) -> str:
        """What a curve stands for, beside its collective."""
        of = self.point
        sync = (f"sync interval {of.sync_interval}",) if of.sync_interval else ()
        device = self.device_type if self.device_name == ABSENT else self.device_name
        ranks = f"{of.rank_count} rank{'s' if of.rank_count != 1 else ''}"
        return ", ".join((of.dtype, ranks, of.dispatch_mode, *sync, device))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the rows of one point say together; None for what none of them tells.

    Latencies are in microseconds. Averages of several rows are their geometric mean, so that two
    of them give the mean ratio; `least_us` and `most_us` are the extremes of all rows.
    """

    latency_us: float
    least_us: float | None
    most_us: float | None
    bus_gb_per_s: float | None
    convention: str | None
    row_count: int


def device_point(row: BenchRow) -> DevicePoint:
    """The point of a row."""
    return DevicePoint(
        point=row.point,
        device_type=row.columns.get("DeviceType", ABSENT),
        device_name=row.columns.get("DeviceName", ABSENT),
    )


def by_point(rows: Iterable[BenchRow]) -> Mapping[DevicePoint, tuple[BenchRow, ...]]:
    """Rows of each point, in order of the points; those of one point are replicates."""
    found: dict[DevicePoint, list[BenchRow]] = defaultdict(list)
    for row in rows:
        found[device_point(row)].append(row)
    return {point: tuple(found[point]) for point in sorted(found, key=lambda each: each.place)}


def figures(rows: Sequence[BenchRow]) -> Figures:
    """What measured rows of one point give together."""
    least = [row.least_latency_us for row in rows if row.least_latency_us is not None]
    most = [row.most_latency_us for row in rows if row.most_latency_us is not None]
    speeds = [row.bus_gb_per_s for row in rows if row.bus_gb_per_s is not None]
    conventions = {row.columns.get("BwConvention", THEIR_CONVENTION) for row in rows}
    return Figures(
        latency_us=_centre([row.latency_us for row in rows if row.latency_us is not None]),
        least_us=min(least, default=None),
        most_us=max(most, default=None),
        bus_gb_per_s=_centre(speeds) if speeds else None,
        convention=conventions.pop() if len(conventions) == 1 else None,
        row_count=len(rows),
    )


def _centre(values: Sequence[float]) -> float:
    """The geometric mean, or the median where a value has no logarithm."""
    if len(values) == 1:
        return values[0]
    return statistics.geometric_mean(values) if min(values) > 0 else statistics.median(values)


def base_names(points: Iterable[DevicePoint]) -> Mapping[tuple[str, str], str]:
    """What tables and files call each collective with its operation.

    The operation is told where it is not the usual sum, or where several were measured.
    """
    operations: dict[str, set[str]] = defaultdict(set)
    for each in points:
        operations[each.point.collective].add(each.point.operation)
    return {
        (collective, operation): collective
        if operation == ABSENT or (operation == "sum" and len(told) == 1)
        else f"{collective}_{operation}"
        for collective, told in operations.items()
        for operation in told
    }
