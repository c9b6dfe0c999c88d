"""The page of all studies and the page of one study, which follows its search."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from markupsafe import Markup
from pydantic import BaseModel, ValidationError

from evaluator.objective import scoring_of
from evaluator.timing.decision import Noise
from records.codec import from_json, utc_now
from records.errors import CodecError, StudyError, shown
from records.store.queries import TrialQuery
from records.store.rows import StudyRow
from records.store.store import Store
from records.study import Measure, Value
from records.trial import Failed, FailureKind, History, Purpose
from search.loop.budget import cost_usd, with_price
from search.loop.leader import Race
from search.loop.study_result import final_result
from search.report.explored import (
    draw_history,
)
from search.report.question import question_facts, work_facts
from search.report.summary import Line, StudyRecord, result_lines
from search.service.access import Reader, Submitter, TheService
from search.service.api.studies import (
    MoreTrials,
    Offset,
    Status,
    cancel,
    resume,
    study_full,
    study_page,
)
from search.service.pages.base import OneStudy, drawing, form_of, one, page
from search.service.queue import UNDER_WAY
from search.service.service import Service
from search.views.charts import sparkline
from search.views.format import format_count, format_elapsed, format_number, one_line
from search.views.study import (
    PURPOSES,
    front_words,
    noise_words,
    objective_words,
    race_words,
    use_words,
)

router = APIRouter(include_in_schema=False)

ON_A_PAGE = 25
STATUSES = get_args(Status)
CAUSE_CHARS = 300
MOST_RACES = 50
MOST_MARKS = 600
TAIL_BYTES = 1 << 18
MOST_EVENTS, SHOWN_EVENTS = 200, 60
WORDS_CHARS = 400
JUDGED = frozenset({"noise", "race"})
MORE_TRIALS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """How much of something that a budget limits is used, as text and as a share."""

    name: str
    used: str
    most: str | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Trials that failed in one way, and the first of them with its cause."""

    kind: str
    count: int
    first: int
    cause: str
    is_ours: bool
    """Whether it was not the configuration's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTrial:
    """A trial under way: who proposed it and why, what it sets, how far its launch is."""

    ordinal: int
    author: str = ""
    rationale: str = ""
    config: Mapping[str, Value] = field(default_factory=dict)
    phase: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLine:
    """An event as text; `kind` is what it is about, `tone` how it is shown."""

    kind: str
    words: str
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStatus:
    """What is under way, the latest events with the newest first, and where the file ends."""

    running: tuple[RunningTrial, ...] = ()
    repeating: str = ""
    events: tuple[EventLine, ...] = ()
    end: int = 0


class Event(BaseModel):
    """Fields of the events of `cclsearch run --json`, as far as the page shows them."""

    event: str = ""
    ordinal: int | None = None
    author: str = ""
    rationale: str = ""
    config: dict[str, bool | int | float | str] | None = None
    phase: str = ""
    why: str = ""
    score: float | None = None
    unit: str | None = None
    status: str = ""
    failure_kind: str | None = None
    message: str | None = None
    best: int | None = None
    broken_limits: list[str] = []
    caveats: list[str] = []
    metrics: dict[str, float] | None = None
    purpose: str = ""
    round: int = 0
    words: str = ""
    stop_reason: str = ""
    sd: float | None = None
    freedom: int = 1


@router.get("/studies")
def studies_page(
    request: Request,
    service: TheService,
    _caller: Reader,
    offset: Offset = 0,
    text: Annotated[str, Query(max_length=200)] = "",
    status: Annotated[str, Query(max_length=20)] = "",
) -> Response:
    """Show the studies, newest first."""
    status = status if status in STATUSES else ""
    found = study_page(
        service, limit=ON_A_PAGE, offset=offset, text=text or None, status=status or None
    )
    query = {name: value for name, value in (("text", text), ("status", status)) if value}
    return page(
        request,
        "studies.html",
        found=found,
        sparks={each.id: _spark(each.id, service) for each in found.items},
        limit=ON_A_PAGE,
        text=text,
        chosen=status,
        statuses=STATUSES,
        address=f"/studies?{urlencode(query)}&" if query else "/studies?",
    )


@router.get("/studies/{study_id}")
def one_study_page(at: OneStudy) -> Response:
    """Show one study: what it does now, its best, its budget and its failures."""
    row, records = at.row, at.records
    found = study_full(row, at.service)
    events = at.service.events(row.id)
    goes_on = found.status in UNDER_WAY
    now = live_status(events, row.study.measure)
    judged = _judged_lines(row) or tuple(
        (each.kind, each.words) for each in reversed(now.events) if each.kind in JUDGED
    )
    return at.page(
        "study.html",
        "overview",
        study=found,
        goes_on=goes_on,
        now=now,
        shown_events=now.events[:SHOWN_EVENTS],
        has_events=events.exists(),
        asked=objective_words(row.study),
        work=tuple(work_facts(row.study)),
        question=tuple(question_facts(row.study, row.strategy, scoring_of(row.study))),
        chart=_history_drawing(row, at.service),
        spent=tuple(_spent(row, records, is_over=not goes_on)),
        failures=tuple(_failures(row, records)),
        models=[use_words(use, row.study.llm) for use in records.model_uses(row.id)],
        judged=judged,
        finding=_found_lines(row, records),
        more_trials=MORE_TRIALS,
        most_marks=MOST_MARKS,
    )


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


def live_status(path: Path, measure: Measure) -> LiveStatus:
    """Read the last events in a file; empty where there is none."""
    lines, end = _tail(path)
    running: dict[int, RunningTrial] = {}
    events: list[EventLine] = []
    repeating = ""
    for line in lines:
        try:
            event = Event.model_validate_json(line)
        except ValidationError:
            continue  # a library printed it
        repeating = _repeating(event, repeating)
        _follow(event, running)
        events += _event_lines(event, line, measure)
    return LiveStatus(
        running=tuple(running.values()),
        repeating=repeating,
        events=tuple(reversed(events[-MOST_EVENTS:])),
        end=end,
    )


def _spent(row: StudyRow, records: Store, *, is_over: bool) -> Iterator[Spent]:
    """Yield what the search used so far of its budget."""
    budget, counts, uses = row.study.budget, records.counts(row.id), records.model_uses(row.id)
    for name, used, most in (
        ("trials", counts.trials, budget.trials),
        ("launches", counts.launches, budget.launch_limit),
    ):
        yield Spent(name=name, used=str(used), most=str(most), share=used / most)
    elapsed_s = _elapsed_s(row, records, is_over=is_over)
    if elapsed_s is not None:
        most_s = budget.max_wall_s
        yield Spent(
            name="time",
            used=format_elapsed(elapsed_s),
            most=None if most_s is None else format_elapsed(most_s),
            share=None if most_s is None else elapsed_s / most_s,
        )
    if uses or budget.max_tokens is not None:
        tokens, most_tokens = sum(use.usage.tokens for use in uses), budget.max_tokens
        yield Spent(
            name="tokens",
            used=format_count(tokens, "token"),
            most=None if most_tokens is None else str(most_tokens),
            share=tokens / most_tokens if most_tokens else None,
        )
    llm, most_usd = row.study.llm, budget.max_cost_usd
    if with_price(llm).price is not None and (uses or most_usd is not None):
        spent_usd = sum(cost_usd(use.usage, use.model, llm) or 0.0 for use in uses)
        yield Spent(
            name="cost",
            used=f"{spent_usd:.4g} USD",
            most=None if most_usd is None else f"{most_usd:g} USD",
            share=spent_usd / most_usd if most_usd else None,
        )


def _elapsed_s(row: StudyRow, records: Store, *, is_over: bool) -> float | None:
    """Return the time from the first start to the last end, or to now; None where unknown."""
    first, latest = records.trial(row.id, 0), records.latest(row.id, 1)
    if first is None or not latest:
        return None
    try:
        start = datetime.fromisoformat(first.started_at)
        end = datetime.fromisoformat(latest[0].ended_at if is_over else utc_now())
    except ValueError:
        return None
    start, end = (at.replace(tzinfo=at.tzinfo or UTC) for at in (start, end))
    return (end - start).total_seconds() if end > start else None


def _failures(row: StudyRow, records: Store) -> Iterator[Failures]:
    """Yield the kinds of failures, the most frequent first."""
    for kind, count in records.failures(row.id).items():
        (first, *_), _ = records.trial_page(row.id, TrialQuery(kind=kind, limit=1))
        if isinstance(first.outcome, Failed):
            yield Failures(
                kind=kind.value.replace("_", " "),
                count=count,
                first=first.ordinal,
                cause=one_line(first.outcome.message, CAUSE_CHARS),
                is_ours=kind is FailureKind.INFRASTRUCTURE,
            )


def _found_lines(row: StudyRow, records: Store) -> tuple[Line, ...]:
    """Return the closing report, from the finding and the trials that it names."""
    finding = final_result(row)
    if finding is None:
        return ()
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
        *(("front", words) for words in front_words(finding.front, record.history)),
    )


def _judged_lines(row: StudyRow) -> tuple[Line, ...]:
    """Return how noisy launches are and how every race ended, once the search has ended."""
    finding = final_result(row)
    if finding is None:
        return ()
    noise = finding.noise
    return (
        *([] if noise is None else [("noise", noise_words(noise, row.study.measure))]),
        *(("compared", race_words(race)) for race in finding.races[-MOST_RACES:]),
    )


def _spark(study_id: str, service: Service) -> Markup | None:
    """Draw the best so far of a study in the height of a line."""
    row = service.study(study_id)

    def draw() -> str:
        try:
            history = service.explored.history(row, service.records)
        except StudyError:  # an imported record may name metrics that are unknown here
            return ""
        steps = [(each.ordinal, each.value) for each in history.best_so_far]
        return sparkline(steps, history.total - 1, lower_is_better=history.axis.lower_is_better)

    stamp = service.records.stamp(study_id)
    return drawing(service.drawings.get((study_id, "spark"), stamp, draw))


def _history_drawing(row: StudyRow, service: Service) -> Markup | None:
    """Draw the history of a study, again only when its records have changed."""

    def draw() -> str:
        return draw_history(
            service.explored.history(row, service.records), MOST_MARKS, f"/studies/{row.id}/trials/"
        )

    stamp = service.records.stamp(row.id)
    return drawing(service.drawings.get((row.id, "history"), stamp, draw))


def _tail(path: Path) -> tuple[Sequence[bytes], int]:
    """Return the last whole lines of a file, and the offset behind them."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = max(0, size - TAIL_BYTES)
            file.seek(start)
            piece = file.read(TAIL_BYTES)
    except OSError:
        return (), 0
    whole, newline, _ = piece.rpartition(b"\n")
    lines = whole.split(b"\n")
    return (lines[1:] if start else lines), start + len(whole) + len(newline)


def _follow(event: Event, running: dict[int, RunningTrial]) -> None:
    """Update the trials under way with one more event."""
    if event.event in {"study_started", "finished"}:
        running.clear()
    if event.ordinal is None:
        return
    known = running.get(event.ordinal)
    match event.event:
        case "trial_started":
            running[event.ordinal] = RunningTrial(
                ordinal=event.ordinal, author=event.author, rationale=event.rationale
            )
        case "config_decided" if known is not None:
            running[event.ordinal] = replace(known, config=event.config or {})
        case "phase" if known is not None:
            running[event.ordinal] = replace(known, phase=event.phase)
        case "trial_finished":
            running.pop(event.ordinal, None)
        case _:
            pass


def _repeating(event: Event, before: str) -> str:
    """Return which launch is being repeated now; empty for none."""
    match event.event:
        case "repeat_finished":
            return f"the launch of trial {event.ordinal} is repeated, {_purpose(event)}"
        case "phase" if event.ordinal is None:
            return before or "launches of the leading trials are repeated"
        case "trial_started" | "race_decided" | "noise_measured" | "study_started" | "finished":
            return ""
        case _:
            return before


def _event_lines(event: Event, line: bytes, measure: Measure) -> Iterator[EventLine]:
    match event.event:
        case "study_started":
            yield EventLine(
                kind="search", words=one_line(event.why, WORDS_CHARS) or "the search began"
            )
        case "trial_started":
            why = f": {event.rationale}" if event.rationale else ""
            words = f"trial {event.ordinal} is proposed by {event.author}{why}"
            yield EventLine(kind="proposal", words=one_line(words, WORDS_CHARS))
        case "trial_finished":
            yield _ended(event)
        case "repeat_finished":
            went = f"FAILED {event.failure_kind}" if event.status == "failed" else _step_time(event)
            words = f"trial {event.ordinal}, {_purpose(event)}, round {event.round + 1}"
            yield EventLine(kind="repeat", words=f"{words}: {went}")
        case "noise_measured" if event.sd is not None:
            noise = Noise(sd=event.sd, freedom=event.freedom)
            yield EventLine(kind="noise", words=noise_words(noise, measure))
        case "race_decided":
            yield from _raced(line)
        case "finished":
            words = f"the search ended: {event.stop_reason}"
            yield EventLine(kind="search", words=one_line(words, WORDS_CHARS), tone="good")
        case "notice":
            yield EventLine(kind="notice", words=one_line(event.words, WORDS_CHARS), tone="hold")
        case _:
            pass


def _ended(event: Event) -> EventLine:
    head = f"trial {event.ordinal}"
    if event.status == "failed" or event.score is None:
        cause = one_line(event.message or "", WORDS_CHARS)
        return EventLine(
            kind="trial", words=f"{head} FAILED {event.failure_kind}: {cause}", tone="bad"
        )
    value = f"{format_number(event.score)} {event.unit or ''}".rstrip()
    leads = event.best == event.ordinal
    more = "; ".join([*event.broken_limits, *event.caveats])
    words = f"{head}: {value}{', best so far' if leads else ''}{f' ({more})' if more else ''}"
    return EventLine(kind="trial", words=one_line(words, WORDS_CHARS), tone="good" if leads else "")


def _raced(line: bytes) -> Iterator[EventLine]:
    try:
        race = from_json(Race, line.decode("utf-8", "replace"))
    except CodecError:
        return
    yield EventLine(kind="race", words=race_words(race))


def _step_time(event: Event) -> str:
    found = (event.metrics or {}).get("step_time")
    return "measured" if found is None else f"step_time {format_number(found)} s"


def _purpose(event: Event) -> str:
    return PURPOSES[Purpose(event.purpose)] if event.purpose in [*Purpose] else "once more"
