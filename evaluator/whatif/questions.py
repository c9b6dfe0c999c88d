"""What would the step time be if: faster or slower links and kernels, and no straggler.

An answer is the change of a replayed job against its unchanged replay, which must agree with what
was measured; where it does not, there is no answer.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import NormalDist
from typing import Final, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evaluator.traces.analysis.collectives import Matches
from evaluator.traces.intervals import Nanoseconds
from evaluator.traces.model import Activity, CollectiveKind, TraceSet
from evaluator.whatif.graph import Graph
from evaluator.whatif.links import Links, Tier, bus_factors, tier_of
from evaluator.whatif.path import CriticalPath, critical_path
from evaluator.whatif.replay import Durations, Replay, ReplayError, Times
from records.errors import StudyError

IDENTITY: Final = 0.01
"""How far the unchanged replay of a step of a rank may be off."""
UNEXPLAINED: Final = 0.1
"""The share of the critical path that may be waiting which nothing recorded explains."""
REPLAY_ERROR: Final = 0.005
"""How far answers may be off, as a share of the step: the worst of `benchmarks/whatif.py oracle` is
0.41 %."""
TIERS: Final[Mapping[str, tuple[Tier, ...]]] = {
    "communication": tuple(Tier),
    "scale_up": (Tier.SCALE_UP,),
    "scale_out": (Tier.SCALE_OUT,),
}
KINDS: Final[Mapping[str, CollectiveKind]] = {
    kind.name.lower(): kind for kind in CollectiveKind if kind is not CollectiveKind.OTHER
}
ACTIVITIES: Final[Mapping[str, Activity]] = {
    "compute": Activity.COMPUTE,
    "copies": Activity.COPY,
}
GROWING: Final = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.REDUCE,
    CollectiveKind.BROADCAST,
    CollectiveKind.BARRIER,
)
"""Collectives of data-parallel ranks, whose groups grow with the number of nodes."""
Floats: TypeAlias = NDArray[np.float64]
OpenPart: TypeAlias = Literal["least", "likely", "most"]


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Why the traces of a job cannot be replayed, as the end of a sentence."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is changed; factors are speeds, so that 2 is twice as fast.

    `bandwidth` and `latency` are by the names of `TIERS` or `KINDS`, `kernels` by those of
    `ACTIVITIES` or a part of the names of kernels, `ranks` by the numbers of ranks.
    """

    bandwidth: Mapping[str, float] = field(default_factory=dict)
    latency: Mapping[str, float] = field(default_factory=dict)
    kernels: Mapping[str, float] = field(default_factory=dict)
    ranks: Mapping[int, float] = field(default_factory=dict)
    no_straggler: bool = False
    ranks_per_node: int | None = None
    """How many ranks a node of the other machine holds, where that is asked."""
    nodes: int | None = None
    """On how many nodes as many more replicas do the same work each, where that is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Step times in seconds, mean over steps, of the slowest rank.

    `low_s` and `high_s` bound `predicted_s` by what the trace does not tell: waits that were never
    seen to bind, latencies of links, and what replays are off by. `most_saved_s` is
    what the change can save at most: all that it takes off the critical path of the trace. It is
    None where something is slowed down.
    """

    measured_s: float
    replayed_s: float
    predicted_s: float
    low_s: float
    high_s: float
    most_saved_s: float | None
    work: float = 1.0
    """How many times as much work as measured the step does."""

    @property
    def utility(self) -> float:
        """The share of the step that is saved, (T - T') / T; negative where it takes longer."""
        return 1 - self.predicted_s / self.replayed_s


def expected_maximum(count: Floats) -> Floats:
    """Return the expected maximum of `count` standard normal values, by Blom's approximation."""
    normal = NormalDist()
    return np.array([normal.inv_cdf((n - 0.375) / (n + 0.25)) for n in count.tolist()])


@dataclass(frozen=True, kw_only=True)  # not slotted: what several questions share is kept
class WhatIf:
    """The traces of a job, ready for questions. `identity_error` is that of the worst step."""

    traces: TraceSet
    matches: Matches
    graph: Graph
    replay: Replay
    ranks_per_node: int | None
    unchanged: Times
    identity_error: float

    @classmethod
    def of(
        cls, traces: TraceSet, matches: Matches, ranks_per_node: int | None = None
    ) -> Self | Unanswered:
        """Build the graph and replay it unchanged; refuse what cannot be replayed."""
        if not all(trace.on_device and trace.has_work for trace in traces.ranks):
            return Unanswered("the work of a rank did not run on a device, or was not recorded")
        if any(trace.reduced for trace in traces.ranks):
            return Unanswered("the traces of ranks were reduced on their nodes")
        graph = Graph.of(traces, matches)
        try:
            replay = Replay(graph)
        except ReplayError as error:
            return Unanswered(str(error))
        unchanged = replay.times(Durations.recorded(graph))
        found = cls(
            traces=traces,
            matches=matches,
            graph=graph,
            replay=replay,
            ranks_per_node=ranks_per_node,
            unchanged=unchanged,
            identity_error=0.0,
        )
        if not found._complete():
            return Unanswered("a rank did nothing in a step that others profiled")
        return replace(found, identity_error=found._identity_error())

    @cached_property
    def recorded(self) -> Durations:
        """How long everything took in the trace."""
        return Durations.recorded(self.graph)

    @cached_property
    def links(self) -> Links:
        """What the collectives of several ranks say of their links."""
        return Links.of(
            self.matches,
            self.graph.instances,
            self.recorded.transfer_ns,
            self._tier_of_group(self.ranks_per_node)[self.matches.group_id[self.graph.instances]],
        )

    @property
    def disagreement(self) -> str | None:
        """Why nothing may be concluded from replays; None where the unchanged one agrees."""
        if self.identity_error > IDENTITY:
            return (
                f"the unchanged replay of a step is {self.identity_error:.1%} off what was "
                f"measured, more than {IDENTITY:.0%}"
            )
        if self.unexplained_share > UNEXPLAINED:
            return (
                f"{self.unexplained_share:.0%} of the step is waiting that nothing recorded "
                f"explains, more than {UNEXPLAINED:.0%}"
            )
        return None

    @cached_property
    def unexplained_share(self) -> float:
        """The share of the critical path that passes before work which nothing known holds back.

        It stays as it is in every replay.
        """
        return self._unexplained(self.path)

    def _unexplained(self, path: CriticalPath) -> float:
        rows = [piece.work for piece in path.pieces if piece.work is not None]
        whole_ns = path.pieces[-1].end_ns - path.pieces[0].start_ns
        return float(self.graph.works.unexplained_ns[rows].sum()) / max(whole_ns, 1)

    @property
    def unshared_share(self) -> float:
        """The share of communication that no other traced rank shows: it may include waiting."""
        works = self.graph.works
        talks = works.activity == Activity.COMMUNICATION
        took_ns = works.duration_ns[talks]
        alone_ns = took_ns[works.instance[talks] < 0].sum()
        return float(alone_ns / max(took_ns.sum(), 1))

    @cached_property
    def path(self) -> CriticalPath:
        """The critical path through all steps."""
        return self._path(self.unchanged)

    def _path(self, times: Times) -> CriticalPath:
        start_ns, end_ns = self._hulls(times.start_ns, times.end_ns)
        return critical_path(self.graph, times, int(start_ns.min()), int(end_ns.max()))

    def step_s(self, times: Times) -> float:
        """The step time of a replay, seconds: the mean over steps, of the slowest rank."""
        return float(self._step_times(times.start_ns, times.end_ns).mean(axis=1).max()) / 1e9

    @cached_property
    def measured_s(self) -> float:
        """The same of the trace."""
        works = self.graph.works
        return float(self._step_times(works.start_ns, works.end_ns).mean(axis=1).max()) / 1e9

    def _complete(self) -> bool:
        """Whether every rank worked in every step."""
        cells = self._cell[self._cell >= 0]
        count = len(self.traces.ranks) * max(self.step_numbers.size, 1)
        return bool(np.all(np.bincount(cells, minlength=count) > 0))

    def _identity_error(self) -> float:
        works = self.graph.works
        measured = self._step_times(works.start_ns, works.end_ns)
        replayed = self._step_times(self.unchanged.start_ns, self.unchanged.end_ns)
        return float((np.abs(replayed - measured) / np.maximum(measured, 1)).max())

    @cached_property
    def step_numbers(self) -> NDArray[np.int64]:
        """The steps that all ranks profiled; empty where none is marked."""
        return self.traces.common_steps

    @cached_property
    def _cell(self) -> NDArray[np.int64]:
        """The rank and step of each work as one number; -1: in no step that counts."""
        works, numbers = self.graph.works, self.step_numbers
        if not numbers.size:
            return works.rank.astype(np.int64)
        place = np.minimum(np.searchsorted(numbers, works.step), numbers.size - 1)
        cell = works.rank * numbers.size + place
        return np.where(numbers[place] == works.step, cell, -1)

    def _hulls(self, start_ns: Nanoseconds, end_ns: Nanoseconds) -> tuple[Nanoseconds, Nanoseconds]:
        """When each step of each rank began and ended, shape (ranks, steps)."""
        shape = len(self.traces.ranks), max(self.step_numbers.size, 1)
        first = np.full(shape, np.iinfo(np.int64).max)
        last = np.full(shape, np.iinfo(np.int64).min)
        inside = self._cell >= 0
        np.minimum.at(first.ravel(), self._cell[inside], start_ns[inside])
        np.maximum.at(last.ravel(), self._cell[inside], end_ns[inside])
        return first, last

    def _step_times(self, start_ns: Nanoseconds, end_ns: Nanoseconds) -> Nanoseconds:
        """From the start of each step to that of the next, or its own end where none follows."""
        first, last = self._hulls(start_ns, end_ns)
        followed = np.append(np.diff(self.step_numbers) == 1, False)[: first.shape[1]]
        if not followed.size:
            return last - first
        following = np.concatenate((first[:, 1:], last[:, -1:]), axis=1)
        return np.where(followed, following, last) - first

    def answer(self, question: Question) -> Answer | Unanswered:
        """The step time with what the question changes. Raises StudyError for an unknown name."""
        if self.disagreement is not None:
            return Unanswered(self.disagreement)
        changed = self._durations(question)
        if isinstance(changed, Unanswered):
            return changed
        times = self.replay.times(changed)
        if (share := self._unexplained(self._path(times))) > UNEXPLAINED:
            return Unanswered(
                f"{share:.0%} of the step would be waiting that nothing recorded explains, more "
                f"than {UNEXPLAINED:.0%}"
            )
        predicted_s = self.step_s(times)
        others_s = [predicted_s, self.step_s(self.replay.times(changed, possible_waits=True))]
        slower = self._durations(question, open_part="most")
        assert isinstance(slower, Durations)
        if np.any(slower.transfer_ns != changed.transfer_ns):
            others_s += [
                self.step_s(self.replay.times(slower, possible_waits=flag))
                for flag in (False, True)
            ]
        if question.nodes is not None:
            faster = self._durations(question, open_part="least")
            assert isinstance(faster, Durations)
            others_s.append(self.step_s(self.replay.times(faster)))
        replayed_s = self.step_s(self.unchanged)
        off_s = abs(replayed_s - self.measured_s) + REPLAY_ERROR * replayed_s
        return Answer(
            measured_s=self.measured_s,
            replayed_s=replayed_s,
            predicted_s=predicted_s,
            low_s=min(others_s) - off_s,
            high_s=max(others_s) + off_s,
            most_saved_s=self._most_saved_s(changed, slower),
            work=1.0 if question.nodes is None else self._growth(question.nodes),
        )

    def _most_saved_s(self, *variants: Durations) -> float | None:
        """What the change takes off the critical path, per step, in the variant that saves most."""
        works, joint = self.graph.works, self.graph.works.instance >= 0
        rows = [piece.work for piece in self.path.pieces if piece.work is not None]
        most_ns = 0
        for changed in variants:
            saved_ns = self.recorded.work_ns - changed.work_ns
            transfer_ns = self.recorded.transfer_ns - changed.transfer_ns
            saved_ns[joint] = transfer_ns[works.instance[joint]]
            if np.any(saved_ns < 0) and not np.any(saved_ns > 0):
                return None
            most_ns = max(most_ns, int(np.maximum(saved_ns[rows], 0).sum()))
        return most_ns / 1e9 / max(self.step_numbers.size, 1)

    def _tier_of_group(self, ranks_per_node: int | None) -> NDArray[np.int8]:
        size = self.traces.world_size
        tiers = [tier_of(group, ranks_per_node, size) for group in self.matches.groups]
        return np.array(tiers, np.int8)

    @cached_property
    def _talk(self) -> tuple[NDArray[np.int64], NDArray[np.int8], NDArray[np.int32]]:
        """The works that are collectives or transfers, with kind and group of each."""
        works, calls = self.graph.works, self.matches.calls
        found = []
        for place, trace in enumerate(self.traces.ranks):
            by_span = np.full(trace.spans.count, -1)
            own = np.flatnonzero(works.rank == place)
            by_span[works.span[own]] = own
            rows = np.flatnonzero(calls.rank == place)
            found.append((by_span[trace.collectives.span[calls.row[rows]]], rows))
        work, row = (np.concatenate(parts) for parts in zip(*found, strict=True))
        work, row = work[work >= 0], row[work >= 0]
        return work, calls.kind[row], calls.group_id[row]

    def _durations(
        self, question: Question, *, open_part: OpenPart = "likely"
    ) -> Durations | Unanswered:
        """Return the changed durations; `open_part` chooses among values that no trace shows."""
        recorded, works = self.recorded, self.graph.works
        latency_ns = self.links.latency_ns(greatest=open_part == "most")
        joint = works.instance >= 0
        fixed_ns, took_ns = np.zeros(works.count), recorded.work_ns.astype(np.float64)
        fixed_ns[joint] = latency_ns[works.instance[joint]]
        took_ns[joint] = recorded.transfer_ns[works.instance[joint]]
        moving_ns = took_ns - fixed_ns
        if question.nodes is not None:
            grown = self._grown(question.nodes, fixed_ns, moving_ns, open_part)
            if isinstance(grown, Unanswered):
                return grown
            fixed_ns, moving_ns = grown
        for name, factor in question.bandwidth.items():
            moving_ns[self._talking(name)] /= factor
        for name, factor in question.latency.items():
            fixed_ns[self._talking(name)] *= factor
        took_ns = fixed_ns + moving_ns
        for name, factor in question.kernels.items():
            took_ns[self._kernels(name)] /= factor
        computes = works.activity == Activity.COMPUTE
        for rank, factor in question.ranks.items():
            took_ns[computes & (works.rank == self._place(rank))] /= factor
        if question.no_straggler:
            took_ns[computes] /= self._slowness()[computes]
        if question.ranks_per_node is not None:
            moved = self._on_larger_nodes(question.ranks_per_node, took_ns)
            if isinstance(moved, Unanswered):
                return moved
            took_ns = moved
        whole_ns = np.rint(np.where(self._before_steps, recorded.work_ns, took_ns)).astype(np.int64)
        transfer_ns = recorded.transfer_ns.copy()
        transfer_ns[works.instance[joint]] = whole_ns[joint]
        return Durations(
            work_ns=np.where(joint, works.duration_ns, whole_ns), transfer_ns=transfer_ns
        )

    @cached_property
    def _before_steps(self) -> NDArray[np.bool_]:
        """Works before the first step of their rank, and of collectives that any such is in.

        They stay as they are, so that what is saved there does not count as a later begin.
        """
        works = self.graph.works
        first, _ = self._hulls(works.start_ns, works.end_ns)
        before: NDArray[np.bool_] = works.start_ns < first[works.rank, 0]
        joint = works.instance >= 0
        held = np.zeros(self.graph.instances.size, np.bool_)
        held[works.instance[joint & before]] = True
        before[joint] = held[works.instance[joint]]
        return before

    def _talking(self, name: str) -> NDArray[np.int64]:
        """The works of a tier or a kind of collective."""
        work, kind, group = self._talk
        if name in KINDS:
            return np.asarray(work[kind == KINDS[name]])
        tiers = self._tier_of_group(self.ranks_per_node)[group]
        if name != "communication" and np.any(tiers == Tier.UNKNOWN):
            raise StudyError(
                f"{name}: the traces do not say how many ranks a node holds; "
                "add --ranks-per-node N, or scale communication as a whole"
            )
        return work[np.isin(tiers, TIERS[name])]

    def _kernels(self, name: str) -> NDArray[np.bool_]:
        works = self.graph.works
        if name in ACTIVITIES:
            return np.asarray(works.activity == ACTIVITIES[name])
        named = np.array([name in each for each in works.names], np.bool_)
        chosen: NDArray[np.bool_] = named[works.name] & (works.activity == Activity.COMPUTE)
        if not chosen.any():
            known = ", ".join((*TIERS, *ACTIVITIES))
            raise StudyError(
                f"{name}: no kernel has this in its name; say {known}, a kind of collective such "
                "as all_reduce, or a part of the name of kernels (cclsearch trace kernels)"
            )
        return chosen

    def _place(self, rank: int) -> int:
        numbers = [trace.rank for trace in self.traces.ranks]
        if rank not in numbers:
            raise StudyError(
                f"rank {rank} left no trace; those that did: {numbers[0]} to {numbers[-1]}"
            )
        return numbers.index(rank)

    def _slowness(self) -> Floats:
        """How much longer each kernel takes than on the median rank, shape (works,).

        By sums over all kernels of one name: what differs from call to call stays. Only ranks that
        run the same kernels equally often are compared, as stages of a pipeline do not.
        """
        works, rank_count = self.graph.works, len(self.traces.ranks)
        computes = (works.activity == Activity.COMPUTE) & (self._cell >= 0)
        shape = rank_count, len(works.names)
        code = (works.rank * shape[1] + works.name)[computes]
        sums = np.bincount(code, works.duration_ns[computes], shape[0] * shape[1]).reshape(shape)
        counts = np.bincount(code, minlength=shape[0] * shape[1]).reshape(shape)
        slow = np.ones(shape)
        _, alike = np.unique(counts, axis=0, return_inverse=True)
        for number in range(int(alike.max()) + 1):
            own = np.flatnonzero(alike.ravel() == number)
            median = np.median(sums[own], axis=0)
            slow[own] = np.where(median > 0, sums[own] / np.where(median > 0, median, 1), 1)
        slow[slow == 0] = 1
        return slow[works.rank, works.name]

    def _grown(
        self, nodes: int, fixed_ns: Floats, moving_ns: Floats, open_part: OpenPart
    ) -> tuple[Floats, Floats] | Unanswered:
        """Latency and the rest of each work where data-parallel groups span more nodes.

        A collective of n ranks moves its bytes by the bus factor of n. Its latency grows with the
        logarithm of n, as in a tree: not at all at least, and with n - 1 at most, as in a ring. The
        last of more ranks comes later, but for the least: by how much more n normal arrivals
        spread, whose deviation is the recorded one.
        """
        growth = self._growth(nodes)
        work, kind, group = self._talk
        between = self._tier_of_group(self.ranks_per_node)[group] == Tier.SCALE_OUT
        grows = between & np.isin(kind, GROWING)
        if not grows.any():
            return Unanswered(
                "no collective of data-parallel ranks between nodes shows how fast the links "
                "there are"
            )
        work, kind, group = work[grows], kind[grows], group[grows]
        size = self._group_sizes[group]
        then = size * growth
        fixed_ns, moving_ns = fixed_ns.copy(), moving_ns.copy()
        moving_ns[work] *= bus_factors(kind, then) / bus_factors(kind, size)
        if open_part == "least":
            return fixed_ns, moving_ns
        is_ring = open_part == "most"
        fixed_ns[work] *= (then - 1) / (size - 1) if is_ring else np.log(then) / np.log(size)
        instance = self.graph.works.instance[work]
        later = expected_maximum(then) - expected_maximum(size)
        fixed_ns[work] += np.append(self._arrival_spread_ns(whole=is_ring), 0)[instance] * later
        return fixed_ns, moving_ns

    def _growth(self, nodes: int) -> float:
        """How many times as many nodes these are as those of the job, 1 or more."""
        world, per_node = self.traces.world_size, self.ranks_per_node
        if world is None:
            raise StudyError(f"--nodes {nodes}: the traces do not say how many ranks the job had")
        if per_node is None:
            raise StudyError(
                f"--nodes {nodes}: the traces do not say on how many nodes the job ran; "
                "add --ranks-per-node N"
            )
        if nodes * per_node < world:
            raise StudyError(
                f"--nodes {nodes}: the job ran on {-(-world // per_node)}; ask for as many or more"
            )
        return nodes * per_node / world

    @cached_property
    def _group_sizes(self) -> Floats:
        """The ranks of each group of the matches; an unnamed group holds all."""
        whole = self.traces.world_size or len(self.traces.ranks)
        sizes = [each.size or len(each.ranks or ()) or whole for each in self.matches.groups]
        return np.array(sizes, np.float64)

    def _arrival_spread_ns(self, *, whole: bool) -> Floats:
        """The standard deviation over ranks of when they come to each joint collective.

        Unless it is the `whole` one, it is that of ranks before the median: of others, a straggler
        may be one, and more nodes need not have more of them.
        """
        works, count = self.graph.works, self.graph.instances.size
        joint = np.flatnonzero(works.instance >= 0)
        joint = joint[np.lexsort((works.start_ns[joint], works.instance[joint]))]
        instance, start_ns = works.instance[joint], works.start_ns[joint].astype(np.float64)
        shown = np.bincount(instance, minlength=count)
        if whole:
            centre_ns = np.bincount(instance, start_ns, count) / np.maximum(shown, 1)
            apart_ns = start_ns - centre_ns[instance]
        else:
            first = np.searchsorted(instance, instance)
            middle = [(shown[instance] - 1) // 2, shown[instance] // 2]
            median_ns = np.mean([start_ns[first + place] for place in middle], axis=0)
            apart_ns = math.sqrt(2) * np.minimum(start_ns - median_ns, 0)
        squares = np.bincount(instance, apart_ns**2, count)
        spread_ns: Floats = np.sqrt(squares / np.maximum(shown - 1, 1))
        return spread_ns

    def _on_larger_nodes(self, ranks_per_node: int, took_ns: Floats) -> Floats | Unanswered:
        """Durations where groups that then fit a node use the links within it."""
        link = self.links.fitted.get(Tier.SCALE_UP)
        if link is None or link.bytes_per_ns is None:
            return Unanswered("no collective within a node shows how fast the links there are")
        works, joint = self.graph.works, np.flatnonzero(self.graph.works.instance >= 0)
        instance = works.instance[joint]
        group = self.matches.group_id[self.graph.instances][instance]
        within = self._tier_of_group(ranks_per_node)[group] == Tier.SCALE_UP
        moves = within & (self.links.tier[instance] == Tier.SCALE_OUT)
        then_ns = (link.latency_ns or 0) + self.links.bus_bytes[instance] / link.bytes_per_ns
        took_ns[joint[moves]] = np.minimum(took_ns[joint], then_ns)[moves]
        return took_ns
