"""Chakra execution traces of a replayed job: one protobuf file for each rank.

Schema 0.0.4 of mlcommons/chakra, `et_def.proto`: messages behind their length, first the metadata
of the file, then nodes. The work of a device waits for the work before it on its stream, for what
is known to hold it back on other streams, and for the host.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evaluator.traces.model import Activity, CollectiveKind, RankGroup
from evaluator.whatif.graph import NEVER
from evaluator.whatif.questions import WhatIf

VERSION: Final = "0.0.4"
_COLLECTIVES: Final[Mapping[int, int]] = {
    CollectiveKind.ALL_REDUCE: 0,
    CollectiveKind.REDUCE: 1,
    CollectiveKind.ALL_GATHER: 2,
    CollectiveKind.GATHER: 3,
    CollectiveKind.SCATTER: 4,
    CollectiveKind.BROADCAST: 5,
    CollectiveKind.ALL_TO_ALL: 6,
    CollectiveKind.REDUCE_SCATTER: 7,
    CollectiveKind.BARRIER: 9,
}
_BY_SHARD: Final = (CollectiveKind.ALL_GATHER, CollectiveKind.GATHER)
"""Kinds whose size is what a rank puts in, not the whole buffer."""
_ANY_DIMENSION: Final = 4

Value: TypeAlias = bool | int | str | Sequence[bool]


class _NodeType(IntEnum):
    METADATA = 1
    COMPUTE = 4
    SEND = 5
    RECEIVE = 6
    COLLECTIVE = 7


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
            out.write(_delimited(_text(1, VERSION)))
            for node in _nodes(whatif, place, rank, talk):
                out.write(_delimited(node))
                node_count += 1
    communicates = whatif.graph.works.activity == Activity.COMMUNICATION
    return ChakraTrace(
        rank_count=len(whatif.matches.rank_numbers),
        node_count=node_count,
        communication_count=int(np.count_nonzero(communicates)),
        fixed_count=int(np.count_nonzero(communicates & (talk.type == _NodeType.COMPUTE))),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Talk:
    """What communicates; columns of shape (works,), `groups` are those of the job."""

    type: NDArray[np.int8]
    """`_NodeType` values; COMPUTE also for communication that is not fully known."""
    kind: NDArray[np.int8]
    group: NDArray[np.int32]
    bytes: NDArray[np.int64]
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
        by_shard = np.isin(kind, _BY_SHARD) & (size > 0)
        message = np.where(by_shard, sized // np.maximum(size, 1), sized)
        known = (size > 0) & ((message > 0) | (kind == CollectiveKind.BARRIER))
        type_ = np.full(works.count, _NodeType.COMPUTE, np.int8)
        type_[known & np.isin(kind, list(_COLLECTIVES))] = _NodeType.COLLECTIVE
        between_two = known & (size == 2) & (works.instance >= 0)
        type_[between_two & (kind == CollectiveKind.SEND)] = _NodeType.SEND
        type_[between_two & (kind == CollectiveKind.RECV)] = _NodeType.RECEIVE
        return cls(type=type_, kind=kind, group=group, bytes=message, groups=groups)

    def attributes(self, row: int, rank: int) -> dict[str, Value]:
        """What a simulator needs of communication; nothing of other work."""
        type_, size = self.type[row], {"comm_size": int(self.bytes[row])}
        group = self.groups[self.group[row]]
        if type_ == _NodeType.COLLECTIVE:
            kind = _COLLECTIVES[CollectiveKind(self.kind[row])]
            dimensions = {"involved_dim": (True,) * _ANY_DIMENSION}
            return {"comm_type": kind, **size, "pg_name": str(self.group[row]), **dimensions}
        if type_ in {_NodeType.SEND, _NodeType.RECEIVE}:
            (other,) = {*(group.ranks or ())} - {rank}
            ends = (rank, other) if type_ == _NodeType.SEND else (other, rank)
            return {"comm_src": ends[0], "comm_dst": ends[1], "comm_tag": 0, **size}
        return {}


def _nodes(whatif: WhatIf, place: int, rank: int, talk: _Talk) -> Iterator[bytes]:
    """Yield the nodes of a rank: its groups, its host, then the work of its device."""
    works = whatif.graph.works
    named = {str(n): each.ranks for n, each in enumerate(talk.groups) if each.ranks}
    groups = [{"pg_name": name, "ranks": list(ranks)} for name, ranks in named.items()]
    # Readers cut two characters off each end.
    listed = _text(1, f'["{json.dumps(groups)}"]')
    yield _node(0, "## process_group:init ##", _NodeType.METADATA, inputs=listed)
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
        attributes = {"is_cpu_op": False, **talk.attributes(row, rank)}
        yield _node(host.number(row), name, talk.type[row], took_us, deps, attributes)


class _Host:
    """The host of a rank as a chain of nodes, which are numbered from 1.

    One for each launch ends when the work may start. A wait for the device is two: what the host
    did before, and the wait, which ends after what it waits for.
    """

    def __init__(self, whatif: WhatIf, place: int, own: NDArray[np.int64]) -> None:
        graph, works, pauses = whatif.graph, whatif.graph.works, whatif.graph.pauses
        launched = own[works.launched_ns[own] > NEVER]
        paused = np.flatnonzero(pauses.rank == place)
        self._base = 1 + launched.size + 2 * paused.size - int(own[0])
        self.nodes: list[bytes] = []
        self.launch_of: dict[int, int] = {}
        self._now_us = 0
        ends = graph.pause_ends
        ending = _by_target(ends.pause, ends.work, pauses.rank[ends.pause] == place)
        moments = np.concatenate((works.launched_ns[launched], pauses.end_ns[paused]))
        for event in np.argsort(moments, kind="stable").tolist():
            if event < launched.size:
                row = int(launched[event])
                name = f"launch {works.names[works.name[row]]}"
                self._go_on(name, works.launched_ns[row] + works.latency_ns[row])
                self.launch_of[row] = len(self.nodes)
            else:
                pause = int(paused[event - launched.size])
                waited = ending.get(pause, [])
                begun_ns = pauses.start_ns[pause]
                self._go_on("before a wait", begun_ns)
                begun_ns = max([begun_ns, *(works.end_ns[work] for work in waited)])
                self._now_us = max(self._now_us, _micros(begun_ns))
                self._go_on("wait for the device", pauses.end_ns[pause], waited)

    def number(self, work: int) -> int:
        """The node of a work of the rank."""
        return self._base + work

    def _go_on(self, name: str, until_ns: int, waited: Sequence[int] = ()) -> None:
        until_us = max(_micros(until_ns), self._now_us)
        node = len(self.nodes) + 1
        deps = [node - 1] if self.nodes else []
        deps += map(self.number, waited)
        took_us = until_us - self._now_us
        attributes = {"is_cpu_op": True}
        self.nodes.append(_node(node, name, _NodeType.COMPUTE, took_us, deps, attributes))
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
    parts = [_number(1, number), _text(2, name), _number(3, int(type_))]
    packed = b"".join(_varint(one) for one in dict.fromkeys(deps))
    parts.append(_bytes(5, packed) if packed else b"")
    parts.append(_number(7, took_us))
    parts.append(_bytes(8, inputs) if inputs else b"")
    for key, value in (attributes or {}).items():
        parts.append(_bytes(10, _text(1, key) + _value(value)))
    return b"".join(parts)


def _value(value: Value) -> bytes:
    """The value of an `AttributeProto`."""
    match value:
        case bool():
            return _number(27, int(value))
        case int():
            return _number(9, value)
        case str():
            return _text(29, value)
        case _:
            return _bytes(28, _bytes(1, bytes(value)))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode("utf-8", "replace"))


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _delimited(message: bytes) -> bytes:
    return _varint(len(message)) + message


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
