"""What the page of a study tells beside the API's answer: what it took, what failed, the end."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from records.history import History
from records.instants import now
from records.rows import StudyRow
from records.store import Store
from records.trial import Failed, FailureKind
from records.trial_pages import TrialQuery
from search.charts.history import Interval, Point, history_chart
from search.finding import ended_with
from search.llm.prices import cost_usd, priced
from search.report import Line, Record, result_lines
from search.report_page.thinning import thinned
from search.service.facts.history import StudyHistory
from search.service.pages.rendering import took
from search.service.state import Service
from search.words.model import use_words
from search.words.objective import front_words
from search.words.quantities import many
from search.words.repeat import noise_words, race_words
from search.words.trial import number, one_line

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
            used=took(elapsed.total_seconds()),
            most=None if most_s is None else took(most_s),
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
    finding = ended_with(row)
    if finding is None:
        return ()
    named = {0, *finding.ties, *finding.unreliable, *(each.ordinal for each in finding.front)}
    named |= set() if finding.winner is None else {finding.winner}
    trials = (records.trial(row.id, ordinal) for ordinal in sorted(named))
    record = Record(
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
    finding = ended_with(row)
    if finding is None:
        return ()
    noise = finding.noise
    return (
        *([] if noise is None else [("noise", noise_words(noise, row.study.measure))]),
        *(("raced", race_words(race)) for race in finding.races[-MOST_RACES:]),
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
    points = thinned(history.points, lambda point: point.ordinal in led, MOST_MARKS)
    again, best = history.best_again, None
    if again is not None and history.best is not None:
        tip = f"trial {history.best} over all its launches: {number(again.centre)}"
        best = Interval(
            ordinal=history.best, centre=again.centre, low=again.low, high=again.high, tip=tip
        )
    unit = f" in {history.axis.unit}" if history.axis.unit else ""
    return history_chart(
        [
            Point(ordinal=each.ordinal, value=each.value, ended=each.ended, tip=each.words)
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
        end = datetime.fromisoformat(latest[0].ended_at if is_over else now())
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
            used=many(tokens, "token"),
            most=None if most is None else str(most),
            share=tokens / most if most else None,
        )
    llm = row.study.llm
    if priced(llm).price is None or not (uses or budget.max_cost_usd is not None):
        return
    spent_usd = sum(cost_usd(use.usage, use.model, llm) or 0.0 for use in uses)
    most_usd = budget.max_cost_usd
    yield Spent(
        name="money",
        used=f"{spent_usd:.4g} USD",
        most=None if most_usd is None else f"{most_usd:g} USD",
        share=spent_usd / most_usd if most_usd else None,
    )
