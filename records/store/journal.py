"""The journal of a study: an append-only file with one checksummed line for every change.

An entry holds everything that its rows need, so that the database can be rebuilt from the journals.
"""

import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, TypeAlias, get_args
from zlib import crc32

import msgspec

from records.codec import from_json, utc_now
from records.errors import StoreError
from records.store.rows import ComputedMetric, Labels, PendingTrial, SearchRun
from records.study import Study
from records.trial import Repeat, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCreated:
    """A study was created; `version` is that of the cclsearch that recorded it."""

    kind: ClassVar[str] = "study_created"

    study: Study
    version: str
    created_at: str
    status: str = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyChanged:
    """A new status, summary or definition of a study; None for what did not change."""

    kind: ClassVar[str] = "study_changed"

    status: str | None = None
    summary: str | None = None
    study: Study | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyLabelled:
    """The tags, the notes and the archive mark of a study, as they are from then on."""

    kind: ClassVar[str] = "study_labelled"

    labels: Labels


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBegan:
    """A search started or resumed, from where `run` says; the study is running from then on."""

    kind: ClassVar[str] = "run_began"

    run: SearchRun


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesHeld:
    """How long the last run has held nodes so far, in seconds times nodes."""

    kind: ClassVar[str] = "nodes_held"

    node_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished:
    """A trial ended, measured or failed."""

    kind: ClassVar[str] = "trial_finished"

    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatsFinished:
    """Launches of earlier trials' configurations that ran together."""

    kind: ClassVar[str] = "repeats_finished"

    repeats: tuple[Repeat, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesRemoved:
    """Stored files that the study refers to were removed to free space, by `rule`."""

    kind: ClassVar[str] = "files_removed"

    removed_at: str
    rule: str
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsComputed:
    """Metrics of finished trials, computed after they ended, by ordinal."""

    kind: ClassVar[str] = "metrics_computed"

    metrics: Mapping[int, tuple[ComputedMetric, ...]]


Entry: TypeAlias = (
    StudyCreated
    | StudyChanged
    | StudyLabelled
    | RunBegan
    | NodesHeld
    | PendingTrial
    | TrialFinished
    | RepeatsFinished
    | FilesRemoved
    | MetricsComputed
)

KINDS: dict[str, type[Entry]] = {kind.kind: kind for kind in get_args(Entry)}
"""Every kind of entry by the name under which journals hold it, which never changes."""


def with_study(entry: Entry, change: Callable[[Study], Study]) -> Entry:
    """The entry with a change made to the study in it, if it holds one."""
    match entry:
        case StudyCreated(study=study):
            return replace(entry, study=change(study))
        case StudyChanged(study=Study() as study):
            return replace(entry, study=change(study))
        case RunBegan(run=run):
            return replace(entry, run=replace(run, study=change(run.study)))
        case _:
            return entry


DATABASE = "cclsearch.db"
PRIVATE = ("artifacts", "journal", "service", "trusted", "work")
"""Parts of a store that hold policies, conversations with a model, or logs."""


def fsync_path(path: Path) -> None:
    """Force the content of a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def keep_private(root: Path) -> None:
    """Deny other users of the machine access to what a store holds, where this user owns it.

    The folder itself is not changed: it may hold more than the store.
    """
    database = root / DATABASE
    if not database.exists():  # what is written next to it is as private as it is
        os.close(os.open(database, os.O_RDWR | os.O_CREAT, 0o600))
    for path in (database, *(root / name for name in PRIVATE)):
        with suppress(OSError):  # it is not there, or on a disk that cannot be written
            found = path.lstat()
            is_ours = found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode)
            if is_ours and found.st_mode & 0o077:
                path.chmod(stat.S_IMODE(found.st_mode) & ~0o077)


FOLDER = "journal"
SUFFIX = ".jsonl"
INCOMING = ".incoming-"
LONGEST_LINE_BYTES = 1 << 28
LONGEST_NAME_BYTES = 200
STUDY_ID = re.compile(f"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{LONGEST_NAME_BYTES - 1}}}")
_OPENING = b'{"crc32":"%08x",'
_OPENING_BYTES = len(_OPENING % 0)
_CUT_OFF, _CHANGED = _TORN = ("it is cut off", "its checksum does not fit")


@dataclass(frozen=True, slots=True)
class JournalPosition:
    """A position in a journal: after N entries and bytes."""

    entry_count: int = 0
    byte_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalLine:
    """A line that is whole: the JSON of an entry; `end` is where the next one begins."""

    kind: str
    text: str
    end: JournalPosition

    @property
    def entry(self) -> Entry:
        """The entry; raises `CodecError` for a text that is none."""
        return from_json(KINDS[self.kind], self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedLine:
    """A line that cannot be used, and why; lines count from 1.

    `is_torn` is whether it is the last and was written only in part, as after a kill.
    """

    line: int
    start_byte: int
    why: str
    is_torn: bool


class _Line(msgspec.Struct):
    number: int
    kind: str
    entry: msgspec.Raw


def journal_path(root: Path, study_id: str) -> Path:
    """Path of a study's journal; raises `StoreError` for an id that is not a safe file name.

    Printed commands contain ids too, so they must not need quotes.
    """
    if not STUDY_ID.fullmatch(study_id):
        raise StoreError(
            f"study id {study_id[:40]!a} cannot name a file; it may have letters, digits, dots, _ "
            f"and -, {LONGEST_NAME_BYTES} at most, and neither . nor - first"
        )
    return root / FOLDER / f"{study_id}{SUFFIX}"


def journal_sizes(root: Path) -> dict[str, int]:
    """Bytes of every journal by its study."""
    try:
        with os.scandir(root / FOLDER) as found:
            return {
                file.name.removesuffix(SUFFIX): file.stat().st_size
                for file in found
                if file.name.endswith(SUFFIX) and not file.name.startswith(".")
            }
    except (FileNotFoundError, NotADirectoryError):
        return {}


def journal_size(path: Path) -> int:
    """Bytes of a journal, 0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def to_line(kind: str, number: int, text: str) -> bytes:
    """The line that holds an entry; raises `StoreError` for one that no journal may hold."""
    head = f'"number":{number},"at":"{utc_now()}","kind":"{kind}"'
    try:
        body = f'{head},"entry":{text}}}'.encode()
    except UnicodeEncodeError as error:
        raise StoreError(f"{kind} holds invalid Unicode: {error}") from error
    line = _OPENING % crc32(body) + body + b"\n"
    if len(line) > LONGEST_LINE_BYTES:
        raise StoreError(f"{kind} takes {len(line)} bytes; a record may have {LONGEST_LINE_BYTES}")
    return line


def append_line(path: Path, line: bytes) -> None:
    """Add a line at the end and force it to the disk; one that fails is taken off again."""
    is_new = not path.exists()
    if is_new:
        _make_folder(path.parent)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size_bytes = os.fstat(handle).st_size
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(handle, rest) :]
            os.fsync(handle)
        except BaseException:
            with suppress(OSError):  # the next writer cuts a torn line off
                os.ftruncate(handle, size_bytes)
            raise
    finally:
        os.close(handle)
    if is_new:
        fsync_path(path.parent)


def truncate_journal(path: Path, byte_count: int) -> None:
    """Cut off what follows the first bytes of a journal."""
    with path.open("rb+") as file:
        file.truncate(byte_count)
        os.fsync(file.fileno())


def write_whole(path: Path, lines: Iterable[bytes]) -> JournalPosition:
    """Replace a journal; it appears when all of its lines are on disk, or not at all."""
    _make_folder(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=INCOMING)
    entry_count = 0
    try:
        with os.fdopen(handle, "wb") as out:
            for line in lines:
                out.write(line)
                entry_count += 1
            out.flush()
            os.fsync(out.fileno())
            mark = JournalPosition(entry_count, out.tell())
        Path(name).chmod(0o600)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)
    fsync_path(path.parent)
    return mark


def unfinished_journals(root: Path) -> list[Path]:
    """Journals that are being written whole, or were when their writers were killed."""
    return list((root / FOLDER).glob(f"{INCOMING}*"))


def read_journal(path: Path, start: JournalPosition) -> Iterator[JournalLine | DamagedLine]:
    """Every line after a position, damaged lines too."""
    with path.open("rb") as file:
        file.seek(start.byte_count)
        number, at_line, follows_damage = start.entry_count, start.entry_count, False
        while raw := file.readline(LONGEST_LINE_BYTES + 1):
            at_line += 1
            start_byte = file.tell() - len(raw)
            found = _parsed(raw, number, follows_damage=follows_damage)
            if isinstance(found, str):
                while raw and not raw.endswith(b"\n"):  # the rest of a line that is too long
                    raw = file.readline(LONGEST_LINE_BYTES)
                follows_damage = True
                is_torn = found in _TORN and not file.peek(1)
                yield DamagedLine(line=at_line, start_byte=start_byte, why=found, is_torn=is_torn)
            else:
                number, kind, text = found
                follows_damage = False
                yield JournalLine(kind=kind, text=text, end=JournalPosition(number, file.tell()))


def _parsed(raw: bytes, last: int, *, follows_damage: bool) -> tuple[int, str, str] | str:
    """Number, kind and JSON of the entry in a line, or why it has none."""
    if not raw.endswith(b"\n"):
        return _CUT_OFF
    body = raw[_OPENING_BYTES:-1]
    if raw[:_OPENING_BYTES] != _OPENING % crc32(body):
        return _CHANGED
    try:
        line = msgspec.json.decode(raw, type=_Line)
        number, kind, text = line.number, line.kind, bytes(line.entry).decode()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"it is not an entry: {error}"
    if number <= last or (number > last + 1 and not follows_damage):
        return f"it is number {number} and follows number {last}"
    if kind not in KINDS:
        return f"its kind {kind!r} was written by a newer cclsearch"
    return number, kind, text


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fsync_path(folder.parent)
