"""Reads every kept file, and tells which are not what the records say."""

import os
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from records.errors import StoreError
from records.store import Store

MOST_THREADS = 8
OnFile: TypeAlias = Callable[[int, int], None]
"""Told how many files of how many were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A kept file that is not what it was, or not there, and who cites it, if anybody does.

    `cited_by` holds study, trial and the name that the trial gave the file.
    """

    digest: str
    what: str
    cited_by: tuple[tuple[str, int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """How many files were read, what they take on disk, and what is wrong."""

    file_count: int
    disk_bytes: int
    removed_count: int
    faults: tuple[Fault, ...]


def verified(records: Store, on_file: OnFile = lambda _done, _total: None) -> Verified:
    """Compare every file with its digest, and every record with the files that are there."""
    files = list(records.artifacts.all())
    there = {kept.digest for kept in files}
    removed = {(removal.study_id, removal.digest) for removal in records.citations.removals()}
    sizes = {
        each.digest: each.size_bytes
        for each in records.citations.all()
        if each.digest in there and each.size_bytes is not None
    }
    wrong: dict[str, str] = {}
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as threads:
        told = threads.map(lambda kept: _fault(kept.digest, sizes.get(kept.digest), records), files)
        for done, (kept, what) in enumerate(zip(files, told, strict=True), 1):
            if what is not None:
                wrong[kept.digest] = what
            on_file(done, len(files))
    cited_by: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
    for each in records.citations.all():
        if each.digest not in there and (each.study_id, each.digest) not in removed:
            wrong[each.digest] = f"artifact {each.digest} is missing"
        if each.digest in wrong:
            cited_by[each.digest].append((each.study_id, each.ordinal, each.name))
    return Verified(
        file_count=len(files),
        disk_bytes=sum(kept.disk_bytes for kept in files),
        removed_count=len({digest for _, digest in removed} - there),
        faults=tuple(
            Fault(digest=digest, what=what, cited_by=tuple(cited_by[digest]))
            for digest, what in wrong.items()
        ),
    )


def _fault(digest: str, size_bytes: int | None, records: Store) -> str | None:
    try:
        records.artifacts.check(digest, size_bytes)
    except StoreError as error:
        return str(error)
    return None
