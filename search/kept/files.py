"""The files that a trial left: read and copied out of the store, or what became of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from records.citations import Removal
from records.errors import StoreError, StudyError, shown
from records.store import Store
from records.trial import Artifact

POLICY = "policy.py"
"""The name under which a trial's policy is copied with its files."""
LONGEST_NAME, LONGEST_PART_BYTES = 1000, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Which files were copied, which of the others are gone on purpose, and which are at fault."""

    paths: tuple[Path, ...]
    removed: tuple[str, ...]
    faults: tuple[str, ...]


def absence(study_id: str, digest: str, records: Store) -> str | None:
    """Why a kept file is not there, in words that follow its name; None where it is."""
    if records.artifacts.size(digest) is not None:
        return None
    removal = records.citations.removal(study_id, digest)
    if removal is not None:
        return removal_words(removal)
    return f"is missing from {records.root / 'artifacts'}; restore it from a copy of the store"


def removal_words(removal: Removal) -> str:
    """When and by which rule a file was removed."""
    return f"was removed by gc on {removal.removed_at[:10]} ({removal.rule})"


def require_kept(
    study_id: str, ordinal: int, artifacts: Iterable[Artifact], records: Store
) -> None:
    """Read files through; raises for the first that is not there, or not what was kept.

    That is `StudyError` for one that was removed on purpose, else `StoreError`.
    """
    for artifact in artifacts:
        whose = f"trial {ordinal} of study {study_id}: {artifact.name}"
        why = absence(study_id, artifact.digest, records)
        if why is not None:
            if records.citations.removal(study_id, artifact.digest) is not None:
                raise StudyError(f"{whose} {why}")
            raise StoreError(f"{whose} {why}")
        try:
            records.artifacts.check(artifact.digest, artifact.size_bytes)
        except StoreError as error:
            raise StoreError(f"{whose}: {error}") from error


def kept_text(study_id: str, ordinal: int, artifact: Artifact, records: Store) -> str:
    """What a file of a trial says; raises as `require_kept`."""
    require_kept(study_id, ordinal, [artifact], records)
    content = records.artifacts.read(artifact.digest, artifact.size_bytes)
    return content.decode(errors="replace").rstrip()


def copied(
    study_id: str, ordinal: int, artifacts: Sequence[Artifact], folder: Path, records: Store
) -> Copies:
    """Copy what is there of a trial's files into a folder, under the names that it gave them."""
    paths: list[Path] = []
    removed: list[str] = []
    faults: list[str] = []
    for artifact in artifacts:
        if not is_inside(artifact.name):
            faults.append(
                f"trial {ordinal}: {shown(artifact.name)} is no name of a file in a folder"
            )
            continue
        if (folder / artifact.name) in (folder / POLICY, *paths):
            faults.append(f"trial {ordinal}: {artifact.name} is the name of another file there")
            continue
        try:
            require_kept(study_id, ordinal, [artifact], records)
        except StudyError as error:
            removed.append(str(error))
        except StoreError as error:
            faults.append(str(error))
        else:
            path = folder / artifact.name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                records.artifacts.copy(artifact.digest, path, artifact.size_bytes)
            except (OSError, StoreError) as error:
                faults.append(f"cannot copy {artifact.name} of trial {ordinal}: {error}")
                continue
            paths.append(path)
    return Copies(paths=tuple(paths), removed=tuple(removed), faults=tuple(faults))


def is_inside(name: str) -> bool:
    """Whether a name leads to a place inside the folder that the file is copied to.

    It holds no character that could steer a terminal, and is of a length that file systems take.
    """
    path = PurePosixPath(name)
    fits = len(name) <= LONGEST_NAME and all(
        len(part.encode(errors="replace")) <= LONGEST_PART_BYTES for part in path.parts
    )
    inside = bool(path.parts) and not path.is_absolute() and ".." not in path.parts
    return inside and fits and name.isprintable()
