"""Choose the importer by content, and write imported studies into the store."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from records.codec import with_texts
from records.errors import StudyError, shown
from records.scrub import Scrubber
from records.store.journal import (
    RepeatsFinished,
    StudyChanged,
    StudyCreated,
    TrialFinished,
    with_study,
)
from records.store.store import Store
from records.study import SearchSpace
from records.trial import Config
from search.loop.ports import scrubbed_study
from search.transfer import ccl_search, optuna
from search.transfer.bundle import artifacts_of, is_bundle, read_bundle, unpacked_files
from search.transfer.foreign_studies import BadRows, Imported
from search.transfer.trust import foreign, plain_study
from search.views.console import plain_line


def read(path: Path) -> Iterator[Imported]:
    """The study of a bundle, under the id that it has in the store it came from."""
    bundle = read_bundle(path)
    made_by, digest = bundle.manifest.made_by, bundle.manifest.study.digest
    entries = tuple(
        with_study(entry, lambda study: foreign(study, made_by, digest)) for entry in bundle.entries
    )
    repeats = (each.repeats for each in entries if isinstance(each, RepeatsFinished))
    summaries = [
        each.summary for each in entries if isinstance(each, StudyChanged) and each.summary
    ]
    (created,) = (each for each in entries if isinstance(each, StudyCreated))
    yield Imported(
        id=bundle.manifest.study_id,
        study=created.study,
        trials=tuple(e.trial for e in entries if isinstance(e, TrialFinished)),
        repeats=tuple(chain.from_iterable(repeats)),
        summary=summaries[-1] if summaries else None,
        files=unpacked_files(bundle),
        entries=entries,
    )


KINDS = "a run folder or results.csv of CCL-Search, a storage of Optuna, or a bundle of ours"


def studies_of(source: str, card: Path | None, bad: BadRows) -> Iterator[Imported]:
    """Every study of a path or a storage URL; raises `StudyError` where nothing can be read.

    `card` is the workload card of runs that stand without one.
    """
    named = source if "://" in source else str(Path(source))
    try:
        yield from _studies_of(source, Path(source), card, bad)
    except StudyError as error:
        if named in str(error):
            raise
        raise StudyError(f"{named}: {error}") from error


def _studies_of(source: str, path: Path, card: Path | None, bad: BadRows) -> Iterator[Imported]:
    if "://" in source:
        yield from optuna.read(source, bad)
    elif not path.exists():
        raise StudyError(f"{path}: there is no such file or folder; give {KINDS}")
    elif ccl_search.tables_in(path):
        run_card = None if card is None else ccl_search.run_card(card)
        yield from ccl_search.read_run_folder(path, run_card, bad)
    elif not path.is_file():
        raise StudyError(f"{path}: holds no results.csv; give {KINDS}")
    elif is_bundle(path):
        yield from read(path)
    elif optuna.is_storage(path):
        yield from optuna.read(source, bad)
    else:
        raise StudyError(f"{path}: is not a history that can be imported; give {KINDS}")


def refuse_other(found: Imported, store: Store) -> None:
    """Raise `StudyError` if a study of this id is recorded, and is not that of the bundle."""
    if not found.entries or all(row.id != found.id for row in store.studies()):
        return
    ours = (with_study(entry, plain_study) for entry in store.entries(found.id))
    if tuple(ours) != tuple(with_study(entry, plain_study) for entry in found.entries):
        raise StudyError(
            f"study {found.id} is recorded with other content, so the bundle was not imported; "
            "import it into another store with --store"
        )


def refuse_steering(found: Imported) -> None:
    """Raise `StudyError` for a name with a control character: it would be printed as our words.

    A name is every text of a study that is a name, a value or an expression, and no prose.
    """

    def check(text: str) -> str:
        if plain_line(text) != text:
            raise StudyError(f"study {found.id}: {shown(text)} is a name with a control character")
        return text

    contexts = tuple(
        replace(each, space=each.space and _without_prose(each.space))
        for each in found.study.contexts
    )
    study = replace(found.study, command=None, origin=None, contexts=contexts)
    with_texts(replace(study, space=_without_prose(study.space)), check)
    for trial in found.trials:
        with_texts(trial.config or Config({}), check)
        for artifact in artifacts_of(trial.outcome):
            check(artifact.name)


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
    trials = [
        replace(
            trial,
            policy=with_texts(trial.policy, scrubber.known),
            outcome=scrubber.value(trial.outcome),
        )
        for trial in found.trials
    ]
    study = scrubbed_study(found.study, scrubber)
    store.add_study(found.id, study, version, trials, found.repeats, found.summary)
