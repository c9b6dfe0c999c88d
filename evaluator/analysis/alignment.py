"""Brings the clocks of ranks together by what ends at one moment on all of them: collectives."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evaluator.analysis.matching import Matches, match
from evaluator.traces.collectives import CollectiveKind
from evaluator.traces.job import Alignment, TraceSet

_KINDS: Final = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)
_FEWEST_MATCHES: Final = 5
# Ranks leave one collective some microseconds apart, so that a smaller offset tells of no clock.
_SMALLEST_OFFSET_NS: Final = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class _GroupEnds:
    """When instances ended on the ranks of one group.

    `clocks` are the numbers of the members' clocks, int64 of shape (members,); `ends_ns` is float64
    of shape (instances, members), relative to the end on the first member.
    """

    clocks: NDArray[np.int64]
    ends_ns: NDArray[np.float64]

    @property
    def count(self) -> int:
        """Number of instances."""
        return len(self.ends_ns)

    @property
    def deviation_ns(self) -> NDArray[np.floating]:
        """What clocks read more than that of the middle rank, at the median; shape (members,)."""
        middle = np.median(self.ends_ns, axis=1, keepdims=True)
        return np.median(self.ends_ns - middle, axis=0)

    def spread_ns(self, ahead_ns: NDArray[np.float64]) -> NDArray[np.float64]:
        """How far apart ranks end, shape (instances,), clocks set back by what they are ahead."""
        ends_ns = self.ends_ns - ahead_ns[self.clocks]
        spread_ns: NDArray[np.float64] = ends_ns.max(axis=1) - ends_ns.min(axis=1)
        return spread_ns


def aligned(traces: TraceSet, clocks: Sequence[int] | None = None) -> TraceSet:
    """The same traces on one clock, as far as at least five matched collectives of a group tell.

    `clocks` numbers the clocks that ranks are known to share, from 0, in the order of the ranks;
    None: each has its own. What a clock is ahead is the median over matched all-reduces,
    all-gathers, reduce-scatters and all-to-alls of (end on the rank - median end over the ranks of
    the group), brought together over groups by least squares. Clocks that differ by no more than
    the residual, or 10 us, are taken to be one: they are shifted alike, or not at all where they
    are the clock of most. Jobs that communicate on the host are left alone: there no collective
    ends at one moment.
    """
    clock_of_rank = np.array(range(len(traces.ranks)) if clocks is None else clocks)
    if len(set(clock_of_rank)) < 2 or not all(
        trace.on_device and "gloo" not in (trace.backend or "") for trace in traces.ranks
    ):
        return traces
    groups = tuple(_ends_by_group(traces, match(traces), clock_of_rank))
    if not groups:
        return traces
    ahead_ns = _ahead_ns(groups, int(clock_of_rank.max()) + 1)
    ahead_ns = _by_clock(ahead_ns, max(_residual_ns(groups, ahead_ns), _SMALLEST_OFFSET_NS))
    offsets_ns = tuple(-int(ahead) for ahead in np.rint(ahead_ns[clock_of_rank]))
    shifted = (
        trace.shifted(offset) if offset else trace
        for trace, offset in zip(traces.ranks, offsets_ns, strict=True)
    )
    return replace(
        traces,
        ranks=tuple(shifted),
        alignment=Alignment(
            offsets_ns=offsets_ns,
            residual_ns=round(_residual_ns(groups, ahead_ns)),
            matched_count=sum(group.count for group in groups),
        ),
    )


def _ends_by_group(
    traces: TraceSet, matches: Matches, clock_of_rank: NDArray[np.int64]
) -> Iterator[_GroupEnds]:
    _, end_ns = matches.times_ns(traces)
    usable = matches.doing(*_KINDS)
    for group_id in np.unique(matches.group_id[usable]):
        instances = np.flatnonzero(usable & (matches.group_id == group_id))
        ranks = np.flatnonzero(matches.present[instances].any(axis=0))
        whole = instances[matches.present[np.ix_(instances, ranks)].all(axis=1)]
        if len(set(clock_of_rank[ranks])) > 1 and whole.size >= _FEWEST_MATCHES:
            ends_ns = end_ns[np.ix_(whole, ranks)]
            # Before the conversion: a float64 holds no moment since 1970 to the nanosecond.
            apart_ns = (ends_ns - ends_ns[:, :1]).astype(np.float64)
            yield _GroupEnds(clock_of_rank[ranks], apart_ns)


def _ahead_ns(groups: tuple[_GroupEnds, ...], clock_count: int) -> NDArray[np.float64]:
    """What each clock is ahead of most others that it is connected with by groups.

    Solves deviation = ahead of the clock - ahead of the group for both, weighted by instances.
    """
    size = clock_count + len(groups)
    equations, right = np.zeros((size, size)), np.zeros(size)
    for unknown, group in enumerate(groups, clock_count):
        weight = float(group.count)
        for clock, deviation_ns in zip(group.clocks, group.deviation_ns, strict=True):
            pair = np.ix_((clock, unknown), (clock, unknown))
            equations[pair] += weight * np.array([[1, -1], [-1, 1]])
            right[[clock, unknown]] += weight * deviation_ns * np.array([1, -1])
    parts = _connected(groups, clock_count)
    ahead_ns, free = np.zeros(size), np.ones(size, np.bool_)
    free[[part[0] for part in parts]] = False  # one clock of each part has to be the measure
    ahead_ns[free] = np.linalg.solve(equations[np.ix_(free, free)], right[free])
    for part in parts:
        ahead_ns[part] -= np.sort(ahead_ns[part])[(part.size - 1) // 2]
    return ahead_ns[:clock_count]


def _connected(groups: tuple[_GroupEnds, ...], clock_count: int) -> list[NDArray[np.int64]]:
    """Clocks that groups connect, directly or over others."""
    part = np.arange(clock_count)
    for group in groups:
        part[np.isin(part, part[group.clocks])] = part[group.clocks[0]]
    return [np.flatnonzero(part == number) for number in np.unique(part)]


def _by_clock(ahead_ns: NDArray[np.float64], tolerance_ns: float) -> NDArray[np.float64]:
    """One value for all that are one clock; exactly 0 for the clock of most."""
    together = np.zeros_like(ahead_ns)
    order = np.argsort(ahead_ns)
    rest = order[np.abs(ahead_ns[order]) > tolerance_ns]
    while rest.size:
        near = ahead_ns[rest] <= ahead_ns[rest[0]] + tolerance_ns
        together[rest[near]] = np.median(ahead_ns[rest[near]])
        rest = rest[~near]
    return together


def _residual_ns(groups: tuple[_GroupEnds, ...], ahead_ns: NDArray[np.float64]) -> float:
    return float(np.median(np.concatenate([group.spread_ns(ahead_ns) for group in groups])))
