"""Replays a dependency graph with other durations: when each work starts and ends then.

Works of one stream that neither wait for anything else nor are waited for, one after the other, are
a run: one node, which starts once what is before it has ended, and late enough that none of its
works starts before its launch. So a replay visits few nodes one by one; everything else is
arithmetic on columns.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluator.traces.intervals import Nanoseconds
from evaluator.traces.model import Table
from evaluator.whatif.graph import NEVER, Graph


class ReplayError(ValueError):
    """A graph cannot be replayed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Durations:
    """How long each work takes, shape (works,), and each joint collective, shape (instances,)."""

    work_ns: Nanoseconds
    transfer_ns: Nanoseconds

    @classmethod
    def recorded(cls, graph: Graph) -> "Durations":
        """Those of the trace; a collective takes as long as on the rank that came last."""
        works = graph.works
        joint = np.flatnonzero(works.instance >= 0)
        transfer_ns = np.full(graph.instances.size, np.iinfo(np.int64).max)
        np.minimum.at(transfer_ns, works.instance[joint], works.duration_ns[joint])
        return cls(work_ns=works.duration_ns, transfer_ns=transfer_ns)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Times:
    """When works start and end, ns, shape (works,).

    `shift_ns` is how much later than recorded each pause of a host ends, shape (pauses,).
    """

    start_ns: Nanoseconds
    end_ns: Nanoseconds
    shift_ns: Nanoseconds
    arrival_ns: Nanoseconds
    """When all ranks of a joint collective have come, shape (instances,)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Edges(Table):
    """The target starts `slack_ns` after the end of the source at the earliest; shape (edges,)."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    slack_ns: Nanoseconds
    enters: NDArray[np.bool_]
    """Whether the edge leads to the first work of a run, not to any of it."""
    possible: NDArray[np.bool_]
    """Whether it was never seen to bind."""


class Replay:
    """A graph made ready for replays; nodes are runs, then joint collectives, then pauses."""

    def __init__(self, graph: Graph) -> None:
        works = graph.works
        self.graph = graph
        self._joint = works.instance >= 0
        self._first, self._run = _runs(graph)
        self._alone = _alone(graph)[self._first]
        self._last = np.append(self._first[1:], works.count)[: self._first.size] - 1
        self._pause_base = self._first.size + graph.instances.size
        self._node_count = self._pause_base + graph.pauses.count
        self._edges = self._all_edges()
        order = _topological_order(self._edges, self._node_count)
        place = np.empty(self._node_count, np.int64)
        place[order] = np.arange(order.size)
        by_target = np.argsort(place[self._edges.target], kind="stable")
        self._edges = self._edges.select(by_target)
        behind = np.cumsum(np.bincount(self._edges.target, minlength=self._node_count)[order])
        bounds = np.append(0, behind).tolist()
        self._visits = list(zip(order.tolist(), bounds[:-1], bounds[1:], strict=True))
        self._sources = self._edges.source.tolist()

    def _all_edges(self) -> _Edges:
        graph, works, first = self.graph, self.graph.works, self._first
        pauses, waits, ends = graph.pauses, graph.waits, graph.pause_ends
        ended = np.where(self._joint, first.size + works.instance, self._run)
        after = np.flatnonzero(works.follows[first])
        launched = np.flatnonzero(works.pause[first] >= 0)
        joining = np.flatnonzero(self._joint)
        paused = np.flatnonzero(pauses.rank[1:] == pauses.rank[:-1]) + 1
        zero = np.zeros(works.count, np.int64)
        base, enter = self._pause_base, np.bool_(True)
        parts = (
            (ended[first[after] - 1], after, works.gap_ns[first[after]], enter),
            (ended[waits.source], self._run[waits.target], waits.slack_ns, enter),
            (base + works.pause[first[launched]], launched, zero[: launched.size], ~enter),
            (self._run[joining], ended[joining], zero[: joining.size], ~enter),
            (base + paused - 1, base + paused, _hurry_ns(graph)[paused], ~enter),
            (
                ended[ends.work],
                base + ends.pause,
                ends.tail_ns - pauses.end_ns[ends.pause],
                ~enter,
            ),
        )
        sizes = [part[0].size for part in parts]
        possible = np.zeros(sum(sizes), np.bool_)
        possible[sizes[0] : sizes[0] + sizes[1]] = ~waits.proven
        return _Edges(
            source=np.concatenate([part[0] for part in parts]),
            target=np.concatenate([part[1] for part in parts]),
            slack_ns=np.concatenate([part[2] for part in parts]),
            enters=np.repeat([part[3] for part in parts], sizes),
            possible=possible,
        )

    def times(self, durations: Durations, *, possible_waits: bool = False) -> Times:
        """When everything starts and ends with these durations.

        Waits that were never seen to bind count where `possible_waits` is set.
        """
        graph, works, edges, first = self.graph, self.graph.works, self._edges, self._first
        took_ns = np.where(self._joint, 0, durations.work_ns)
        along_ns = self._along_ns(took_ns)
        run_ns = along_ns[self._last] + took_ns[self._last]
        length_ns = np.concatenate(
            (run_ns, durations.transfer_ns, np.zeros(graph.pauses.count, np.int64))
        )
        launch_ns = np.where(
            works.launched_ns > NEVER, works.launched_ns + works.latency_ns - along_ns, NEVER
        )
        run_launch_ns = np.maximum.reduceat(launch_ns, first)
        weight_ns = length_ns[edges.source] + edges.slack_ns
        by_host = ~edges.enters & (edges.target < first.size)
        weight_ns[by_host] += run_launch_ns[edges.target[by_host]]
        if not possible_waits:
            weight_ns[edges.possible] = 2 * NEVER
        origin_ns = self._origin_ns(run_launch_ns)
        node_ns = self._longest(origin_ns, weight_ns)
        start_ns = self._work_starts(node_ns, weight_ns, along_ns)
        arrival_ns = node_ns[first.size : self._pause_base]
        end_ns = start_ns + took_ns
        joint = self._joint
        end_ns[joint] = (arrival_ns + durations.transfer_ns)[works.instance[joint]]
        return Times(
            start_ns=start_ns,
            end_ns=end_ns,
            shift_ns=node_ns[self._pause_base :],
            arrival_ns=arrival_ns,
        )

    def _along_ns(self, took_ns: Nanoseconds) -> Nanoseconds:
        """How long after the first of its run each work starts where nothing holds it back."""
        step_ns = np.append(0, took_ns[:-1] + self.graph.works.gap_ns[1:])
        along_ns = np.cumsum(step_ns)
        along_ns -= along_ns[self._first][self._run]
        return along_ns

    def _origin_ns(self, run_launch_ns: Nanoseconds) -> Nanoseconds:
        """When nodes start that wait for nothing else."""
        works, first = self.graph.works, self._first
        origin_ns = np.full(self._node_count, NEVER)
        unled = works.pause[first] < 0
        origin_ns[: first.size] = np.where(unled, run_launch_ns, NEVER)
        origin_ns[: first.size][self._alone] = works.start_ns[first[self._alone]]
        origin_ns[self._pause_base :] = np.where(
            _is_first(self.graph.pauses.rank), _hurry_ns(self.graph), NEVER
        )
        return origin_ns

    def _longest(self, origin_ns: Nanoseconds, weight_ns: Nanoseconds) -> Nanoseconds:
        """The start of each node: the latest that its edges, or else its origin, allow."""
        value: list[int] = origin_ns.tolist()
        weights, sources = weight_ns.tolist(), self._sources
        for node, first, behind in self._visits:
            edges = zip(sources[first:behind], weights[first:behind], strict=True)
            value[node] = max([value[node], *(value[source] + weight for source, weight in edges)])
        return np.array(value, np.int64)

    def _work_starts(
        self, node_ns: Nanoseconds, weight_ns: Nanoseconds, along_ns: Nanoseconds
    ) -> Nanoseconds:
        """When each work starts, from the starts of nodes."""
        works, edges, first = self.graph.works, self._edges, self._first
        ready_ns = self._host_ns(node_ns) - along_ns
        entry_ns = np.where(self._alone, works.start_ns[first], NEVER)
        entering = np.flatnonzero(edges.enters)
        np.maximum.at(
            entry_ns,
            edges.target[entering],
            node_ns[edges.source[entering]] + weight_ns[entering],
        )
        ready_ns[first] = np.maximum(ready_ns[first], entry_ns)
        # The greatest so far within each run: runs are put so far apart that none reaches another.
        least_ns = int(ready_ns[first].min())
        ready_ns = np.maximum(ready_ns - least_ns, 0)
        apart_ns = int(ready_ns.max()) + 1
        offset_ns = self._run * apart_ns
        ready_ns = np.maximum.accumulate(ready_ns + offset_ns) - offset_ns
        return ready_ns + least_ns + along_ns

    def _host_ns(self, node_ns: Nanoseconds) -> Nanoseconds:
        """When the host lets each work start; `NEVER` where its launch is unknown."""
        works = self.graph.works
        shift_ns = np.append(node_ns[self._pause_base :], 0)[works.pause]
        return np.where(
            works.launched_ns > NEVER, works.launched_ns + works.latency_ns + shift_ns, NEVER
        )


def _runs(graph: Graph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first work of each run, and the run of each work."""
    works, joint = graph.works, graph.works.instance >= 0
    closes = joint.copy()
    closes[graph.waits.source] = True
    closes[graph.pause_ends.work] = True
    opens = ~works.follows | joint
    opens[graph.waits.target] = True
    opens[1:] |= closes[:-1] | (works.pause[1:] != works.pause[:-1])
    return np.flatnonzero(opens), np.cumsum(opens) - 1


def _alone(graph: Graph) -> NDArray[np.bool_]:
    """Works that are the first of their stream, with no launch and nothing that they wait for."""
    works, waits = graph.works, graph.waits
    alone: NDArray[np.bool_] = ~works.follows & (works.launched_ns == NEVER)
    alone[waits.target[waits.proven]] = False
    return alone


def _is_first(rank: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which pauses are the first of their rank."""
    return np.append(True, rank[1:] != rank[:-1])[: rank.size]


def _hurry_ns(graph: Graph) -> Nanoseconds:
    """By how much each pause could end sooner after its start, not positive."""
    pauses = graph.pauses
    return pauses.shortest_ns - (pauses.end_ns - pauses.start_ns)


def _topological_order(edges: _Edges, node_count: int) -> NDArray[np.int64]:
    """Nodes, each after all that lead to it. Raises ReplayError where edges make a circle."""
    by_source = np.argsort(edges.source, kind="stable")
    bounds = np.searchsorted(edges.source[by_source], np.arange(node_count + 1)).tolist()
    targets = edges.target[by_source].tolist()
    counts = np.bincount(edges.target, minlength=node_count)
    ready, missing, order = np.flatnonzero(counts == 0).tolist(), counts.tolist(), []
    while ready:
        node = ready.pop()
        order.append(node)
        for target in targets[bounds[node] : bounds[node + 1]]:
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
    if len(order) < node_count:
        raise ReplayError("collectives of several ranks were matched in contradicting orders")
    return np.array(order, np.int64)
