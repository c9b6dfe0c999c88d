"""Tells by its content which profiler wrote a file, and has the reader of that format read it."""

import codecs
import re
from enum import StrEnum
from pathlib import Path

from evaluator.readers.files import ReadLimits, pieces
from evaluator.readers.kineto.reader import read_rank
from evaluator.readers.nsys import reader as nsys
from evaluator.readers.xla import reader as xla
from evaluator.readers.xla.xplane import is_xspace
from evaluator.traces.errors import TraceError
from evaluator.traces.rank import RankTrace

_LOOKED_AT_BYTES = 1 << 18
_LOOKED_AT_IN_ALL_BYTES = 64 << 20
_LONGEST_FIELD_BYTES = 100
_SQLITE = b"SQLite format 3\0"
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
    "what is read is Chrome JSON of PyTorch's profiler or XLA, .xplane.pb of XLA, and SQLite of "
    "Nsight Systems"
)
_OTHER_KINDS = (
    (re.compile(rb"\s*\Z"), "is empty"),
    (re.compile(rb"PAR1"), "is a Parquet file"),
    (re.compile(rb"PK\x03\x04"), "is a zip archive; unpack it"),
    (re.compile(rb".{257}ustar", re.DOTALL), "is a tar archive; unpack it"),
    (
        re.compile(rb'\s*\{(?=.{0,4096}"nodes"\s*:).{0,4096}"schema"\s*:', re.DOTALL),
        "is an execution trace: operators and what they depend on, without their times",
    ),
    (re.compile(rb"\s*\[\s*\[\s*-?\d"), "is a timeline of memory, without spans"),
    (re.compile(rb"\s*[\[{]"), "is JSON without trace events"),
    (re.compile(rb"[^\0]*\Z"), "is text, but no JSON"),
    (re.compile(rb""), "is of an unknown kind"),
)
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
        if start.startswith(_SQLITE):
            return Format.NSYS
        if is_xspace(start):
            return Format.XLA
        if start.lstrip()[:1] not in {b"{", b"["}:
            break
        text = end + piece
        if found := _written_by(text):
            return found
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
    other files are ranks 0, 1, ... Raises TraceError when the file is no trace or a damaged one.
    """
    match format_of(path, limits):
        case Format.KINETO:
            return (read_rank(path, limits, only_rank),)
        case Format.XLA:
            return xla.read_devices(path, limits)
        case Format.NSYS:
            return nsys.read_devices(path, limits)


def _written_by(text: bytes) -> Format | None:
    xla_field, kineto_field = _XLA.search(text), _KINETO.search(text)
    if xla_field and kineto_field:
        return Format.XLA if xla_field.start() < kineto_field.start() else Format.KINETO
    if xla_field:
        return Format.XLA
    return Format.KINETO if kineto_field else None


def _kind(path: Path, start: bytes) -> str:
    for suffix, what in TO_CONVERT.items():
        if path.name.endswith(suffix):
            return what
    return next(what for pattern, what in _OTHER_KINDS if pattern.match(start))
