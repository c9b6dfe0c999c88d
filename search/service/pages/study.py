"""Studies and one study.

The page of studies: how far each is, what it found, and which two to compare.

What the page of a study tells beside the API's answer: what it took, what failed, the end.

What a search does now and did last, in words, out of the events that it printed.

The page of a study, which follows its search; and what can be done with it.

What launches that were made again decided about trials, in words.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, TypeAlias, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ConfigDict, ValidationError

from evaluator.objective import scoring_of
from evaluator.timing.decision import Noise
from records.codec import from_json, utc_now
from records.errors import CodecError, StudyError, shown
from records.store.queries import TrialQuery
from records.store.rows import StudyRow
from records.store.store import Store
from records.study import Measure, Value
from records.trial import Failed, FailureKind, History, Purpose, Trial
from search.loop.budget import cost_usd, with_price
from search.loop.finding import Finding, final_finding
from search.loop.leader import Race, study_leader
from search.report.question import question_facts, work_facts
from search.report.summary import Line, StudyRecord, result_lines, spread_words
from search.service.access import Reader, Submitter, TheService
from search.service.api.studies import (
    MoreTrials,
    Offset,
    Status,
    cancel,
    disturbed_in,
    resume,
    study_full,
    study_page,
)
from search.service.data import StudyHistory, are_too_many, repeat_spreads, spread_of_trial
from search.service.pages.base import drawing, form_of, one, page, spark_of
from search.service.queue import UNDER_WAY
from search.service.service import Service
from search.views.charts import BestInterval, TrialMark, history_chart
from search.views.document import thin
from search.views.format import (
    format_count,
    format_elapsed,
    format_number,
    one_line,
    score_words,
)
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


@router.get("/studies")
def studies_page(
    request: Request,
    service: TheService,
    _caller: Reader,
    offset: Offset = 0,
    text: Annotated[str, Query(max_length=200)] = "",
    status: Annotated[str, Query(max_length=20)] = "",
) -> Response:
    """Studies, newest first."""
    asked = status if status in STATUSES else ""
    found = study_page(
        service, limit=ON_A_PAGE, offset=offset, text=text or None, status=asked or None
    )
    kept = {name: value for name, value in (("text", text), ("status", asked)) if value}
    return page(
        request,
        "studies.html",
        found=found,
        sparks={each.id: spark_of(each.id, service) for each in found.items},
        limit=ON_A_PAGE,
        text=text,
        chosen=asked,
        statuses=STATUSES,
        address=f"/studies?{urlencode(kept)}&" if kept else "/studies?",
    )


CAUSE_CHARS = 300
MOST_RACES = 50
MOST_MARKS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Something that a budget limits: how much is used, in words, and which share that is."""

    name: str
    used: str
    most: str | None
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Trials that failed in one way, and the first of them with its cause."""

    kind: str
    count: int
    first: int
    cause: str
    is_ours: bool
    """Whether it was not the configuration's fault."""


def spent(row: StudyRow, records: Store, *, is_over: bool) -> Iterator[Spent]:
    """What the search took so far, against what it may take."""
    budget, counts = row.study.budget, records.counts(row.id)
    yield _counted("trials", counts.trials, budget.trials)
    yield _counted("launches", counts.launches, budget.launch_limit)
    elapsed = _elapsed(row, records, is_over=is_over)
    if elapsed is not None:
        most_s = budget.max_wall_s
        yield Spent(
            name="trials took" if is_over else "time",
            used=format_elapsed(elapsed.total_seconds()),
            most=None if most_s is None else format_elapsed(most_s),
            share=None if most_s is None else elapsed.total_seconds() / most_s,
        )
    yield from _model(row, records)


def failures(row: StudyRow, records: Store) -> Iterator[Failures]:
    """Kinds of failures, the most frequent first."""
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


def found_lines(row: StudyRow, records: Store) -> tuple[Line, ...]:
    """The closing report, from the finding and the trials that it names; nothing before its end."""
    finding = final_finding(row)
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
    # Its configuration stands above; in several contexts it is more than that.
    is_told = finding.winner is not None and not row.study.contexts
    return (
        ("stopped", finding.stop_reason),
        *(line for line in result_lines(finding, record) if not (is_told and line[0] == "best")),
        *(("front", words) for words in front_words(finding.front, record.history)),
    )


def judged_lines(row: StudyRow) -> tuple[Line, ...]:
    """How noisy launches are and how every race went, once the search has ended."""
    finding = final_finding(row)
    if finding is None:
        return ()
    noise = finding.noise
    return (
        *([] if noise is None else [("noise", noise_words(noise, row.study.measure))]),
        *(("compared", race_words(race)) for race in finding.races[-MOST_RACES:]),
    )


def model_lines(row: StudyRow, records: Store) -> tuple[str, ...]:
    """What each model was asked, and what that took."""
    return tuple(use_words(use, row.study.llm) for use in records.model_uses(row.id))


def history_drawing(row: StudyRow, service: Service) -> str:
    """The history as a chart, drawn again only when its records have changed."""
    stamp = service.records.stamp(row.id)
    return service.drawings.get(
        (row.id, "history"),
        stamp,
        lambda: _drawn_history(service.explored.history(row, service.records)),
    )


def _drawn_history(history: StudyHistory) -> str:
    if not any(point.value is not None for point in history.points):
        return ""
    led = {each.ordinal for each in history.best_so_far}
    points = thin(history.points, lambda point: point.ordinal in led, MOST_MARKS)
    again, best = history.best_again, None
    if again is not None and history.best is not None:
        tip = f"trial {history.best} over all its launches: {format_number(again.centre)}"
        best = BestInterval(
            ordinal=history.best, centre=again.centre, low=again.low, high=again.high, tip=tip
        )
    unit = f" in {history.axis.unit}" if history.axis.unit else ""
    return history_chart(
        [
            TrialMark(ordinal=each.ordinal, value=each.value, ended=each.ended, tip=each.words)
            for each in points
        ],
        best,
        label=f"{one_line(history.axis.name, 60)}{unit}",
        lower_is_better=history.axis.lower_is_better,
    )


def _counted(name: str, used: int, most: int) -> Spent:
    return Spent(name=name, used=str(used), most=str(most), share=used / most)


def _elapsed(row: StudyRow, records: Store, *, is_over: bool) -> timedelta | None:
    """From the first start to the last end, or to now; None where the record has no such times."""
    first, latest = records.trial(row.id, 0), records.latest(row.id, 1)
    if first is None or not latest:
        return None
    try:
        start = datetime.fromisoformat(first.started_at)
        end = datetime.fromisoformat(latest[0].ended_at if is_over else utc_now())
    except ValueError:
        return None
    start, end = (at.replace(tzinfo=at.tzinfo or UTC) for at in (start, end))
    return end - start if end > start else None


def _model(row: StudyRow, records: Store) -> Iterator[Spent]:
    budget, uses = row.study.budget, records.model_uses(row.id)
    tokens = sum(use.usage.tokens for use in uses)
    if uses or budget.max_tokens is not None:
        most = budget.max_tokens
        yield Spent(
            name="tokens",
            used=format_count(tokens, "token"),
            most=None if most is None else str(most),
            share=tokens / most if most else None,
        )
    llm = row.study.llm
    if with_price(llm).price is None or not (uses or budget.max_cost_usd is not None):
        return
    spent_usd = sum(cost_usd(use.usage, use.model, llm) or 0.0 for use in uses)
    most_usd = budget.max_cost_usd
    yield Spent(
        name="money",
        used=f"{spent_usd:.4g} USD",
        most=None if most_usd is None else f"{most_usd:g} USD",
        share=spent_usd / most_usd if most_usd else None,
    )


TAIL_BYTES = 1 << 18
MOST_EVENTS = 200
WORDS_CHARS = 400


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
    """An event in words; `kind` is what it is about, `tone` how it is shown."""

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
    """Fields of the events of `cclsearch run --json`, as far as they are told here."""

    model_config = ConfigDict(extra="ignore")

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


def live_status(path: Path, measure: Measure) -> LiveStatus:
    """Read the last events in a file; nothing happens where there is none."""
    lines, end = _tail(path)
    running: dict[int, RunningTrial] = {}
    events: list[EventLine] = []
    repeating = ""
    for line in lines:
        event = _event(line)
        if event is None:
            continue
        repeating = _repeating(event, repeating)
        _follow(event, running)
        events += _event_lines(event, line, measure)
    return LiveStatus(
        running=tuple(running.values()),
        repeating=repeating,
        events=tuple(reversed(events[-MOST_EVENTS:])),
        end=end,
    )


def _tail(path: Path) -> tuple[Sequence[bytes], int]:
    """The last whole lines of a file, and the offset behind them."""
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


def _event(line: bytes) -> Event | None:
    try:
        return Event.model_validate_json(line)
    except ValidationError:
        return None  # a library printed it


def _follow(event: Event, running: dict[int, RunningTrial]) -> None:
    """Keep what is under way up to date with one more event."""
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
    """What is launched again now, if that is what happens."""
    match event.event:
        case "repeat_finished":
            return f"trial {event.ordinal} is launched again, {_purpose(event)}"
        case "phase" if event.ordinal is None:
            return before or "launching again what leads"
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
            words = f"trial {event.ordinal} again, {_purpose(event)}, round {event.round + 1}"
            yield EventLine(kind="again", words=f"{words}: {went}")
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


JUDGED = frozenset({"noise", "race"})
SHOWN_EVENTS = 60
MORE_TRIALS = 5


@router.get("/studies/{study_id}")
def one_study_page(
    study_id: str, request: Request, service: TheService, _caller: Reader
) -> Response:
    """One study: what it does now, what it reached, what it took, what failed."""
    row, records = service.study(study_id), service.records
    found = study_full(row, service)
    events = service.events(study_id)
    goes_on = found.status in UNDER_WAY
    now = live_status(events, row.study.measure)
    judged = judged_lines(row) or tuple(
        (each.kind, each.words) for each in reversed(now.events) if each.kind in JUDGED
    )
    return page(
        request,
        "study.html",
        disturbed=disturbed_in(row, service),
        tab="overview",
        study=found,
        goes_on=goes_on,
        now=now,
        shown_events=now.events[:SHOWN_EVENTS],
        has_events=events.exists(),
        asked=objective_words(row.study),
        work=tuple(work_facts(row.study)),
        question=tuple(question_facts(row.study, row.strategy, scoring_of(row.study))),
        chart=drawing(history_drawing(row, service)),
        spent=tuple(spent(row, records, is_over=not goes_on)),
        failures=tuple(failures(row, records)),
        models=model_lines(row, records),
        judged=judged,
        finding=found_lines(row, records),
        more_trials=MORE_TRIALS,
        most_marks=MOST_MARKS,
    )


@router.post("/studies/{study_id}/cancel")
def cancel_from_page(study_id: str, service: TheService, caller: Submitter) -> Response:
    """End a study and show it."""
    cancel(study_id, service, caller)
    return RedirectResponse(f"/studies/{study_id}", status_code=303)


@router.post("/studies/{study_id}/resume")
async def resume_from_page(
    study_id: str, request: Request, service: TheService, caller: Submitter
) -> Response:
    """Go on with a study and show it; an empty number of trials asks for no more of them."""
    asked = one(await form_of(request), "more_trials")
    try:
        how = MoreTrials.model_validate({"more_trials": asked}) if asked else None
    except ValidationError as error:
        raise StudyError(
            f"{shown(asked)} is no number of trials; give a whole one from 1 on"
        ) from error
    await run_in_threadpool(resume, study_id, service, caller, how)
    return RedirectResponse(f"/studies/{study_id}", status_code=303)


DECISIONS_CAUSE_CHARS = 500

DecisionLine: TypeAlias = tuple[str, str]
"""What it is about, and what it says."""


def result_words(row: StudyRow, trial: Trial, store: Store) -> str:
    """What a trial reached over the launches that count, with its unit."""
    found = spread_of_trial(trial, repeat_spreads(row, store))
    if found is None or trial.score is None:
        return "failed"
    return spread_words(found, trial.score.unit)


def decision_lines(row: StudyRow, trial: Trial, store: Store) -> tuple[DecisionLine, ...]:
    """How a trial ended, what its repeats showed, and what was decided."""
    return tuple(_lines(row, trial, store))


def _lines(row: StudyRow, trial: Trial, store: Store) -> Iterator[DecisionLine]:
    if isinstance(trial.outcome, Failed):
        yield "failed", f"{trial.outcome.kind} at {trial.outcome.stage}"
        yield "first cause", one_line(trial.outcome.message, DECISIONS_CAUSE_CHARS)
    if trial.score is not None:
        yield "result", result_words(row, trial, store)
        yield "first launch alone", score_words(trial.score)
        yield from (("breaks a limit", words) for words in trial.score.broken)
    finding = final_finding(row)
    if store.counts(row.id).repeats:
        yield from _decisions_again(row, trial, store, finding)
    if finding is not None:
        yield from _in_the_end(finding, trial)


def _decisions_again(
    row: StudyRow, trial: Trial, store: Store, finding: Finding | None
) -> Iterator[DecisionLine]:
    """How a trial did against others."""
    if are_too_many(row, store):
        words = f"too often in this study to be read here; see `cclsearch show {row.id}`"
        yield "launched again", words
        return
    for race in study_leader(row, store).races if finding is None else finding.races:
        if trial.ordinal in (race.challenger, race.incumbent):
            yield "compared", race_words(race)


def _in_the_end(finding: Finding, trial: Trial) -> Iterator[DecisionLine]:
    if finding.winner == trial.ordinal:
        yield "in the end", "the best of the study"
    elif trial.ordinal in finding.ties:
        yield "in the end", f"it could not be told apart from the best, trial {finding.winner}"
    elif finding.winner is not None:
        yield "in the end", f"trial {finding.winner} is the best of the study"
    if trial.ordinal in finding.unreliable:
        yield "unreliable", "it failed by its own running when it was launched to confirm it"
    if any(member.ordinal == trial.ordinal for member in finding.front):
        yield "front", "no other trial beats it in all objectives"
