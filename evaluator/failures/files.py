"""Reads the error files of ranks: ours, and those that torchrun has user programs write."""

from dataclasses import replace
from pathlib import Path

import msgspec

from evaluator.failures.logs import Finding, first_line, place, read_error, read_log, weightiest
from evaluator.failures.texts import Tells
from evaluator.readers.files import read_bytes
from evaluator.samples import RANK_FILE_LIMITS
from evaluator.traces.errors import TraceError
from records.trial import FailureKind

ELASTIC_FILES = "rank*.torchelastic.json"


class Thrown(msgspec.Struct, frozen=True):
    """One exception: the full name of its type, and its message."""

    type: str
    message: str


class RankError(msgspec.Struct, frozen=True):
    """What a rank said when it failed; the causes are those that the exception came from.

    `failed_ns` is when, by the rank's clock, since the Unix epoch.
    """

    rank: int
    phase: str
    failed_ns: int
    type: str
    message: str
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
    """Give the rank that a file is named after."""
    digits = path.name.removeprefix("rank").partition(".")[0]
    return int(digits) if digits.isdecimal() else None


def rank_error(path: Path) -> RankError | None:
    """Give what a rank left about its failure; None when that is nothing that can be read."""
    try:
        return msgspec.json.decode(read_bytes(path, RANK_FILE_LIMITS), type=RankError)
    except (TraceError, msgspec.MsgspecError):
        return None


def rank_finding(error: RankError) -> Finding:
    """Give the first cause behind a rank's exception, which is told unless a cause says more."""
    thrown = _read(error, error.type, error.message)
    links = [thrown, *(_read(error, cause.type, cause.message) for cause in error.causes)]
    first = weightiest([link for link in reversed(links) if link.why]) or thrown
    # An exception is what went wrong, even one that only tells how a child process ended.
    return replace(first, tells=Tells.CAUSE, why="") if first.tells is Tells.END else first


def elastic_findings(workdir: Path) -> list[Finding]:
    """Give what torchrun had from its ranks, in the order of their times."""
    paths = sorted(workdir.glob(ELASTIC_FILES))
    errors = [(path, error) for path in paths if (error := _elastic_error(path))]
    errors.sort(key=lambda pair: pair[1].message.extra.timestamp)
    return [_elastic_finding(path, error.message) for path, error in errors]


def _read(error: RankError, type_name: str, message: str) -> Finding:
    return read_error(
        type_name, message, where=place(error.traceback), memory_limited=error.memory_limited
    )


def _elastic_error(path: Path) -> _ElasticError | None:
    try:
        return msgspec.json.decode(read_bytes(path, RANK_FILE_LIMITS), type=_ElasticError)
    except (TraceError, msgspec.MsgspecError):
        return None


def _elastic_finding(path: Path, message: _ElasticMessage) -> Finding:
    found = read_log(message.extra.py_callstack) or Finding(
        kind=FailureKind.CRASH, tells=Tells.CAUSE, said=first_line(message.message)
    )
    return replace(found, rank=rank_number(path))
