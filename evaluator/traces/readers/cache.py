"""A cache of columns next to each large trace, so that a trace is parsed once.

A cache belongs to a file of one size, inode and times of change: reading 268 MB only to see that
they are unchanged would take as long as all the rest. Where these differ (a copied folder, a
checkout) the content decides, by its digest. It also belongs to one version of the readers, by the
digest of their source.
"""

import fcntl
import hashlib
import os
import stat
import sys
from functools import cache
from pathlib import Path

import msgspec
from isal import isal_zlib

from evaluator.traces.model import RankTrace
from evaluator.traces.readers.column_file import (
    CacheLabel,
    FileIdentity,
    read_columns,
    read_header,
    write_columns,
)
from evaluator.traces.readers.files import ReadLimits, open_regular
from evaluator.traces.readers.formats import read_file
from records.errors import TraceError

_SMALLEST_SPAN_COUNT = 10_000
"""Fewer spans are parsed so quickly that a cache is not worth a file."""
_SMALLEST_SUSPECT_BYTES = 64 << 20
_DIGEST_PIECE_BYTES = 1 << 20


def cache_path(path: Path) -> Path:
    """Where the cache of a trace file lies."""
    return path.with_name(f".{path.name}.cclsearch")


def read_cache(
    path: Path, limits: ReadLimits, only_rank: int | None
) -> tuple[RankTrace, ...] | None:
    """Return what an earlier `write_cache` stored for this file; None if that is not valid."""
    try:
        with open_regular(cache_path(path)) as file:
            identity = FileIdentity.of(path)
            largest = max(_SMALLEST_SUSPECT_BYTES, limits.ratio * identity.size)
            if os.fstat(file.fileno()).st_size > largest:
                return None
            header = read_header(file)
            label = header.label
            if label is None or label.version != _version():
                return None
            if label.identity != identity and (
                label.identity.size != identity.size or label.digest != _digest(path)
            ):
                return None
            traces = read_columns(file, header)
    except (OSError, TraceError, ValueError, msgspec.MsgspecError, RecursionError):
        return None
    was_told_its_rank = label.only_rank is None or traces[0].rank != label.only_rank
    if not was_told_its_rank and label.only_rank != only_rank:
        return None
    if label.identity != identity:
        write_cache(path, identity, label.only_rank, traces)
    return traces


def read_and_cache(
    path: Path, limits: ReadLimits, only_rank: int | None
) -> tuple[tuple[RankTrace, ...], bool]:
    """Read a file, and leave a large one for the next time; whether that is done.

    Raises TraceError as `read_file`.
    """
    try:
        identity = FileIdentity.of(path)
    except OSError as error:
        raise TraceError(path, f"cannot be read: {error}") from error
    traces = read_file(path, limits, only_rank)
    is_large = sum(trace.spans.count for trace in traces) >= _SMALLEST_SPAN_COUNT
    return traces, is_large and write_cache(path, identity, only_rank, traces)


def write_cache(
    path: Path, identity: FileIdentity, only_rank: int | None, traces: tuple[RankTrace, ...]
) -> bool:
    """Leave what was read from a file, that was `identity` before, for the next time.

    Gives up silently where that is not possible or the file has changed. A reader sees a whole
    cache or none: it gets its name when it is complete, and has a checksum, as nothing is forced to
    the disk. One process at a time writes; what a killed one left is overwritten by the next.
    """
    try:
        label = CacheLabel(_version(), only_rank, identity, _digest(path))
        if not label.version or FileIdentity.of(path) != identity:
            return False
        _replace(cache_path(path), traces, label)
    except (OSError, TraceError):
        return False
    return True


def _replace(target: Path, traces: tuple[RankTrace, ...], label: CacheLabel) -> None:
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
    """Raise OSError unless this is the only name of a file that was not renamed meanwhile."""
    opened, named = os.fstat(descriptor), path.lstat()
    if not (
        stat.S_ISREG(opened.st_mode) and opened.st_nlink == 1 and opened.st_ino == named.st_ino
    ):
        raise OSError(f"{path} belongs to another program")


def _digest(path: Path) -> str:
    """A digest of the content: SHA-256 of the CRC-32 of each MiB, at a tenth of SHA-256's cost.

    It detects a change, not a forgery: a forger could as well replace the cache next to it.
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
    sources = sorted([*here.rglob("*.py"), *here.parent.glob("*.py")])
    digest = hashlib.sha256(sys.byteorder.encode())
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest() if sources else ""
