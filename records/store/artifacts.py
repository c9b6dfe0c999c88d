"""Files of trials, each stored once under the SHA-256 of its content, and who refers to them.

A file that zstd makes smaller is stored as `DIGEST.zst`, any other as `DIGEST`; the digest is that
of the original content.
"""

import fcntl
import hashlib
import io
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import zstandard

from records.errors import StoreError
from records.store.database import Database, store_errors
from records.store.journal import FOLDER, SUFFIX, fsync_path
from records.trial import Artifact

# On traces of every profiler that we have, level 1 packs better than level 3, and twice as fast.
_LEVEL = 1
_PIECE_BYTES = 1 << 20
_LEAST_THREADED_BYTES = 8 << 20
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class _Source(Protocol):
    def readinto(self, buffer: memoryview, /) -> int | None: ...


def copy_plain(source: BinaryIO, out: BinaryIO) -> tuple[str, int]:
    """Copy a source as it is; return the digest of its content and its size."""
    digest, size_bytes = hashlib.sha256(), 0
    while piece := source.read(_PIECE_BYTES):
        digest.update(piece)
        size_bytes += len(piece)
        out.write(piece)
    return digest.hexdigest(), size_bytes


def copy_packed(source: BinaryIO, out: BinaryIO, size_bytes: int) -> tuple[str, int]:
    """Copy a source of about `size_bytes` as one frame of zstd, as `copy_plain` does.

    That of a large one is packed in a separate thread while its digest is computed in this one.
    """
    threads = 1 if size_bytes >= _LEAST_THREADED_BYTES else 0
    packer = zstandard.ZstdCompressor(level=_LEVEL, threads=threads)
    writer = packer.stream_writer(out, closefd=False)
    copied = copy_plain(source, writer)
    # Not left to a `with`: after an error it would write once more, to a disk that is full.
    writer.flush(zstandard.FLUSH_FRAME)
    return copied


def unpacked(file: BinaryIO) -> _Source:
    """What a file of zstd holds; reading raises `zstandard.ZstdError` if it is damaged."""
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


PACKED = ".zst"
_INCOMING = ".incoming-"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_IN_MEMORY_BYTES = 1 << 30
_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A stored file: how many bytes it takes and when it was last kept, in seconds since 1970."""

    digest: str
    path: Path
    disk_bytes: int
    kept_at_s: float


class Artifacts:
    """A folder of content-addressed files; a file appears whole or not at all.

    Any number of processes may store files in parallel. Removing a file excludes them for a
    moment, so that no process relies on a file that is then removed.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def keep(self, path: Path, name: str) -> Artifact:
        """Copy a file in and give its address; raises `StoreError` when that cannot be done."""
        try:
            source = path.open("rb")
        except OSError as error:
            raise StoreError(f"cannot keep {path}: {error.strerror}") from error
        with source:
            return self._keep(source, os.fstat(source.fileno()).st_size, name)

    def keep_all(self, names: Mapping[Path, str]) -> tuple[Artifact, ...]:
        """Keep files under the names that they are given, several at a time."""
        if not names:
            return ()
        with ThreadPoolExecutor(min(_AT_ONCE, len(names))) as threads:
            return tuple(threads.map(self.keep, names.keys(), names.values()))

    def keep_text(self, text: str, name: str) -> Artifact:
        """Keep a text as a file."""
        content = text.encode("utf-8", "surrogatepass")
        return self._keep(io.BytesIO(content), len(content), name)

    def path(self, digest: str) -> Path:
        """Where the file with this digest lies, as it lies there, or would; perhaps in zstd."""
        if not _DIGEST.fullmatch(digest):
            raise StoreError(
                f"{digest[:80]!r} is not the digest of a stored file; the record was changed"
            )
        plain, packed = self._paths(digest)
        return packed if _stat(packed) else plain

    def _paths(self, digest: str) -> tuple[Path, Path]:
        """Where a file lies as it is, and in zstd."""
        plain = self._root / digest[:2] / digest
        return plain, plain.with_name(f"{digest}{PACKED}")

    def size(self, digest: str) -> int | None:
        """How many bytes a file takes on disk; None where it is missing."""
        found = _stat(self.path(digest))
        return found.st_size if found else None

    def read(self, digest: str, size_bytes: int = _IN_MEMORY_BYTES) -> bytes:
        """A file's content; raises `StoreError` when it is missing or no longer what was kept.

        More than the recorded size, by default more than belongs in memory, is refused.
        """
        with self.open(digest, size_bytes) as source:
            return b"".join(_pieces(source))

    @contextmanager
    def open(self, digest: str, size_bytes: int | None = None) -> Iterator[BinaryIO]:
        """A file's content to read through; more than the recorded size is refused.

        Raises `StoreError` when it is missing; reading raises it at the end of a file, or before,
        that is no longer what was kept.
        """
        path = self.path(digest)
        try:
            file = path.open("rb")
        except FileNotFoundError as error:
            raise StoreError(
                f"artifact {digest} is missing from {self._root}; restore it there"
            ) from error
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from error
        with file:
            source = unpacked(file) if path.suffix == PACKED else file
            raw = Verified(source, path, digest, size_bytes)
            with io.BufferedReader(raw, _PIECE_BYTES) as verified:
                yield verified

    def copy(self, digest: str, to: Path, size_bytes: int | None = None) -> None:
        """Write a file's content to a path, whole or not at all; raises `StoreError`."""
        partial = to.with_name(f".{to.name}-part")
        with self.open(digest, size_bytes) as source:
            try:
                with partial.open("wb") as out:
                    for piece in _pieces(source):
                        out.write(piece)
                partial.replace(to)
            except OSError as error:
                raise StoreError(f"cannot write {to}: {error.strerror}") from error
            finally:
                with suppress(OSError):  # where it could not even be opened
                    partial.unlink()

    def check(self, digest: str, size_bytes: int | None = None) -> None:
        """Read a file through; raises `StoreError` when it is missing or not what was kept."""
        with self.open(digest, size_bytes) as source:
            for _ in _pieces(source):
                pass

    def all(self) -> Iterator[StoredFile]:
        """Every stored file, in no order; two of one digest where an older version kept one."""
        for path in self._root.glob("??/*"):
            digest = path.name.removesuffix(PACKED)
            if _DIGEST.fullmatch(digest) and digest.startswith(path.parent.name):
                yield from _stored(path, digest)

    def leftovers(self) -> Iterator[StoredFile]:
        """What writers were writing, among them those that were killed; they have no digest."""
        for path in (*self._root.glob(f"{_INCOMING}*"), *self._root.glob(f"??/{_INCOMING}*")):
            yield from _stored(path, digest="")

    def remove(self, kept: StoredFile, kept_before_s: float) -> bool:
        """Remove a stored file unless it was kept again since; whether it is gone.

        Raises `StoreError` when it cannot be removed.
        """
        try:
            with self._excluding(fcntl.LOCK_EX):
                found = _stat(kept.path)
                if found and found.st_mtime >= kept_before_s:
                    return False
                kept.path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot remove {kept.path}: {error.strerror}") from error
        return True

    def _keep(self, source: BinaryIO, size_bytes: int, name: str) -> Artifact:
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _incoming(self._root) as (out, path):
                digest, size_bytes, is_packed = _copied(source, out, size_bytes)
                out.flush()
                if not self._has(digest):
                    os.fsync(out.fileno())
                    self._place(path, digest, is_packed=is_packed)
        except OSError as error:
            raise StoreError(f"cannot keep {name} under {self._root}: {error.strerror}") from error
        return Artifact(name=name, digest=digest, size_bytes=size_bytes)

    def _has(self, digest: str) -> bool:
        """Whether a file is there, and whole; it then counts as new."""
        with self._excluding(fcntl.LOCK_SH):
            if _stat(self.path(digest)) is None:
                return False
            try:
                self.check(digest)
            except StoreError:
                return False
            os.utime(self.path(digest))
            return True

    def _place(self, path: Path, digest: str, *, is_packed: bool) -> None:
        """Move what was written to its name, replacing a damaged file."""
        target, other = self._paths(digest)[:: -1 if is_packed else 1]
        is_first = not target.parent.exists()
        target.parent.mkdir(mode=0o700, exist_ok=True)
        with self._excluding(fcntl.LOCK_SH):
            path.replace(target)
            other.unlink(missing_ok=True)
        fsync_path(target.parent)
        if is_first:
            fsync_path(self._root)

    @contextmanager
    def _excluding(self, how: int) -> Iterator[None]:
        """Lock the folder: shared to store files (`LOCK_SH`), exclusive to remove (`LOCK_EX`)."""
        folder = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, how)
            yield
        finally:
            os.close(folder)


@contextmanager
def _incoming(folder: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A new file that is gone afterwards, unless it got another name."""
    handle, name = tempfile.mkstemp(dir=folder, prefix=_INCOMING)
    try:
        with os.fdopen(handle, "wb") as out:
            yield out, Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _copied(source: BinaryIO, out: BinaryIO, size_bytes: int) -> tuple[str, int, bool]:
    """Copy a source, in zstd where that makes it smaller; its digest, size and whether it does."""
    start = source.read(len(_ZSTD))
    source.seek(0)
    if not start.startswith((_GZIP, _ZSTD)):  # packed twice, no reader would know it
        digest, copied_bytes = copy_packed(source, out, size_bytes)
        if out.tell() < copied_bytes:
            return digest, copied_bytes, True
        source.seek(0)
        out.seek(0)
        out.truncate()
    return *copy_plain(source, out), False


def _stored(path: Path, digest: str) -> Iterator[StoredFile]:
    """The file, unless it is gone."""
    if found := _stat(path):
        yield StoredFile(
            digest=digest, path=path, disk_bytes=found.st_size, kept_at_s=found.st_mtime
        )


def _pieces(source: BinaryIO) -> Iterator[bytes]:
    while piece := source.read(_PIECE_BYTES):
        yield piece


def _stat(path: Path) -> os.stat_result | None:
    """Size and times of a file; None if it is missing."""
    try:
        return path.stat()
    except OSError:
        return None


_DIGEST_CHARS = 64
_DIGEST_IN_TEXT = re.compile(rb"[0-9a-f]{%d}" % _DIGEST_CHARS)
_REFERENCES = """
with ends as (select study_id, max(ended_at) as ended_at from trials group by study_id)
select a.study_id, a.ordinal, a.name, a.digest, a.size_bytes, t.ended_at
  from artifacts a join trials t on t.study_id = a.study_id and t.ordinal = a.ordinal
union all
select c.study_id, c.ordinal, json_extract(j.value, '$.name'), json_extract(j.value, '$.digest'),
       json_extract(j.value, '$.size_bytes'), ends.ended_at
  from repeats c left join ends on ends.study_id = c.study_id,
       json_each(c.repeat, '$.outcome.artifacts') j
union all
select e.study_id, e.ordinal, 'exchange.json', e.digest, null, t.ended_at
  from exchanges e left join trials t on t.study_id = e.study_id and t.ordinal = e.ordinal
union all
select study_id, ordinal, 'machine.json', trial ->> '$.outcome.launched.machine', null, ended_at
  from trials where trial ->> '$.outcome.launched.machine' is not null
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReference:
    """A file that a trial, a repeated launch of it or its conversation left, or its machine.

    `ended_at` is when, for a repeated launch when the last trial of its study ended; None of a
    trial that did not end. Sizes of conversations and machines are not recorded.
    """

    study_id: str
    ordinal: int
    name: str
    digest: str
    size_bytes: int | None
    ended_at: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRemoval:
    """A file of a study was removed for its space: when, and by which rule."""

    study_id: str
    digest: str
    removed_at: str
    rule: str


class FileReferences:
    """Read which stored files the records refer to, and which were removed; raise `StoreError`."""

    def __init__(self, root: Path, db: Database) -> None:
        self._root = root
        self._db = db

    def all(self) -> Iterator[FileReference]:
        """Every file that a record refers to, once for each record."""
        with store_errors(self._root, "read"):
            for row in self._db.query(_REFERENCES):
                yield FileReference(**row)

    def uncited(self, digests: set[str]) -> set[str]:
        """Those of the digests, which no record refers to, that appear in no journal either."""
        left = {digest.encode() for digest in digests}
        with store_errors(self._root, "read"):
            for path in (self._root / FOLDER).glob(f"*{SUFFIX}") if left else ():
                for text in _overlapping(path):
                    left.difference_update(_DIGEST_IN_TEXT.findall(text))
        return {digest.decode() for digest in left}

    def removal(self, study_id: str, digest: str) -> FileRemoval | None:
        """Whether a file of a study was removed on purpose, the last time if it was twice."""
        found = self._removals("where study_id = ? and digest = ?", study_id, digest)
        return next(found, None)

    def removals(self) -> Iterator[FileRemoval]:
        """Every file that was removed on purpose, once for each study that refers to it."""
        return self._removals("order by study_id")

    def _removals(self, which: str, *arguments: str) -> Iterator[FileRemoval]:
        with store_errors(self._root, "read"):
            for row in self._db.query(f"select * from removed_files {which}", arguments):
                yield FileRemoval(**row)


def _overlapping(path: Path) -> Iterator[bytes]:
    """A file in pieces that overlap, so that no digest is cut in two."""
    end = b""
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield end + piece
            end = piece[1 - _DIGEST_CHARS :]
