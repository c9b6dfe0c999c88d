"""Read the nodes of one Chakra execution trace: what a rank does, and what waits for what.

Schema 0.0.4 of mlcommons/chakra, `et_def.proto`: messages behind their length, first the metadata
of the file, then nodes. Of it the fields below are read.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from evaluator.traces.model import CollectiveKind, RankGroup
from evaluator.traces.readers.files import ReadLimits, read_bytes
from evaluator.traces.readers.protobuf import (
    BYTES,
    NUMBER,
    DamagedMessageError,
    fields,
    fields_of_many,
    packed_numbers,
    varint,
)
from records.errors import TraceError

ABSENT: Final = -1
GROUPS_NODE: Final = "## process_group:init ##"
"""The metadata node that lists process groups: JSON, with two more characters on either side."""
COLLECTIVES: Final[Mapping[int, CollectiveKind]] = {
    0: CollectiveKind.ALL_REDUCE,
    1: CollectiveKind.REDUCE,
    2: CollectiveKind.ALL_GATHER,
    3: CollectiveKind.GATHER,
    4: CollectiveKind.SCATTER,
    5: CollectiveKind.BROADCAST,
    6: CollectiveKind.ALL_TO_ALL,
    7: CollectiveKind.REDUCE_SCATTER,
    8: CollectiveKind.REDUCE_SCATTER,
    9: CollectiveKind.BARRIER,
}
"""What each `comm_type` does."""
BY_SHARD: Final = (CollectiveKind.ALL_GATHER, CollectiveKind.GATHER)
"""Kinds whose `comm_size` is what a rank puts in, not the whole buffer."""
_NUMBERS: Final = (
    *("is_cpu_op", "tid", "stream"),
    *("comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag"),
    *("start_ns", "end_ns", "step", "sequence"),  # of our own files
)
_TEXTS: Final = ("pg_name", "activity")

_BLOCK_NODES: Final = 1 << 13
_BLOCK_BYTES: Final = 4 << 20
_LONGEST_US: Final = 1 << 42
_MOST_RANKS: Final = 1 << 24

# Keys of fields: number * 8 + how the value is written.
_ID: Final = 1 << 3 | NUMBER
_NAME: Final = 2 << 3 | BYTES
_TYPE: Final = 3 << 3 | NUMBER
_CONTROL: Final = 4
_DATA: Final = 5
_DURATION_US: Final = 7 << 3 | NUMBER
_INPUTS: Final = 8 << 3 | BYTES
_ATTRIBUTE: Final = 10 << 3 | BYTES
_FILE_ATTRIBUTE: Final = 2 << 3 | BYTES
_FIRST: Final = 1 << 3 | BYTES  # the name of an attribute, or the values of inputs
_WHOLE: Final = tuple(field << 3 | NUMBER for field in (7, 9, 11, 13, 27))
_TEXT: Final = 29 << 3 | BYTES

# The metadata of the file: a version, or first an attribute by its name.
_BEGINNING = re.compile(
    rb"[\x80-\xff]{0,4}[\0-\x7f]"
    rb"(?:\x0a[\x03-\x08]\d+\.\d|\x12[\x80-\xff]{0,4}[\0-\x7f]\x0a[\x01-\x7f]\w)"
)

Columns: TypeAlias = dict[str, NDArray[np.int64]]


class NodeType(IntEnum):
    """The types of nodes that are understood."""

    METADATA = 1
    LOAD = 2
    STORE = 3
    COMPUTE = 4
    SEND = 5
    RECEIVE = 6
    COLLECTIVE = 7


class _Group(msgspec.Struct):
    pg_name: str
    ranks: list[int] = []
    pg_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Nodes:
    """The nodes of a rank, in the order of its file.

    `columns` are int64 of shape (nodes,): `id`, `type`, `duration_us`, `name` (indexes `names`),
    attributes by their names, those that are text as indexes of `words`; -1: absent. `source` and
    `target` are places of nodes, of shape (dependencies,): the target waits for the source.
    """

    columns: Columns
    names: tuple[str, ...]
    words: tuple[str, ...]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    missing_count: int
    """Dependencies on nodes that are not in the file."""
    groups: Mapping[str, RankGroup]
    world_size: int | None
    device: str

    @property
    def count(self) -> int:
        """Number of nodes."""
        return self.columns["id"].size

    @property
    def on_device(self) -> NDArray[np.bool_]:
        """Which nodes are work of the device; those that do not say are."""
        of_host = self.columns["is_cpu_op"] > 0
        return np.not_equal(self.columns["type"], NodeType.METADATA) & ~of_host


def is_chakra(start: bytes) -> bool:
    """Whether a file that begins like this is a Chakra execution trace."""
    return _BEGINNING.match(start) is not None


def read_nodes(path: Path, limits: ReadLimits) -> Nodes:
    """The nodes of a file. Raises TraceError when it is damaged or passes a limit."""
    data = read_bytes(path, limits)
    try:
        return _File(path, data, limits.event_count).nodes()
    except (DamagedMessageError, IndexError) as error:
        raise TraceError(path, "is a damaged or truncated Chakra trace") from error


class _File:
    """A file, block by block."""

    def __init__(self, path: Path, data: bytearray, most: int) -> None:
        self._path, self._data, self._left, self._most = path, data, most, most
        self._bytes = np.frombuffer(data, np.uint8)
        self._names: dict[bytes, int] = {}
        self._words: dict[bytes, int] = {}
        self._groups: dict[str, RankGroup] = {}

    def nodes(self) -> Nodes:
        """All nodes, with what waits for what."""
        (first, last), *rest = self._messages()
        about = dict(
            self._attribute(at, end)
            for key, at, end in fields(self._data, first, last)
            if key == _FILE_ATTRIBUTE
        )
        bounds = np.array(rest, np.int64).reshape(-1, 2)
        blocks = [self._block(*block.T) for block in _blocks(bounds)]
        if not blocks:
            raise TraceError(self._path, "is a Chakra trace without nodes")
        columns = {
            name: np.concatenate([block[name] for block, _ in blocks]) for name in blocks[0][0]
        }
        base = np.cumsum([0, *(block["id"].size for block, _ in blocks)])
        waits = {
            which: np.concatenate(
                [own[which] + [[at], [0]] for (_, own), at in zip(blocks, base, strict=False)],
                axis=1,
            )
            for which in (_CONTROL, _DATA)
        }
        # As simulators do: converters make the operator around a node its control dependency.
        target, ids = waits[_DATA] if waits[_DATA].size else waits[_CONTROL]
        source = self._places(columns["id"], ids)
        known = source >= 0
        size, _ = about.get(b"world_size", (0, b""))
        _, device = about.get(b"device", (0, b""))
        return Nodes(
            columns=columns,
            names=tuple(name.decode(errors="replace") for name in self._names),
            words=tuple(word.decode(errors="replace") for word in self._words),
            source=source[known],
            target=target[known],
            missing_count=int(np.count_nonzero(~known)),
            groups=self._groups,
            world_size=size if 0 < size <= _MOST_RANKS else None,
            device=device.decode(errors="replace"),
        )

    def _messages(self) -> list[tuple[int, int]]:
        """Where the messages of the file begin and end."""
        found, at = list[tuple[int, int]](), 0
        while at < len(self._data):
            size, start = varint(self._data, at)
            at = start + size
            if at > len(self._data):
                raise DamagedMessageError
            found.append((start, at))
            self._count(1)
        return found

    def _count(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise TraceError(self._path, f"holds more than {self._most} nodes and dependencies")

    def _attribute(self, at: int, end: int) -> tuple[bytes, tuple[int, bytes]]:
        """The name of an attribute of the file, and its value as a number and as text."""
        name, number, text = b"", 0, b""
        for key, start, behind in fields(self._data, at, end):
            if key == _FIRST:
                name = bytes(self._data[start:behind])
            elif key == _TEXT:
                text = bytes(self._data[start:behind])
            elif key in _WHOLE:
                number = start
        return name, (number, text)

    def _block(
        self, starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> tuple[Columns, dict[int, NDArray[np.int64]]]:
        """The columns of some nodes, and what they wait for, by the field that says so."""
        row, key, value, end = fields_of_many(self._bytes, starts, ends)

        def column(wanted: int, of: NDArray[np.int64]) -> NDArray[np.int64]:
            found = np.zeros(starts.size, np.int64)
            found[row[key == wanted]] = of[key == wanted]
            return found

        names = self._text_numbers(self._names, column(_NAME, value), column(_NAME, end))
        columns = {
            "id": column(_ID, value),
            "type": column(_TYPE, value),
            "duration_us": column(_DURATION_US, value),
            "name": names,
        }
        is_attribute = key == _ATTRIBUTE
        columns |= self._attribute_columns(
            starts.size, row[is_attribute], value[is_attribute], end[is_attribute]
        )
        self._check(columns)
        number = self._names.get(GROUPS_NODE.encode())
        for node in np.flatnonzero(names == number).tolist() if number is not None else ():
            self._read_groups(int(column(_INPUTS, value)[node]), int(column(_INPUTS, end)[node]))
        waits = {which: self._waits(which, row, key, value, end) for which in (_CONTROL, _DATA)}
        return columns, waits

    def _waits(
        self,
        which: int,
        row: NDArray[np.int64],
        key: NDArray[np.int64],
        value: NDArray[np.int64],
        end: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """The nodes that wait and the ids that they wait for, shape (2, dependencies)."""
        packed, single = key == (which << 3 | BYTES), key == (which << 3 | NUMBER)
        owner, ids = packed_numbers(self._bytes, value[packed], end[packed])
        nodes = np.concatenate((row[packed][owner], row[single]))
        self._count(nodes.size)
        return np.stack((nodes, np.concatenate((ids, value[single]))))

    def _attribute_columns(
        self, count: int, node: NDArray[np.int64], at: NDArray[np.int64], end: NDArray[np.int64]
    ) -> Columns:
        """A column of each attribute that is read; `node` is whose each attribute is."""
        owner, key, value, behind = fields_of_many(self._bytes, at, end)
        name, content = np.zeros((2, at.size), np.int64), np.zeros((3, at.size), np.int64)
        is_name = key == _FIRST
        name[:, owner[is_name]] = value[is_name], behind[is_name]
        is_value = key >= 3 << 3
        content[:, owner[is_value]] = key[is_value], value[is_value], behind[is_value]
        columns = {}
        for wanted in (*_NUMBERS, *_TEXTS):
            rows = self._called(wanted.encode(), *name)
            kinds, values, ends = content[:, rows]
            if not np.all(np.isin(kinds, _WHOLE if wanted in _NUMBERS else (_TEXT,))):
                what = "a whole number" if wanted in _NUMBERS else "text"
                raise TraceError(self._path, f"has an attribute {wanted} that is not {what}")
            column = np.full(count, ABSENT)
            column[node[rows]] = (
                values if wanted in _NUMBERS else self._text_numbers(self._words, values, ends)
            )
            columns[wanted] = column
        return columns

    def _called(
        self, name: bytes, at: NDArray[np.int64], end: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Which of these texts are this name."""
        rows = np.flatnonzero(end - at == len(name))
        text = self._bytes[at[rows, None] + np.arange(len(name))]
        return rows[np.all(text == np.frombuffer(name, np.uint8), axis=1)]

    def _text_numbers(
        self, known: dict[bytes, int], at: NDArray[np.int64], end: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The number of each of these texts among the known ones, which they join."""
        texts = (bytes(self._data[a:b]) for a, b in zip(at.tolist(), end.tolist(), strict=True))
        return np.array([known.setdefault(text, len(known)) for text in texts], np.int64)

    def _check(self, columns: Columns) -> None:
        """Refuse what is not understood, or would not fit."""
        other = columns["type"][~np.isin(columns["type"], list(NodeType))]
        if other.size:
            raise TraceError(
                self._path, f"holds a node of type {other[0]}, which is not understood"
            )
        kind = columns["comm_type"]
        other = kind[(kind != ABSENT) & ~np.isin(kind, list(COLLECTIVES))]
        if other.size:
            raise TraceError(self._path, f"holds a comm_type {other[0]}, which is not understood")
        took_us = columns["duration_us"]
        if np.any((took_us < 0) | (took_us > _LONGEST_US)):
            raise TraceError(self._path, "holds a node that lasts for months")

    def _read_groups(self, at: int, end: int) -> None:
        for key, start, behind in fields(self._data, at, end):
            if key != _FIRST:
                continue
            try:
                groups = msgspec.json.decode(self._data[start + 2 : behind - 2], type=list[_Group])
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise TraceError(self._path, f"has unreadable process groups: {error}") from error
            for group in groups:
                ranks = tuple(sorted(set(group.ranks)))
                if ranks and not 0 <= ranks[0] <= ranks[-1] < _MOST_RANKS:
                    raise TraceError(self._path, f"has a group of rank {ranks[-1]}")
                self._groups[group.pg_name] = RankGroup(
                    group.pg_name, ranks or None, len(ranks) or group.pg_size
                )

    def _places(self, ids: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
        """The places of nodes with these ids; -1: there is none."""
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if twice.size:
            raise TraceError(self._path, f"holds two nodes with the id {twice[0]}")
        place = np.minimum(np.searchsorted(ordered, wanted), ids.size - 1)
        return np.where(ordered[place] == wanted, order[place], ABSENT)


def _blocks(bounds: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Parts of the messages that are decoded together: few and small enough for their columns."""
    if not bounds.size:
        return []
    part = np.arange(len(bounds)) // _BLOCK_NODES
    piece = bounds[:, 1] // _BLOCK_BYTES
    cuts = np.flatnonzero((np.diff(part) != 0) | (np.diff(piece) != 0)) + 1
    return np.split(bounds, cuts)
