"""Chakra execution traces of a replayed job: one protobuf file for each rank.

Schema 0.0.4 of mlcommons/chakra, `et_def.proto`: messages behind their length, first the metadata
of the file, then nodes. The work of a device waits for the work before it on its stream, for what
is known to hold it back on other streams, and for the host. Simulators run that; the recorded
times, which nodes have as well, are for `evaluator.traces.readers.chakra`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evaluator.traces.model import Activity, CollectiveKind, RankGroup, RankTrace
from evaluator.traces.readers.chakra.nodes import BY_SHARD, COLLECTIVES, GROUPS_NODE, NodeType
from evaluator.traces.readers.protobuf import (
    bytes_field,
    delimited,
    number_field,
    packed_field,
    text_field,
)
from evaluator.whatif.graph import NEVER
from evaluator.whatif.questions import WhatIf

VERSION: Final = "0.0.4"
_TYPES: Final = {kind: type_ for type_, kind in reversed([*COLLECTIVES.items()])}
_ANY_DIMENSION: Final = 4

Value: TypeAlias = bool | int | str | Sequence[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChakraTrace:
    """What was written: nodes of all ranks, and how much communication became fixed times.

    Communication whose size or ranks are unknown cannot be simulated and keeps its recorded
    duration.
    """

    rank_count: int
    node_count: int
    communication_count: int
    fixed_count: int


def write_chakra(whatif: WhatIf, folder: Path) -> ChakraTrace:
    """Write `chakra.RANK.et` for each rank into a new folder."""
    folder.mkdir()
    talk = _Talk.of(whatif)
    node_count = 0
    for place, rank in enumerate(whatif.matches.rank_numbers):
        with (folder / f"chakra.{rank}.et").open("wb") as out:
            out.write(delimited(_about(whatif.traces.ranks[place])))
            for node in _nodes(whatif, place, rank, talk):
                out.write(delimited(node))
                node_count += 1
    communicates = whatif.graph.works.activity == Activity.COMMUNICATION
    return ChakraTrace(
        rank_count=len(whatif.matches.rank_numbers),
        node_count=node_count,
        communication_count=int(np.count_nonzero(communicates)),
        fixed_count=int(np.count_nonzero(communicates & (talk.type == NodeType.COMPUTE))),
    )


def _about(trace: RankTrace) -> bytes:
    """The `GlobalMetadata`: the schema, and what the trace says of the job."""
    device = trace.device.name if trace.device else ""
    return (
        text_field(1, VERSION)
        + bytes_field(2, _attribute("device", device))
        + bytes_field(2, _attribute("world_size", trace.world_size or 0))
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Talk:
    """What communicates; columns of shape (works,), `groups` are those of the job."""

    type: NDArray[np.int8]
    """`NodeType` values; COMPUTE also for communication that is not fully known."""
    kind: NDArray[np.int8]
    group: NDArray[np.int32]
    bytes: NDArray[np.int64]
    sequence: NDArray[np.int64]
    groups: tuple[RankGroup, ...]

    @classmethod
    def of(cls, whatif: WhatIf) -> "_Talk":
        """Find the call of each work, and whether everything is known of it."""
        works, matches, ranks = whatif.graph.works, whatif.matches, whatif.traces.ranks
        calls = matches.calls
        call = np.full(works.count, -1)
        for place, trace in enumerate(ranks):
            by_span = np.full(trace.spans.count, -1)
            own = np.flatnonzero(calls.rank == place)
            by_span[trace.collectives.span[calls.row[own]]] = own
            mine = works.rank == place
            call[mine] = by_span[works.span[mine]]
        kind = np.where(call >= 0, calls.kind[call], CollectiveKind.OTHER).astype(np.int8)
        groups = calls.groups.groups
        group = np.where(call >= 0, calls.group_id[call], -1).astype(np.int32)
        sized = np.where(call >= 0, calls.bytes[call], 0)
        size = np.array([*(len(each.ranks or ()) for each in groups), 0])[group]
        by_shard = np.isin(kind, BY_SHARD) & (size > 0)
        message = np.where(by_shard, sized // np.maximum(size, 1), sized)
        known = (size > 0) & ((message > 0) | (kind == CollectiveKind.BARRIER))
        type_ = np.full(works.count, NodeType.COMPUTE, np.int8)
        type_[known & np.isin(kind, list(_TYPES))] = NodeType.COLLECTIVE
        between_two = known & (size == 2) & (works.instance >= 0)
        type_[between_two & (kind == CollectiveKind.SEND)] = NodeType.SEND
        type_[between_two & (kind == CollectiveKind.RECV)] = NodeType.RECEIVE
        sequence = np.where(call >= 0, calls.sequence[call], -1)
        return cls(
            type=type_, kind=kind, group=group, bytes=message, sequence=sequence, groups=groups
        )

    def attributes(self, row: int, rank: int) -> dict[str, Value]:
        """What a simulator needs of communication; nothing of other work."""
        if self.group[row] < 0:
            return {}
        found: dict[str, Value] = {"pg_name": str(self.group[row])}
        if self.sequence[row] >= 0:
            found["sequence"] = int(self.sequence[row])
        if (kind := CollectiveKind(self.kind[row])) in _TYPES:
            found["comm_type"] = _TYPES[kind]
        if self.type[row] == NodeType.COMPUTE:
            return found
        found["comm_size"] = int(self.bytes[row])
        if self.type[row] == NodeType.COLLECTIVE:
            return {**found, "involved_dim": (True,) * _ANY_DIMENSION}
        (other,) = {*(self.groups[self.group[row]].ranks or ())} - {rank}
        ends = (rank, other) if self.type[row] == NodeType.SEND else (other, rank)
        return {**found, "comm_src": ends[0], "comm_dst": ends[1], "comm_tag": 0}


def _nodes(whatif: WhatIf, place: int, rank: int, talk: _Talk) -> Iterator[bytes]:
    """Yield the nodes of a rank: its groups, its host, then the work of its device."""
    works, spans = whatif.graph.works, whatif.traces.ranks[place].spans
    named = {str(n): each.ranks for n, each in enumerate(talk.groups) if each.ranks}
    groups = [{"pg_name": name, "ranks": list(ranks)} for name, ranks in named.items()]
    # Readers cut two characters off each end.
    listed = text_field(1, f'["{json.dumps(groups)}"]')
    yield _node(0, GROUPS_NODE, NodeType.METADATA, inputs=listed)
    own = np.flatnonzero(works.rank == place)
    host = _Host(whatif, place, own)
    yield from host.nodes
    waits = whatif.graph.waits
    mine = waits.proven & (works.rank[waits.target] == place)
    sources = _by_target(waits.target, waits.source, mine)
    for row in own.tolist():
        deps = [host.launch_of[row]] if row in host.launch_of else []
        deps += [host.number(row - 1)] if works.follows[row] else []
        deps += map(host.number, sources.get(row, ()))
        # What passes after the work before is part of it, as nothing else stands for it.
        began_ns, ended_ns = works.start_ns[row] - max(works.gap_ns[row], 0), works.end_ns[row]
        joint = works.instance[row]
        if joint >= 0:
            began_ns = ended_ns - whatif.recorded.transfer_ns[joint]
        took_us = _micros(ended_ns) - _micros(began_ns)
        name = works.names[works.name[row]]
        attributes: dict[str, Value] = {
            "is_cpu_op": False,
            "stream": int(spans.lane_id[works.span[row]]),
            **_when(works.start_ns[row], ended_ns, works.step[row]),
            **talk.attributes(row, rank),
        }
        if talk.type[row] == NodeType.COMPUTE:
            attributes["activity"] = Activity(works.activity[row]).name.lower()
        yield _node(host.number(row), name, talk.type[row], took_us, deps, attributes)


def _when(start_ns: int, end_ns: int, step: int) -> dict[str, Value]:
    """The recorded times, and the step where it is known."""
    times: dict[str, Value] = {"start_ns": int(start_ns), "end_ns": int(end_ns)}
    return {**times, "step": int(step)} if step >= 0 else times


class _Host:
    """The host of a rank as a chain of nodes, which are numbered from 1.

    One for each launch ends when the work may start. A wait for the device is two: what the host
    did before, and the wait, which ends after what it waits for. A copy whose launch lasts until it
    has ended has a wait as well, of no recorded time.
    """

    def __init__(self, whatif: WhatIf, place: int, own: NDArray[np.int64]) -> None:
        graph, works, pauses = whatif.graph, whatif.graph.works, whatif.graph.pauses
        launched = own[works.launched_ns[own] > NEVER]
        paused = np.flatnonzero(pauses.rank == place)
        self._graph, self._spans = graph, whatif.traces.ranks[place].spans
        self._base = 1 + launched.size + 2 * paused.size - int(own[0])
        self.nodes: list[bytes] = []
        self.launch_of: dict[int, int] = {}
        self._now_us = 0
        ends = graph.pause_ends
        ending = _by_target(ends.pause, ends.work, pauses.rank[ends.pause] == place)
        moments = np.concatenate((works.launched_ns[launched], pauses.end_ns[paused]))
        for event in np.argsort(moments, kind="stable").tolist():
            if event < launched.size:
                self._launch(int(launched[event]))
            else:
                pause = int(paused[event - launched.size])
                self._pause(pause, ending.get(pause, []))

    def _launch(self, row: int) -> None:
        works, call = self._graph.works, int(self._graph.works.call[row])
        began_ns = works.launched_ns[row]
        when = _when(began_ns, began_ns + self._spans.duration_ns[call], works.step[row])
        self._go_on(self._name(call), began_ns + works.latency_ns[row], when=when)
        self.launch_of[row] = len(self.nodes)

    def _pause(self, pause: int, waited: Sequence[int]) -> None:
        pauses, span = self._graph.pauses, int(self._graph.pauses.span[pause])
        began_ns, ended_ns = pauses.start_ns[pause], pauses.end_ns[pause]
        self._go_on("before a wait", began_ns)
        latest_ns = max([began_ns, *(self._graph.works.end_ns[work] for work in waited)])
        self._now_us = max(self._now_us, _micros(latest_ns))
        is_copy = self._spans.activity[span] == Activity.LAUNCH
        when = {} if is_copy else _when(began_ns, ended_ns, -1)
        self._go_on(self._name(span), ended_ns, waited, when)

    def _name(self, span: int) -> str:
        return self._spans.names[int(self._spans.name_id[span])]

    def number(self, work: int) -> int:
        """The node of a work of the rank."""
        return self._base + work

    def _go_on(
        self,
        name: str,
        until_ns: int,
        waited: Sequence[int] = (),
        when: Mapping[str, Value] | None = None,
    ) -> None:
        until_us = max(_micros(until_ns), self._now_us)
        node = len(self.nodes) + 1
        deps = [node - 1] if self.nodes else []
        deps += map(self.number, waited)
        took_us = until_us - self._now_us
        attributes = {"is_cpu_op": True, **(when or {})}
        self.nodes.append(_node(node, name, NodeType.COMPUTE, took_us, deps, attributes))
        self._now_us = until_us


def _by_target(
    target: NDArray[np.int64], source: NDArray[np.int64], chosen: NDArray[np.bool_]
) -> dict[int, list[int]]:
    """The sources of each target, of the chosen edges."""
    found: dict[int, list[int]] = {}
    for one, other in zip(target[chosen].tolist(), source[chosen].tolist(), strict=True):
        found.setdefault(one, []).append(other)
    return found


def _micros(time_ns: int) -> int:
    """Whole microseconds: of moments, so that durations one after the other add up."""
    return round(int(time_ns) / 1000)


def _node(
    number: int,
    name: str,
    type_: int,
    took_us: int = 0,
    deps: Iterable[int] = (),
    attributes: Mapping[str, Value] | None = None,
    inputs: bytes = b"",
) -> bytes:
    """A `Node`; what its host and streams make it wait for are its data dependencies."""
    parts = [number_field(1, number), text_field(2, name), number_field(3, int(type_))]
    parts += [packed_field(5, dict.fromkeys(deps)), number_field(7, took_us)]
    parts.append(bytes_field(8, inputs) if inputs else b"")
    parts += [bytes_field(10, _attribute(*one)) for one in (attributes or {}).items()]
    return b"".join(parts)


def _attribute(name: str, value: Value) -> bytes:
    """An `AttributeProto`."""
    match value:
        case bool():
            content = number_field(27, int(value))
        case int():
            content = number_field(9, value)
        case str():
            content = text_field(29, value)
        case _:
            content = bytes_field(28, bytes_field(1, bytes(value)))
    return text_field(1, name) + content
