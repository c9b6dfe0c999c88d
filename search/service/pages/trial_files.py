"""Files of a trial for a page: what there is, and a part of what its ranks wrote."""

import re
from dataclasses import dataclass

from records.errors import StoreError
from records.store import Store
from records.trial import Artifact, Trial
from search.kept.files import absence
from search.service.lookups import bytes_between, file_address
from search.service.pages.visible import visible
from search.service.state import MissingError

WINDOW_BYTES = 1 << 16
TAIL_BYTES = 6000
MOST_TAILS = 8
LARGE_BYTES = 16 << 20
"""Logs beyond which a page reads no tail by itself: they are unpacked from their beginning."""
LOGS = (".log", ".stacks.txt")
TRACES = ("_trace.json.gz", "_trace.json", ".trace.json.gz", ".trace.json", ".pftrace")
RANK = re.compile(r"rank(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLine:
    """A file that was kept; `absent` says why it is not there any more."""

    name: str
    size_bytes: int
    sha256: str
    address: str
    is_trace: bool
    is_log: bool
    absent: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """Some whole lines of a log, from one byte to another, with what cannot be seen made visible.

    `fault` says why there are none.
    """

    name: str
    text: str
    start: int
    end: int
    size_bytes: int
    fault: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether nothing comes before or after."""
        return self.start == 0 and self.end == self.size_bytes


def file_lines(study_id: str, trial: Trial, store: Store) -> tuple[FileLine, ...]:
    """Every file of a trial, logs and traces first, each in the order of ranks."""
    lines = [
        FileLine(
            name=artifact.name,
            size_bytes=artifact.size_bytes,
            sha256=artifact.digest,
            address=file_address(study_id, trial.ordinal, artifact),
            is_trace=artifact.name.endswith(TRACES),
            is_log=artifact.name.endswith(LOGS),
            absent=absence(study_id, artifact.digest, store),
        )
        for artifact in trial.outcome.artifacts
    ]
    return tuple(sorted(lines, key=lambda line: (not line.is_log, not line.is_trace, _rank(line))))


def _rank(line: FileLine) -> tuple[int, str]:
    found = RANK.search(line.name)
    return (int(found[1][:9]) if found else -1), line.name


def log_tails(trial: Trial, lines: tuple[FileLine, ...], store: Store) -> tuple[LogPart, ...]:
    """The ends of the first logs that say anything."""
    told = [line.name for line in lines if line.is_log and line.size_bytes]
    artifacts = {artifact.name: artifact for artifact in trial.outcome.artifacts}
    return tuple(
        _part(artifacts[name], store, None, TAIL_BYTES)
        for name in told[:MOST_TAILS]
        if artifacts[name].size_bytes <= LARGE_BYTES
    )


def log_part(trial: Trial, name: str, end: int | None, store: Store) -> LogPart:
    """The part of a log that ends there, or its last; raises `MissingError`."""
    known = (one for one in trial.outcome.artifacts if one.name == name and name.endswith(LOGS))
    artifact = next(known, None)
    if artifact is None:
        raise MissingError(f"trial {trial.ordinal} has no log of that name")
    return _part(artifact, store, end, WINDOW_BYTES)


def _part(artifact: Artifact, store: Store, end: int | None, most: int) -> LogPart:
    size = artifact.size_bytes
    end = size if end is None else min(max(end, 0), size)
    start = max(0, end - most)
    try:
        content = b"".join(bytes_between(artifact, store, start, end))
    except (StoreError, OSError) as error:
        return LogPart(
            name=artifact.name, text="", start=0, end=0, size_bytes=size, fault=str(error)
        )
    if start > 0:  # it begins with a whole line, unless there is only a part of one
        first = content.find(b"\n") + 1
        content, start = content[first:], start + first
    return LogPart(
        name=artifact.name,
        text=visible(content.decode("utf-8", "replace")).rstrip("\n"),
        start=start,
        end=end,
        size_bytes=size,
    )
