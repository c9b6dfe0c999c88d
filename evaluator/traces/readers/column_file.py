"""Traces as columns in a file: a line of JSON, then the bytes of the arrays.

The line holds everything but the arrays, whose bytes follow in the order of the model's fields. The
file is never trusted: what is read back must have the types that the model declares and the
checksum that was written, and every index must be in range.
"""

import os
from collections.abc import Sequence
from functools import reduce
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import Self, TypeAlias, get_args

import msgspec
import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from evaluator.traces.model import Activity, CollectiveKind, RankTrace, StepKind

Column: TypeAlias = NDArray[np.generic]

_LATEST_NS = 1 << 62


class FileIdentity(msgspec.Struct, frozen=True):
    """What a file system says of a file without reading it; it changes with the content."""

    size: int
    inode: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """Raises OSError."""
        stated = path.stat()
        return cls(stated.st_size, stated.st_ino, stated.st_mtime_ns, stated.st_ctime_ns)


class CacheLabel(msgspec.Struct):
    """What a cache is of."""

    version: str
    only_rank: int | None
    identity: FileIdentity
    digest: str


class CacheHeader(msgspec.Struct):
    """The first line: what the traces are of, and each with lengths for arrays."""

    label: CacheLabel | None
    checksum: int
    traces: list[msgspec.Raw]


def write_columns(
    file: BufferedIOBase, traces: Sequence[RankTrace], label: CacheLabel | None = None
) -> None:
    """Write traces, and what they are of."""
    columns: list[NDArray[np.uint8]] = []

    def put(column: object) -> int:
        assert isinstance(column, np.ndarray)  # all else is known to JSON
        columns.append(np.ascontiguousarray(column).view(np.uint8))
        return column.size

    described = [msgspec.json.encode(trace, enc_hook=put) for trace in traces]
    checksum = _checksum([*described, *(column.data for column in columns)])
    header = CacheHeader(label, checksum, [msgspec.Raw(text) for text in described])
    file.write(msgspec.json.encode(header) + b"\n")
    file.writelines(column.data for column in columns)


def read_header(file: BufferedIOBase) -> CacheHeader:
    """Read the first line. Raises OSError, ValueError."""
    return msgspec.json.decode(file.readline(), type=CacheHeader)


def read_columns(file: BufferedIOBase, header: CacheHeader) -> tuple[RankTrace, ...]:
    """Read what follows the header. Raises OSError, ValueError when it is not what was written."""
    size = file.getbuffer().nbytes if isinstance(file, BytesIO) else os.fstat(file.fileno()).st_size
    left = size - file.tell()
    checksum = _checksum(header.traces)

    def take(kind: type, length: object) -> Column:
        nonlocal left, checksum
        dtype = np.dtype(get_args(get_args(kind)[1])[0])
        byte_count = dtype.itemsize * msgspec.convert(length, int)
        if not 0 <= byte_count <= left:
            raise ValueError("columns are missing")
        column = np.empty(byte_count, np.uint8)
        if file.readinto(column.data) != byte_count:
            raise ValueError("columns are missing")
        left -= byte_count
        checksum = isal_zlib.crc32(column.data, checksum)
        return column.view(dtype)

    decoder = msgspec.json.Decoder(RankTrace, dec_hook=take)
    traces = [decoder.decode(described) for described in header.traces]
    if not traces or left or checksum != header.checksum:
        raise ValueError("columns are damaged")
    for trace in traces:
        _check(trace)
    return tuple(traces)


def _checksum(parts: Sequence[bytes | msgspec.Raw | memoryview]) -> int:
    return reduce(lambda checksum, part: isal_zlib.crc32(part, checksum), parts, 0)


def _check(trace: RankTrace) -> None:
    """Raise ValueError for what no reader makes and the model itself does not look at."""
    spans, collectives = trace.spans, trace.collectives
    waiting = (trace.waits.source, trace.waits.target) if trace.waits else ()
    indexes: tuple[tuple[NDArray[np.integer], int], ...] = (
        (spans.name_id, len(spans.names)),
        (spans.lane_id, len(spans.lanes)),
        (spans.scope_id, len(spans.scopes)),
        (spans.activity, len(Activity)),
        (collectives.span, spans.count),
        (collectives.kind, len(CollectiveKind)),
        (collectives.group_id, len(collectives.groups)),
        *((rows, spans.count) for rows in waiting),
        (trace.steps.kind, len(StepKind)),
        (trace.host_steps.kind, len(StepKind)),
        (np.array([trace.rank]), _LATEST_NS if trace.world_size is None else trace.world_size),
    )
    if any(np.any((index < 0) | (index >= count)) for index, count in indexes):
        raise ValueError("an index is out of range")
    windows = (spans, trace.steps, trace.host_steps)
    times = [*(each.start_ns for each in windows), *(each.end_ns for each in windows)]
    times += [trace.memory.time_ns] if trace.memory else []
    if any(np.any((time < -_LATEST_NS) | (time > _LATEST_NS)) for time in times):
        raise ValueError("a time is out of range")
