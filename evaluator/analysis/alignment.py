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
_CERTAIN: Final = 4.0
"""Standard errors that a clock must be off by; by chance one in 16,000 is."""
_COARSEST_TICK_NS: Final = 1_000
"""Profilers write whole nanoseconds or whole microseconds."""
# A median has pi / 2 times the variance of a mean, and 1.4826 times the median absolute deviation
# is the standard deviation, of normal noise.
_VARIANCE_OF_MEDIAN: Final = np.pi / 2
_DEVIATIONS: Final = 1.4826


@dataclass(frozen=True, slots=True, eq=False)
class _GroupEnds:
    """When instances ended on the ranks of one group.

    `clocks` are the numbers of the members' clocks, int64 of shape (members,); `ends_ns` is float64
    of shape (instances, members), relative to the end on the first member. `sort` numbers the kind
    and size of each instance, shape (instances,); times are written as multiples of `tick_ns`.
    """

    clocks: NDArray[np.int64]
    ends_ns: NDArray[np.float64]
    sort: NDArray[np.int64]
    tick_ns: float

    @property
    def count(self) -> int:
        """Number of instances."""
        return len(self.ends_ns)

    @property
    def _apart_ns(self) -> NDArray[np.float64]:
        """What clocks read more than that of the middle rank, shape (instances, members)."""
        apart_ns: NDArray[np.float64] = self.ends_ns - np.median(
            self.ends_ns, axis=1, keepdims=True
        )
        return apart_ns

    @property
    def deviation_ns(self) -> NDArray[np.floating]:
        """The same at the median; shape (members,)."""
        return np.median(self._apart_ns, axis=0)

    @property
    def variance_ns2(self) -> NDArray[np.float64]:
        """How uncertain that is, shape (members,): the square of its standard error.

        From how single instances scatter, and how collectives of one kind and size differ from
        others: a clock is off by the same in all of them, what a rank does later is not.
        """
        apart_ns, median_ns = self._apart_ns, self.deviation_ns
        scatter_ns = _DEVIATIONS * np.median(np.abs(apart_ns - median_ns), axis=0)
        variance = _VARIANCE_OF_MEDIAN * scatter_ns**2 / self.count
        # Few instances tell little about their own scatter.
        variance *= (self.count / (self.count - 3)) ** 2
        sorts = [
            np.median(apart_ns[self.sort == one], axis=0)
            for one in np.unique(self.sort)
            if np.count_nonzero(self.sort == one) >= _FEWEST_MATCHES
        ]
        if len(sorts) > 1:
            variance = np.maximum(variance, np.var(sorts, axis=0, ddof=1) / len(sorts))
        return np.asarray(variance + self.tick_ns**2 / 12, np.float64)

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
    the group), brought together over groups by least squares. Clocks that differ by less than four
    standard errors of that are taken to be one: they are shifted alike, or not at all where they
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
    ahead_ns = _by_clock(*_ahead_ns(groups, int(clock_of_rank.max()) + 1))
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
            sort = np.stack((matches.kind[whole], matches.bytes[whole]))
            _, of_sort = np.unique(sort, axis=1, return_inverse=True)
            tick_ns = float(min(np.gcd.reduce(ends_ns, axis=None), _COARSEST_TICK_NS))
            yield _GroupEnds(clock_of_rank[ranks], apart_ns, of_sort.reshape(-1), tick_ns)


def _ahead_ns(
    groups: tuple[_GroupEnds, ...], clock_count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What each clock is ahead of most others that it is connected with by groups, and covariances.

    Solves deviation = ahead of the clock - ahead of the group for both, weighted by instances.
    """
    size = clock_count + len(groups)
    equations, right, noise = np.zeros((size, size)), np.zeros(size), np.zeros((size, size))
    apart = np.array([[1, -1], [-1, 1]])
    for unknown, group in enumerate(groups, clock_count):
        weight = float(group.count)
        members = zip(group.clocks, group.deviation_ns, group.variance_ns2, strict=True)
        for clock, deviation_ns, variance_ns2 in members:
            pair = np.ix_((clock, unknown), (clock, unknown))
            equations[pair] += weight * apart
            noise[pair] += weight**2 * variance_ns2 * apart
            right[[clock, unknown]] += weight * deviation_ns * np.array([1, -1])
    parts = _connected(groups, clock_count)
    free = np.ones(size, np.bool_)
    free[[part[0] for part in parts]] = False  # one clock of each part has to be the measure
    solution = np.zeros((size, size))
    solution[np.ix_(free, free)] = np.linalg.inv(equations[np.ix_(free, free)])
    ahead_ns, covariance = solution @ right, solution @ noise @ solution
    for part in parts:
        middle = part[np.argsort(ahead_ns[part], kind="stable")[(part.size - 1) // 2]]
        ahead_ns[part] -= ahead_ns[middle]
        covariance[part] -= covariance[middle].copy()
        covariance[:, part] -= covariance[:, [middle]].copy()
    return ahead_ns[:clock_count], covariance[:clock_count, :clock_count]


def _connected(groups: tuple[_GroupEnds, ...], clock_count: int) -> list[NDArray[np.int64]]:
    """Clocks that groups connect, directly or over others."""
    part = np.arange(clock_count)
    for group in groups:
        part[np.isin(part, part[group.clocks])] = part[group.clocks[0]]
    return [np.flatnonzero(part == number) for number in np.unique(part)]


def _by_clock(
    ahead_ns: NDArray[np.float64], covariance: NDArray[np.float64]
) -> NDArray[np.float64]:
    """One value for all that are one clock; exactly 0 for the clock of most."""
    variance = np.diagonal(covariance)
    together = np.zeros_like(ahead_ns)
    order = np.argsort(ahead_ns, kind="stable")
    rest = order[np.abs(ahead_ns[order]) > _CERTAIN * np.sqrt(np.maximum(variance[order], 0))]
    while rest.size:
        first = rest[0]
        between = variance[rest] + variance[first] - 2 * covariance[rest, first]
        tolerance_ns = _CERTAIN * np.sqrt(np.maximum(between, 0))
        near = ahead_ns[rest] <= ahead_ns[first] + tolerance_ns
        together[rest[near]] = np.median(ahead_ns[rest[near]])
        rest = rest[~near]
    return together


def _residual_ns(groups: tuple[_GroupEnds, ...], ahead_ns: NDArray[np.float64]) -> float:
    return float(np.median(np.concatenate([group.spread_ns(ahead_ns) for group in groups])))
