"""Writes a study into one file, from which another machine records and replays it."""

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import zstandard

from records.artifacts import Artifacts
from records.codec import to_json
from records.entries import Entry, FilesRemoved, LaunchesRepeated, TrialBegun, TrialFinished
from records.errors import StoreError
from records.launched import Launched
from records.trial import Artifact, Outcome
from search.exporting.bundle_format import (
    END,
    FILES,
    FORMAT,
    MANIFEST,
    MOST_MANIFEST_BYTES,
    STUDY,
    VERSION,
    Manifest,
    Member,
    header,
    kind_of,
    padding,
)

_PIECE_BYTES = 1 << 20
_LEVEL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundled:
    """A study to be bundled: its records, where its files are, and what is to be said of it."""

    study_id: str
    study_name: str
    entries: Sequence[Entry]
    artifacts: Artifacts
    made_by: str
    notes: tuple[str, ...] = ()


def write_bundle(bundled: Bundled, out: BinaryIO, *, allow_missing: bool) -> Manifest:
    """Write a bundle and give its manifest.

    Raises `StoreError` for a file that is missing or was altered; with `allow_missing` one that is
    missing is listed as such.
    """
    files, missing = _sized(bundled, allow_missing)
    with tempfile.TemporaryFile() as study:
        manifest = Manifest(
            format=FORMAT,
            version=VERSION,
            study_id=bundled.study_id,
            study_name=bundled.study_name,
            made_by=bundled.made_by,
            study=_write_study(bundled.entries, study),
            files=tuple(files),
            missing=tuple(missing),
            notes=bundled.notes,
        )
        packer = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
        with packer.stream_writer(out, closefd=False) as packed:
            _write_manifest(packed, manifest)
            study.seek(0)
            _write_member(packed, STUDY, manifest.study.size_bytes, study)
            for file in manifest.files:
                with bundled.artifacts.open(file.digest) as source:
                    _write_member(packed, f"{FILES}{file.digest}", file.size_bytes, source)
            packed.write(END)
    return manifest


def cited_files(entries: Iterable[Entry]) -> list[str]:
    """Digests of all files that records cite, rising."""
    found: set[str] = set()
    for entry in entries:
        match entry:
            case TrialFinished(trial=trial):
                found |= _cited(trial.outcome)
                found |= {trial.exchange} if trial.exchange else set()
            case TrialBegun(exchange=str(exchange)):
                found.add(exchange)
            case LaunchesRepeated(repeats=repeats):
                found.update(*(_cited(repeat.outcome) for repeat in repeats))
    return sorted(found)


def launches_of(outcome: Outcome) -> Iterator[Launched]:
    """How an outcome was launched, in each of its contexts."""
    if outcome.launched is not None:
        yield outcome.launched
    for one in outcome.contexts:
        yield from launches_of(one.outcome)


def artifacts_of(outcome: Outcome) -> Iterator[Artifact]:
    """The files of an outcome, with those of its contexts."""
    yield from outcome.artifacts
    for one in outcome.contexts:
        yield from artifacts_of(one.outcome)


def _cited(outcome: Outcome) -> set[str]:
    machines = {launched.machine for launched in launches_of(outcome) if launched.machine}
    return {*machines, *(artifact.digest for artifact in artifacts_of(outcome))}


def _sized(bundled: Bundled, allow_missing: bool) -> tuple[list[Member], list[str]]:
    """Every file with the size of its content, which is read through for it; and the missing.

    What was removed for its space may be missing: the record says so.
    """
    removed = {
        digest
        for entry in bundled.entries
        if isinstance(entry, FilesRemoved)
        for digest in entry.digests
    }
    files: list[Member] = []
    missing: list[str] = []
    for digest in cited_files(bundled.entries):
        is_gone = bundled.artifacts.size(digest) is None
        if is_gone and (allow_missing or digest in removed):
            missing.append(digest)
            continue
        try:
            files.append(Member(digest=digest, size_bytes=_size(digest, bundled.artifacts)))
        except StoreError as error:
            more = "; --allow-missing leaves it out" if is_gone else ""
            raise StoreError(f"{error}{more}") from error
    return files, missing


def _size(digest: str, artifacts: Artifacts) -> int:
    size_bytes = 0
    with artifacts.open(digest) as source:
        while piece := source.read(_PIECE_BYTES):
            size_bytes += len(piece)
    return size_bytes


def _write_study(entries: Iterable[Entry], out: BinaryIO) -> Member:
    digest, size_bytes = hashlib.sha256(), 0
    for entry in entries:
        line = f'{{"kind":"{kind_of(entry)}","entry":{to_json(entry)}}}\n'.encode()
        digest.update(line)
        size_bytes += out.write(line)
    return Member(digest=digest.hexdigest(), size_bytes=size_bytes)


def _write_manifest(out: BinaryIO, manifest: Manifest) -> None:
    text = to_json(manifest).encode()
    if len(text) > MOST_MANIFEST_BYTES:
        raise StoreError(
            f"{len(manifest.files)} files are more than one bundle can list; leave out those with "
            "traces with --no-traces, or all with --metrics-only"
        )
    out.write(header(MANIFEST, len(text)) + text + padding(len(text)))


def _write_member(out: BinaryIO, name: str, size_bytes: int, source: BinaryIO) -> None:
    out.write(header(name, size_bytes))
    while piece := source.read(_PIECE_BYTES):
        out.write(piece)
    out.write(padding(size_bytes))
