"""Reads files of other tools, which may hold anything: bounded, and refused in one line."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from pydantic import ValidationError

from records.codec import first_problem, from_document
from records.errors import StudyError
from records.study import digest

MAX_FILE_BYTES: Final = 256 << 20
MAX_LINE_CHARS: Final = 1 << 20
MAX_ROWS: Final = 200_000
MOST_TOLD: Final = 20

T = TypeVar("T")


@dataclass(slots=True)
class BadRows:
    """What to do with a row that cannot be read: end with it, or leave it out and tell.

    `told` are the first that were left out, `advice` ends the error of one that may not be.
    """

    skip: bool = False
    advice: str = ""
    count: int = 0
    told: list[str] = field(default_factory=list)

    def refuse(self, words: str) -> None:
        """Leave out what these words are about; raises `StudyError` where nothing may be."""
        if not self.skip:
            raise StudyError(f"{words}{self.advice}")
        self.count += 1
        if len(self.told) < MOST_TOLD:
            self.told.append(words)

    def taken(self) -> tuple[str, ...]:
        """Give what was told since the last time, and how many more there were."""
        more = self.count - len(self.told)
        words = (*self.told, f"and {more} more") if more else tuple(self.told)
        self.told, self.count = [], 0
        return words


def text_of(path: Path, most_bytes: int = MAX_FILE_BYTES) -> str:
    """Text of a file; raises `StudyError` where it is too long, or none."""
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
        if len(content) > most_bytes:
            raise StudyError(f"{path}: over {most_bytes} bytes; split it into several files")
        return content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{path}: cannot be read: {error}") from error


def lines_of(path: Path) -> Sequence[tuple[int, str]]:
    """The lines of a file that are not blank, numbered from 1."""
    numbered = enumerate(text_of(path).split("\n"), start=1)
    lines = [(number, line) for number, line in numbered if line.strip()]
    if len(lines) > MAX_ROWS:
        raise StudyError(f"{path}: over {MAX_ROWS} rows; split it into several files")
    return lines


def json_rows(path: Path, kind: type[T], bad: BadRows) -> Iterator[tuple[int, str, T]]:
    """Rows of a file of JSON lines, each with its number and its text."""
    for number, line in lines_of(path):
        try:
            yield number, line, json_row(line, kind)
        except StudyError as error:
            bad.refuse(f"{path}:{number}: {error}")


def json_row(text: str, kind: type[T]) -> T:
    """A value out of JSON text; raises `StudyError` with what is wrong, but not where."""
    if len(text) > MAX_LINE_CHARS:
        raise StudyError(f"over {MAX_LINE_CHARS} characters")
    try:
        return from_document(kind, json.loads(text))
    except ValidationError as error:
        raise StudyError(first_problem(error)) from error
    except (ValueError, RecursionError) as error:
        raise StudyError(f"not JSON: {error}") from error


def content_digest(path: Path) -> str:
    """SHA-256 of a file's text."""
    return digest(text_of(path))
