"""Finds the trace files that lie in a folder or below it."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluator.readers.files import ReadLimits
from evaluator.readers.formats import TO_CONVERT, Format, NoTraceError, format_of
from evaluator.traces.errors import TraceError

_TRACE_NAME = re.compile(
    r"[^.].*\.(json|sqlite|xplane\.pb)(\.gz|\.zst)?", re.IGNORECASE | re.DOTALL
)
_PROFILE_NAME = re.compile(r"(?P<host>.+)\.xplane\.pb(\.gz|\.zst)?", re.IGNORECASE | re.DOTALL)
_EXPORT_NAME = re.compile(r"(?P<host>.+)\.trace\.json(\.gz|\.zst)?", re.IGNORECASE | re.DOTALL)
_LATEST_EXPORT = re.compile(r"perfetto_trace\.json(\.gz|\.zst)?", re.IGNORECASE)
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
    raise TraceError(
        path, f"holds no *.json, *.sqlite or *.xplane.pb that a profiler wrote{others}"
    )


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
        if path.is_symlink() and not path.exists():
            others.append(f"{path.name} is a link whose target is missing")
            continue
        try:
            files.append((path, format_of(path, limits)))
        except NoTraceError as error:
            others.append(f"{path.name} {error.kind}")
    exports = _exports(files)
    others += [f"{path.name} {what}" for path, what in exports.items()]
    return Found(folder, tuple(file for file in files if file[0] not in exports), tuple(others))


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


def _by_number(name: str) -> list[int | str]:
    """Order in which rank10 follows rank9."""
    return [int(part) if part.isdigit() else part for part in _DIGITS.split(name)]
