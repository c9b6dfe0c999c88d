"""Finds the trace files that lie in a folder or below it."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluator.readers.files import ReadLimits
from evaluator.readers.formats import TO_CONVERT, Format, NoTraceError, format_of
from evaluator.traces.errors import TraceError

_TRACE_NAME = re.compile(r"[^.].*\.(json|sqlite)(\.gz|\.zst)?", re.IGNORECASE | re.DOTALL)
_DIGITS = re.compile(r"(\d+)")
_MOST_FOLDERS = 1000
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Found:
    """The trace files of one folder with their formats, and what is said of its other files."""

    folder: Path
    files: tuple[tuple[Path, Format], ...]
    others: tuple[str, ...] = ()


def found_at(path: Path, limits: ReadLimits) -> Found:
    """What is to be read when a folder, or one file, is named.

    Raises TraceError when there is nothing, when it lies in several folders, or when a file that
    is called a trace is damaged.
    """
    try:
        if not path.is_dir():
            return Found(path.parent, ((path, format_of(path, limits)),))
        folders = _folders(path)
        here = _in_folder(next(folders), limits)
        if here.files:
            return here
        below = [each for folder in folders if (each := _in_folder(folder, limits)).files]
    except OSError as error:
        raise TraceError(path, f"cannot be read: {error}") from error
    if len(below) > 1:
        named = some([str(each.folder.relative_to(path)) for each in below])
        raise TraceError(path, f"holds traces in several folders, {named}; name one of them")
    if below:
        return below[0]
    others = f": {some(here.others)}" if here.others else ""
    raise TraceError(path, f"holds no *.json or *.sqlite that a profiler wrote{others}")


def some(words: Sequence[str]) -> str:
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


def _in_folder(folder: Path, limits: ReadLimits) -> Found:
    files: list[tuple[Path, Format]] = []
    others: list[str] = []
    for path in sorted(folder.iterdir(), key=lambda path: _by_number(path.name)):
        if not (_TRACE_NAME.fullmatch(path.name) or path.name.endswith(tuple(TO_CONVERT))):
            continue
        try:
            files.append((path, format_of(path, limits)))
        except NoTraceError as error:
            others.append(f"{path.name} {error.kind}")
    return Found(folder, tuple(files), tuple(others))


def _by_number(name: str) -> list[int | str]:
    """Order in which rank10 follows rank9."""
    return [int(part) if part.isdigit() else part for part in _DIGITS.split(name)]
