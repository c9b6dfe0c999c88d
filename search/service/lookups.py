"""What addresses name: trials, their files and transcripts, policies, sides of a comparison."""

import re
from collections.abc import Iterator
from urllib.parse import quote

from records.errors import StudyError, shown
from records.exchange import Exchange
from records.rows import StudyRow
from records.store import Store
from records.trial import Artifact, Policy, Trial
from search.comparing.sides import OnRecord, trial_side
from search.finding import leader_of
from search.kept.files import absence
from search.service.state import MissingError, Service

PIECE_BYTES = 1 << 18
PLAIN = re.compile(r"[A-Za-z0-9._-]+")
"""File names that a header holds as they are."""
SIDE = "([^:]{1,100})(?::([0-9]{1,9}))?"
"""A study, for its best trial, or one of its trials."""


def trial_of(service: Service, study_id: str, ordinal: int) -> Trial:
    """A trial that ended; raises `MissingError`."""
    service.study(study_id)
    trial = service.records.trial(study_id, ordinal)
    if trial is None:
        raise MissingError(f"study {study_id} has no trial {ordinal}")
    return trial


def artifact_of(service: Service, study_id: str, ordinal: int, name: str) -> Artifact:
    """A kept file of a trial that is there; raises `MissingError`.

    Names are compared, never looked up on the disk.
    """
    trial = trial_of(service, study_id, ordinal)
    artifact = next((a for a in trial.outcome.artifacts if a.name == name), None)
    if artifact is None:
        raise MissingError(f"trial {ordinal} of study {study_id} has no file {shown(name)}")
    _require(f"file {shown(name)} of trial {ordinal}", study_id, artifact.digest, service)
    return artifact


def exchange_of(service: Service, study_id: str, ordinal: int) -> Exchange:
    """The conversation with the model that proposed a trial; raises `MissingError`."""
    digest = trial_of(service, study_id, ordinal).exchange
    if digest is None:
        raise MissingError(f"no model was asked for trial {ordinal} of study {study_id}")
    _require(f"what was asked for trial {ordinal}", study_id, digest, service)
    return service.records.exchange(digest)


def policy_of(service: Service, study_id: str, digest: str) -> Policy:
    """A policy that a study tried; raises `MissingError`."""
    service.study(study_id)
    found = service.records.policy(study_id, digest)
    if found is None:
        raise MissingError(f"study {study_id} has no policy {shown(digest[:12])}")
    return found


def side_of(service: Service, text: str) -> tuple[StudyRow, OnRecord | None]:
    """What `STUDY:N` or `STUDY` stands for; nothing where no trial of the study may lead.

    Raises `StudyError` for other words, `MissingError` for what is not there.
    """
    match = re.fullmatch(SIDE, text)
    if match is None:
        raise StudyError(f"{shown(text)} names no trial; write STUDY or STUDY:3")
    row, number = service.study(match[1]), match[2]
    if number is not None:
        ordinal = trial_of(service, row.id, int(number)).ordinal
        return row, trial_side(row, ordinal, service.records)
    best = leader_of(row, service.records)
    return row, None if best is None else trial_side(row, best.ordinal, service.records)


def file_address(study_id: str, ordinal: int, artifact: Artifact) -> str:
    """Where a file of a trial is downloaded."""
    return f"/api/v1/studies/{quote(study_id)}/trials/{ordinal}/files/{quote(artifact.name)}"


def attachment(name: str) -> str:
    """The header that has a browser save what is sent under a name, whatever is in it."""
    if PLAIN.fullmatch(name):
        return f'attachment; filename="{name}"'
    return f"attachment; filename*=UTF-8''{quote(name.encode('utf-8', 'replace'), safe='')}"


def bytes_between(artifact: Artifact, store: Store, start: int, end: int) -> Iterator[bytes]:
    """A part of a kept file in pieces; what comes before it is unpacked and dropped."""
    with store.artifacts.open(artifact.digest, artifact.size_bytes) as content:
        at = 0
        while at < end:
            piece = content.read(min(PIECE_BYTES, end - at))
            if not piece:
                return
            wanted = piece[max(0, start - at) :]
            at += len(piece)
            if wanted:
                yield wanted


def _require(what: str, study_id: str, digest: str, service: Service) -> None:
    why = absence(study_id, digest, service.records)
    if why is not None:
        raise MissingError(f"{what} of study {study_id} {why}")
