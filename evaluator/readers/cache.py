"""What was read from a trace file, kept beside it, so that a trace is parsed once.

A cache belongs to a file of one size, inode and times of change: reading 268 MB only to tell that
they are still the same would take as long as all the rest. Where these differ (a copied folder, a
checkout) the content decides, by its digest. It belongs to one version of the readers, too: the
digest of their source, so that nobody has to remember to count one up.
"""

import fcntl
import hashlib
import os
import stat
import sys
from functools import cache
from pathlib import Path
from typing import Self

import msgspec
from isal import isal_zlib

from evaluator.readers.columns import read_columns, read_header, write_columns
from evaluator.readers.files import ReadLimits, open_regular
from evaluator.readers.formats import read_file
from evaluator.traces.errors import TraceError
from evaluator.traces.rank import RankTrace

_SMALLEST_SPAN_COUNT = 10_000
"""Fewer spans are parsed so quickly that nobody wants a file for them."""
_SMALLEST_SUSPECT_BYTES = 64 << 20
_DIGEST_PIECE_BYTES = 1 << 20


class Identity(msgspec.Struct, frozen=True):
    """What a file system tells of a file without reading it; it changes with the content."""

    size: int
    inode: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """Raises OSError."""
        told = path.stat()
        return cls(told.st_size, told.st_ino, told.st_mtime_ns, told.st_ctime_ns)


class _Label(msgspec.Struct):
    """What a cache is of."""

    version: str
    only_rank: int | None
    identity: Identity
    digest: str


def cache_path(path: Path) -> Path:
    """Where the cache of a trace file lies."""
    return path.with_name(f".{path.name}.cclsearch")


def cached(path: Path, limits: ReadLimits, only_rank: int | None) -> tuple[RankTrace, ...] | None:
    """What an earlier `keep` left of this very file; None where it left nothing that holds."""
    try:
        with open_regular(cache_path(path)) as file:
            identity = Identity.of(path)
            largest = max(_SMALLEST_SUSPECT_BYTES, limits.ratio * identity.size)
            if os.fstat(file.fileno()).st_size > largest:
                return None
            header = read_header(file)
            label = msgspec.json.decode(header.label, type=_Label)
            if label.version != _version():
                return None
            if label.identity != identity and not _holds(label, path, identity):
                return None
            traces = read_columns(file, header)
    except (OSError, TraceError, ValueError, msgspec.MsgspecError, RecursionError):
        return None
    was_told_its_rank = label.only_rank is None or traces[0].rank != label.only_rank
    if not was_told_its_rank and label.only_rank != only_rank:
        return None
    if label.identity != identity:
        keep(path, identity, label.only_rank, traces)
    return traces


def read_and_keep(
    path: Path, limits: ReadLimits, only_rank: int | None
) -> tuple[tuple[RankTrace, ...], bool]:
    """Read a file, and leave a large one for the next time; whether that is done.

    Raises TraceError as `read_file`.
    """
    try:
        identity = Identity.of(path)
    except OSError as error:
        raise TraceError(path, f"cannot be read: {error}") from error
    traces = read_file(path, limits, only_rank)
    is_large = sum(trace.spans.count for trace in traces) >= _SMALLEST_SPAN_COUNT
    return traces, is_large and keep(path, identity, only_rank, traces)


def keep(
    path: Path, identity: Identity, only_rank: int | None, traces: tuple[RankTrace, ...]
) -> bool:
    """Leave what was read from a file, that was `identity` before, for the next time.

    Gives up silently where that is not possible or the file has changed. Whoever reads sees a whole
    cache or none: it gets its name when it is complete, and has a checksum, as nothing is forced to
    the disk. One process at a time writes; what a killed one left is overwritten by the next.
    """
    try:
        label = _Label(_version(), only_rank, identity, _digest(path))
        if not label.version or Identity.of(path) != identity:
            return False
        _replace(cache_path(path), traces, label)
    except (OSError, TraceError):
        return False
    return True


def _replace(target: Path, traces: tuple[RankTrace, ...], label: _Label) -> None:
    unfinished = target.with_name(f"{target.name}-part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(unfinished, flags, 0o666), "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _refuse_foreign(file.fileno(), unfinished)
        try:
            file.truncate(0)
            write_columns(file, traces, label)
            file.flush()
            unfinished.replace(target)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise


def _refuse_foreign(descriptor: int, path: Path) -> None:
    """Raise OSError unless this is the only name of a file that nobody has renamed meanwhile."""
    opened, named = os.fstat(descriptor), path.lstat()
    if not (
        stat.S_ISREG(opened.st_mode) and opened.st_nlink == 1 and opened.st_ino == named.st_ino
    ):
        raise OSError(f"{path} belongs to somebody else")


def _holds(label: _Label, path: Path, identity: Identity) -> bool:
    """Whether the content is still what it was, though the file system tells of a change."""
    return label.identity.size == identity.size and label.digest == _digest(path)


def _digest(path: Path) -> str:
    """A digest of the content: SHA-256 of the CRC-32 of each MiB, at a tenth of SHA-256's cost.

    It tells a file from what it was before, not from a forgery: who could forge one could as well
    forge the cache, which lies beside it.
    """
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while piece := file.read(_DIGEST_PIECE_BYTES):
            digest.update(isal_zlib.crc32(piece).to_bytes(4, "little"))
    return digest.hexdigest()


@cache
def _version() -> str:
    """A digest of the source of all readers and of the model; empty where there is no source."""
    here = Path(__file__).parent
    sources = sorted([*here.rglob("*.py"), *here.with_name("traces").glob("*.py")])
    digest = hashlib.sha256(sys.byteorder.encode())
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest() if sources else ""
