"""Launches of a study that were made again, as far as they are few enough to be read for a page."""

from records.rows import StudyRow
from records.store import Store
from records.trial import Repeat

MOST_REPEATS = 5000
"""Launches beyond which a page does without them: each is read in full."""


def repeats_of(row: StudyRow, store: Store) -> tuple[Repeat, ...]:
    """All of them; none where they are too many."""
    return () if are_too_many(row, store) else store.repeats(row.id)


def are_too_many(row: StudyRow, store: Store) -> bool:
    """Whether a page does without them."""
    return store.counts(row.id).repeats > MOST_REPEATS
