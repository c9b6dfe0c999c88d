"""Gathers submissions: of studies on record, and out of the files of others."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from evaluator.metrics.base import Metric
from evaluator.metrics.registry import loaded_metrics
from records.rows import StudyRow
from records.store import Store
from search.leaderboard.studies import study_submission
from search.leaderboard.submission import Submission
from search.leaderboard.work import Work

MOST_NAMED: Final = 5

SubmissionOf: TypeAlias = Callable[[StudyRow, Store, Mapping[str, Metric]], Submission | None]
"""Makes a submission of a study, or has it already."""


def gathered(
    store: Store | None,
    studies: Sequence[str],
    entries: Sequence[Path],
    workload: str | None,
    on_study: Callable[[int], None],
    submission_of: SubmissionOf = study_submission,
) -> tuple[list[Submission], tuple[str, ...]]:
    """Submissions of this work, and what was left out; of all studies where none is named.

    `on_study` is told how many studies were read. Raises `StudyError` where a study or a file is
    not there.
    """
    read, refused = _read(entries)
    submissions = [each for each in read if _is_asked(each.work, workload)]
    without = []
    rows = [] if store is None else [store.find(s) for s in studies] or store.studies()
    known, _ = loaded_metrics()
    for count, row in enumerate(rows):
        on_study(count)
        if store is None or not _is_asked(Work.of(row.study.workload, None), workload):
            continue
        submission = submission_of(row, store, known)
        if submission is None:
            without.append(row.id)
        else:
            submissions.append(submission)
    notes = [
        *_told(without, "without a measured trial within its limits", "study", "studies"),
        *_told(refused, "that cannot be read", "entry", "entries"),
    ]
    return submissions, tuple(notes)


def _read(entries: Sequence[Path]) -> tuple[Sequence[Submission], Sequence[str]]:
    """The submissions of others, and what was refused."""
    if not entries:
        return (), ()
    # Imported here: studies are ranked without what reads cards.
    from search.leaderboard.entries import read_entries

    found = read_entries(entries)
    return found.submissions, found.refused


def _is_asked(work: Work, name: str | None) -> bool:
    return name is None or work.is_called(name)


def _told(names: Sequence[str], why: str, one: str, several: str) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    noun = one if len(names) == 1 else several
    return [f"left out {len(names)} {noun} {why}: {'; '.join(names[:MOST_NAMED])}{more}"]
