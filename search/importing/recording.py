"""Puts what was read from outside on record, once."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from records.codec import with_texts
from records.entries import with_study
from records.errors import StudyError, shown
from records.rows import StudyRow
from records.scrub import Scrubber
from records.store import Store
from records.study import SearchSpace
from records.trial import Config, Trial
from search.exporting.bundle import artifacts_of
from search.importing.imported import Imported
from search.scrubbed import scrubbed_policy, scrubbed_study
from search.terminal import plain_line
from search.trust import plain_study


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
    ours = (with_study(entry, plain_study) for entry in store.entries(found.id))
    if tuple(ours) != tuple(with_study(entry, plain_study) for entry in found.entries):
        raise StudyError(
            f"study {found.id} is on record with other content, so the bundle was not imported; "
            "import it into another store with --store"
        )


def refuse_steering(found: Imported) -> None:
    """Raise `StudyError` for a name with a control character: it would be printed as our words."""
    for text in _names(found):
        if plain_line(text) != text:
            raise StudyError(f"study {found.id}: {shown(text)} is a name with a control character")


def _names(found: Imported) -> Iterator[str]:
    """Every text of a study that is a name, a value or an expression, and no prose."""
    names: list[str] = []

    def take(text: str) -> str:
        names.append(text)
        return text

    study = replace(
        found.study,
        command=None,
        origin=None,
        space=_without_prose(found.study.space),
        contexts=tuple(
            replace(each, space=each.space and _without_prose(each.space))
            for each in found.study.contexts
        ),
    )
    with_texts(study, take)
    for trial in found.trials:
        with_texts(trial.config or Config({}), take)
        names += (artifact.name for artifact in artifacts_of(trial.outcome))
    yield from names


def _without_prose(space: SearchSpace) -> SearchSpace:
    return replace(
        space,
        dimensions=tuple(replace(each, description="") for each in space.dimensions),
        constraints=tuple(replace(each, reason="") for each in space.constraints),
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
