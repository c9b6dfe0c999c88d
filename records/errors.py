"""Errors that end a command, and checks of values that a study shares.

A trial that goes wrong is a value instead, `records.trial.Failed`.

CclsearchError
 ├─ StudyError        the question is malformed: card, study file, space, objective, option
 ├─ StoreError        the record cannot be read or written
 │   └─ StoreBusy     another process holds the study, or as WriterBusy writes to the store
 ├─ EnvironmentFault  this machine lacks what the study needs
 └─ CodecError        a stored value does not have the shape its type says
"""

import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import ClassVar

SHOWN_CHARS = 100


class CclsearchError(Exception):
    """Base of all errors; the message says what, where and what to do, in one line."""


class StudyError(CclsearchError):
    """A study, file or option is malformed or cannot be run."""


class StoreError(CclsearchError):
    """The store cannot be read or written."""


class StoreBusy(StoreError):
    """Another process works on the same study."""


class WriterBusy(StoreBusy):
    """Another process keeps writing to the store."""


class EnvironmentFault(CclsearchError):
    """The machine lacks something the study needs."""


class CodecError(CclsearchError):
    """Text does not decode to the type asked for."""


def shown(value: object) -> str:
    """A value as a message names it: on one line, cut when it is long."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def suggestion(name: str, known: Iterable[str]) -> str:
    """The closest known name as a question, or else all known names."""
    names = list(known)
    close = get_close_matches(name[:SHOWN_CHARS], names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(names)}"


def at_least(section: str, least: int, **values: float | None) -> None:
    """Raise `StudyError` for the first value below `least`; None is not given, so it passes."""
    for name, value in values.items():
        if value is not None and not value >= least:
            raise StudyError(f"[{section}] {name} is {value}; it must be at least {least}")


def at_most(section: str, most: int, **values: float | None) -> None:
    """Raise `StudyError` for the first value above `most`; None is not given, so it passes."""
    for name, value in values.items():
        if value is not None and value > most:
            raise StudyError(f"[{section}] {name} is {value}; it must be at most {most}")


def above_zero(section: str, **values: float | None) -> None:
    """Raise `StudyError` for the first value that is not finite and above 0; None passes."""
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise StudyError(f"[{section}] {name} is {value}; it must be finite and above 0")


class Strict:
    """Base of values that people and files spell out: no other key, and no infinite number."""

    __slots__ = ()
    __pydantic_config__: ClassVar[Mapping[str, object]] = {
        "extra": "forbid",
        "allow_inf_nan": False,
    }


class TraceError(CclsearchError):
    """A file is not a trace that can be measured; says which file and what is wrong with it."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
