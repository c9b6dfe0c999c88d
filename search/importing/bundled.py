"""A bundle as one study to import."""

from collections.abc import Iterator
from pathlib import Path

from records.entries import (
    LaunchesRepeated,
    StudyChanged,
    StudyCreated,
    TrialFinished,
    with_study,
)
from records.errors import StudyError
from search.importing.bundle import read_bundle, unpacked_files
from search.importing.imported import Imported
from search.trust import foreign


def read(path: Path) -> Iterator[Imported]:
    """The study of a bundle, under the id that it has in the store it came from."""
    bundle = read_bundle(path)
    created = bundle.entries[0]
    if not isinstance(created, StudyCreated):
        raise StudyError(f"{path}: does not begin with a study")
    made_by, digest = bundle.manifest.made_by, bundle.manifest.study.digest
    entries = tuple(
        with_study(entry, lambda study: foreign(study, made_by, digest)) for entry in bundle.entries
    )
    repeats = (each.repeats for each in bundle.entries if isinstance(each, LaunchesRepeated))
    summaries = [
        each.summary
        for each in bundle.entries
        if isinstance(each, StudyChanged) and each.summary is not None
    ]
    yield Imported(
        id=bundle.manifest.study_id,
        study=foreign(created.study, made_by, digest),
        trials=tuple(e.trial for e in bundle.entries if isinstance(e, TrialFinished)),
        repeats=tuple(repeat for found in repeats for repeat in found),
        summary=summaries[-1] if summaries else None,
        files=unpacked_files(bundle),
        entries=entries,
    )
