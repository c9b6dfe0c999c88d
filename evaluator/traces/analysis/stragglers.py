"""Clock alignment, and which rank the others wait for.

The rank that comes last to a collective that all must attend is in it for the shortest time, so its
duration is the transfer alone and the additional time of the others is waiting. That needs no
common clock. Start times name the same rank where the clocks of ranks are known to agree. Clocks
are aligned by collectives, which end at one moment on all ranks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evaluator.traces.analysis.breakdown import JobSplit, job_windows
from evaluator.traces.analysis.collectives import Matches, extremes, instance_count, match
from evaluator.traces.intervals import Intervals, Nanoseconds
from evaluator.traces.model import (
    SYNCHRONISING,
    Alignment,
    CollectiveKind,
    StepWindows,
    Table,
    TraceSet,
    rows_by_number,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWaits:
    """What one rank waited, and what others waited for it, per step.

    `last_share` is the part of its collectives to which it came last, ranks that tie sharing one;
    `chance_share` what that would be if it were chance. Waits are sums over collectives: two at
    once count twice. The last two are None where clocks are not known to agree.
    """

    rank: int
    collective_count: int
    last_share: float | None
    chance_share: float | None
    caused_wait_s: float
    waited_s: float
    latest_start_share: float | None
    mean_lateness_s: float | None
    """Start after the first rank's start, mean over its collectives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """Who waits for whom over the steps that all traced ranks profiled, or the whole trace.

    `straggler` is the rank for which the others waited longest; None if no rank waited. Of the time
    in their steps the other ranks spent `waiting_share` waiting for it, and `exposed_share` waiting
    for it while they computed nothing, which is time lost. Both are means over those ranks, in
    which times at once count once.
    Where `partial_count` of the `collective_count` collectives are not shown by all ranks of their
    group, ranks without a trace may have come later still.
    """

    ranks: tuple[RankWaits, ...]
    step_count: int
    collective_count: int
    partial_count: int
    straggler: int | None
    waiting_share: float
    exposed_share: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Waits(Table):
    """What ranks waited in the calls of some instances; columns of shape (calls,), by rank."""

    rank: NDArray[np.int32]
    """Place of the rank in its trace set."""
    instance: NDArray[np.int64]
    """Numbered from 0, without gaps."""
    start_ns: Nanoseconds
    wait_ns: Nanoseconds
    """Duration beyond the least one of the instance."""
    last: NDArray[np.float64]
    """1 for the rank with the least duration; ranks that tie share."""

    def of_instances(self, values: NDArray[np.generic]) -> NDArray[np.float64]:
        """The sum of values over each instance, shape (calls,): that of the instance of a call."""
        sums = np.bincount(self.instance, values.astype(np.float64)).astype(np.float64)
        return sums[self.instance]

    def of_ranks(self, values: NDArray[np.generic] | None, count: int) -> NDArray[np.float64]:
        """The sum of values over each of N ranks, shape (ranks,); without values, its calls."""
        weights = None if values is None else values.astype(np.float64)
        return np.bincount(self.rank, weights, count).astype(np.float64)

    @property
    def caused_ns(self) -> NDArray[np.float64]:
        """What others waited for the rank of a call, shape (calls,)."""
        return self.last * self.of_instances(self.wait_ns)


def stragglers(traces: TraceSet, matches: Matches) -> Stragglers | None:
    """Who waits for whom in matched all-reduces, all-gathers, reduce-scatters and the like.

    None where no such collective is shown by two ranks within the steps looked at.
    """
    windows = job_windows(traces)
    if windows is None:
        return None
    chosen = matches.doing(*SYNCHRONISING) & (matches.shown_count > 1)
    if traces.common_steps.size:
        chosen &= np.isin(matches.step, traces.common_steps)
    if not chosen.any():
        return None
    waits = _waits(traces, matches, chosen)
    step_count = windows[0].count
    caused_ns = waits.of_ranks(waits.caused_ns, len(traces.ranks))
    worst = int(caused_ns.argmax()) if caused_ns.any() else None
    waiting, exposed = (0.0, 0.0) if worst is None else _shares(traces, waits, windows, worst)
    return Stragglers(
        ranks=_ranks(traces, waits, step_count),
        step_count=step_count,
        collective_count=int(chosen.sum()),
        partial_count=int((chosen & ~matches.complete).sum()),
        straggler=None if worst is None else traces.ranks[worst].rank,
        waiting_share=waiting,
        exposed_share=exposed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Imbalance:
    """How unequally ranks compute: time in which something computes, seconds per step."""

    compute_s: tuple[tuple[int, float], ...]
    """Rank and its time."""
    max_over_min: float
    max_over_mean: float

    @property
    def busiest(self) -> int:
        """The rank that computes longest."""
        return max(self.compute_s, key=lambda row: row[1])[0]


def imbalance(split: JobSplit) -> Imbalance | None:
    """Compare ranks by compute, never by communication: there all wait for the slowest alike.

    None with fewer than two traced ranks, or when one of them computes nothing.
    """
    compute_s = tuple((rank, step.compute_s) for rank, step in split.by_rank)
    times_s = [time_s for _, time_s in compute_s]
    if len(times_s) < 2 or not min(times_s):
        return None
    return Imbalance(
        compute_s=compute_s,
        max_over_min=max(times_s) / min(times_s),
        max_over_mean=max(times_s) * len(times_s) / sum(times_s),
    )


def _waits(traces: TraceSet, matches: Matches, chosen: NDArray[np.bool_]) -> _Waits:
    start_ns, end_ns = matches.times_ns(traces)
    rows = np.flatnonzero((matches.instance >= 0) & chosen[matches.instance])
    _, instance = np.unique(matches.instance[rows], return_inverse=True)
    duration_ns = end_ns[rows] - start_ns[rows]
    least_ns, _ = extremes(instance, duration_ns, instance_count(instance))
    last = duration_ns == least_ns[instance]
    return _Waits(
        rank=matches.calls.rank[rows],
        instance=instance,
        start_ns=start_ns[rows],
        wait_ns=duration_ns - least_ns[instance],
        last=last / np.bincount(instance, last)[instance],
    )


def _ranks(traces: TraceSet, waits: _Waits, step_count: int) -> tuple[RankWaits, ...]:
    size = len(traces.ranks)
    counts, lasts = waits.of_ranks(None, size), waits.of_ranks(waits.last, size)
    chances = waits.of_ranks(1 / waits.of_instances(np.ones(waits.count)), size)
    caused_ns = waits.of_ranks(waits.caused_ns, size)
    waited_ns = waits.of_ranks(waits.wait_ns, size)
    starts = _start_order(waits, size) if traces.alignment else None
    return tuple(
        RankWaits(
            rank=trace.rank,
            collective_count=int(count),
            last_share=float(lasts[place] / count) if count else None,
            chance_share=float(chances[place] / count) if count else None,
            caused_wait_s=float(caused_ns[place]) / step_count / 1e9,
            waited_s=float(waited_ns[place]) / step_count / 1e9,
            latest_start_share=float(starts[0][place] / count) if starts and count else None,
            mean_lateness_s=float(starts[1][place] / count) / 1e9 if starts and count else None,
        )
        for place, (trace, count) in enumerate(zip(traces.ranks, counts, strict=True))
    )


def _start_order(waits: _Waits, size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How often each rank started last, and the sum of its delays in ns, on one clock."""
    count = instance_count(waits.instance)
    first_ns, last_ns = extremes(waits.instance, waits.start_ns, count)
    latest = waits.start_ns == last_ns[waits.instance]
    late_ns = waits.start_ns - first_ns[waits.instance]
    shares = latest / waits.of_instances(latest)
    return waits.of_ranks(shares, size), waits.of_ranks(late_ns, size)


def _shares(
    traces: TraceSet, waits: _Waits, windows: tuple[StepWindows, ...], worst: int
) -> tuple[float, float]:
    """What part of their steps the other ranks waited for the worst, and did so exposed.

    Waiting is the beginning of a collective: when the last rank has come, all transfer.
    """
    parts_ns = np.zeros(3, np.int64)
    of_worst = (waits.rank == worst) & (waits.last > 0)
    for_worst = waits.select(waits.of_instances(of_worst) > 0)
    own = rows_by_number(for_worst.rank.astype(np.int64), len(traces.ranks))
    for place, (trace, window) in enumerate(zip(traces.ranks, windows, strict=True)):
        if place == worst:
            continue
        start_ns = for_worst.start_ns[own[place]]
        stepped = Intervals.union(window.start_ns, window.end_ns)
        waited = Intervals.union(start_ns, start_ns + for_worst.wait_ns[own[place]])
        waited = waited.intersect(stepped)
        exposed = waited.subtract(trace.computing())
        parts_ns += stepped.total_ns, waited.total_ns, exposed.total_ns
    whole, waiting, alone = (float(part) for part in parts_ns)
    return (waiting / whole, alone / whole) if whole else (0.0, 0.0)


_KINDS: Final = tuple(kind for kind in SYNCHRONISING if kind is not CollectiveKind.BARRIER)
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
        # A median over few instances understates how far they scatter.
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
        """Time between the first and the last end, shape (instances,), clocks corrected."""
        ends_ns = self.ends_ns - ahead_ns[self.clocks]
        spread_ns: NDArray[np.float64] = ends_ns.max(axis=1) - ends_ns.min(axis=1)
        return spread_ns


def align_clocks(traces: TraceSet, clocks: Sequence[int] | None = None) -> TraceSet:
    """The same traces on one clock, as far as at least five matched collectives of a group show.

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
    spreads_ns = [group.spread_ns(ahead_ns) for group in groups]
    shifted = (
        trace.shifted(offset) if offset else trace
        for trace, offset in zip(traces.ranks, offsets_ns, strict=True)
    )
    return replace(
        traces,
        ranks=tuple(shifted),
        remarks=(*traces.remarks, *_apart(groups, clock_of_rank, traces)),
        alignment=Alignment(
            offsets_ns=offsets_ns,
            residual_ns=round(float(np.median(np.concatenate(spreads_ns)))),
            matched_count=sum(group.count for group in groups),
        ),
    )


def _ends_by_group(
    traces: TraceSet, matches: Matches, clock_of_rank: NDArray[np.int64]
) -> Iterator[_GroupEnds]:
    calls = matches.calls
    _, all_ends_ns = matches.times_ns(traces)
    usable = (matches.instance >= 0) & calls.doing(*_KINDS)
    by_group = np.where(usable, calls.group_id.astype(np.int64), len(matches.groups))
    for rows in rows_by_number(by_group, len(matches.groups)):
        ranks, place = np.unique(calls.rank[rows], return_inverse=True)
        if len(set(clock_of_rank[ranks])) < 2:
            continue
        instances, number = np.unique(matches.instance[rows], return_inverse=True)
        table_ns = np.zeros((instances.size, ranks.size), np.int64)
        table_ns[number, place] = all_ends_ns[rows]
        shown = np.bincount(number, minlength=instances.size) == ranks.size
        whole, ends_ns = instances[shown], table_ns[shown]
        if whole.size >= _FEWEST_MATCHES:
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
    parts = _connected_groups(groups, clock_count)
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


_MOST_NAMED: Final = 8


def _apart(
    groups: tuple[_GroupEnds, ...], clock_of_rank: NDArray[np.int64], traces: TraceSet
) -> Iterator[str]:
    """Say which ranks no collective connects, if there are any."""
    parts = _connected_groups(groups, int(clock_of_rank.max()) + 1)
    if len(parts) > 1:
        numbers = np.array([trace.rank for trace in traces.ranks])
        named = (_named(numbers[np.isin(clock_of_rank, part)].tolist()) for part in parts)
        yield (
            f"the clocks of {' and of '.join(named)} are not aligned with each other: too few "
            "collectives between them were matched"
        )


def _named(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word} {', '.join(map(str, ranks[:_MOST_NAMED]))}{more}"


def _connected_groups(groups: tuple[_GroupEnds, ...], clock_count: int) -> list[NDArray[np.int64]]:
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
