"""What a study wants and how far it got with it, in words: limits, baselines, fronts."""

import re
from collections.abc import Iterator

from evaluator.timing.spread import Spread
from records.history import History
from records.study import Study
from search.front import Member, Reached
from search.words.config import flags
from search.words.trial import centre_words, number, one_line

LIMIT_CHARS = 200


def objective_words(study: Study) -> str:
    """All objectives and limits: `step_time and rank_count, with peak_memory < 30 GiB`."""
    objectives = (study.objective, *study.more_objectives)
    words = " and ".join(objective.expression for objective in objectives)
    return f"{words}, with {', '.join(study.limits)}" if study.limits else words


def baseline_words(study: Study, history: History) -> str | None:
    """Who stands for the seed in what names it; None where the seed does, or nothing names it."""
    first = next(iter(history.measured), None)
    if first is None or first.ordinal == 0 or not _names_seed(study):
        return None
    return f"trial {first.ordinal}, the first that was measured, as the seed failed"


def _names_seed(study: Study) -> bool:
    """Whether an objective or a limit names what the seed had."""
    objectives = (each.expression for each in (study.objective, *study.more_objectives))
    return any(re.search(r"@\s*seed\b", text) for text in (*objectives, *study.limits))


def limit_words(history: History) -> str | None:
    """How many trials break a limit, and how the first does; None where none breaks any."""
    broken = [t for t in history.measured if t.score is not None and t.score.broken]
    if not broken:
        return None
    first = broken[0]
    how = one_line("; ".join(first.score.broken if first.score else ()), LIMIT_CHARS)
    count = f"{len(broken)} of {len(history.measured)} measured trials break a limit"
    return f"{count}, so they cannot be the best; trial {first.ordinal}: {how}"


def front_words(front: tuple[Member, ...], history: History) -> Iterator[str]:
    """Each member of a front on a line: what it reached, and what it sets."""
    for member in front:
        trial = history.find(member.ordinal)
        config = None if trial is None else trial.config
        reached = ", ".join(_reached_words(each) for each in member.reached)
        yield f"trial {member.ordinal}: {reached}: {flags(config) if config else ''}".rstrip(": ")


def _reached_words(reached: Reached) -> str:
    words = f"{reached.objective} {centre_words(reached.value, reached.unit)}"
    return f"{words}{_interval(reached.value)}"


def _interval(value: Spread) -> str:
    if value.launch_count == 1:
        return " (one launch)"
    if value.low is None or value.high is None:
        return f" ({value.launch_count} launches)"
    if value.low == value.high:
        return ""
    return f" ({number(value.low)} to {number(value.high)}, {value.launch_count} launches)"
