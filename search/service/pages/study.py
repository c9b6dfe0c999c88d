"""The page of all studies and the page of one study, which follows its search."""

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ValidationError

from evaluator.objective import scoring_of
from records.codec import first_problem, utc_now
from records.errors import StudyError, shown
from records.store.queries import StudyColumn, StudyQuery, TrialQuery
from records.store.rows import TAG_CHARS, StudyRow
from records.store.store import Store
from records.trial import Failed, History, Trial
from search.loop.budget import HOUR_S, cost_usd, with_price
from search.loop.study_result import StudyResult, final_result
from search.report.data import StudyRecord, failures_words, judged_lines, result_lines
from search.report.question import question_facts, work_facts
from search.service.access import Reader, Submitter, TheService
from search.service.api.studies import (
    MoreTrials,
    Offset,
    Status,
    cancel,
    label,
    resume,
    study_full,
    study_page,
    study_progress,
)
from search.service.data import MOST_MARKS
from search.service.events import line_start
from search.service.pages.base import OneStudy, drawing, form_of, one, page
from search.service.queue import UNDER_WAY
from search.service.service import LabelChanges
from search.study.spaces import parts
from search.transfer.script import launch_script
from search.views.format import format_elapsed, format_number, one_line, read_instant
from search.views.study import config_text, objective_words, use_words
from search.views.trial import Line

router = APIRouter(include_in_schema=False)

ON_A_PAGE = 25
MOST_TAGS_SHOWN = 200
STATUSES = get_args(Status)
MOST_JUDGED = 50
JUDGED = frozenset({"noise", "race"})
TAIL_BYTES = 1 << 18
MOST_EVENTS, SHOWN_EVENTS = 200, 60
WORDS_CHARS = 400
MORE_TRIALS = 5


KINDS: Mapping[str, str] = {
    "study_started": "search",
    "trial_started": "proposal",
    "trial_finished": "trial",
    "repeat_finished": "repeat",
    "noise_measured": "noise",
    "race_decided": "race",
    "notice": "notice",
    "finished": "search",
}
"""What events are about; others are not listed."""


class Event(BaseModel):
    """Fields of the events of `cclsearch run --json`, as far as the page shows them."""

    event: str = ""
    ordinal: int | None = None
    author: str = ""
    rationale: str = ""
    config: dict[str, bool | int | float | str] | None = None
    phase: str = ""
    why: str = ""
    status: str = ""
    best: int | None = None
    words: str = ""
    stop_reason: str = ""

    @property
    def kind(self) -> str:
        """What it is about; empty where it is not listed."""
        return KINDS.get(self.event, "")

    @property
    def line(self) -> str:
        """The event as text: the line of the terminal, where it prints one."""
        words = self.words
        match self.event:
            case "study_started":
                words = self.why or "the search began"
            case "trial_started":
                why = f": {self.rationale}" if self.rationale else ""
                words = f"trial {self.ordinal} is proposed by {self.author}{why}"
            case "finished":
                words = f"the search ended: {self.stop_reason}"
        return one_line(words, WORDS_CHARS)

    @property
    def tone(self) -> str:
        """How it is shown."""
        if self.event == "notice":
            return "hold"
        if self.event == "trial_finished" and self.status == "failed":
            return "bad"
        leads = self.event == "trial_finished" and self.best == self.ordinal
        return "good" if leads or self.event == "finished" else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStatus:
    """What is under way, the latest events with the newest first, and where the file ends.

    Each of `running` is what a trial under way said last in each field of `Event`.
    """

    running: tuple[Event, ...] = ()
    repeating: str = ""
    events: tuple[Event, ...] = ()
    end: int = 0


@router.get("/studies")
def studies_page(
    request: Request,
    service: TheService,
    _caller: Reader,
    offset: Offset = 0,
    text: Annotated[str, Query(max_length=200)] = "",
    status: Annotated[str, Query(max_length=20)] = "",
    tag: Annotated[str, Query(max_length=TAG_CHARS)] = "",
    archived: bool = False,
    sort: StudyColumn = "created_at",
    order: Literal["asc", "desc"] = "desc",
) -> Response:
    """Show the studies, newest first."""
    status = status if status in STATUSES else ""
    asked = StudyQuery(
        text=text or None,
        status=status or None,
        tag=tag or None,
        archived=archived,
        sort=sort,
        descending=order == "desc",
        limit=ON_A_PAGE,
        offset=offset,
    )
    found = study_page(service, asked)
    filters = {"text": text, "status": status, "tag": tag, "archived": "yes" if archived else ""}
    filters = {name: value for name, value in filters.items() if value}
    ordered = {} if asked.order == StudyQuery().order else {"sort": sort, "order": order}
    return page(
        request,
        "studies.html",
        found=found,
        sparks={
            each.id: drawing(service.explored.spark(service.study(each.id), service.records))
            for each in found.items
        },
        limit=ON_A_PAGE,
        asked=asked,
        filters=filters,
        tags=service.records.tags(MOST_TAGS_SHOWN),
        statuses=STATUSES,
        order=order,
        filtered=_address(filters),
        address=_address({**filters, **ordered}),
    )


def _address(query: Mapping[str, str]) -> str:
    """Return the address of the list, to which more can be added."""
    return f"/studies?{urlencode(query)}&" if query else "/studies?"


@router.get("/studies/{study_id}")
def one_study_page(at: OneStudy) -> Response:
    """Show one study: what it does now, its best, its budget and its failures."""
    row, records = at.row, at.records
    found = study_full(row, at.service)
    events = at.service.events(row.id)
    goes_on = found.status in UNDER_WAY
    now, finding = live_status(events), final_result(row)
    judged = [] if finding is None else judged_lines(finding, row.study.measure)[-MOST_JUDGED:]
    return at.page(
        "study.html",
        "overview",
        study=found,
        copies=tuple(_copies(row, at.best(), records)),
        goes_on=goes_on,
        now=now,
        shown_events=now.events[:SHOWN_EVENTS],
        has_events=events.exists(),
        asked=objective_words(row.study),
        work=tuple(work_facts(row.study)),
        question=tuple(question_facts(row.study, row.strategy, scoring_of(row.study))),
        chart=drawing(at.service.explored.drawing(row, records)),
        progress=study_progress(row, at.service),
        spent=tuple(_spent(row, records, is_over=not goes_on)),
        failures=tuple(_failures(row, records)),
        models=[use_words(use, row.study.llm) for use in records.model_uses(row.id)],
        judged=judged or [(of.kind, of.line) for of in now.events[::-1] if of.kind in JUDGED],
        finding=None if finding is None else _found_lines(finding, row, records),
        more_trials=MORE_TRIALS,
        most_marks=MOST_MARKS,
    )


@router.post("/studies/{study_id}/labels")
async def label_from_page(
    study_id: str, request: Request, service: TheService, caller: Submitter
) -> Response:
    """Change the labels of a study and show it."""
    fields = await form_of(request)
    try:
        changes = LabelChanges(
            tags=re.split(r"[,\s]+", one(fields, "tags")) if one(fields, "tags") else [],
            notes=one(fields, "notes"),
            archived="archived" in fields,
        )
    except ValidationError as error:
        raise StudyError(first_problem(error)) from error
    await run_in_threadpool(label, study_id, changes, service, caller)
    return RedirectResponse(f"/studies/{study_id}", status_code=303)


@router.get("/studies/{study_id}/analysis")
def analysis(at: OneStudy) -> Response:
    """Show which knobs matter and where steps went; read apart, as it looks at every trial."""
    sections = at.service.explored.analysis(at.row, at.records)
    return at.page("analysis.html", "overview", sections=sections)


@router.post("/studies/{study_id}/cancel")
def cancel_from_page(study_id: str, service: TheService, caller: Submitter) -> Response:
    """Cancel a study and show it."""
    cancel(study_id, service, caller)
    return RedirectResponse(f"/studies/{study_id}", status_code=303)


@router.post("/studies/{study_id}/resume")
async def resume_from_page(
    study_id: str, request: Request, service: TheService, caller: Submitter
) -> Response:
    """Resume a study and show it; an empty number of trials adds none."""
    more = one(await form_of(request), "more_trials")
    try:
        how = MoreTrials.model_validate({"more_trials": more}) if more else None
    except ValidationError as error:
        raise StudyError(
            f"{shown(more)} is not a number of trials; give a whole number from 1 on"
        ) from error
    await run_in_threadpool(resume, study_id, service, caller, how)
    return RedirectResponse(f"/studies/{study_id}", status_code=303)


def live_status(path: Path) -> LiveStatus:
    """Read the last events in a file; empty where there is none."""
    lines, end = _tail(path)
    running: dict[int, Event] = {}
    events = deque[Event](maxlen=MOST_EVENTS)
    repeating = ""
    for line in lines:
        try:
            event = Event.model_validate_json(line)
        except ValidationError:
            continue  # a library printed it
        repeating = _repeating(event, repeating)
        _follow(event, running)
        if event.kind and event.line:
            events.appendleft(event)
    return LiveStatus(
        running=tuple(running.values()), repeating=repeating, events=tuple(events), end=end
    )


def _copies(row: StudyRow, best: Trial | None, records: Store) -> Iterator[tuple[str, str]]:
    """Yield the best configuration as `cclsearch best` prints it, and the script that starts it."""
    if best is None or best.config is None:
        return
    part = next(iter(parts(row.study, best.config)))
    yield "arguments", config_text("args", part.study, part.config)
    yield "environment", config_text("env", part.study, part.config)
    with suppress(StudyError):  # of what was imported no launch is recorded
        yield "script", launch_script(best, row, records)
    yield "JSON", config_text("json", part.study, part.config)


def _spent(row: StudyRow, records: Store, *, is_over: bool) -> Iterator[dict[str, object]]:
    """Yield what the search used so far of its budget."""
    budget, counts, uses = row.study.budget, records.counts(row.id), records.model_uses(row.id)
    yield _share("trials", counts.trials, budget.trials)
    yield _share("launches", counts.launches, budget.launch_limit)
    elapsed_s = _elapsed_s(row, records, is_over=is_over)
    if elapsed_s is not None:
        yield _share("time", elapsed_s, budget.max_wall_s, format_elapsed)
    node_s = records.node_s(row.id)
    if node_s is not None:
        yield _share("node-hours", node_s / HOUR_S, budget.max_node_hours, format_number)
    if uses or budget.max_tokens is not None:
        tokens = sum(use.usage.tokens for use in uses)
        yield _share("tokens", tokens, budget.max_tokens)
    llm = row.study.llm
    if with_price(llm).price is not None and (uses or budget.max_cost_usd is not None):
        spent_usd = sum(cost_usd(use.usage, use.model, llm) or 0.0 for use in uses)
        yield _share("cost", spent_usd, budget.max_cost_usd, lambda usd: f"{usd:.4g} USD")


def _share(
    name: str, used: float, most: float | None, words: Callable[[float], str] = str
) -> dict[str, object]:
    """Return how much of something that a budget limits is used, as text and as a share."""
    return {
        "name": name,
        "used": words(used),
        "most": None if most is None else words(most),
        "share": used / most if most else None,
    }


def _elapsed_s(row: StudyRow, records: Store, *, is_over: bool) -> float | None:
    """Return the time from the first start to the last end, or to now; None where unknown."""
    first, latest = records.trial(row.id, 0), records.latest(row.id, 1)
    if first is None or not latest:
        return None
    start = read_instant(first.started_at)
    end = read_instant(latest[0].ended_at if is_over else utc_now())
    if start is None or end is None or end <= start:
        return None
    return (end - start).total_seconds()


def _failures(row: StudyRow, records: Store) -> Iterator[tuple[int, str]]:
    """Yield the first trial of each kind of failure with how many there are, the most first."""
    for kind, count in records.failures(row.id).items():
        (first, *_), _ = records.trial_page(row.id, TrialQuery(kind=kind, limit=1))
        if isinstance(first.outcome, Failed):
            yield first.ordinal, failures_words(count, first.ordinal, first.outcome)


def _found_lines(finding: StudyResult, row: StudyRow, records: Store) -> tuple[Line, ...]:
    """Return the end of the closing report, from the finding and the trials that it names."""
    named = {0, *finding.ties, *finding.unreliable, *(each.ordinal for each in finding.front)}
    named |= set() if finding.winner is None else {finding.winner}
    trials = (records.trial(row.id, ordinal) for ordinal in sorted(named))
    record = StudyRecord(
        row=row,
        history=History(tuple(trial for trial in trials if trial is not None)),
        launch_count=records.counts(row.id).launches,
        store=records.root,
    )
    # The page shows the best configuration above; in several contexts the line says more.
    is_shown = finding.winner is not None and not row.study.contexts
    return (
        ("stopped", finding.stop_reason),
        *(line for line in result_lines(finding, record) if not (is_shown and line[0] == "best")),
    )


def _tail(path: Path) -> tuple[Sequence[bytes], int]:
    """Return the last whole lines of a file, and the offset behind them."""
    start = line_start(path, -TAIL_BYTES)
    try:
        with path.open("rb") as file:
            file.seek(start)
            whole, newline, _ = file.read(TAIL_BYTES).rpartition(b"\n")
    except OSError:
        return (), 0
    return whole.split(b"\n"), start + len(whole) + len(newline)


def _follow(event: Event, running: dict[int, Event]) -> None:
    """Update the trials under way with one more event."""
    if event.event in {"study_started", "finished"}:
        running.clear()
    if event.ordinal is None:
        return
    if event.event == "trial_started":
        running[event.ordinal] = event
    elif event.event == "trial_finished":
        running.pop(event.ordinal, None)
    elif event.ordinal in running and event.event in {"config_decided", "phase"}:
        told = event.model_dump(include={"config", "phase"}, exclude_unset=True)
        running[event.ordinal] = running[event.ordinal].model_copy(update=told)


def _repeating(event: Event, before: str) -> str:
    """Return which launch is being repeated now; empty for none."""
    match event.event:
        case "repeat_finished":
            return event.words
        case "phase" if event.ordinal is None:
            return before or "launches of the leading trials are repeated"
        case "trial_started" | "race_decided" | "noise_measured" | "study_started" | "finished":
            return ""
        case _:
            return before
