"""Reads a file of unknown size and origin into memory, or refuses it: plain or gzip, bounded."""

import gzip
import io
import zlib
from dataclasses import dataclass
from pathlib import Path

from evaluator.traces import TraceError

_GZIP_MAGIC = b"\x1f\x8b"
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """What one trace file may cost: bytes on disk, bytes after decompression, events."""

    file_bytes: int = 2 << 30
    decompressed_bytes: int = 2 << 30
    event_count: int = 20_000_000


STANDARD_LIMITS = ReadLimits()


def read_bytes(path: Path, limits: ReadLimits) -> bytearray:
    """The content of a regular file, decompressed when it is gzip, whatever its name says.

    Raises TraceError when the file cannot be read, is damaged or passes a limit.
    """
    if not path.is_file():
        raise TraceError(path, "is no regular file")
    try:
        with path.open("rb") as file:
            if path.stat().st_size > limits.file_bytes:
                raise TraceError(path, f"holds more than {limits.file_bytes} bytes on disk")
            if file.peek(2)[:2] != _GZIP_MAGIC:
                return _read_up_to(path, file, limits.file_bytes, "on disk")
            with gzip.open(file) as unpacked:
                return _read_up_to(path, unpacked, limits.decompressed_bytes, "decompressed")
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(path, f"cannot be read: {error}") from error


def _read_up_to(path: Path, file: io.BufferedIOBase, limit: int, where: str) -> bytearray:
    content = bytearray()
    while piece := file.read(_PIECE_BYTES):
        content += piece
        if len(content) > limit:
            raise TraceError(path, f"holds more than {limit} bytes {where}")
    return content
