"""Lines about a history as a whole: failures, dead knobs, learned constraints, predictions."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence, Set

from records.expression import Rule
from records.trial import Config, Failed, FailureKind, History, Trial
from search.loop.learned import DeadKnob, LearnedConstraint
from search.loop.relative_speed import RelativeSpeeds
from search.strategies.base import Choice
from search.views.format import format_difference, one_line

CAUSE_CHARS = 160
WHY_CHARS = 200
CHOICE_CHARS = 500
LINES_SHOWN = 12
ORDINALS_SHOWN = 6


def failure_lines(history: History) -> Iterator[str]:
    """Yield each kind of failure with its count, and the first one with its cause."""
    failures: dict[FailureKind, list[tuple[int, Failed]]] = defaultdict(list)
    for trial in history:
        if isinstance(trial.outcome, Failed):
            failures[trial.outcome.kind].append((trial.ordinal, trial.outcome))
    for kind, found in sorted(failures.items(), key=lambda item: -len(item[1])):
        ordinal, first = found[0]
        cause = f": {one_line(first.message, CAUSE_CHARS)}"
        if ordinal == history.trials[-1].ordinal:
            cause = ", the latest trial"  # which is shown in full
        blame = ", not the configuration's fault" if kind is FailureKind.INFRASTRUCTURE else ""
        times = "once" if len(found) == 1 else f"{len(found)} times"
        yield f"{kind} {times}{blame}, first in #{ordinal} at {first.stage}{cause}"


def dead_knob_lines(knobs: Sequence[DeadKnob]) -> Iterator[str]:
    """Yield each dead knob with the comparisons behind it."""
    for knob in knobs[:LINES_SHOWN]:
        values = ", ".join(map(str, knob.values))
        yield (
            f"- {knob.name} ({values}): {knob.pair_count} pairs, at most "
            f"{knob.largest_share:.1%} apart"
        )


def learned_constraint_lines(found: Sequence[LearnedConstraint]) -> Iterator[str]:
    """Yield each learned constraint with the failures behind it."""
    for learned in found[:LINES_SHOWN]:
        words = one_line(Rule.of(learned.constraint).words, CHOICE_CHARS)
        yield f"- {words}; from {learned.kind} of {ordinals_words(learned.ordinals)}"


def candidate_lines(
    candidates: Sequence[Choice], best: Trial | None, memory: Callable[[Config], str | None]
) -> Iterator[str]:
    """Yield each candidate with its expected result and estimated memory."""
    for place, choice in enumerate(candidates[:LINES_SHOWN], start=1):
        line = f"{config_words(choice.config)}: {one_line(choice.why, WHY_CHARS)}"
        if choice.expected and best and best.config:
            line = f"{config_words(choice.config, best)}: {choice.expected}"
        size = memory(choice.config)
        yield f"{place}. {line}{f'; {size} a rank' if size else ''}"


def reason_lines(
    history: History, scale: RelativeSpeeds, count: int, chars: int, shown_whole: Set[int]
) -> Iterator[str]:
    """Yield expected and measured speed of the last trials and of new leaders, with the reason."""
    leaders = {race.challenger for race in history.races if race.verdict == "fast"}
    last = {trial.ordinal for trial in history.trials[-count:]}
    for trial in reversed(history.trials):
        expected = trial.policy.prediction
        is_shown = trial.ordinal in last or (trial.ordinal in leaders and expected is not None)
        if trial.ordinal == 0 or not is_shown:
            continue
        results = [f"expected {expected.speedup:.2f}x of #{expected.over}"] if expected else []
        against = expected.over if expected else history.best.ordinal if history.best else None
        results.append(_outcome_words(trial, scale, against))
        whole = trial.ordinal in shown_whole
        why = "" if whole else one_line(trial.policy.rationale, chars)
        if expected or why:
            yield f"#{trial.ordinal}: {', '.join(filter(None, results))}{f': {why}' if why else ''}"


def _outcome_words(trial: Trial, scale: RelativeSpeeds, against: int | None) -> str:
    if isinstance(trial.outcome, Failed):
        return f"failed ({trial.outcome.kind})"
    speed = None if against is None else scale.speed(trial.ordinal, against)
    if speed is None or against == trial.ordinal:
        return "measured"
    return f"measured {speed}" + ("" if trial.policy.prediction else f" of #{against}")


def pending_lines(pending: Sequence[Config]) -> Iterator[str]:
    """Yield each configuration that is being measured."""
    return (f"- {config_words(config)}" for config in pending[:LINES_SHOWN])


def config_words(config: Config, best: Trial | None = None) -> str:
    """Return the settings in one bounded line, as changes from `best` where that is shorter."""
    whole = str(config)
    if best is not None and best.config is not None:
        changed = f"as #{best.ordinal} but {format_difference(config, best.config)}"
        whole = min(whole, changed, key=len)
    return one_line(whole, CHOICE_CHARS)


def ordinals_words(ordinals: Sequence[int]) -> str:
    """Return `#5, #10`, and how many more."""
    shown = ", ".join(f"#{ordinal}" for ordinal in ordinals[:ORDINALS_SHOWN])
    more = len(ordinals) - ORDINALS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
