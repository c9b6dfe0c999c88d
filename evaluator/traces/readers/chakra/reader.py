"""Read the Chakra execution traces of a job: a graph for each rank, with durations.

A file that says when its nodes ran, as `cclsearch trace chakra` writes it, keeps these times.
The ranks of other files are scheduled together.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evaluator.traces.analysis.breakdown import WORK
from evaluator.traces.intervals import Nanoseconds
from evaluator.traces.model import (
    Activity,
    CollectiveKind,
    Collectives,
    Device,
    Lane,
    RankGroup,
    RankTrace,
    Spans,
    SpanWaits,
    StepWindows,
)
from evaluator.traces.readers.chakra.nodes import (
    ABSENT,
    BY_SHARD,
    COLLECTIVES,
    Nodes,
    NodeType,
    read_nodes,
)
from evaluator.traces.readers.chakra.schedule import Tasks, schedule
from evaluator.traces.readers.files import ReadLimits
from evaluator.traces.readers.marks import collective_kind, communicates, counted
from records.errors import TraceError

SCHEDULED: Final = (
    "Chakra traces have durations and no times: what is shown is a schedule in which each node "
    "starts once its stream is free and what it waits for has ended"
)
"""The remark on a job whose files have no times."""
_RANK: Final = re.compile(r"(?:.*\D)?(\d{1,7})\.et(?:\.gz|\.zst)?", re.IGNORECASE | re.DOTALL)
_LATEST_NS: Final = 1 << 62
_LARGEST_BYTES: Final = 1 << 38
_OF_TYPE: Final = {
    NodeType.SEND: CollectiveKind.SEND,
    NodeType.RECEIVE: CollectiveKind.RECV,
}


def read_job(files: Sequence[Path], limits: ReadLimits) -> tuple[list[RankTrace], list[str]]:
    """The trace of each file, and what is to be remarked on all.

    Raises TraceError when a file is damaged, passes a limit, names no rank, has no durations, or
    holds what is not understood.
    """
    numbers = [_rank_of(file, len(files) == 1) for file in files]
    ranks = [
        _Rank.of(file, number, read_nodes(file, limits), numbers)
        for file, number in zip(files, numbers, strict=True)
    ]
    if all(rank.is_timed for rank in ranks):
        return [rank.trace(*rank.recorded_ns) for rank in ranks], []
    times_ns = _scheduled_ns(ranks)
    traces = [
        rank.trace(*own, is_scheduled=True) for rank, own in zip(ranks, times_ns, strict=True)
    ]
    return traces, [SCHEDULED]


def _rank_of(file: Path, alone: bool) -> int:
    if found := _RANK.fullmatch(file.name):
        return int(found[1])
    if alone:
        return 0
    raise TraceError(file, "has no rank in its name; call the file of rank 0 NAME.0.et")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rank:
    """The nodes of a rank with what they do; arrays of shape (nodes,)."""

    file: Path
    number: int
    nodes: Nodes
    activity: NDArray[np.int8]
    """Of the work of the device; LAUNCH and SYNC of the host's nodes; -1: none of these."""
    kind: NDArray[np.int8]
    """`CollectiveKind` of communication; -1 of other nodes."""
    group: NDArray[np.int64]
    """Indexes `groups`."""
    groups: tuple[RankGroup, ...]
    caveats: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, file: Path, number: int, nodes: Nodes, ranks: Sequence[int]) -> "_Rank":
        """What the nodes of a file do; `ranks` are all whose files there are."""
        activity = _activities(nodes)
        kind = _kinds(nodes, activity)
        group, groups = _groups(file, nodes, number, kind, ranks)
        work = np.isin(activity, WORK)
        if not work.any():
            raise TraceError(file, "holds no node of a device: all its nodes are of the host")
        took_us = nodes.columns["duration_us"]
        if not took_us[work].any():
            raise TraceError(
                file,
                "has no durations, as a simulator finds them; convert the trace of a profiler: "
                "cclsearch trace chakra TRACES -o FOLDER",
            )
        untimed = (kind != ABSENT) & (took_us == 0) & (nodes.columns["start_ns"] == ABSENT)
        counts = {
            "dependencies name nodes that the file does not have; nothing waits for these": (
                nodes.missing_count
            ),
            "nodes of communication have no duration and take no time": int(untimed.sum()),
        }
        return cls(
            file=file,
            number=number,
            nodes=nodes,
            activity=activity,
            kind=kind,
            group=group,
            groups=groups,
            caveats=tuple(counted(counts)),
        )

    @property
    def is_timed(self) -> bool:
        """Whether the file says when each piece of work of the device ran."""
        work = np.isin(self.activity, WORK)
        start_ns, end_ns = self.recorded_ns
        return bool(
            np.all((start_ns >= 0) & (start_ns <= end_ns) & (end_ns < _LATEST_NS), where=work)
        )

    @property
    def recorded_ns(self) -> tuple[Nanoseconds, Nanoseconds]:
        """When nodes started and ended as the file says; -1: it does not."""
        return self.nodes.columns["start_ns"], self.nodes.columns["end_ns"]

    @property
    def lane(self) -> NDArray[np.int64]:
        """The stream or thread of each node, on either side of 0."""
        columns, on_device = self.nodes.columns, self.nodes.on_device
        stream = np.where(columns["stream"] >= 0, columns["stream"], columns["tid"])
        stream = np.where(stream >= 0, stream, np.where(self.kind >= 0, 1, 0))
        return np.where(on_device, stream, -1 - np.maximum(columns["tid"], 0))

    def trace(
        self, start_ns: Nanoseconds, end_ns: Nanoseconds, *, is_scheduled: bool = False
    ) -> RankTrace:
        """The trace of the rank with nodes at these times; those before 0 are left out.

        What a schedule waits for is what the file says, and nothing else.
        """
        columns, nodes = self.nodes.columns, self.nodes
        timed = (start_ns >= 0) & (start_ns <= end_ns) & (end_ns < _LATEST_NS)
        rows = np.flatnonzero((self.activity != ABSENT) & timed)
        rows = rows[np.argsort(start_ns[rows], kind="stable")]
        lanes, lane_id = np.unique(self.lane[rows], return_inverse=True)
        work = np.isin(self.activity, WORK)
        communicates = np.flatnonzero(self.kind[rows] >= 0)
        talks = rows[communicates]
        groups, group = np.unique(self.group[talks], return_inverse=True)
        return RankTrace(
            rank=self.number,
            world_size=self._world_size(),
            backend=None,
            device=Device(name=nodes.device),
            source="chakra",
            spans=Spans.build(
                names=nodes.names,
                lanes=[
                    Lane("device", str(lane)) if lane >= 0 else Lane("host", str(-1 - lane))
                    for lane in lanes.tolist()
                ],
                start_ns=start_ns[rows],
                end_ns=end_ns[rows],
                name_id=columns["name"][rows],
                lane_id=lane_id,
                activity=self.activity[rows],
                correlation=self._correlation(end_ns)[rows],
            ),
            collectives=Collectives.build(
                span=communicates,
                kind=self.kind[talks],
                groups=[self.groups[place] for place in groups.tolist()],
                group=group,
                bytes=self._bytes()[talks],
                sequence=columns["sequence"][talks],
            ),
            waits=self._waits(rows) if is_scheduled else None,
            steps=_steps(columns["step"], start_ns, end_ns, work & timed),
            host_steps=_steps(columns["step"], start_ns, end_ns, ~work & timed),
            caveats=self.caveats,
        )

    def _waits(self, rows: NDArray[np.int64]) -> SpanWaits:
        """Which work waits for which, by the places of their nodes among `rows`."""
        place = np.full(self.nodes.count, ABSENT)
        place[rows] = np.arange(rows.size)
        source, target = place[self.nodes.source], place[self.nodes.target]
        known = (source >= 0) & (target >= 0)
        return SpanWaits(source=source[known], target=target[known])

    def _correlation(self, end_ns: Nanoseconds) -> NDArray[np.int64]:
        """Equal for a work and the last of the host's nodes that it waited for."""
        nodes, found = self.nodes, np.zeros(self.nodes.count, np.int64)
        by_end = np.argsort(end_ns[nodes.source], kind="stable")
        source, target = nodes.source[by_end], nodes.target[by_end]
        launches = (self.activity[source] == Activity.LAUNCH) & nodes.on_device[target]
        found[target[launches]] = 1 + source[launches]
        launch = np.flatnonzero(self.activity == Activity.LAUNCH)
        found[launch] = 1 + launch
        return found

    def _bytes(self) -> NDArray[np.int64]:
        """The whole buffer of each collective, or the message of a transfer; 0: unknown."""
        size = self.nodes.columns["comm_size"]
        size = np.where((size > 0) & (size < _LARGEST_BYTES), size, 0)
        members = np.array([group.size or 0 for group in self.groups], np.int64)[self.group]
        return np.where(np.isin(self.kind, BY_SHARD), size * members, size)

    def _world_size(self) -> int | None:
        listed = [group.ranks[-1] + 1 for group in self.nodes.groups.values() if group.ranks]
        return self.nodes.world_size or max(listed, default=None)


def _activities(nodes: Nodes) -> NDArray[np.int8]:
    columns, on_device = nodes.columns, nodes.on_device
    stated = [getattr(Activity, word.upper(), ABSENT) for word in nodes.words]
    activity = np.array([*stated, ABSENT])[columns["activity"]]
    by_name = np.array([_of_name(name) for name in nodes.names])[columns["name"]]
    activity = np.where(np.isin(activity, WORK), activity, by_name)
    type_ = columns["type"]
    activity[np.isin(type_, (NodeType.LOAD, NodeType.STORE))] = Activity.COPY
    activity[type_ >= NodeType.SEND] = Activity.COMMUNICATION
    activity[~on_device] = ABSENT
    waits = ~on_device[nodes.target] & on_device[nodes.source]
    activity[nodes.target[waits]] = Activity.SYNC
    launches = on_device[nodes.target] & ~on_device[nodes.source]
    activity[nodes.source[launches]] = Activity.LAUNCH
    return activity.astype(np.int8)


def _of_name(name: str) -> Activity:
    if communicates(name):
        return Activity.COMMUNICATION
    plain = name.lower()
    return next((does for word, does in _COPIES.items() if word in plain), Activity.COMPUTE)


_COPIES: Final = {"memcpy": Activity.COPY, "memset": Activity.FILL}


def _kinds(nodes: Nodes, activity: NDArray[np.int8]) -> NDArray[np.int8]:
    columns = nodes.columns
    stated = np.array([*(COLLECTIVES[code] for code in range(len(COLLECTIVES))), ABSENT])
    kind = stated[columns["comm_type"]]
    by_name = np.array([collective_kind(name) for name in nodes.names])[columns["name"]]
    kind = np.where(kind == ABSENT, by_name, kind)
    for type_, does in _OF_TYPE.items():
        kind[columns["type"] == type_] = does
    return np.where(activity == Activity.COMMUNICATION, kind, ABSENT).astype(np.int8)


def _groups(
    file: Path, nodes: Nodes, number: int, kind: NDArray[np.int8], ranks: Sequence[int]
) -> tuple[NDArray[np.int64], tuple[RankGroup, ...]]:
    """The group of each node that communicates, and the groups.

    Nodes that name none are of all ranks that have a file, as simulators take them.
    """
    columns = nodes.columns
    several = len(ranks) > 1
    everyone = RankGroup("", tuple(sorted(ranks)), len(ranks)) if several else RankGroup("")
    named = [nodes.groups.get(word, RankGroup(word)) for word in nodes.words]
    groups = [*named, everyone]
    group = columns["pg_name"].copy()
    group[group == ABSENT] = len(named)
    pairs: dict[tuple[int, int], int] = {}
    transfers = np.isin(columns["type"], list(_OF_TYPE)) & (kind != ABSENT)
    for node in np.flatnonzero(transfers & (columns["comm_src"] >= 0)).tolist():
        ends = int(columns["comm_src"][node]), int(columns["comm_dst"][node])
        if number not in ends or ends[0] == ends[1]:
            raise TraceError(
                file, f"holds a transfer from rank {ends[0]} to {ends[1]}, as rank {number}"
            )
        pair = min(ends), max(ends)
        if pair not in pairs:
            pairs[pair] = len(groups)
            groups.append(RankGroup(f"{pair[0]}-{pair[1]}", pair, 2))
        group[node] = pairs[pair]
    return group, tuple(groups)


def _steps(
    step: NDArray[np.int64], start_ns: Nanoseconds, end_ns: Nanoseconds, chosen: NDArray[np.bool_]
) -> StepWindows:
    """From the first start to the last end of the chosen nodes of each step."""
    rows = np.flatnonzero(chosen & (step >= 0))
    number, place = np.unique(step[rows], return_inverse=True)
    first, last = np.full(number.size, _LATEST_NS), np.zeros(number.size, np.int64)
    np.minimum.at(first, place, start_ns[rows])
    np.maximum.at(last, place, end_ns[rows])
    return StepWindows.plain(number, first, last)


def _scheduled_ns(ranks: Sequence[_Rank]) -> list[tuple[Nanoseconds, Nanoseconds]]:
    """When the nodes of each rank start and end in a schedule of all."""
    bases = np.cumsum([0, *(rank.nodes.count for rank in ranks)])
    place = np.repeat(np.arange(len(ranks)), np.diff(bases))
    lanes = np.concatenate([rank.lane for rank in ranks])
    numbers, lane = np.unique(lanes, return_inverse=True)
    tasks = Tasks(
        id=np.concatenate([rank.nodes.columns["id"] for rank in ranks]),
        lane=place * numbers.size + lane,
        duration_us=np.concatenate([rank.nodes.columns["duration_us"] for rank in ranks]),
        together=_together(ranks),
    )
    ends = ([getattr(rank.nodes, end) for rank in ranks] for end in ("source", "target"))
    starts_us, ends_us = schedule(
        tasks,
        *(
            np.concatenate([own + at for own, at in zip(each, bases, strict=False)])
            for each in ends
        ),
    )
    if -1 in ends_us:
        stuck = ends_us.index(-1)
        rank = ranks[place[stuck]]
        node = rank.nodes.columns["id"][stuck - bases[place[stuck]]]
        raise TraceError(
            rank.file,
            f"node {node} never ends: nodes wait for each other in a circle, or ranks come to "
            "their collectives in different orders",
        )
    if max(ends_us) >= _LATEST_NS // 1000:
        raise TraceError(ranks[0].file, "and the other files last for more than a century")
    start_ns, end_ns = 1000 * np.array(starts_us), 1000 * np.array(ends_us)
    # The host calls, and then waits; a schedule starts its node only when the device is done.
    waits = np.concatenate([rank.activity for rank in ranks]) == Activity.SYNC
    start_ns[waits] = _free_ns(tasks.lane, start_ns, end_ns)[waits]
    bounds = bases[1:-1]
    return list(zip(np.split(start_ns, bounds), np.split(end_ns, bounds), strict=True))


def _free_ns(lane: NDArray[np.int64], start_ns: Nanoseconds, end_ns: Nanoseconds) -> Nanoseconds:
    """When the task before each ended on its lane; 0 for the first."""
    order = np.lexsort((end_ns, start_ns, lane))
    same = lane[order][1:] == lane[order][:-1]
    free_ns = np.zeros_like(end_ns)
    free_ns[order[1:]] = np.where(same, end_ns[order][:-1], 0)
    return free_ns


def _together(ranks: Sequence[_Rank]) -> NDArray[np.int64]:
    """Which collective or transfer each node is a part of: the k-th of its kind in its group."""
    numbers: dict[tuple[object, ...], int] = {}
    found = []
    for rank in ranks:
        counts: defaultdict[tuple[object, ...], int] = defaultdict(int)
        columns, own = rank.nodes.columns, np.full(rank.nodes.count, -1)
        talks = np.flatnonzero((rank.kind >= 0) & (columns["type"] >= NodeType.SEND))
        for node in talks[np.argsort(columns["id"][talks], kind="stable")].tolist():
            group, kind = rank.groups[rank.group[node]], int(rank.kind[node])
            sender = rank.number
            if kind == CollectiveKind.RECV and group.size == 2 and group.ranks:
                (sender,) = {*group.ranks} - {rank.number} or {rank.number}
                kind = CollectiveKind.SEND
            key = (
                group,
                kind,
                sender if kind == CollectiveKind.SEND else None,
                int(columns["comm_tag"][node]),
            )
            counts[key] += 1
            own[node] = numbers.setdefault((*key, counts[key]), len(numbers))
        found.append(own)
    return np.concatenate(found)
