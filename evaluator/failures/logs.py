"""Errors in the logs, error files and stacks of a failed job: which rank's, what, and where.

What texts mean, from pattern to failure kind and why, is listed in `texts.toml`. A text that no
rule matches means nothing here; an exception without a rule is a crash.

A log may be of one rank or of many together, with any launcher's lines around it, and of any
length; it was written by a job under test. Error files are ours, or those that torchrun makes user
programs write. Stacks are those of faulthandler and py-spy: the innermost call, and the line of
the program that led there.
"""

import mmap
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

import msgspec

from evaluator.rank.protocol import COMMAND_LOGS
from evaluator.samples import RANK_FILE_LIMITS
from evaluator.traces.readers.files import read_bytes
from records.errors import TraceError
from records.expression import format_bytes
from records.trial import FailureKind

T = TypeVar("T")


class Weight(StrEnum):
    """How much a text says about why a job failed."""

    CAUSE = "cause"  # what went wrong
    SYMPTOM = "symptom"  # another process was lost or waited for: its cause is elsewhere, if known
    END = "end"  # that a process ended, said by its launcher


class TextRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Texts that mean the same: the kind of the failure, and in a few words what happened."""

    kind: FailureKind
    why: str
    pattern: re.Pattern[str] = msgspec.field(name="patterns")
    weight: Weight = Weight.CAUSE


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hints: tuple[str, ...]
    rules: tuple[TextRule, ...]
    limited_memory: TextRule


def _pattern(_: type, patterns: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE | re.ASCII)


_TABLE = msgspec.toml.decode(
    (files("evaluator.failures") / "texts.toml").read_text(encoding="utf-8"),
    type=_Table,
    dec_hook=_pattern,
)
RULES = _TABLE.rules
_BY_REASON = {rule.why: rule for rule in RULES}
KILLED, TOO_LARGE = _BY_REASON["killed from outside"], _BY_REASON["wrote more than a job may"]
DIED = _BY_REASON["died of a fault signal"]
_ASKED = re.compile(
    r"tried to allocate (?P<size>[\d.]+ ?[KMGT]i?B)|allocate (?P<bytes>\d+) bytes|"
    r"unable to allocate (?P<array>[\d.]+ [KMGT]i?B)|allocating (?P<xla>\d+) bytes",
    re.IGNORECASE,
)


def meaning(text: str, *, memory_limited: bool = False) -> TextRule | None:
    """Return the first rule that the text of a rank, with a memory budget or without, matches."""
    if memory_limited and _TABLE.limited_memory.pattern.search(text):
        return _TABLE.limited_memory
    lowered = text.lower()
    if not any(hint in lowered for hint in _TABLE.hints):
        return None
    return next((rule for rule in RULES if rule.pattern.search(text)), None)


def memory_asked(text: str) -> str | None:
    """How much memory was asked for when it ran out, as the text says it."""
    found = _ASKED.search(text)
    if found is None:
        return None
    count = found["bytes"] or found["xla"]
    return found["size"] or found["array"] or format_bytes(int(count))


WINDOW_BYTES = 1 << 19
LINE_CHARS = 2000
DETAIL_LINES = 8

_OF_RANK = re.compile(r"\[(?:rank|default)(\d+)\]: ?|\s*(\d+): ")
_LOGGED = re.compile(
    r"\((?:[\w ]+ )?(?:pid|rank)=\d+(?:, ip=[\d.]+)?\) ?|"
    r"(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[\w./]+:\d+\] ?)?"
)
_ASIDE = re.compile(
    r"USDT:|\s*(?:\[?[WI]\d{4} |\[[WI]\d* )|"
    r".*\b(?:INFO|DEBUG|WARNING)\b|.*\w+Warning: |\s*warnings\.warn"
)
_TRACEBACK = "Traceback (most recent call last)"
_IGNORED = "Exception ignored in"
_CHAINED = ("The above exception", "During handling of", _TRACEBACK)
_FRAME = re.compile(
    r'^\s*File "(?P<path>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?', re.MULTILINE
)
_THROWN = re.compile(r"\s*(?P<type>[A-Za-z_][\w.]*)(?::(?P<message> .*)?)?$")
_BARE = re.compile(r"[ |+]*(?P<type>[A-Za-z_][\w.]*(?:Error|Exception)): (?P<message>\S.*)")
_ASSERTED = re.compile(r"^ *(assert .+)$", re.MULTILINE)
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|/torch/|^<")

# What torchrun adds at the end: every rank's exit, then that of the rank that failed first.
_ROOT = re.compile(r"Root Cause \(first observed failure\):(.*?)(?:^ *={10,}|\Z)", re.S | re.M)
_SUMMARY = re.compile(
    r"^[^\n]*\bfailed \(exitcode: [^\n]*$|^ *={10,}\n[^\n]* FAILED\n.*?(?:\n *={10,}|\Z)",
    re.S | re.M,
)
_ROOT_TRACEBACK = re.compile(r"^( *)traceback : (?=Traceback)", re.M)
_ROOT_RANK = re.compile(r"\brank *: *(\d+)")
_ROOT_STATUS = re.compile(r"\bexitcode *: *(-?\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was said, by `who` if that is known, and where in the program."""

    kind: FailureKind
    weight: Weight
    said: str
    who: str = ""
    why: str = ""
    where: str = ""
    rank: int | None = None
    by_signal: bool = False
    """Whether a fault signal ended the process."""

    def __str__(self) -> str:
        return f"{self.why}: {self.said}" if self.why else self.said


def cause(kind: FailureKind, said: str, *, who: str = "", where: str = "") -> Finding:
    """Return what went wrong where no rule says it."""
    return Finding(kind=kind, weight=Weight.CAUSE, said=said, who=who, where=where)


def read_log(text: str) -> Finding | None:
    """Return the first cause that a log names; None when nothing in it is a failure."""
    summary = _ROOT.search(text)
    if summary is None:
        return weightiest(_findings(text.splitlines()))
    found = _ROOT_RANK.search(summary[1])
    rank = int(found[1]) if found else None
    root_cause = _ROOT_TRACEBACK.sub(r"\1", summary[1])
    root = [_describe_exit(finding) for finding in _findings(root_cause.splitlines())]
    rest = _findings(_SUMMARY.sub("", text).splitlines())
    own = [finding for finding in rest if finding.rank in (rank, None)]
    first = weightiest(
        [
            *_with_weight(own, Weight.CAUSE),
            *_with_weight(root, Weight.CAUSE),
            *_with_weight(rest, Weight.CAUSE),
            *_with_weight(own, Weight.SYMPTOM),
            *root,
            *own,
        ]
    )
    return first and replace(first, rank=rank if first.rank is None else first.rank)


def read_by_rank(text: str) -> Mapping[int | None, Finding]:
    """Return the first cause that each rank names; None stands for lines without a rank."""
    found: dict[int | None, list[Finding]] = {}
    for finding in _findings(_SUMMARY.sub("", text).splitlines()):
        found.setdefault(finding.rank, []).append(finding)
    return {rank: first for rank, each in found.items() if (first := weightiest(each))}


def read_error(
    type_name: str, message: str, *, where: str = "", memory_limited: bool = False
) -> Finding:
    """Return what one exception says, by its type and message."""
    text = f"{type_name}: {message}"[:LINE_CHARS]
    rule = meaning(text, memory_limited=memory_limited)
    short = type_name.rpartition(".")[2]
    said = f"{short}: {first_line(message)}" if first_line(message) else short
    if rule is None:
        return cause(FailureKind.CRASH, said, where=where)
    return _finding_of(rule, said, text, where=where)


def read_text(text: str) -> Finding | None:
    """Return what one line says, or None when it is not about a failure."""
    rule = meaning(text[:LINE_CHARS])
    if rule is not None:
        return _finding_of(rule, text.strip(" \t│"), text)  # tyro draws a box around its errors
    thrown = _BARE.match(text)
    return None if thrown is None else read_error(thrown["type"], thrown["message"])


def weightiest(findings: Sequence[Finding]) -> Finding | None:
    """Return what failed first: memory wherever it ran out, else a cause, symptom or end."""
    memory = [found for found in findings if found.kind is FailureKind.OUT_OF_MEMORY]
    by_weight = (memory, *(_with_weight(findings, weight) for weight in Weight))
    return next((found[0] for found in by_weight if found), None)


def place(traceback: str) -> str:
    """Where a traceback's first exception was raised, in the program rather than a library."""
    blocks = (_FRAME.finditer(block) for block in re.split(r"\n\s*\n", traceback))
    frames = next((found for block in blocks if (found := list(block))), [])
    if not frames:
        return ""
    frame = next((f for f in reversed(frames) if not is_library(f["path"])), frames[-1])
    inside = f" in {frame['name']}" if frame["name"] else ""
    return f" at {Path(frame['path']).name}:{frame['line']}{inside}"


def is_library(path: str) -> bool:
    """Whether a file of a stack belongs to Python or a package rather than to the program."""
    return _LIBRARY.search(path) is not None


def log_text(path: Path) -> str:
    """A log; of a long one its start, its end, and what surrounds its first traceback."""
    if not path.is_file() or path.stat().st_size == 0:
        return ""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        if len(whole) <= 3 * WINDOW_BYTES:
            return whole[:].decode(errors="replace")
        first = max(0, whole.find(_TRACEBACK.encode()))
        parts = (whole[:WINDOW_BYTES], whole[first:][:WINDOW_BYTES], whole[-WINDOW_BYTES:])
    return b"\n".join(parts).decode(errors="replace")


def command_text(folder: Path) -> str:
    """The logs of a job's command, that of its first node first."""
    return "\n".join(log_text(path) for path in sorted(folder.glob(COMMAND_LOGS), key=_length))


def _length(path: Path) -> tuple[int, str]:
    return len(path.name), path.name


def first_line(text: str) -> str:
    """The first line that is not blank."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def last_line(text: str) -> str:
    """The last line that is not blank, nor a note of something that is not a failure."""
    lines = (line for line in reversed(text.splitlines()) if not _ASIDE.match(line[:LINE_CHARS]))
    return next((line.strip() for line in lines if line.strip()), "")


def signal_name(number: int) -> str:
    """What a signal is called."""
    names = (known.name for known in signal.Signals if known == number)
    return next(names, f"signal {number}")


def _with_weight(findings: Sequence[Finding], weight: Weight) -> list[Finding]:
    return [finding for finding in findings if finding.weight is weight]


def _describe_exit(finding: Finding) -> Finding:
    status = _ROOT_STATUS.search(finding.said)
    if status is None:
        return finding
    code = int(status[1])
    said = f"died of {signal_name(-code)}" if code < 0 else f"ended with status {code}"
    return replace(finding, said=said, why="")


def _findings(lines: Sequence[str]) -> list[Finding]:
    """All findings in lines, in their order."""
    streams: dict[int | None, list[tuple[int, str]]] = {}
    for number, line in enumerate(lines):
        rank, text = _plain(line[:LINE_CHARS])
        streams.setdefault(rank, []).append((number, text))
    found = [
        (number, replace(finding, rank=rank))
        for rank, stream in streams.items()
        for number, finding in _read_stream(stream)
    ]
    return [finding for _, finding in sorted(found, key=lambda pair: pair[0])]


def _plain(line: str) -> tuple[int | None, str]:
    """The rank that a line is marked with, and the line without what loggers put before it."""
    rank = None
    marked = _OF_RANK.match(line)
    if marked:
        rank, line = int(marked[1] or marked[2]), line[marked.end() :]
    logged = _LOGGED.match(line)
    while logged:
        line = line[logged.end() :]
        logged = _LOGGED.match(line)
    return rank, line


def _read_stream(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, Finding]]:
    """The findings in one rank's lines, each with its line's number."""
    at = 0
    while at < len(lines):
        number, line = lines[at]
        if _TRACEBACK in line:
            ignored = at > 0 and lines[at - 1][1].startswith(_IGNORED)
            finding, at = _read_traceback(lines, at)
            if finding is not None and not ignored:
                yield number, finding
            continue
        at += 1
        finding = None if _ASIDE.match(line) else read_text(line)
        if finding is not None:
            yield number, finding


def _read_traceback(lines: Sequence[tuple[int, str]], start: int) -> tuple[Finding | None, int]:
    """The exception at the end of a traceback, and the number of the line after it."""
    indent, at = _indent(lines[start][1]), start + 1
    while at < len(lines) and (_indent(lines[at][1]) > indent or not lines[at][1].strip()):
        at += 1
    thrown = _THROWN.match(lines[at][1]) if at < len(lines) else None
    if thrown is None:
        return None, at
    block = "\n".join(line for _, line in lines[start:at] if line.strip())
    asserted = _ASSERTED.findall(block) if thrown["type"] == "AssertionError" else []
    message, at = [thrown["message"] or (asserted or [""])[-1]], at + 1
    for _, line in lines[at : at + DETAIL_LINES]:
        if not line.strip() or line.lstrip().startswith(_CHAINED):
            break
        message.append(line)
    return read_error(thrown["type"], "\n".join(message).strip(), where=place(block)), at


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _finding_of(rule: TextRule, said: str, text: str, *, where: str = "") -> Finding:
    asked = memory_asked(text) if rule.kind is FailureKind.OUT_OF_MEMORY else None
    why = f"{rule.why}, {asked} asked for" if asked else rule.why
    return Finding(
        kind=rule.kind,
        weight=rule.weight,
        said=said,
        why=why,
        where=where,
        by_signal=rule is DIED,
    )


ELASTIC_FILES = "rank*.torchelastic.json"


class Thrown(msgspec.Struct, frozen=True):
    """One exception: the full name of its type, and its message."""

    type: str
    message: str


class RankError(Thrown, frozen=True):
    """What a rank said when it failed; the causes are those that the exception came from.

    `failed_ns` is when, by the rank's clock, since the Unix epoch.
    """

    rank: int
    phase: str
    failed_ns: int
    causes: tuple[Thrown, ...]
    memory_limited: bool
    traceback: str


class _Extra(msgspec.Struct, frozen=True):
    py_callstack: str
    timestamp: str


class _ElasticMessage(msgspec.Struct, frozen=True):
    message: str
    extra: _Extra = msgspec.field(name="extraInfo")


class _ElasticError(msgspec.Struct, frozen=True):
    message: _ElasticMessage


def rank_number(path: Path) -> int | None:
    """Return the rank that a file is named after."""
    digits = path.name.removeprefix("rank").partition(".")[0]
    return int(digits) if digits.isdecimal() else None


def rank_error(path: Path) -> RankError | None:
    """Return what a rank left about its failure; None when that is nothing that can be read."""
    return _read_json(path, RankError)


def rank_finding(error: RankError) -> Finding:
    """Return the first cause behind a rank's exception, or the exception itself."""
    where, limited = place(error.traceback), error.memory_limited
    links = [
        read_error(link.type, link.message, where=where, memory_limited=limited)
        for link in (error, *error.causes)
    ]
    first = weightiest([link for link in reversed(links) if link.why]) or links[0]
    if first.weight is Weight.END:
        # An exception is what went wrong, even one that only reports how a child process ended.
        first = replace(first, weight=Weight.CAUSE, why="")
    return replace(first, who=f"rank {error.rank} in {error.phase}: ")


def elastic_findings(workdir: Path) -> list[Finding]:
    """Return what torchrun had from its ranks, in the order of their times."""
    paths = sorted(workdir.glob(ELASTIC_FILES))
    errors = [(path, error) for path in paths if (error := _read_json(path, _ElasticError))]
    errors.sort(key=lambda pair: pair[1].message.extra.timestamp)
    return [_elastic_finding(path, error.message) for path, error in errors]


def _read_json(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(read_bytes(path, RANK_FILE_LIMITS), type=kind)
    except (TraceError, msgspec.MsgspecError):
        return None


def _elastic_finding(path: Path, message: _ElasticMessage) -> Finding:
    found = read_log(message.extra.py_callstack)
    found = found or cause(FailureKind.CRASH, first_line(message.message))
    return replace(found, rank=rank_number(path))


NAME_CHARS = 60

_STACKS = re.compile(r"(rank|process)(\d+)\.stacks\.txt")
_DUMPED = re.compile(r'\s*File "(?P<path>[^"]+)", line (?P<line>\d+) in (?P<name>.+)')
_SPIED = re.compile(r"\s+(?P<name>\S.*) \((?P<path>[^()]+):(?P<line>\d+)\)$")
_THREAD = re.compile(r"(?:Current thread|Thread) ")
_MAIN = re.compile(r'Current thread|Thread .*"MainThread"')
_WRAPPERS = re.compile(r"wrapper|inner|_fn|decorate_context|_?(wrapped_)?call_impl|<lambda>")


def stuck_places(workdir: Path) -> str:
    """Say which ranks were where, the fewest first; empty when no stack was kept."""
    ranks: dict[str, list[str]] = {}
    for path in sorted(workdir.glob("*.stacks.txt"), key=_in_order):
        if place := _stuck_place(log_text(path)):
            ranks.setdefault(place, []).append(path.name.removesuffix(".stacks.txt"))
    groups = sorted(ranks.items(), key=lambda group: len(group[1]))
    return "; ".join(f"{_join_names(who)} in {place}" for place, who in groups)


def _in_order(path: Path) -> tuple[int, str]:
    found = _STACKS.fullmatch(path.name)
    return int(found[2]) if found else 0, path.name


def _join_names(who: list[str]) -> str:
    """Names with a number each, the word said once."""
    word = who[0].rstrip("0123456789")
    numbers = [name.removeprefix(word) for name in who]
    return f"{word}{'s' if len(who) > 1 else ''} {', '.join(numbers)}"


def _stuck_place(text: str) -> str:
    """The call that does not return and the line of the program that made it; empty without any.

    It is that of the main thread: the latest dump of it, innermost frame first.
    """
    frames = list(_frames(text))
    if not frames:
        return ""
    calls = [frame for frame in frames if not _WRAPPERS.fullmatch(frame["name"])] or frames
    own = next((frame for frame in frames if not is_library(frame["path"])), None)
    line = f" ({Path(own['path']).name}:{own['line']})" if own else ""
    return f"{calls[0]['name'][:NAME_CHARS]}{line}"


def _frames(text: str) -> Iterator[re.Match[str]]:
    threads: list[list[str]] = [[]]
    for line in text.splitlines():
        if _THREAD.match(line):
            threads.append([])
        threads[-1].append(line)
    # Without a mark the main thread is the last: they are listed from the newest to the oldest.
    main = [thread for thread in threads if thread and _MAIN.match(thread[0])] or threads
    for line in main[-1]:
        frame = _DUMPED.match(line) or _SPIED.match(line)
        if frame:
            yield frame
