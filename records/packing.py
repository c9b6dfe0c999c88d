"""Content on its way into and out of the artifact folder: compressed, and known by its digest."""

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import zstandard

from records.errors import StoreError

# On traces of every profiler that we have, level 1 packs better than level 3, and twice as fast.
_LEVEL = 1
_PIECE_BYTES = 1 << 20
_LEAST_THREADED_BYTES = 8 << 20
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True)
class Copied:
    """What was read of a source: the digest of its content and its size."""

    digest: str
    size_bytes: int


class _Source(Protocol):
    def readinto(self, buffer: memoryview, /) -> int | None: ...


def is_packed_already(source: BinaryIO) -> bool:
    """Whether a source begins as gzip or zstd do: packed twice, no reader would know it."""
    start = source.read(len(_ZSTD))
    source.seek(0)
    return start.startswith((_GZIP, _ZSTD))


def copy_plain(source: BinaryIO, out: BinaryIO) -> Copied:
    """Copy a source as it is."""
    digest, size_bytes = hashlib.sha256(), 0
    while piece := source.read(_PIECE_BYTES):
        digest.update(piece)
        size_bytes += len(piece)
        out.write(piece)
    return Copied(digest.hexdigest(), size_bytes)


def copy_packed(source: BinaryIO, out: BinaryIO, size_bytes: int) -> Copied:
    """Copy a source of about so many bytes as one frame of zstd.

    That of a large one is packed in a thread of its own while its digest is made in this one.
    """
    threads = 1 if size_bytes >= _LEAST_THREADED_BYTES else 0
    packer = zstandard.ZstdCompressor(level=_LEVEL, threads=threads)
    writer = packer.stream_writer(out, closefd=False)
    copied = copy_plain(source, writer)
    # Not left to a `with`: after an error it would write once more, to a disk that is full.
    writer.flush(zstandard.FLUSH_FRAME)
    return copied


def unpacked(file: BinaryIO) -> _Source:
    """What a file of zstd holds; whoever reads on gets `zstandard.ZstdError` if it is damaged."""
    return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True, closefd=False)


class Verified(io.RawIOBase):
    """What a stored file holds, which is refused at its end if it has another digest.

    More than `size_bytes` is refused as soon as it is read. Reading raises `StoreError`.
    """

    def __init__(self, source: _Source, path: Path, digest: str, size_bytes: int | None) -> None:
        super().__init__()
        self._source = source
        self._path = path
        self._digest = digest
        self._size_bytes = size_bytes
        self._read_bytes = 0
        self._so_far = hashlib.sha256()

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]  # of one type
        """Read the next piece; 0 at the end, where the digest is compared."""
        try:
            count = self._source.readinto(buffer) or 0
        except zstandard.ZstdError as error:
            raise self._changed() from error
        except OSError as error:
            raise StoreError(f"cannot read {self._path}: {error.strerror}") from error
        self._read_bytes += count
        self._so_far.update(buffer[:count])
        if self._size_bytes is not None and self._read_bytes > self._size_bytes:
            raise self._changed()
        if not count and self._so_far.hexdigest() != self._digest:
            raise self._changed()
        return count

    def _changed(self) -> StoreError:
        return StoreError(f"{self._path} was changed since it was recorded; restore what it was")
