"""What the search took: launches, time, ranks, money and tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from records.trial import Measured, Outcome
from search.report_page.blocks import Facts, Section
from search.report_page.seen import Seen
from search.trust import is_foreign
from search.words.model import use_words
from search.words.trial import number

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spent:
    """What the launches took that tell it; `silent_count` do not."""

    wall_s: float
    rank_s: float
    told_count: int
    silent_count: int


def cost(seen: Seen) -> Section:
    """Everything that was paid, as far as it is on record."""
    return Section(
        name="cost",
        heading="What it cost",
        lead="Launches that the search learnt from, and those that it made to be sure.",
        blocks=(Facts(lines=tuple(_lines(seen))),),
    )


def _lines(seen: Seen) -> Iterator[tuple[str, str]]:
    yield from seen.lines("trials")
    took = _took(seen)
    if took is not None:
        yield "trials took", f"{_clock(took)} from the first start to the last end"
    spent = _spent(seen)
    if spent.told_count:
        silent = f"; {spent.silent_count} launches do not tell" if spent.silent_count else ""
        wall = _clock(timedelta(seconds=spent.wall_s))
        yield "all launches ran for", f"{wall} in all, some of them side by side{silent}"
        hours = spent.rank_s / HOUR_S
        yield "rank-hours", f"{number(hours)}, every rank for as long as its launch ran"
        price = seen.study.environment.accelerator_usd_per_hour
        if price is not None:
            yield "money", f"{number(hours * price)} USD at {price:g} USD per rank and hour"
    for use in seen.record.uses:
        yield "model", use_words(use, seen.study.llm)
    is_ours = seen.study.origin is None or is_foreign(seen.study)
    if not seen.record.uses and is_ours:
        yield "model", "none was asked"


def _took(seen: Seen) -> timedelta | None:
    """From the first start to the last end of a trial; None where the record has no such times."""
    try:
        starts = [datetime.fromisoformat(trial.started_at) for trial in seen.history]
        ends = [datetime.fromisoformat(trial.ended_at) for trial in seen.history]
        took = max(ends) - min(starts)
    except (ValueError, TypeError):  # from elsewhere: no trial, no time, or some without a zone
        return None
    return took if took > timedelta(0) else None


def _spent(seen: Seen) -> _Spent:
    outcomes = [trial.outcome for trial in seen.history if trial.reached_launch]
    told = [_times(outcome) for outcome in (*outcomes, *(r.outcome for r in seen.repeats))]
    known = [times for times in told if times is not None]
    return _Spent(
        wall_s=sum(wall_s for wall_s, _ in known),
        rank_s=sum(wall_s * ranks for wall_s, ranks in known),
        told_count=len(known),
        silent_count=len(told) - len(known),
    )


def _times(outcome: Outcome) -> tuple[float, int] | None:
    """Seconds that a launch ran and ranks that it had; None where it does not tell."""
    if isinstance(outcome, Measured):
        each = [(one.wall_s, len(one.step_times_s)) for one in outcome.measurements]
        walls = [(wall_s, ranks) for wall_s, ranks in each if wall_s is not None]
        if len(walls) < len(each):
            return None
        return sum(wall_s for wall_s, _ in walls), max(ranks for _, ranks in walls)
    launched = outcome.launched
    return None if launched is None else (launched.wall_s, max(1, len(launched.ranks)))


def _clock(took: timedelta) -> str:
    """A time in hours, minutes and seconds."""
    seconds = round(took.total_seconds())
    minutes, hours = seconds // 60 % 60, seconds // 3600
    parts = [(hours, "h"), (minutes, "min"), (seconds % 60, "s")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "less than 1 s"
