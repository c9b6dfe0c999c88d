"""A bundle: one study with its files in one file, a tar archive compressed by zstd.

The members are `manifest.json`, `study.jsonl` with one journal entry per line, and `files/DIGEST`,
sorted by digest. Headers hold only name and size, so equal studies give equal bytes. A bundle is
untrusted: everything is checked before anything is used.
"""

import hashlib
import json
import re
import sqlite3
import tarfile
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import zstandard

from evaluator.traces.readers.files import ReadLimits, pieces
from records.codec import from_json, to_json
from records.errors import CodecError, StoreError, Strict, StudyError, TraceError, shown
from records.files import check_value_count
from records.machine import LaunchRecord
from records.store.artifacts import Artifacts
from records.store.database import Database
from records.store.index import apply_entry
from records.store.journal import (
    KINDS,
    Entry,
    FilesRemoved,
    RepeatsFinished,
    StudyCreated,
    TrialFinished,
    journal_path,
)
from records.store.rows import PendingTrial
from records.store.schema import create_tables
from records.trial import Artifact, Outcome, Trial
from search.storage import is_inside

FORMAT: Final = "cclsearch.bundle"
VERSION: Final = 1
MANIFEST: Final = "manifest.json"
STUDY: Final = "study.jsonl"
FILES: Final = "files/"
MOST_MANIFEST_BYTES: Final = 8 << 20
BLOCK_BYTES: Final = tarfile.BLOCKSIZE
END: Final = bytes(2 * BLOCK_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Strict):
    """One file of a bundle: the SHA-256 of its content, and its size."""

    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Strict):
    """What a bundle holds; `missing` are files that the record cites and that could not be added.

    `notes` say what was redacted or left out, one sentence each.
    """

    format: str
    version: int
    study_id: str
    study_name: str
    made_by: str
    study: Member
    files: tuple[Member, ...]
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def header(name: str, size_bytes: int) -> bytes:
    """The block before a member of this name and size."""
    told = tarfile.TarInfo(name)
    told.size = size_bytes
    return told.tobuf(tarfile.GNU_FORMAT)


def padding(size_bytes: int) -> bytes:
    """What fills the last block of a member."""
    return bytes(-size_bytes % BLOCK_BYTES)


_PIECE_BYTES = 1 << 20
_LEVEL = 3


def write_bundle(
    out: BinaryIO,
    entries: Sequence[Entry],
    artifacts: Artifacts,
    *,
    study_id: str,
    study_name: str,
    made_by: str,
    notes: tuple[str, ...] = (),
    allow_missing: bool,
) -> Manifest:
    """Write a bundle and give its manifest; `notes` are to be said of the study.

    Raises `StoreError` for a file that is missing or was altered; with `allow_missing` one that is
    missing is listed as such.
    """
    files, missing = _sized(entries, artifacts, allow_missing)
    with tempfile.TemporaryFile() as study:
        digest = hashlib.sha256()
        for entry in entries:
            line = f'{{"kind":"{entry.kind}","entry":{to_json(entry)}}}\n'.encode()
            digest.update(line)
            study.write(line)
        manifest = Manifest(
            format=FORMAT,
            version=VERSION,
            study_id=study_id,
            study_name=study_name,
            made_by=made_by,
            study=Member(digest=digest.hexdigest(), size_bytes=study.tell()),
            files=tuple(files),
            missing=tuple(missing),
            notes=notes,
        )
        text = to_json(manifest).encode()
        if len(text) > MOST_MANIFEST_BYTES:
            raise StoreError(
                f"{len(files)} files are more than one bundle can list; leave out those with "
                "traces with --no-traces, or all with --metrics-only"
            )
        packer = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
        with packer.stream_writer(out, closefd=False) as packed:
            _write_member(packed, MANIFEST, len(text), BytesIO(text))
            study.seek(0)
            _write_member(packed, STUDY, manifest.study.size_bytes, study)
            for file in manifest.files:
                with artifacts.open(file.digest) as source:
                    _write_member(packed, f"{FILES}{file.digest}", file.size_bytes, source)
            packed.write(END)
    return manifest


def _cited_files(entries: Iterable[Entry]) -> list[str]:
    """Digests of all files that records cite, rising."""
    found: set[str] = set()
    for entry in entries:
        for outcome in _outcomes(entry):
            found |= {launched.machine for launched in launches_of(outcome) if launched.machine}
            found |= {artifact.digest for artifact in artifacts_of(outcome)}
        match entry:
            case TrialFinished(trial=Trial(exchange=str(exchange))):
                found.add(exchange)
            case PendingTrial(exchange=str(exchange)):
                found.add(exchange)
    return sorted(found)


def removed_files(entries: Iterable[Entry]) -> frozenset[str]:
    """Digests of the files that records say were removed for their space."""
    removals = (entry.digests for entry in entries if isinstance(entry, FilesRemoved))
    return frozenset(digest for digests in removals for digest in digests)


def _outcomes(entry: Entry) -> Sequence[Outcome]:
    """The outcomes that a record holds."""
    match entry:
        case TrialFinished(trial=trial):
            return [trial.outcome]
        case RepeatsFinished(repeats=repeats):
            return [repeat.outcome for repeat in repeats]
        case _:
            return []


def launches_of(outcome: Outcome) -> Iterator[LaunchRecord]:
    """How an outcome was launched, in each of its contexts."""
    if outcome.launched is not None:
        yield outcome.launched
    for one in outcome.contexts:
        yield from launches_of(one.outcome)


def artifacts_of(outcome: Outcome) -> Iterator[Artifact]:
    """The files of an outcome, with those of its contexts."""
    yield from outcome.artifacts
    for one in outcome.contexts:
        yield from artifacts_of(one.outcome)


def _sized(
    entries: Sequence[Entry], artifacts: Artifacts, allow_missing: bool
) -> tuple[list[Member], list[str]]:
    """Every file with the size of its content, which is read through for it; and the missing.

    What was removed for its space may be missing: the record says so.
    """
    removed = removed_files(entries)
    files: list[Member] = []
    missing: list[str] = []
    for digest in _cited_files(entries):
        is_gone = artifacts.size(digest) is None
        if is_gone and (allow_missing or digest in removed):
            missing.append(digest)
            continue
        try:
            with artifacts.open(digest) as source:
                size_bytes = sum(map(len, iter(lambda: source.read(_PIECE_BYTES), b"")))
            files.append(Member(digest=digest, size_bytes=size_bytes))
        except StoreError as error:
            more = "; --allow-missing leaves it out" if is_gone else ""
            raise StoreError(f"{error}{more}") from error
    return files, missing


def _write_member(out: BinaryIO, name: str, size_bytes: int, source: BinaryIO) -> None:
    out.write(header(name, size_bytes))
    while piece := source.read(_PIECE_BYTES):
        out.write(piece)
    out.write(padding(size_bytes))


LIMITS: Final = ReadLimits(file_bytes=256 << 30, decompressed_bytes=1 << 40)
_MOST_STUDY_BYTES = 2 << 30
_LONGEST_LINE_BYTES = 1 << 28
_LONGEST_HEAD_BYTES = 200
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
    outcomes = (outcome for entry in entries for outcome in _outcomes(entry))
    for artifact in chain.from_iterable(map(artifacts_of, outcomes)):
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
    tried = Database("")  # on disk, without a name
    try:
        create_tables(tried.connection)
        with tried.atomic():
            for entry in entries:
                apply_entry(tried, study_id, entry.kind, to_json(entry))
    except (sqlite3.Error, OverflowError, ValueError) as error:
        raise StudyError(f"{path}: its records contradict each other: {error}") from error
    finally:
        tried.close()


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
        text = b"".join(self._content_of(size_bytes))
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
        for piece in self._content_of(size_bytes):
            digest.update(piece)
            take(piece)
        if digest.hexdigest() != expected.digest:
            raise self._refused(f"{name} is not what {MANIFEST} says: its SHA-256 differs")

    def end(self) -> None:
        """Nothing but zeros may follow."""
        if self._rest.strip(b"\0") or any(piece.strip(b"\0") for piece in self._content):
            raise self._refused(f"more follows than {MANIFEST} lists")

    def _check(self, manifest: Manifest) -> None:
        digests = [file.digest for file in manifest.files]
        if digests != sorted(set(digests)) or not all(map(_DIGEST.fullmatch, digests)):
            raise self._refused(f"{MANIFEST} lists files that are not digests, or one twice")
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

    def _content_of(self, size_bytes: int) -> Iterator[bytes]:
        """The content of a member; the rest of its last block is passed over."""
        yield from self._data(size_bytes)
        deque(self._data(-size_bytes % BLOCK_BYTES), maxlen=0)

    def _data(self, size_bytes: int) -> Iterator[bytes]:
        while size_bytes:
            piece = self._rest or next(self._content, b"")
            if not piece:
                raise self._refused("it is truncated")
            self._rest = piece[size_bytes:]
            piece = piece[:size_bytes]
            size_bytes -= len(piece)
            yield piece

    def _refused(self, why: str) -> StudyError:
        return StudyError(f"{self._path} is not a bundle that can be imported: {why}")


@contextmanager
def _opened(path: Path) -> Iterator[_Archive]:
    try:
        with closing(pieces(path, LIMITS, _PIECE_BYTES)) as content:
            yield _Archive(path, content)
    except TraceError as error:
        raise StudyError(f"{error}; it is not a bundle that can be imported") from error


def _entry(path: Path, number: int, line: bytes) -> Entry:
    where = f"{path}: {STUDY}, line {number}"
    head, found, text = line.partition(b',"entry":')
    try:
        check_value_count(line)
        is_short = found and len(head) < _LONGEST_HEAD_BYTES
        kind = json.loads(head + b"}")["kind"] if is_short else None
        if kind not in KINDS:
            raise StudyError(f"{where}: {str(kind)[:40]!r} is a kind that a newer cclsearch writes")
        return from_json(KINDS[kind], text.removesuffix(b"\n").removesuffix(b"}").decode())
    except (ValueError, KeyError, TypeError, RecursionError, CodecError) as error:
        raise StudyError(f"{where} is not a record: {str(error)[:200]}") from error


def _nowhere(_: bytes) -> None:
    """Where what is only checked goes."""
