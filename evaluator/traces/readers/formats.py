"""Find trace files in a folder, recognise their format by content, and read them."""

import codecs
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from io import BytesIO
from pathlib import Path
from typing import Final

import msgspec

from evaluator.traces.host_ranges import HostRanges
from evaluator.traces.model import RankTrace
from evaluator.traces.readers.chakra.nodes import is_chakra
from evaluator.traces.readers.column_file import read_columns, read_header
from evaluator.traces.readers.files import ReadLimits, pieces, read_bytes
from evaluator.traces.readers.kineto import ranges as kineto
from evaluator.traces.readers.kineto.reader import read_rank
from evaluator.traces.readers.nsys import reader as nsys
from evaluator.traces.readers.xla import reader as xla
from evaluator.traces.readers.xla.xplane import is_xspace
from records.errors import TraceError

_LOOKED_AT_BYTES = 1 << 18
_LOOKED_AT_IN_ALL_BYTES = 64 << 20
_LONGEST_FIELD_BYTES = 100
_CHROME = re.compile(rb'"traceEvents"\s*:|"ph"\s*:\s*"[A-Za-z]"')
_XLA = re.compile(rb'"highres-ticks"\s*:|"name"\s*:\s*"/(?:device|host):[A-Za-z]+')
_KINETO = re.compile(
    rb'"(?:schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds|traceName)"\s*:'
    rb'|"cat"\s*:\s*"(?:cpu_op|kernel|operator|runtime|gpu_mem(?:cpy|set)|mem(?:cpy|set)|cuda_\w+'
    rb"|hip_\w+|(?:gpu_)?user_annotation|python_function|ac2g|fwdbwd|cpu_instant_event"
    rb'|mtia_\w+|xpu_\w+|privateuse1_\w+)"',
    re.IGNORECASE,
)
_READABLE = (
    "what is read is Chrome JSON of PyTorch's profiler or XLA, .xplane.pb of XLA, SQLite of Nsight "
    "Systems, and .et of Chakra"
)
_OTHER_KINDS = (
    (re.compile(rb"\s*\Z"), "is empty"),
    (re.compile(rb"PAR1"), "is a Parquet file"),
    (re.compile(rb"PK\x03\x04"), "is a zip archive; unpack it"),
    (re.compile(rb".{257}ustar", re.DOTALL), "is a tar archive; unpack it"),
    (
        re.compile(rb'\s*\{(?=.{0,4096}"nodes"\s*:).{0,4096}"schema"\s*:', re.DOTALL),
        "is an execution trace of PyTorch: operators without the durations of device work; read "
        "what torch.profiler wrote of the same rank: cclsearch trace breakdown PROFILE.json",
    ),
    (re.compile(rb"\s*\[\s*\[\s*-?\d"), "is a timeline of memory, without spans"),
    (re.compile(rb"\s*[\[{]"), "is JSON without trace events"),
    (re.compile(rb"[^\0]*\Z"), "is text, but no JSON"),
    (re.compile(rb""), "is of an unknown kind"),
)
MERGED = b'{"otherData":{"merged_by":"cclsearch'
"""How a merged trace of several ranks begins: it is to be looked at, not to be measured."""
TO_CONVERT = {
    ".nsys-rep": "is a report of Nsight Systems; export it: nsys export --type sqlite",
    ".qdrep": "is a report of Nsight Systems; export it: nsys export --type sqlite",
}
"""What files are that a tool can make readable, by how their names end."""


class Format(StrEnum):
    """The profilers whose files are read."""

    KINETO = "kineto"
    XLA = "xla"
    NSYS = "nsys"
    CHAKRA = "chakra"
    """Graphs of durations, which are read for all ranks together."""
    COLUMNS = "columns"
    """What a node of a cluster reduced the traces of its ranks to."""


_BINARY: Final[Mapping[Format, Callable[[bytes], bool]]] = {
    Format.NSYS: lambda start: start.startswith(b"SQLite format 3\0"),
    Format.COLUMNS: lambda start: start.startswith(b'{"label":null,"checksum":'),
    Format.XLA: is_xspace,
    Format.CHAKRA: is_chakra,
}
"""Formats by how a file begins."""


class NoTraceError(TraceError):
    """A file is not damaged but of another kind, `kind`: no profiler wrote it."""

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(path, f"{kind}; {_READABLE}")
        self.kind = kind


def format_of(path: Path, limits: ReadLimits) -> Format:
    """Which profiler wrote a file, by how it begins or the first field that only one writes.

    Raises NoTraceError when none did, and TraceError when the file cannot be read.
    """
    start, end, looked_at_bytes, is_chrome = b"", b"", 0, False
    for piece in pieces(path, limits, _LOOKED_AT_BYTES):
        start = start or piece.removeprefix(codecs.BOM_UTF8)
        if start.startswith(MERGED):
            raise NoTraceError(path, "is a merged trace of several ranks; read their own traces")
        if binary := next((each for each, begins in _BINARY.items() if begins(start)), None):
            return binary
        if start.lstrip()[:1] not in {b"{", b"["}:
            break
        text = end + piece
        fields = ((Format.KINETO, _KINETO.search(text)), (Format.XLA, _XLA.search(text)))
        if found := [(match.start(), each) for each, match in fields if match]:
            return min(found)[1]
        is_chrome = is_chrome or _CHROME.search(text) is not None
        looked_at_bytes += len(piece)
        if looked_at_bytes >= (_LOOKED_AT_IN_ALL_BYTES if is_chrome else _LOOKED_AT_BYTES):
            break
        end = piece[-_LONGEST_FIELD_BYTES:]
    if is_chrome:
        raise NoTraceError(path, "holds no event that PyTorch's profiler or XLA writes")
    raise NoTraceError(path, _kind(path, start))


def read_file(
    path: Path, limits: ReadLimits, only_rank: int | None = None
) -> tuple[RankTrace, ...]:
    """The traces in a file, one for each device of it, by rising rank.

    A Kineto file that names no rank is of `only_rank`, the one rank of a job of one. The devices of
    other files are ranks 0, 1, ... Raises TraceError when the file is no trace or a damaged one, or
    one of Chakra, which is read with those of the other ranks.
    """
    match format_of(path, limits):
        case Format.KINETO:
            return (read_rank(path, limits, only_rank),)
        case Format.XLA:
            return xla.read_devices(path, limits)
        case Format.NSYS:
            return nsys.read_devices(path, limits)
        case Format.COLUMNS:
            return _read_reduced(path, limits)
        case Format.CHAKRA:
            raise TraceError(
                path, "is a Chakra trace: read it with those of all ranks, by naming their folder"
            )


def read_host_ranges(path: Path, limits: ReadLimits) -> HostRanges | None:
    """What the host called while it handed work to the devices of a file; None if it does not say.

    Raises TraceError where the file is no trace or a damaged one.
    """
    match format_of(path, limits):
        case Format.KINETO:
            return kineto.read_host_ranges(path, limits)
        case Format.NSYS:
            return nsys.read_host_ranges(path, limits)
        case _:
            return None


def _read_reduced(path: Path, limits: ReadLimits) -> tuple[RankTrace, ...]:
    file = BytesIO(read_bytes(path, limits))
    try:
        return read_columns(file, read_header(file))
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise TraceError(path, f"is damaged: {error}") from error


def _kind(path: Path, start: bytes) -> str:
    for suffix, what in TO_CONVERT.items():
        if path.name.endswith(suffix):
            return what
    return next(what for pattern, what in _OTHER_KINDS if pattern.match(start))


_TRACE_NAME = re.compile(
    r"[^.].*\.(json|sqlite|xplane\.pb|et|columns)(\.gz|\.zst)?", re.IGNORECASE | re.DOTALL
)
_PROFILE_NAME = re.compile(r"(?P<host>.+)\.xplane\.pb(\.gz|\.zst)?", re.IGNORECASE | re.DOTALL)
_EXPORT_NAME = re.compile(r"(?P<host>.+)\.trace\.json(\.gz|\.zst)?", re.IGNORECASE | re.DOTALL)
_LATEST_EXPORT = re.compile(r"perfetto_trace\.json(\.gz|\.zst)?", re.IGNORECASE)
_DIGITS = re.compile(r"(\d+)")
_MOST_FOLDERS = 1000
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class TraceFiles:
    """The trace files of one folder with their formats, and what is said of its other files."""

    folder: Path
    files: tuple[tuple[Path, Format], ...]
    others: tuple[str, ...] = ()


def find_traces(path: Path, limits: ReadLimits) -> TraceFiles:
    """What is to be read when a folder, or one file, is named.

    Raises TraceError when there is nothing, when it lies in several folders, or when a file that
    is called a trace is damaged.
    """
    try:
        if not path.is_dir():
            return TraceFiles(path.parent, ((path, format_of(path, limits)),))
        folders = _folders(path)
        here = _in_folder(next(folders), limits)
        if here.files:
            return here
        below = [each for folder in folders if (each := _in_folder(folder, limits)).files]
    except OSError as error:
        raise TraceError(path, f"cannot be read: {error}") from error
    if len(below) > 1:
        named = shorten_list([str(each.folder.relative_to(path)) for each in below])
        raise TraceError(path, f"holds traces in several folders, {named}; name one of them")
    if below:
        return below[0]
    others = f": {shorten_list(here.others)}" if here.others else ""
    raise TraceError(
        path, f"holds no *.json, *.sqlite, *.xplane.pb or *.et that a profiler wrote{others}"
    )


def shorten_list(words: Sequence[str]) -> str:
    """A list of them to be read by people, cut where it gets long."""
    more = [f"{len(words) - _MOST_NAMED} more"] if len(words) > _MOST_NAMED else []
    return ", ".join([*words[:_MOST_NAMED], *more])


def _folders(path: Path) -> Iterator[Path]:
    """The folder, then all below it but those that hide."""
    for count, (folder, names, _) in enumerate(os.walk(path)):
        if count > _MOST_FOLDERS:
            raise TraceError(path, f"holds more than {_MOST_FOLDERS} folders; name one of them")
        names[:] = sorted((name for name in names if not name.startswith(".")), key=_by_number)
        yield Path(folder)


def _in_folder(folder: Path, limits: ReadLimits) -> TraceFiles:
    files: list[tuple[Path, Format]] = []
    others: list[str] = []
    for path in sorted(folder.iterdir(), key=lambda path: _by_number(path.name)):
        if not (_TRACE_NAME.fullmatch(path.name) or path.name.endswith(tuple(TO_CONVERT))):
            continue
        if path.is_symlink() and not path.exists():
            others.append(f"{path.name} is a link whose target is missing")
            continue
        try:
            files.append((path, format_of(path, limits)))
        except NoTraceError as error:
            others.append(f"{path.name} {error.kind}")
    exports = _exports(files) | _graphs(files)
    others += [f"{path.name} {what}" for path, what in exports.items()]
    return TraceFiles(
        folder, tuple(file for file in files if file[0] not in exports), tuple(others)
    )


def _exports(files: Sequence[tuple[Path, Format]]) -> dict[Path, str]:
    """What JAX exported from profiles that are there as well: copies that may be cut."""
    matches = (_PROFILE_NAME.fullmatch(path.name) for path, _ in files)
    profiles = {match["host"]: match.string for match in matches if match}
    exports: dict[Path, str] = {}
    for path, format_ in files if profiles else ():
        match = _EXPORT_NAME.fullmatch(path.name)
        if format_ is Format.XLA and match and match["host"] in profiles:
            exports[path] = f"is the export of {profiles[match['host']]}"
        elif format_ is Format.XLA and _LATEST_EXPORT.fullmatch(path.name):
            exports[path] = "is an export of the profiles here"
    return exports


def _graphs(files: Sequence[tuple[Path, Format]]) -> dict[Path, str]:
    """What was converted from traces of a profiler, where some are there as well."""
    chakra = [path for path, format_ in files if format_ is Format.CHAKRA]
    others = len(files) - len(chakra)
    return dict.fromkeys(chakra if others else (), "is a Chakra trace next to a profiler's")


def _by_number(name: str) -> list[int | str]:
    """Order in which rank10 follows rank9."""
    return [int(part) if part.isdigit() else part for part in _DIGITS.split(name)]
