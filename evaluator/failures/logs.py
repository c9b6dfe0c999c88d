"""What the output of a failed job says went wrong: the first cause, which rank's, and where.

The output may be of one rank or of many together, with any launcher's lines around it, and of any
length; it was written by a job under test.
"""

import mmap
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evaluator.failures.texts import Tells, TextRule, meaning, memory_asked
from records.trial import FailureKind

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
    """One thing that was said: by its own words, and where in the program if that is known."""

    kind: FailureKind
    tells: Tells
    said: str
    why: str = ""
    where: str = ""
    rank: int | None = None

    def __str__(self) -> str:
        return f"{self.why}: {self.said}" if self.why else self.said


def read_log(text: str) -> Finding | None:
    """Give the first cause that a log names; None when nothing in it tells of a failure."""
    summary = _ROOT.search(text)
    if summary is None:
        return weightiest(_findings(text.splitlines()))
    found = _ROOT_RANK.search(summary[1])
    rank = int(found[1]) if found else None
    told = _ROOT_TRACEBACK.sub(r"\1", summary[1])
    root = [_exit_in_words(finding) for finding in _findings(told.splitlines())]
    rest = _findings(_SUMMARY.sub("", text).splitlines())
    own = [finding for finding in rest if finding.rank in (rank, None)]
    first = weightiest(
        [
            *_of(own, Tells.CAUSE),
            *_of(root, Tells.CAUSE),
            *_of(rest, Tells.CAUSE),
            *_of(own, Tells.SYMPTOM),
            *root,
            *own,
        ]
    )
    return first and replace(first, rank=rank if first.rank is None else first.rank)


def read_by_rank(text: str) -> Mapping[int | None, Finding]:
    """Give the first cause that each rank names in what several wrote; None is a line of nobody."""
    told: dict[int | None, list[Finding]] = {}
    for finding in _findings(_SUMMARY.sub("", text).splitlines()):
        told.setdefault(finding.rank, []).append(finding)
    return {rank: first for rank, found in told.items() if (first := weightiest(found))}


def read_error(
    type_name: str, message: str, *, where: str = "", memory_limited: bool = False
) -> Finding:
    """Give what one exception says, by its type and message."""
    text = f"{type_name}: {message}"[:LINE_CHARS]
    rule = meaning(text, memory_limited=memory_limited)
    short = type_name.rpartition(".")[2]
    said = f"{short}: {first_line(message)}" if first_line(message) else short
    if rule is None:
        return Finding(kind=FailureKind.CRASH, tells=Tells.CAUSE, said=said, where=where)
    return _found(rule, said, text, where=where)


def read_text(text: str) -> Finding | None:
    """Give what one line says, or None when it tells of no failure."""
    rule = meaning(text[:LINE_CHARS])
    if rule is not None:
        return _found(rule, text.strip(), text)
    thrown = _BARE.match(text)
    return None if thrown is None else read_error(thrown["type"], thrown["message"])


def weightiest(findings: Sequence[Finding]) -> Finding | None:
    """Give what failed first: memory wherever it ran out, else a cause, symptom or end."""
    memory = [found for found in findings if found.kind is FailureKind.OUT_OF_MEMORY]
    by_weight = (memory, *(_of(findings, tells) for tells in Tells))
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


def first_line(text: str) -> str:
    """The first line that is not blank."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def last_line(text: str) -> str:
    """The last line that is not blank, nor a note of something that is no failure."""
    lines = (line for line in reversed(text.splitlines()) if not _ASIDE.match(line[:LINE_CHARS]))
    return next((line.strip() for line in lines if line.strip()), "")


def signal_name(number: int) -> str:
    """What a signal is called."""
    names = (known.name for known in signal.Signals if known == number)
    return next(names, f"signal {number}")


def _of(findings: Sequence[Finding], tells: Tells) -> list[Finding]:
    return [finding for finding in findings if finding.tells is tells]


def _exit_in_words(finding: Finding) -> Finding:
    status = _ROOT_STATUS.search(finding.said)
    if status is None:
        return finding
    code = int(status[1])
    said = f"died of {signal_name(-code)}" if code < 0 else f"ended with status {code}"
    return replace(finding, said=said, why="")


def _findings(lines: Sequence[str]) -> list[Finding]:
    """All that lines tell, in the order in which they tell it."""
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
    """What the lines of one rank tell, each finding with its line's number."""
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
        told = None if _ASIDE.match(line) else read_text(line)
        if told is not None:
            yield number, told


def _read_traceback(lines: Sequence[tuple[int, str]], start: int) -> tuple[Finding | None, int]:
    """The exception at the end of a traceback, and the number of the line after it."""
    indent, at = _indent(lines[start][1]), start + 1
    while at < len(lines) and (_indent(lines[at][1]) > indent or not lines[at][1].strip()):
        at += 1
    thrown = _THROWN.match(lines[at][1]) if at < len(lines) else None
    if thrown is None:
        return None, at
    block = "\n".join(line for _, line in lines[start:at] if line.strip())
    message, at = [thrown["message"] or ""], at + 1
    for _, line in lines[at : at + DETAIL_LINES]:
        if not line.strip() or line.lstrip().startswith(_CHAINED):
            break
        message.append(line)
    return read_error(thrown["type"], "\n".join(message).strip(), where=place(block)), at


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _found(rule: TextRule, said: str, text: str, *, where: str = "") -> Finding:
    asked = memory_asked(text) if rule.kind is FailureKind.OUT_OF_MEMORY else None
    why = f"{rule.why}, {asked} asked for" if asked else rule.why
    return Finding(kind=rule.kind, tells=rule.tells, said=said, why=why, where=where)
