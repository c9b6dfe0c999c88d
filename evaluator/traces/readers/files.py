"""Read a file of unknown size and origin in pieces, plain, gzip or zstd, or refuse it."""

import os
import re
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import zstandard
from isal import igzip, igzip_lib

from records import files
from records.errors import TraceError

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")  # or a frame to skip
# A zstd block of 4 bytes may unfold to 128 KiB and the decoder gives all that its input holds, so
# this little input bounds what one call gives to 32 MiB.
_ZSTD_INPUT_BYTES = 1 << 10
_RATIO_COUNTS_FROM_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """What one trace file may cost: bytes on disk, bytes after decompression, events.

    An archive that has unfolded to more than 64 MiB may not have grown more than `ratio`-fold.
    """

    file_bytes: int = 2 << 30
    decompressed_bytes: int = 2 << 30
    event_count: int = 20_000_000
    ratio: int = 250


STANDARD_LIMITS = ReadLimits()
"""For what the job of a trial wrote, and for files that no user chose to read."""

LARGE_LIMITS = ReadLimits(
    file_bytes=64 << 30, decompressed_bytes=256 << 30, event_count=200_000_000
)
"""For files that a user asked to be read: as large as profilers write them."""


def pieces(path: Path, limits: ReadLimits, size: int = 8 << 20) -> Generator[bytes, None, None]:
    """What a regular file holds, decompressed, in pieces of about `size` bytes, none empty.

    gzip and zstd are recognised by how the file begins, whatever its name. Raises TraceError when
    it cannot be read, is truncated or damaged, passes a limit, or changes meanwhile.
    """
    try:
        with open_regular(path) as file:
            before = os.fstat(file.fileno())
            if before.st_size > limits.file_bytes:
                raise TraceError(path, f"holds more than {limits.file_bytes} bytes on disk")
            yield from _bounded(path, file, limits, size)
            after = os.fstat(file.fileno())
    except FileNotFoundError as error:
        raise TraceError(path, "is not a regular file: no file has this name") from error
    except EOFError as error:
        raise TraceError(path, "cannot be read: the archive is truncated") from error
    except (  # type: ignore[misc]  # a stub calls the class of igzip_lib an instance
        OSError,
        zlib.error,
        igzip_lib.error,
        zstandard.ZstdError,
    ) as error:
        raise TraceError(path, f"cannot be read: {error}") from error
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise TraceError(path, "changed while it was read; wait until the profiler has written it")


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file, without waiting for a process that writes into a pipe of that name.

    Raises OSError, and TraceError when it is not a regular file.
    """
    try:
        return files.open_regular(path)
    except files.NotRegularError as error:
        raise TraceError(path, "is not a regular file") from error


def read_bytes(path: Path, limits: ReadLimits) -> bytearray:
    """The whole content of a small regular file, decompressed. Raises TraceError as `pieces`."""
    content = bytearray()
    for piece in pieces(path, limits, 1 << 20):
        content += piece
    return content


def _bounded(path: Path, file: BufferedReader, limits: ReadLimits, size: int) -> Iterator[bytes]:
    magic, unpack = file.peek(4)[:4], _plain
    limit, where = limits.file_bytes, "on disk"
    if magic.startswith(_GZIP_MAGIC) or _ZSTD_MAGIC.match(magic):
        unpack = _gzip if magic.startswith(_GZIP_MAGIC) else _zstd
        limit, where = limits.decompressed_bytes, "decompressed"
    total = 0
    # A reader that stops early must not leave the file to the collector.
    with closing(unpack(file, size)) as unpacked:
        for piece in unpacked:
            total += len(piece)
            if total > limit:
                raise TraceError(path, f"holds more than {limit} bytes {where}")
            if total > max(_RATIO_COUNTS_FROM_BYTES, limits.ratio * file.tell()):
                raise TraceError(
                    path, f"unfolds more than {limits.ratio}-fold: no trace does, a gzip bomb would"
                )
            yield piece


def _plain(file: BufferedReader, size: int) -> Generator[bytes, None, None]:
    while piece := file.read(size):
        yield piece


def _gzip(file: BufferedReader, size: int) -> Generator[bytes, None, None]:
    with igzip.open(file) as unpacked:  # type: ignore[no-untyped-call]  # has no annotations
        while piece := unpacked.read(size):
            yield piece


def _zstd(file: BufferedReader, size: int) -> Generator[bytes, None, None]:
    """Frame by frame, because only an object of one frame shows whether the frame is whole."""
    frame = zstandard.ZstdDecompressor().decompressobj()
    gathered, gathered_bytes = list[bytes](), 0
    rest = b""
    while packed := rest or file.read(_ZSTD_INPUT_BYTES):
        if frame.eof:
            frame = zstandard.ZstdDecompressor().decompressobj()
        piece = frame.decompress(packed)
        rest = frame.unused_data
        gathered.append(piece)
        gathered_bytes += len(piece)
        if gathered_bytes >= size:
            yield b"".join(gathered)
            gathered, gathered_bytes = [], 0
    if not frame.eof:
        raise EOFError
    if gathered_bytes:
        yield b"".join(gathered)
