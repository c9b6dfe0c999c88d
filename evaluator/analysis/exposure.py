"""What each kind of collective costs in a step, by the shape of its groups: exposed and hidden."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from evaluator.analysis.breakdown import job_windows
from evaluator.analysis.matching import Matches
from evaluator.analysis.volume import GroupTraffic, Volume
from evaluator.intervals import Intervals
from evaluator.traces.collectives import CollectiveKind, Group
from evaluator.traces.job import TraceSet

_Shape: TypeAlias = tuple[CollectiveKind, int | None, tuple[int, ...] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """One kind of collective in groups of one shape, over the steps that all ranks profiled.

    Groups are of one shape when their ranks are equally many and equally far apart. Calls and
    bytes are of a rank that takes part, at the mean; seconds are the mean over all traced ranks
    and steps. Of two collectives at once both count.
    """

    kind: CollectiveKind
    groups: tuple[Group, ...]
    call_count: float
    bytes: float | None
    """None where a call does not tell its size."""
    exposed_s: float
    hidden_s: float


def exposures(traces: TraceSet, matches: Matches, traffic: Volume) -> tuple[Exposure, ...]:
    """What each kind costs, the one that is exposed longest first, then that which lasts longer."""
    shapes: dict[_Shape, list[GroupTraffic]] = defaultdict(list)
    for found in traffic.groups:
        shapes[_shape(found.kind, found.group)].append(found)
    numbers = {shape: number for number, shape in enumerate(shapes)}
    times_s = _times_s(traces, matches, numbers)
    told = [
        _exposure(parts, exposed_s, hidden_s)
        for parts, (exposed_s, hidden_s) in zip(shapes.values(), times_s, strict=True)
    ]
    return tuple(
        sorted(told, key=lambda one: (one.exposed_s, one.exposed_s + one.hidden_s), reverse=True)
    )


def _shape(kind: CollectiveKind, group: Group) -> _Shape:
    ranks = group.ranks
    apart = tuple(rank - ranks[0] for rank in ranks) if ranks else None
    return kind, group.size, apart


def _exposure(parts: Sequence[GroupTraffic], exposed_s: float, hidden_s: float) -> Exposure:
    rank_count = sum(part.rank_count for part in parts)
    sizes = [part.traced_ranks.bytes for part in parts]
    told = [size for size in sizes if size is not None]
    return Exposure(
        kind=parts[0].kind,
        groups=tuple(part.group for part in parts),
        call_count=sum(part.traced_ranks.call_count for part in parts) / rank_count,
        bytes=sum(told) / rank_count if len(told) == len(sizes) else None,
        exposed_s=exposed_s,
        hidden_s=hidden_s,
    )


def _times_s(
    traces: TraceSet, matches: Matches, numbers: dict[_Shape, int]
) -> list[tuple[float, float]]:
    """Exposed and hidden seconds of each shape, per step and rank."""
    windows = job_windows(traces) or ()
    shape_of_call = _shape_of_call(matches, numbers)
    exposed_ns, hidden_ns = [0] * len(numbers), [0] * len(numbers)
    for place, (trace, window) in enumerate(zip(traces.ranks, windows, strict=True)):
        compute = trace.computing()
        mine = matches.calls.rank == place
        for number in np.unique(shape_of_call[mine]).tolist():
            if number < 0:
                continue
            rows = matches.calls.row[mine & (shape_of_call == number)]
            spans = trace.collectives.span[rows]
            under_way = Intervals.union(trace.spans.start_ns[spans], trace.spans.end_ns[spans])
            within = (window.start_ns, window.end_ns)
            covered_ns = under_way.covered_ns(*within)
            beside_ns = under_way.intersect(compute).covered_ns(*within)
            # In whole numbers without end: absurd windows must not overflow.
            hidden_ns[number] += sum(beside_ns.tolist())
            exposed_ns[number] += sum((covered_ns - beside_ns).tolist())
    divisor = sum(window.count for window in windows) * 10**9
    return [
        (out / divisor, beside / divisor) for out, beside in zip(exposed_ns, hidden_ns, strict=True)
    ]


def _shape_of_call(matches: Matches, numbers: dict[_Shape, int]) -> NDArray[np.int64]:
    """The number of each call's shape, shape (calls,); -1: no step looked at has such a call."""
    calls = matches.calls
    table = np.full((len(CollectiveKind), max(1, len(calls.groups.groups))), -1)
    for kind in CollectiveKind:
        for group_id, group in enumerate(calls.groups.groups):
            table[kind, group_id] = numbers.get(_shape(kind, group), -1)
    chosen: NDArray[np.int64] = table[calls.kind, calls.group_id]
    return chosen
