"""Reads a bundle, which may come from anybody: all of it is checked before any of it is used."""

import hashlib
import json
import re
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from evaluator.readers.files import ReadLimits, pieces
from evaluator.traces.errors import TraceError
from records.applying import apply
from records.codec import from_json
from records.connection import Database
from records.entries import KINDS, Entry, LaunchesRepeated, StudyCreated, TrialFinished
from records.errors import CodecError, StoreError, StudyError, shown
from records.journal import journal_path
from records.schema import upgrade
from records.trial import Artifact
from search.exporting.bundle import artifacts_of
from search.exporting.bundle_format import (
    BLOCK_BYTES,
    FILES,
    FORMAT,
    MANIFEST,
    MOST_MANIFEST_BYTES,
    STUDY,
    VERSION,
    Manifest,
    Member,
)
from search.kept.files import is_inside

LIMITS: Final = ReadLimits(file_bytes=256 << 30, decompressed_bytes=1 << 40)
_MOST_STUDY_BYTES = 2 << 30
_LONGEST_LINE_BYTES = 1 << 28
_LONGEST_HEAD_BYTES = 200
_MOST_NODES = 4_000_000
"""Values in one line; each costs memory, however short it is."""
_PIECE_BYTES = 1 << 20
_DIGEST = re.compile("[0-9a-f]{64}")
_TAR_MAGIC_AT = 257


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle whose every byte was checked: what it says it is, and the records in it."""

    path: Path
    manifest: Manifest
    entries: Sequence[Entry]


def is_bundle(path: Path) -> bool:
    """Whether a file begins as bundles do, whatever it is called."""
    try:
        with closing(pieces(path, LIMITS, BLOCK_BYTES)) as found:
            start = next(found, b"")
    except TraceError:
        return False
    named = start.startswith(MANIFEST.encode() + b"\0")
    return named and start[_TAR_MAGIC_AT : _TAR_MAGIC_AT + 5] == b"ustar"


def read_bundle(path: Path) -> Bundle:
    """Read a bundle through and check it; raises `StudyError` for anything that is not as it says.

    Nothing is written, and of its files nothing is kept in memory.
    """
    entries: tuple[Entry, ...] = ()
    with _opened(path) as archive:
        manifest = archive.manifest()
        with tempfile.TemporaryFile() as study:
            archive.member(STUDY, manifest.study, study.write)
            study.seek(0)
            lines = iter(lambda: study.readline(_LONGEST_LINE_BYTES + 1), b"")
            entries = tuple(_entry(path, *numbered) for numbered in enumerate(lines, start=1))
        for file in manifest.files:
            archive.member(f"{FILES}{file.digest}", file, _nowhere)
        archive.end()
    if not entries or not isinstance(entries[0], StudyCreated):
        raise StudyError(f"{path}: {STUDY} does not begin with a study")
    if any(isinstance(entry, StudyCreated) for entry in entries[1:]):
        raise StudyError(f"{path}: {STUDY} holds two studies")
    for artifact in _artifacts(entries):
        if not is_inside(artifact.name):
            raise StudyError(f"{path}: a file of it is called {shown(artifact.name)}")
    _require_fit(path, manifest.study_id, entries)
    return Bundle(path=path, manifest=manifest, entries=entries)


def unpacked_files(bundle: Bundle) -> Iterator[Path]:
    """Each file of a bundle in turn; it is gone when the next is asked for.

    It has no name in any folder, so that nothing stays there if the process is killed.
    """
    with _opened(bundle.path) as archive:
        manifest = archive.manifest()
        archive.member(STUDY, manifest.study, _nowhere)
        for file in manifest.files:
            with tempfile.TemporaryFile() as out:
                archive.member(f"{FILES}{file.digest}", file, out.write)
                out.flush()
                yield Path(f"/proc/self/fd/{out.fileno()}")


def _require_fit(path: Path, study_id: str, entries: Sequence[Entry]) -> None:
    """Raise `StudyError` for records that no store can hold together, by having one hold them."""
    tried = Database(sqlite3.connect(""))  # on disk, without a name
    try:
        upgrade(tried.connection)
        with tried.atomic():
            for entry in entries:
                apply(tried, study_id, entry)
    except (sqlite3.Error, OverflowError, ValueError) as error:
        raise StudyError(f"{path}: its records cannot be on record together: {error}") from error
    finally:
        tried.close()


def _artifacts(entries: Sequence[Entry]) -> Iterator[Artifact]:
    for entry in entries:
        match entry:
            case TrialFinished(trial=trial):
                yield from artifacts_of(trial.outcome)
            case LaunchesRepeated(repeats=repeats):
                for repeat in repeats:
                    yield from artifacts_of(repeat.outcome)


class _Head(msgspec.Struct):
    """What a manifest of any version says first."""

    format: str
    version: int


class _Archive:
    """A tar archive read once from its start, in which only what is expected may follow."""

    def __init__(self, path: Path, content: Generator[bytes, None, None]) -> None:
        self._path = path
        self._content = content
        self._rest = b""

    def manifest(self) -> Manifest:
        """The manifest, which comes first; raises `StudyError` for one of a newer version."""
        size_bytes = self._header(MANIFEST)
        if size_bytes > MOST_MANIFEST_BYTES:
            raise self._refused(f"{MANIFEST} takes {size_bytes} bytes")
        text = b"".join(self._data(size_bytes))
        self._skip_padding(size_bytes)
        try:
            head = msgspec.json.decode(text, type=_Head)
            if head.format != FORMAT:
                raise self._refused(f"{MANIFEST} is of no bundle")
            if head.version != VERSION:
                raise StudyError(
                    f"{self._path} is a bundle of version {head.version}, this cclsearch "
                    f"reads version {VERSION}; import it with a newer one"
                )
            manifest = msgspec.json.decode(text, type=Manifest)
        except (ValueError, RecursionError) as error:
            raise self._refused(f"{MANIFEST}: {error}") from error
        self._check(manifest)
        return manifest

    def member(self, name: str, expected: Member, take: Callable[[bytes], object]) -> None:
        """Hand over the next member, which must be this one, with this size and digest."""
        size_bytes = self._header(name)
        if size_bytes != expected.size_bytes:
            raise self._refused(
                f"{name} has {size_bytes} bytes, {MANIFEST} says {expected.size_bytes}"
            )
        digest = hashlib.sha256()
        for piece in self._data(size_bytes):
            digest.update(piece)
            take(piece)
        self._skip_padding(size_bytes)
        if digest.hexdigest() != expected.digest:
            raise self._refused(f"{name} is not what {MANIFEST} says: its SHA-256 differs")

    def end(self) -> None:
        """Nothing but zeros may follow."""
        if self._rest.strip(b"\0") or any(piece.strip(b"\0") for piece in self._content):
            raise self._refused(f"more follows than {MANIFEST} lists")

    def _check(self, manifest: Manifest) -> None:
        digests = [file.digest for file in manifest.files]
        if digests != sorted(set(digests)) or not all(map(_DIGEST.fullmatch, digests)):
            raise self._refused(f"{MANIFEST} lists files that are no digests, or one twice")
        sizes = [manifest.study.size_bytes, *(file.size_bytes for file in manifest.files)]
        if min(sizes) < 0 or sum(sizes) > LIMITS.decompressed_bytes:
            raise self._refused(f"{MANIFEST} lists sizes that no bundle has")
        if manifest.study.size_bytes > _MOST_STUDY_BYTES:
            raise self._refused(f"{STUDY} takes {manifest.study.size_bytes} bytes")
        try:
            journal_path(Path(), manifest.study_id)
        except StoreError as error:
            raise self._refused(str(error)) from error

    def _header(self, name: str) -> int:
        """Size of the next member; raises unless it is a plain file of this name."""
        block = b"".join(self._data(BLOCK_BYTES))
        try:
            found = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.TarError as error:
            raise self._refused(f"{name} is expected, and nothing follows: {error}") from error
        if found.type != tarfile.REGTYPE or found.name != name or found.size < 0:
            raise self._refused(f"{name} is expected, and {found.name[:100]!r} follows")
        return found.size

    def _data(self, size_bytes: int) -> Iterator[bytes]:
        while size_bytes:
            piece = self._rest or next(self._content, b"")
            if not piece:
                raise self._refused("it is truncated")
            self._rest = piece[size_bytes:]
            piece = piece[:size_bytes]
            size_bytes -= len(piece)
            yield piece

    def _skip_padding(self, size_bytes: int) -> None:
        for _ in self._data(-size_bytes % BLOCK_BYTES):
            pass

    def _refused(self, why: str) -> StudyError:
        return StudyError(f"{self._path} is no bundle that can be imported: {why}")


@contextmanager
def _opened(path: Path) -> Iterator[_Archive]:
    try:
        with closing(pieces(path, LIMITS, _PIECE_BYTES)) as content:
            yield _Archive(path, content)
    except TraceError as error:
        raise StudyError(f"{error}; it is no bundle that can be imported") from error


def _entry(path: Path, number: int, line: bytes) -> Entry:
    where = f"{path}: {STUDY}, line {number}"
    head, found, text = line.partition(b',"entry":')
    if sum(map(line.count, (b",", b"[", b"{"))) > _MOST_NODES:
        raise StudyError(f"{where} holds more than {_MOST_NODES} values")
    try:
        is_short = found and len(head) < _LONGEST_HEAD_BYTES
        kind = json.loads(head + b"}")["kind"] if is_short else None
        if kind not in KINDS:
            raise StudyError(f"{where}: {str(kind)[:40]!r} is a kind that a newer cclsearch writes")
        return from_json(KINDS[kind], text.removesuffix(b"\n").removesuffix(b"}").decode())
    except (ValueError, KeyError, TypeError, RecursionError, CodecError) as error:
        raise StudyError(f"{where} is no record: {str(error)[:200]}") from error


def _nowhere(_: bytes) -> None:
    """Where what is only checked goes."""
