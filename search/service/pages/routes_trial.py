"""Pages about one trial: everything on record of it, what its ranks wrote, what a model said."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from markupsafe import Markup

from records.rows import StudyRow
from records.trial import Measured, Trial
from search.service.answers import result_of
from search.service.edge.access import Reader, TheService
from search.service.facts.repeats import disturbed_trials, reached_again, reached_by, repeats_of
from search.service.lookups import exchange_of, trial_of
from search.service.pages.decisions import decision_lines
from search.service.pages.rendering import drawing, page
from search.service.pages.transcripts import transcript_of
from search.service.pages.trial_files import file_lines, log_part, log_tails
from search.service.pages.trial_parts import (
    launches_of,
    metric_lines,
    samples_chart,
    settings_of,
    time_bars,
)
from search.service.routes.files import Ordinal
from search.service.state import Service
from search.service.told import disturbed_in, study_short
from search.words.condition import conditions_words
from search.words.diagnosis import diagnosis_lines, diagnosis_of, diagnosis_words
from search.words.trial import absences, caveats

router = APIRouter(include_in_schema=False)

MOST_SIBLINGS = 100

End = Annotated[int | None, Query(ge=0, le=1 << 50, description="Byte that the part ends before.")]
FileName = Annotated[str, Query(max_length=400)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFacts:
    """What traces and the machine said of a trial, as far as they were looked at."""

    absent: tuple[str, ...]
    diagnosis: str | None
    diagnosis_lines: tuple[str, ...]
    conditions: str | None


@router.get("/studies/{study_id}/trials/{ordinal}")
def trial(
    request: Request, study_id: str, ordinal: Ordinal, service: TheService, _caller: Reader
) -> Response:
    """One trial in full."""
    row, records = service.study(study_id), service.records
    found, study = trial_of(service, study_id, ordinal), study_short(row, service)
    best = None if study.best_trial is None else records.trial(row.id, study.best_trial)
    parent, files = _parent(found, row, service), file_lines(row.id, found, records)
    return page(
        request,
        "trial.html",
        disturbed=disturbed_in(row, service),
        study=study,
        tab="trials",
        trial=found,
        best=best,
        parent=parent,
        result=result_of(found, reached_by(found, reached_again(row, records))),
        last=records.counts(row.id).trials - 1,
        settings=settings_of(found, best, parent),
        decisions=decision_lines(row, found, records),
        caveats=_caveats(row, found, service),
        samples=_drawn(samples_chart(found, repeats_of(row, records))),
        metrics=metric_lines(
            records.metric_values(row.id, ordinal).get(ordinal, ()),
            records.computed_metrics(row.id, ordinal).get(ordinal, ()),
        ),
        bars=_drawn(time_bars((found, best, parent), best)),
        launches=launches_of(found, row, records),
        files=files,
        logs=log_tails(found, files, records),
        measured=_measured(found),
    )


@router.get("/studies/{study_id}/trials/{ordinal}/log")
def log(
    request: Request,
    study_id: str,
    ordinal: Ordinal,
    service: TheService,
    _caller: Reader,
    name: FileName,
    end: End = None,
) -> Response:
    """A part of what a rank wrote, the last one first."""
    row, found = service.study(study_id), trial_of(service, study_id, ordinal)
    return page(
        request,
        "log.html",
        disturbed=disturbed_in(row, service),
        study=study_short(row, service),
        tab="trials",
        ordinal=ordinal,
        log=log_part(found, name, end, service.records),
    )


@router.get("/studies/{study_id}/trials/{ordinal}/transcript")
def transcript(
    request: Request, study_id: str, ordinal: Ordinal, service: TheService, _caller: Reader
) -> Response:
    """What was asked of a model for a trial, and what it answered."""
    row, exchange = service.study(study_id), exchange_of(service, study_id, ordinal)
    return page(
        request,
        "transcript.html",
        disturbed=disturbed_in(row, service),
        study=study_short(row, service),
        tab="policies",
        ordinal=ordinal,
        transcript=transcript_of(exchange, row.study.llm),
    )


def _parent(trial: Trial, row: StudyRow, service: Service) -> Trial | None:
    """The trial before it that had the policy which its own was made from."""
    parent = trial.policy.parent
    if parent is None:
        return None
    tried = service.records.policy_results(row.id, [parent], MOST_SIBLINGS).get(parent, ())
    before = [result.ordinal for result in tried if result.ordinal < trial.ordinal]
    return service.records.trial(row.id, before[-1]) if before else None


def _measured(trial: Trial) -> MeasuredFacts:
    """What only a measured trial tells."""
    measured = trial.outcome if isinstance(trial.outcome, Measured) else None
    diagnosis = diagnosis_of(trial.outcome)
    conditions = None if measured is None else measured.measurement.conditions
    return MeasuredFacts(
        absent=() if measured is None else tuple(absences(measured.absent)),
        diagnosis=None if diagnosis is None else diagnosis_words(diagnosis),
        diagnosis_lines=() if diagnosis is None else tuple(diagnosis_lines(diagnosis)),
        conditions=None if conditions is None else conditions_words(conditions),
    )


def _caveats(row: StudyRow, trial: Trial, service: Service) -> tuple[str, ...]:
    """What to keep in mind about its result, launches that were disturbed first."""
    found = disturbed_trials((trial,), row, service.records).get(trial.ordinal)
    disturbed = () if found is None else (found.caveat,)
    return (*disturbed, *caveats(trial.outcome))


def _drawn(svg: str | None) -> Markup | None:
    return None if svg is None else drawing(svg)
