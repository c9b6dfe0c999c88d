"""What NCCL's NVTX ranges say of communication launched inside them: sizes and communicators.

Payloads are JSON or laid out as in memory.
"""

import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from evaluator.traces.model import CollectiveKind, RankGroup
from evaluator.traces.readers.marks import collective_kind
from evaluator.traces.readers.nsys.database import NsysDatabase, Ranges

_COMMUNICATOR, _SIZE, _RANKS = "NCCL communicator ID", "Message size [bytes]", "No. of ranks"
_LARGEST_BYTES = 1 << 50
_MOST_RANKS = 10_000_000
_LONGEST_NUMBER = 30
_MOST_FIELDS = 10_000

# A binary payload begins with a count, the number of its schema at byte 8 and its size at byte 16.
_HEADER = struct.Struct("<8xQQ8x")
# NVTX's numbers for types of C on Linux of 64 bits: int, unsigned, long, ..., size_t.
_FORMS = {5: "<i", 6: "<I", 7: "<q", 8: "<Q", 9: "<q", 10: "<Q", 15: "<i", 16: "<I", 17: "<q"}
_FORMS |= {18: "<Q", 22: "<Q"}

_Schemas: TypeAlias = Mapping[int, Mapping[str, tuple[struct.Struct, int]]]


@dataclass(frozen=True, slots=True)
class Payload:
    """What a range states: a communicator (empty: none), bytes and ranks (0: unknown)."""

    communicator: str = ""
    message_bytes: int = 0
    rank_count: int = 0


_NOTHING = Payload()


def payloads_of(database: NsysDatabase, ranges: Ranges, rows: NDArray[np.int64]) -> list[Payload]:
    """The payloads of these ranges; one that says nothing where there is none or it is damaged."""
    ids, numbers = ranges.payload[rows], ranges.row[rows].tolist()
    shared = database.labels(ids, "")
    written = database.values(str, "NVTX_EVENTS", "jsonText", ranges.row[rows[ids < 0]].tolist())
    binary = database.values(bytes, "NVTX_EVENTS", "binaryData", numbers)
    schemas = _schemas(database) if binary else {}
    return [
        _decoded(written.get(number) or shared.texts[label])
        or _unpacked(binary.get(number, b""), schemas)
        or _NOTHING
        for number, label in zip(numbers, shared.index.tolist(), strict=True)
    ]


def _decoded(text: str) -> Payload | None:
    try:
        return _payload(msgspec.json.decode(text, type=dict[str, object]))
    except (msgspec.DecodeError, RecursionError):
        return None


def _unpacked(content: bytes, schemas: _Schemas) -> Payload | None:
    if len(content) <= _HEADER.size:
        return None
    schema, size = _HEADER.unpack_from(content)
    body = content[_HEADER.size : _HEADER.size + size]
    stated = {
        name: form.unpack_from(body, offset)[0]
        for name, (form, offset) in schemas.get(schema, {}).items()
        if offset + form.size <= len(body)
    }
    return _payload(stated)


def _schemas(database: NsysDatabase) -> _Schemas:
    """Where in a payload each of its numbers lies, by the number of its schema."""
    table = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    columns = database.integers(table, {"rowid": -1, "schemaId": -1, "type": -1, "offset": 0})
    fields = np.stack(list(columns.values()), axis=1)[:_MOST_FIELDS].tolist()
    names = database.values(str, table, "name", [field[0] for field in fields])
    schemas: dict[int, dict[str, tuple[struct.Struct, int]]] = {}
    for row, schema, kind, offset in fields:
        if kind in _FORMS and row in names and offset >= 0:
            schemas.setdefault(schema, {})[names[row]] = struct.Struct(_FORMS[kind]), offset
    return schemas


def _payload(stated: Mapping[str, object]) -> Payload:
    name = stated.get(_COMMUNICATOR)
    return Payload(
        str(name)[:_LONGEST_NUMBER] if isinstance(name, str | int | float) else "",
        _number(stated.get(_SIZE), _LARGEST_BYTES),
        _number(stated.get(_RANKS), _MOST_RANKS),
    )


def _number(stated: object, largest: int) -> int:
    """A count or size, however it is written; 0 where it is none."""
    if isinstance(stated, str):
        digits = stated.replace(",", "")
        stated = int(digits) if digits.isdecimal() and len(digits) < _LONGEST_NUMBER else 0
    return stated if isinstance(stated, int) and 0 < stated <= largest else 0


_TRANSFERS = {CollectiveKind.SEND, CollectiveKind.RECV}
# Of these NCCL states the part of one rank; the whole buffer is that of all ranks.
_STATED_BY_PART = {
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.GATHER,
    CollectiveKind.SCATTER,
}
_GROUP_END, _INIT, _TORCH = "ncclGroupEnd", "ncclCommInit", "nccl:"
_DEPTH = {"ncclGroupStart": 1, _GROUP_END: -1}


class _Range(NamedTuple):
    thread: int
    start_ns: int
    end_ns: int
    text: str
    payload: Payload


@dataclass(frozen=True, slots=True)
class NcclOperation:
    """What one kernel did, as far as NCCL was asked for it; `bytes` is S, 0: unknown."""

    kind: CollectiveKind
    group: RankGroup
    bytes: int


@dataclass(frozen=True, slots=True)
class _Call:
    """When NCCL may launch something on a thread, and all that it was asked for till then.

    `meant` is what torch says that it calls NCCL for.
    """

    start_ns: int
    end_ns: int
    asked: list[NcclOperation]
    meant: CollectiveKind


@dataclass(frozen=True, slots=True)
class NcclCalls:
    """Calls of NCCL by thread, in order of start, none within another."""

    by_thread: dict[int, list[_Call]] = field(default_factory=dict)

    def operations(
        self, threads: Sequence[int], launched_ns: Sequence[int]
    ) -> list[NcclOperation | None]:
        """What each launch did; None where NCCL stated nothing or several kernels share a call."""
        calls = [
            self._call(thread, time_ns)
            for thread, time_ns in zip(threads, launched_ns, strict=True)
        ]
        launch_counts = Counter(id(call) for call in calls)
        return [
            _together(call) if call and launch_counts[id(call)] == 1 else None for call in calls
        ]

    def _call(self, thread: int, time_ns: int) -> _Call | None:
        calls = self.by_thread.get(thread, [])
        index = bisect_right(calls, time_ns, key=lambda call: call.start_ns) - 1
        return calls[index] if index >= 0 and time_ns < calls[index].end_ns else None


def nccl_calls(database: NsysDatabase, ranges: Ranges) -> NcclCalls:
    """Every call of NCCL that may launch something: a single one, or the end of a group."""
    texts = ranges.labels.texts
    known = np.array([text.startswith("nccl") for text in texts], bool)
    rows = np.flatnonzero(known[ranges.labels.index]) if known.any() else np.empty(0, np.int64)
    payloads = payloads_of(database, ranges, rows)
    stated = [
        _Range(thread, start_ns, end_ns, texts[label], payload)
        for thread, start_ns, end_ns, label, payload in zip(
            ranges.thread[rows].tolist(),
            ranges.start_ns[rows].tolist(),
            ranges.end_ns[rows].tolist(),
            ranges.labels.index[rows].tolist(),
            payloads,
            strict=True,
        )
    ]
    sizes = {
        range_.payload.communicator: range_.payload.rank_count
        for range_ in stated
        if range_.text.startswith(_INIT)
    }
    by_thread: dict[int, list[_Range]] = {}
    for range_ in stated:
        by_thread.setdefault(range_.thread, []).append(range_)
    return NcclCalls({thread: list(_calls(own, sizes)) for thread, own in by_thread.items()})


def _calls(ranges: Sequence[_Range], sizes: Mapping[str, int]) -> Iterator[_Call]:
    """The calls of one thread from its ranges in order of start."""
    depth, reach_ns = 0, 0
    meant, meant_till_ns = CollectiveKind.OTHER, 0
    asked: list[NcclOperation] = []
    for range_ in ranges:
        kind = CollectiveKind.OTHER
        if range_.text.startswith(_TORCH):
            meant = collective_kind(range_.text.removeprefix(_TORCH).partition(",")[0])
            meant_till_ns = range_.end_ns
        elif kind := collective_kind(range_.text):
            asked.append(_operation(range_, kind, sizes))
        depth = max(depth + _DEPTH.get(range_.text, 0), 0)
        launches = range_.text == _GROUP_END or kind
        if launches and not depth and range_.start_ns >= reach_ns:
            known = meant if range_.start_ns < meant_till_ns else CollectiveKind.OTHER
            yield _Call(range_.start_ns, range_.end_ns, asked, known)
            asked, reach_ns = [], range_.end_ns


def _operation(range_: _Range, kind: CollectiveKind, sizes: Mapping[str, int]) -> NcclOperation:
    name = range_.payload.communicator
    size = sizes.get(name, 0)
    part_count = size if kind in _STATED_BY_PART else 1
    whole_bytes = min(range_.payload.message_bytes * part_count, _LARGEST_BYTES)
    return NcclOperation(kind, RankGroup(name, size=size or None), whole_bytes)


def _together(call: _Call) -> NcclOperation | None:
    """What the one kernel of a call does: one kind of operation in one group."""
    kinds = {operation.kind for operation in call.asked}
    groups = {operation.group for operation in call.asked}
    if len(groups) != 1 or not (len(kinds) == 1 or kinds == _TRANSFERS):
        return None
    sizes = [operation.bytes for operation in call.asked]
    total_bytes = sum(sizes) if all(sizes) else 0
    [group] = groups
    if kinds != _TRANSFERS:
        return NcclOperation(min(kinds), group, min(total_bytes, _LARGEST_BYTES))
    # Each message is sent and received, and where all send to all, also from a rank to itself.
    everyone = group.size is not None and len(sizes) == 2 * group.size > 2
    kind = CollectiveKind.ALL_TO_ALL if everyone else call.meant or CollectiveKind.SEND_RECV
    return NcclOperation(kind, group, min(total_bytes // 2, _LARGEST_BYTES))
