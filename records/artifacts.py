"""Files kept for trials, each stored once under the SHA-256 of its content.

What gets smaller is stored in zstd, under the digest of what it was with `.zst` behind it; what
does not, and what older versions stored, under the digest alone.
"""

import fcntl
import io
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from records.disk import sync
from records.errors import StoreError
from records.packing import (
    Copied,
    Verified,
    copy_packed,
    copy_plain,
    is_packed_already,
    unpacked,
)
from records.trial import Artifact

PACKED = ".zst"
_INCOMING = ".incoming-"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_IN_MEMORY_BYTES = 1 << 30
_PIECE_BYTES = 1 << 20
_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A stored file: how many bytes it takes and when it was last kept, in seconds since 1970."""

    digest: str
    path: Path
    disk_bytes: int
    kept_at_s: float


class Artifacts:
    """A folder of content-addressed files; a file appears whole or not at all.

    Any number of processes may keep files in it at once. Whoever removes some excludes them for
    that moment, so that none is told that a file is there which is then gone.
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
            raise StoreError(f"{digest[:80]!r} is no digest of a kept file; the record was changed")
        plain = self._root / digest[:2] / digest
        packed = plain.with_name(f"{digest}{PACKED}")
        return packed if _told(packed) else plain

    def size(self, digest: str) -> int | None:
        """How many bytes a file takes on disk; None where it is missing."""
        told = _told(self.path(digest))
        return told.st_size if told else None

    def read(self, digest: str, size_bytes: int = _IN_MEMORY_BYTES) -> bytes:
        """A file's content; raises `StoreError` when it is missing or no longer what was kept.

        More than the size on record, by default more than belongs in memory, is refused.
        """
        with self.open(digest, size_bytes) as source:
            return b"".join(_pieces(source))

    @contextmanager
    def open(self, digest: str, size_bytes: int | None = None) -> Iterator[BinaryIO]:
        """A file's content to read through; more than the size on record is refused.

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
                partial.unlink(missing_ok=True)

    def check(self, digest: str, size_bytes: int | None = None) -> None:
        """Read a file through; raises `StoreError` when it is missing or not what was kept."""
        with self.open(digest, size_bytes) as source:
            for _ in _pieces(source):
                pass

    def all(self) -> Iterator[Kept]:
        """Every stored file, in no order; two of one digest where an older version kept one."""
        for path in self._root.glob("??/*"):
            digest = path.name.removesuffix(PACKED)
            told = _told(path)
            if told and _DIGEST.fullmatch(digest) and digest.startswith(path.parent.name):
                yield Kept(
                    digest=digest,
                    path=path,
                    disk_bytes=told.st_size,
                    kept_at_s=told.st_mtime,
                )

    def leftovers(self) -> Iterator[Kept]:
        """What writers were writing, among them those that were killed; they have no digest."""
        for path in (*self._root.glob(f"{_INCOMING}*"), *self._root.glob(f"??/{_INCOMING}*")):
            if told := _told(path):
                yield Kept(digest="", path=path, disk_bytes=told.st_size, kept_at_s=told.st_mtime)

    def remove(self, kept: Kept, kept_before_s: float) -> bool:
        """Remove a stored file unless it was kept again since; whether it is gone.

        Raises `StoreError` when it cannot be removed.
        """
        try:
            with self._excluding(fcntl.LOCK_EX):
                told = _told(kept.path)
                if told and told.st_mtime >= kept_before_s:
                    return False
                kept.path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot remove {kept.path}: {error.strerror}") from error
        return True

    def _keep(self, source: BinaryIO, size_bytes: int, name: str) -> Artifact:
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _incoming(self._root) as (out, path):
                copied, is_packed = _copied(source, out, size_bytes)
                out.flush()
                if not self._has(copied.digest):
                    os.fsync(out.fileno())
                    self._place(path, copied.digest, is_packed=is_packed)
        except OSError as error:
            raise StoreError(f"cannot keep {name} under {self._root}: {error.strerror}") from error
        return Artifact(name=name, digest=copied.digest, size_bytes=copied.size_bytes)

    def _has(self, digest: str) -> bool:
        """Whether a file is there, and whole; it then counts as new."""
        with self._excluding(fcntl.LOCK_SH):
            if _told(self.path(digest)) is None:
                return False
            try:
                self.check(digest)
            except StoreError:
                return False
            os.utime(self.path(digest))
            return True

    def _place(self, path: Path, digest: str, *, is_packed: bool) -> None:
        """Give what was written its name, in the place of what was there damaged."""
        plain = self._root / digest[:2] / digest
        packed = plain.with_name(f"{digest}{PACKED}")
        target, other = (packed, plain) if is_packed else (plain, packed)
        is_first = not target.parent.exists()
        target.parent.mkdir(mode=0o700, exist_ok=True)
        with self._excluding(fcntl.LOCK_SH):
            path.replace(target)
            other.unlink(missing_ok=True)
        sync(target.parent)
        if is_first:
            sync(self._root)

    @contextmanager
    def _excluding(self, how: int) -> Iterator[None]:
        """Keep with others who keep (`LOCK_SH`), or remove alone (`LOCK_EX`)."""
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


def _copied(source: BinaryIO, out: BinaryIO, size_bytes: int) -> tuple[Copied, bool]:
    """Copy a source, in zstd where that makes it smaller; whether it does."""
    if not is_packed_already(source):
        copied = copy_packed(source, out, size_bytes)
        if out.tell() < copied.size_bytes:
            return copied, True
        source.seek(0)
        out.seek(0)
        out.truncate()
    return copy_plain(source, out), False


def _pieces(source: BinaryIO) -> Iterator[bytes]:
    while piece := source.read(_PIECE_BYTES):
        yield piece


def _told(path: Path) -> os.stat_result | None:
    """What the file system tells of a file; None where there is none."""
    try:
        return path.stat()
    except OSError:
        return None
