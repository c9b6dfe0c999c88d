"""Rank traces as one file of plain columns: written and read as fast as the disk, never trusted.

A line of JSON holds everything but the arrays, whose bytes follow in the order of the model's
fields. What is read back has the types that the model declares and the checksum that was written,
and every number that indexes something does.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from io import BufferedReader, BufferedWriter
from types import NoneType
from typing import TypeAlias, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from evaluator.intervals import Nanoseconds
from evaluator.traces.collectives import CollectiveKind
from evaluator.traces.rank import RankTrace
from evaluator.traces.spans import Activity
from evaluator.traces.steps import StepKind

Column: TypeAlias = NDArray[np.generic]

_LATEST_NS = 1 << 62


class Header(msgspec.Struct):
    """The first line: `label` says what the traces are of, `traces` have lengths for arrays."""

    label: msgspec.Raw
    checksum: int
    traces: list[msgspec.Raw]


def write_columns(file: BufferedWriter, traces: Sequence[RankTrace], label: object = None) -> None:
    """Write traces, and what they are of as anything that JSON can hold."""
    columns: list[NDArray[np.uint8]] = []

    def put(array: object, dtype: np.dtype[np.generic]) -> int:
        column = np.ascontiguousarray(array, dtype)
        columns.append(column.view(np.uint8))
        return column.size

    described = [msgspec.json.encode(_described(RankTrace, trace, put)) for trace in traces]
    checksum = _checksum(described)
    for column in columns:
        checksum = isal_zlib.crc32(column.data, checksum)
    header = Header(
        label=msgspec.Raw(msgspec.json.encode(label)),
        checksum=checksum,
        traces=[msgspec.Raw(text) for text in described],
    )
    file.write(msgspec.json.encode(header) + b"\n")
    file.writelines(column.data for column in columns)


def read_header(file: BufferedReader) -> Header:
    """Read the first line. Raises OSError, ValueError."""
    return msgspec.json.decode(file.readline(), type=Header)


def read_columns(file: BufferedReader, header: Header) -> tuple[RankTrace, ...]:
    """Read what follows the header. Raises OSError, ValueError when it is not what was written."""
    left = os.fstat(file.fileno()).st_size - file.tell()
    checksum = _checksum(header.traces)

    def take(length: object, dtype: np.dtype[np.generic]) -> Column:
        nonlocal left, checksum
        byte_count = dtype.itemsize * msgspec.convert(length, int)
        if not 0 <= byte_count <= left:
            raise ValueError("columns are missing")
        column = np.empty(byte_count, np.uint8)
        if file.readinto(column.data) != byte_count:
            raise ValueError("columns are missing")
        left -= byte_count
        checksum = isal_zlib.crc32(column.data, checksum)
        return column.view(dtype)

    traces = []
    for described in header.traces:
        trace = _rebuilt(RankTrace, msgspec.json.decode(described), take)
        assert isinstance(trace, RankTrace)  # the type that was asked for
        traces.append(trace)
    if not traces or left or checksum != header.checksum:
        raise ValueError("columns are damaged")
    for trace in traces:
        _check(trace)
    return tuple(traces)


def _checksum(described: Sequence[bytes | msgspec.Raw]) -> int:
    checksum = 0
    for text in described:
        checksum = isal_zlib.crc32(text, checksum)
    return checksum


def _described(
    hint: object, value: object, put: Callable[[object, np.dtype[np.generic]], int]
) -> object:
    hint = _required(hint)
    if value is None:
        return None
    if dtype := _dtype(hint):
        return put(value, dtype)
    if members := _members(hint):
        return {
            name: _described(member, getattr(value, name), put) for name, member in members.items()
        }
    return value


def _rebuilt(
    hint: object, value: object, take: Callable[[object, np.dtype[np.generic]], Column]
) -> object:
    required = _required(hint)
    if dtype := _dtype(required):
        return take(value, dtype)
    members = _members(required)
    if not members or (value is None and required is not hint):
        return msgspec.convert(value, hint)
    if not isinstance(value, dict) or not isinstance(required, type):
        raise ValueError(f"{required} is no object")
    return required(
        **{name: _rebuilt(member, value.get(name), take) for name, member in members.items()}
    )


@cache
def _members(hint: object) -> Mapping[str, object]:
    """The fields of a dataclass that holds arrays, itself or in its members; else nothing."""
    if not (isinstance(hint, type) and is_dataclass(hint)):
        return {}
    members = get_type_hints(hint)
    holds = any(_dtype(_required(each)) or _members(_required(each)) for each in members.values())
    return members if holds else {}


def _required(hint: object) -> object:
    """The type of a value that may be None."""
    others = [each for each in get_args(hint) if each is not NoneType]
    return others[0] if NoneType in get_args(hint) else hint


@cache
def _dtype(hint: object) -> np.dtype[np.generic] | None:
    """The type of an array's items; None for what is no array."""
    if get_origin(hint) is not np.ndarray:
        return None
    _, of_items = get_args(hint)
    dtype: np.dtype[np.generic] = np.dtype(get_args(of_items)[0])
    return dtype


def _check(trace: RankTrace) -> None:
    """Raise ValueError for what no reader makes and the model itself does not look at."""
    spans, collectives = trace.spans, trace.collectives
    indexes = (
        (spans.name_id, len(spans.names)),
        (spans.lane_id, len(spans.lanes)),
        (spans.activity, len(Activity)),
        (collectives.span, spans.count),
        (collectives.kind, len(CollectiveKind)),
        (collectives.group_id, len(collectives.groups)),
        (trace.steps.kind, len(StepKind)),
        (trace.host_steps.kind, len(StepKind)),
        (np.array([trace.rank]), _LATEST_NS if trace.world_size is None else trace.world_size),
    )
    if any(np.any((index < 0) | (index >= count)) for index, count in indexes):
        raise ValueError("an index is out of range")
    for steps in (trace.steps, trace.host_steps):
        if not steps.number.size == steps.start_ns.size == steps.end_ns.size == steps.kind.size:
            raise ValueError("steps are not of one length")
    memory = trace.memory
    if memory is not None and memory.time_ns.size != memory.allocated_bytes.size:
        raise ValueError("memory is not of one length")
    if any(np.any((time < -_LATEST_NS) | (time > _LATEST_NS)) for time in _times(trace)):
        raise ValueError("a time is out of range")


def _times(trace: RankTrace) -> Iterator[Nanoseconds]:
    for spans in (trace.spans, trace.steps, trace.host_steps):
        yield from (spans.start_ns, spans.end_ns)
    if trace.memory is not None:
        yield trace.memory.time_ns
