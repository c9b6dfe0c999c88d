"""Puts what was read from outside on record, once."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from records.errors import StudyError
from records.rows import StudyRow
from records.scrub import Scrubber
from records.store import Store
from records.trial import Trial
from search.importing.imported import Imported
from search.scrubbed import scrubbed_policy, scrubbed_study


@dataclass(slots=True)
class Known:
    """What is on record already, so that nothing is recorded twice."""

    ids: set[str]

    @classmethod
    def of(cls, rows: Iterable[StudyRow]) -> "Known":
        """What these studies are."""
        return cls({row.id for row in rows})

    def take(self, found: Imported) -> bool:
        """Whether a study is new; from now on it is known."""
        is_new = found.id not in self.ids
        self.ids.add(found.id)
        return is_new


def refuse_other(found: Imported, store: Store) -> None:
    """Raise `StudyError` where a study of this id is on record, and is not the one of a bundle."""
    if not found.entries or all(row.id != found.id for row in store.studies()):
        return
    if tuple(store.entries(found.id)) != tuple(found.entries):
        raise StudyError(
            f"study {found.id} is on record with other content, so the bundle was not imported; "
            "import it into another store with --store"
        )


def record(found: Imported, store: Store, version: str, scrubber: Scrubber) -> None:
    """Record a study with its files, in one transaction after them, without secrets and homes.

    What another store of ours had is recorded as it was.
    """
    for path in found.files:
        store.artifacts.keep(path, path.name)
    if found.entries:
        store.restore(found.id, found.entries)
        return
    store.add_study(
        found.id,
        scrubbed_study(found.study, scrubber),
        version,
        [_scrubbed(trial, scrubber) for trial in found.trials],
        found.repeats,
        found.summary,
    )


def _scrubbed(trial: Trial, scrubber: Scrubber) -> Trial:
    return replace(
        trial,
        policy=scrubbed_policy(trial.policy, scrubber),
        outcome=scrubber.value(trial.outcome),
    )
