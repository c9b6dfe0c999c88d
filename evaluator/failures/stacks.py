"""Where ranks were when they were given up on: their stacks in a few words, ranks together.

Reads what faulthandler and py-spy write. Of a stack it tells the innermost call and the line of the
program that led there; who waits in the same place is named together.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from evaluator.failures.logs import is_library, log_text

NAME_CHARS = 60

_RANK = re.compile(r"rank(\d+)\.stacks\.txt")
_PROCESS = re.compile(r"process(\d+)\.stacks\.txt")
_DUMPED = re.compile(r'\s*File "(?P<path>[^"]+)", line (?P<line>\d+) in (?P<name>.+)')
_SPIED = re.compile(r"\s+(?P<name>\S.*) \((?P<path>[^()]+):(?P<line>\d+)\)$")
_THREAD = re.compile(r"(?:Current thread|Thread) ")
_MAIN = re.compile(r'Current thread|Thread .*"MainThread"')
_WRAPPERS = re.compile(r"wrapper|inner|_fn|decorate_context|_?(wrapped_)?call_impl|<lambda>")


@dataclass(frozen=True, slots=True)
class _Place:
    """A call that does not return and the line of the program that made it."""

    call: str
    line: str

    def __str__(self) -> str:
        return f"{self.call} ({self.line})" if self.line else self.call


def gist(workdir: Path) -> str:
    """Say which ranks were where, the fewest first; empty when no stack was kept."""
    ranks: dict[_Place, list[str]] = {}
    for path in sorted(workdir.glob("*.stacks.txt"), key=_in_order):
        place = _place(log_text(path))
        if place is not None:
            ranks.setdefault(place, []).append(_who(path))
    groups = sorted(ranks.items(), key=lambda group: len(group[1]))
    return "; ".join(f"{_together(who)} in {place}" for place, who in groups)


def _in_order(path: Path) -> tuple[int, str]:
    found = _RANK.fullmatch(path.name) or _PROCESS.fullmatch(path.name)
    return int(found[1]) if found else 0, path.name


def _who(path: Path) -> str:
    return path.name.removesuffix(".stacks.txt")


def _together(who: list[str]) -> str:
    """Names with a number each, the word said once."""
    word = who[0].rstrip("0123456789")
    numbers = [name.removeprefix(word) for name in who]
    return f"{word}{'s' if len(who) > 1 else ''} {', '.join(numbers)}"


def _place(text: str) -> _Place | None:
    """Where the main thread was: the latest dump of it, innermost frame first."""
    frames = list(_frames(text))
    if not frames:
        return None
    calls = [frame for frame in frames if not _WRAPPERS.fullmatch(frame["name"])] or frames
    own = next((frame for frame in frames if not is_library(frame["path"])), None)
    line = f"{Path(own['path']).name}:{own['line']}" if own else ""
    return _Place(calls[0]["name"][:NAME_CHARS], line)


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
