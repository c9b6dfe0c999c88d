"""What NCCL attaches to its NVTX ranges, sizes and communicators, as JSON or as in memory."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from evaluator.readers.nsys.database import Database
from evaluator.readers.nsys.host import Ranges
from evaluator.readers.nsys.rows import Tables

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

_Told: TypeAlias = int | float | str | None
_Schemas: TypeAlias = Mapping[int, Mapping[str, tuple[struct.Struct, int]]]


@dataclass(frozen=True, slots=True)
class Payload:
    """What a range tells: a communicator (empty: none), bytes and ranks (0: not told)."""

    communicator: str = ""
    message_bytes: int = 0
    rank_count: int = 0


class _Written(msgspec.Struct):
    communicator: _Told = msgspec.field(default=None, name=_COMMUNICATOR)
    message_bytes: _Told = msgspec.field(default=None, name=_SIZE)
    rank_count: _Told = msgspec.field(default=None, name=_RANKS)


_NOTHING = Payload()


def payloads_of(tables: Tables, ranges: Ranges, rows: NDArray[np.int64]) -> list[Payload]:
    """The payloads of these ranges; one that says nothing where there is none or it is damaged."""
    database = tables.database
    ids, numbers = ranges.payload[rows], ranges.row[rows].tolist()
    shared = tables.labels(ids, "")
    written = database.texts("NVTX_EVENTS", "jsonText", ranges.row[rows[ids < 0]].tolist())
    binary = database.blobs("NVTX_EVENTS", "binaryData", numbers)
    schemas = _schemas(database) if binary else {}
    return [
        _decoded(written.get(number) or shared.texts[label])
        or _unpacked(binary.get(number, b""), schemas)
        or _NOTHING
        for number, label in zip(numbers, shared.index.tolist(), strict=True)
    ]


def _decoded(text: str) -> Payload | None:
    if not text:
        return None
    try:
        written = msgspec.json.decode(text, type=_Written)
    except (msgspec.DecodeError, RecursionError):
        return None
    return _payload(written.communicator, written.message_bytes, written.rank_count)


def _unpacked(content: bytes, schemas: _Schemas) -> Payload | None:
    if len(content) <= _HEADER.size:
        return None
    schema, size = _HEADER.unpack_from(content)
    body = content[_HEADER.size : _HEADER.size + size]
    told = {
        name: form.unpack_from(body, offset)[0]
        for name, (form, offset) in schemas.get(schema, {}).items()
        if offset + form.size <= len(body)
    }
    return _payload(told.get(_COMMUNICATOR), told.get(_SIZE), told.get(_RANKS))


def _schemas(database: Database) -> _Schemas:
    """Where in a payload each of its numbers lies, by the number of its schema."""
    table = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    columns = database.integers(table, {"rowid": -1, "schemaId": -1, "type": -1, "offset": 0})
    fields = np.stack(list(columns.values()), axis=1)[:_MOST_FIELDS].tolist()
    names = database.texts(table, "name", [field[0] for field in fields])
    schemas: dict[int, dict[str, tuple[struct.Struct, int]]] = {}
    for row, schema, kind, offset in fields:
        if kind in _FORMS and row in names and offset >= 0:
            schemas.setdefault(schema, {})[names[row]] = struct.Struct(_FORMS[kind]), offset
    return schemas


def _payload(communicator: _Told, message_bytes: _Told, rank_count: _Told) -> Payload:
    return Payload(
        "" if communicator is None else str(communicator)[:_LONGEST_NUMBER],
        _number(message_bytes, _LARGEST_BYTES),
        _number(rank_count, _MOST_RANKS),
    )


def _number(told: _Told, largest: int) -> int:
    """A count or size, however it is written; 0 where it is none."""
    if isinstance(told, str):
        digits = told.replace(",", "")
        told = int(digits) if digits.isdecimal() and len(digits) < _LONGEST_NUMBER else 0
    return told if isinstance(told, int) and 0 < told <= largest else 0
