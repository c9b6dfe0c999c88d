"""What is made of whole studies: exports, reports, and what all their failures taught.

It reads all that is on record of a study, so that one is made at a time, and nothing of a study
that is too large for a service that others use.
"""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import BoundedSemaphore
from typing import BinaryIO, Literal, TypeAlias

from records.errors import StudyError
from records.rows import StudyRow
from records.store import Store
from search.exporting.asked import Leaving
from search.exporting.bundle_format import SUFFIX
from search.exporting.export import Wanted, export
from search.learnt import Learnt
from search.report_page.html_page import html_page
from search.report_page.report import study_report
from search.report_page.seen import learnt_in
from search.version import installed_version

Form: TypeAlias = Literal["jsonl", "csv", "parquet", "bundle"]

MOST_TRIALS = 20_000
MOST_FILE_BYTES = 4 << 30
"""Kept files that a bundle may hold."""
WAIT_S = 20.0
MOST_WAITING = 2
"""Each takes a thread meanwhile, of which everything else that is asked has few."""


class Writing:
    """Makes what is asked for, one at a time; few may wait for that."""

    def __init__(self) -> None:
        self._turns = BoundedSemaphore(1)
        self._room = BoundedSemaphore(1 + MOST_WAITING)

    def exported(self, root: Path, row: StudyRow, form: Form, leaving: Leaving) -> BinaryIO:
        """An export, to read and close; nothing of it lies in a folder. Raises as `export`."""
        with self._records(root, row) as records:
            if form == "bundle" and not leaving.all_but_metrics:
                size = records.file_bytes(row.id)
                if size > MOST_FILE_BYTES:
                    raise StudyError(
                        f"study {row.id} has {size} bytes of files, too many for one request; "
                        f"`cclsearch export {row.id} --format bundle` has no limit"
                    )
            path = _empty_folder(root) / f"study{SUFFIX if form == 'bundle' else f'.{form}'}"
            export(row, records, _wanted(form, path, leaving), None)
            file = path.open("rb")
            path.unlink()
            return file

    def reported(self, root: Path, row: StudyRow) -> str:
        """The report of a study as one HTML page."""
        with self._records(root, row) as records:
            return html_page(study_report(row, records, ""))

    def learnt(self, root: Path, row: StudyRow) -> tuple[Learnt, ...]:
        """Constraints that the failures of a study show."""
        with self._records(root, row) as records:
            return learnt_in(row.study, records.history(row.id))

    @contextmanager
    def _records(self, root: Path, row: StudyRow) -> Iterator[Store]:
        """Records of their own, so that what is read is not kept."""
        with self._turn(), closing(Store(root)) as records:
            count = records.counts(row.id).trials
            if count > MOST_TRIALS:
                raise StudyError(
                    f"study {row.id} has {count} trials, more than {MOST_TRIALS}; use "
                    "`cclsearch export` or `cclsearch report` where its records are"
                )
            yield records

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with ExitStack() as held:
            for lock, wait_s in ((self._room, 0.0), (self._turns, WAIT_S)):
                if not lock.acquire(timeout=wait_s):
                    raise BusyError("others asked for whole studies before; ask again")
                held.callback(lock.release)
            yield


class BusyError(StudyError):
    """What is asked for takes its time, and others asked before."""


def _empty_folder(root: Path) -> Path:
    """Where exports are written, without what a process that was killed has left there."""
    folder = root / "service" / "exports"
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.iterdir():
        left.unlink(missing_ok=True)
    return folder


def _wanted(form: Form, path: Path, leaving: Leaving) -> Wanted:
    return Wanted(
        form=form,
        to=path,
        trial=None,
        leaving=leaving,
        given={},
        made_by=installed_version(),
        force=True,
        allow_missing=True,
        incomplete=False,
    )
