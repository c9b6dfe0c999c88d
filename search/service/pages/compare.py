"""The pages that compare studies and trials, and the pages about policies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import unified_diff
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from records.errors import StudyError
from records.store.queries import PolicyResult
from records.store.rows import StudyRow
from records.store.store import Store
from records.trial import Trial
from search.compare.sides import TrialSide
from search.compare.view import comparison_document
from search.report.explored import StudyHistory, repeat_spreads, spread_of_trial
from search.service.access import Reader, Submitter, TheService
from search.service.api.studies import Offset, Race
from search.service.api.trials import policy_before, policy_of, side_of
from search.service.data import compare_recorded, disturbed_trials
from search.service.pages.base import OneStudy, drawing, form_of, page, visible
from search.service.service import Service
from search.views.charts import TONES, Panel, Point, Series, xy_chart
from search.views.document import Block, Paragraph
from search.views.study import use_facts
from search.views.svg import ChartAxis
from search.views.trial import knob_values, remarks_words, result_words

router = APIRouter(include_in_schema=False)

MOST_SIDES = 6
MOST_LINES = 3000
CONTEXT = 4
CUT = "[... the rest is recorded ...]"
MOST_TRIALS, MANY_TRIALS = 8, 500
"""Trials of each policy, in the list and on the page of the policy."""

Name = Annotated[str, Query(max_length=120)]
Limit = Annotated[int, Query(ge=1, le=200)]
Against = Annotated[str, Query(max_length=64, pattern="^[0-9a-f]*$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A trial, or the best trial of a study; `on_record` is None where a study has none."""

    name: str
    row: StudyRow
    is_study: bool
    on_record: TrialSide | None
    result: str
    remarks: str

    @property
    def trial(self) -> Trial | None:
        """The trial itself."""
        return None if self.on_record is None else self.on_record.trial


@router.get("/compare")
def compare(
    request: Request,
    service: TheService,
    _caller: Reader,
    side: Annotated[list[Name] | None, Query(max_length=100)] = None,
) -> Response:
    """Show studies or trials side by side; the others are compared with the first."""
    names = list(dict.fromkeys(name.strip() for name in side or () if name.strip()))
    if len(names) > MOST_SIDES:
        raise StudyError(f"{len(names)} sides are too many to compare; give at most {MOST_SIDES}")
    sides = [_side(name, service) for name in names]
    studies = {each.row.id: each.row for each in sides}
    histories = [
        (f"{row.study.name} ({row.id})", service.explored.history(row, service.records))
        for row in studies.values()
    ]
    return page(
        request,
        "compare.html",
        sides=sides,
        racers=_racers(sides, service),
        most=MOST_SIDES,
        knobs=knob_values([each.trial.config if each.trial else None for each in sides]),
        verdicts=[_verdict(sides[0], other) for other in sides[1:]],
        chart=drawing(regret_chart(histories)),
        study_count=len(studies),
    )


@router.post("/studies/{study_id}/race")
async def race_from_page(
    study_id: str, request: Request, service: TheService, caller: Submitter
) -> Response:
    """Queue a race of two trials and show its study."""
    trials = (await form_of(request)).get("trial", ())
    try:
        asked = Race.model_validate({"trials": trials})
    except ValidationError as error:
        raise StudyError("a race needs the numbers of two trials") from error
    new_id = await run_in_threadpool(service.race, study_id, asked.trials, caller)
    return RedirectResponse(f"/studies/{new_id}", status_code=303)


def _racers(sides: Sequence[Side], service: Service) -> tuple[str, int, int] | None:
    """Return the study and the two trials of it that may race; None for other sides."""
    trials = [each.trial for each in sides]
    if len(sides) != 2 or sides[0].row.id != sides[1].row.id:
        return None
    measured = [each.ordinal for each in trials if each is not None and each.score is not None]
    if len(set(measured)) != 2 or service.table.find(sides[0].row.id) is None:
        return None
    return sides[0].row.id, measured[0], measured[1]


@router.get("/studies/{study_id}/policies")
def policies(
    at: OneStudy, limit: Limit = 50, offset: Offset = 0, learned: Literal["yes", "no"] = "no"
) -> Response:
    """Show the policies of a study in the order in which they were tried.

    Constraints learned from failures are computed on request: many knobs take seconds.
    """
    row, records = at.row, at.records
    outlines, total = records.policy_outlines(row.id, limit, offset)
    return at.page(
        "policies.html",
        "policies",
        outlines=outlines,
        results=_results(row, [each.digest for each in outlines], MOST_TRIALS, records),
        total=total,
        limit=limit,
        offset=offset,
        models=use_facts(records.model_uses(row.id), row.study.llm),
        failed=records.counts(row.id).failed,
        learned=at.service.writing.learned(at.service.store, row) if learned == "yes" else None,
    )


@router.get("/studies/{study_id}/policies/{digest}")
def policy(at: OneStudy, digest: str, against: Against = "") -> Response:
    """Show a policy, its changes against its parent or the one given, and its trials."""
    row, records = at.row, at.records
    found = policy_of(at.service, row.id, digest)
    before = policy_before(at.service, row.id, found, against)
    lines = lines_of(found.source)
    diff = [] if before is None else unified_diff(lines_of(before.source), lines, n=CONTEXT)
    return at.page(
        "policy.html",
        "policies",
        policy=found,
        digest=digest,
        before=before,
        diff=[*diff][2:],
        lines=lines,
        results=_results(row, [digest], MANY_TRIALS, records).get(digest, ()),
    )


def regret_chart(histories: Sequence[tuple[str, StudyHistory]]) -> str | None:
    """Draw how far each search was from the best of all, by trials; None where that is unknown."""
    if len({history.axis for _, history in histories}) != 1 or len(histories) < 2:
        return None
    sign = 1 if histories[0][1].axis.lower_is_better else -1
    ends = [sign * each.best_so_far[-1].value for _, each in histories if each.best_so_far]
    if not ends or min(ends) == 0:
        return None
    best = min(ends)
    series = [
        Series(
            name=name,
            kind=f"tone{number}",
            points=[
                Point(x=each.ordinal + 1, y=100 * (sign * each.value - best) / abs(best))
                for each in history.best_so_far
            ],
            shape=None,
            path="step",
            until=max(1, history.total),
            tip=name,
        )
        for number, (name, history) in enumerate(histories[:TONES])
    ]
    return xy_chart(
        Panel(
            series=series,
            x=ChartAxis(label="trials tried"),
            y=ChartAxis(label="% from the best of all", kind="zero"),
        ),
        title="How far each search was from the best of all",
    )


def lines_of(source: str) -> tuple[str, ...]:
    """Return the lines of a program as they are shown."""
    lines = tuple(visible(source).splitlines())
    return lines if len(lines) <= MOST_LINES else (*lines[:MOST_LINES], CUT)


def _side(name: str, service: Service) -> Side:
    """Return the side that `STUDY` or `STUDY:TRIAL` names; raise `StudyError`, `MissingError`."""
    row, found = side_of(service, name)
    result, remarks = "none", "no trial of it may lead"
    if found is not None:
        disturbed = disturbed_trials((found.trial,), row, service.records)
        remarks = remarks_words(found.trial, disturbed.get(found.trial.ordinal))
        reached = spread_of_trial(found.trial, repeat_spreads(row, service.records))
        result = result_words(found.trial, reached) or "failed"
    return Side(
        name=name,
        row=row,
        is_study=":" not in name,
        on_record=found,
        result=result,
        remarks=remarks,
    )


def _verdict(first: Side, other: Side) -> tuple[Block, ...]:
    """Return how a side compares with the first, as `cclsearch compare` shows it."""
    if first.on_record is None or other.on_record is None:
        lacking = first if first.on_record is None else other
        return (Paragraph(text=f"unknown: {lacking.name} has no trial that may lead"),)
    try:
        found = compare_recorded(first.on_record, other.on_record)
    except StudyError as error:
        return (Paragraph(text=str(error)),)
    return comparison_document(found).sections[0].blocks


def _results(
    row: StudyRow, digests: Sequence[str], most: int, records: Store
) -> Mapping[str, tuple[PolicyResult, ...]]:
    """Return how the first trials of these policies ended, by all launches that count."""
    again = repeat_spreads(row, records)
    found = records.policy_results(row.id, digests, most)
    return {
        digest: tuple(
            replace(each, value=again[each.ordinal].centre) if each.ordinal in again else each
            for each in results
        )
        for digest, results in found.items()
    }
