"""What a history shows beyond its single trials, in lines: failures, dead knobs, constraints."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from records.history import History
from records.rule import Rule
from records.trial import Config, Failed, FailureKind
from search.choosers.chooser import Choice
from search.effects import DeadKnob
from search.learnt import Learnt
from search.words.trial import one_line

CAUSE_CHARS = 160
WHY_CHARS = 200
CHOICE_CHARS = 500
LINES_SHOWN = 12
ORDINALS_SHOWN = 6


def failure_lines(history: History) -> Iterator[str]:
    """Each kind of failure with how often it came, and the first with its cause."""
    failures: dict[FailureKind, list[tuple[int, Failed]]] = defaultdict(list)
    for trial in history:
        if isinstance(trial.outcome, Failed):
            failures[trial.outcome.kind].append((trial.ordinal, trial.outcome))
    for kind, found in sorted(failures.items(), key=lambda item: -len(item[1])):
        ordinal, first = found[0]
        cause = one_line(first.message, CAUSE_CHARS)
        whose = ", not the configuration's fault" if kind is FailureKind.INFRASTRUCTURE else ""
        yield f"{kind} {_times(len(found))}{whose}, first in #{ordinal} at {first.stage}: {cause}"


def dead_knob_lines(knobs: Sequence[DeadKnob]) -> Iterator[str]:
    """Each dead knob with what was compared."""
    for knob in knobs[:LINES_SHOWN]:
        values = ", ".join(map(str, knob.values))
        yield (
            f"- {knob.name} ({values}): {knob.pair_count} pairs, at most "
            f"{knob.largest_share:.1%} apart"
        )


def learnt_lines(found: Sequence[Learnt]) -> Iterator[str]:
    """Each learnt constraint with the failures it comes from."""
    for learnt in found[:LINES_SHOWN]:
        words = one_line(Rule.of(learnt.constraint).words, CHOICE_CHARS)
        yield f"- {words}; from {learnt.kind} of {ordinals_words(learnt.ordinals)}"


def candidate_lines(candidates: Sequence[Choice]) -> Iterator[str]:
    """Each candidate with why."""
    for place, choice in enumerate(candidates[:LINES_SHOWN], start=1):
        yield f"{place}. {config_words(choice.config)}: {one_line(choice.why, WHY_CHARS)}"


def pending_lines(pending: Sequence[Config]) -> Iterator[str]:
    """Each configuration that is being measured."""
    return (f"- {config_words(config)}" for config in pending[:LINES_SHOWN])


def config_words(config: Config) -> str:
    """The settings on one line that does not grow without end."""
    return one_line(str(config), CHOICE_CHARS)


def ordinals_words(ordinals: Sequence[int]) -> str:
    """`#5, #10`, and how many more."""
    shown = ", ".join(f"#{ordinal}" for ordinal in ordinals[:ORDINALS_SHOWN])
    more = len(ordinals) - ORDINALS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
