"""Which importer reads what: told by what a file or a folder holds, not by its name."""

from collections.abc import Iterator
from pathlib import Path

from records.errors import StudyError
from search.importing import bundled, card_runs, json_lines, optuna_studies, run_folder
from search.importing.bundle import is_bundle
from search.importing.files import BadRows
from search.importing.imported import Imported

KINDS = (
    "a run folder or results.csv of CCL-Search, a workload card with runs, JSON lines of recorded "
    "searches, a storage of Optuna, or a bundle of ours"
)


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
        yield from optuna_studies.read(source, bad)
    elif not path.exists():
        raise StudyError(f"{path}: there is no such file or folder; give {KINDS}")
    elif run_folder.is_run_folder(path):
        beside = None if card is None else card_runs.beside(card)
        yield from run_folder.read(path, beside, bad)
    elif not path.is_file():
        raise StudyError(f"{path}: holds no results.csv; give {KINDS}")
    elif is_bundle(path):
        yield from bundled.read(path)
    elif optuna_studies.is_storage(path):
        yield from optuna_studies.read(source, bad)
    elif card_runs.is_card(path):
        yield from card_runs.read(path, bad)
    elif json_lines.is_history(path):
        yield from json_lines.read(path, bad)
    else:
        raise StudyError(f"{path}: is no history that can be imported; give {KINDS}")
