"""What the model reads before it writes a policy, from a study and its whole history.

The words are in `search/prompts`; this file fills in what stays the same in a study and keeps the
turns to a size. Knows nothing of how the prompt is sent.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from evaluator.objective import Scoring
from policies.contract import environment_fields, workload_fields
from policies.sandbox import SANDBOX_RULES
from policies.space import Space
from records.history import History
from records.study import Environment, Study
from records.trial import Config
from records.workload import Workload
from search.choosers.chooser import Choice
from search.learnt import Learnt
from search.llm.request import Prompt
from search.llm.tokens import estimated_tokens
from search.spaces import study_in
from search.trial_rows import Shown, least_useful_first
from search.turn_text import MEMORY, SOURCE_CHARS, Detail, TurnText, words
from search.words.context import other_choices
from search.words.today import crowding_words
from search.words.trial import fenced, work_words

TURN_TOKENS = 24_000
SHORT_MESSAGE_CHARS = 60
SHORT_SOURCE_CHARS = (2000, 500)


class PromptWriter:
    """Writes prompts for one space and objective; `turn_tokens` bounds their changing part.

    A history that is too long gives way in this order: the list of untried configurations, the
    length of failure messages, then rows: of trials measured far from the best, of trials that
    never launched, of other failures, of what is left, oldest first within each; at last the
    middle of programs. The best trial and its program, the latest five, the program that failed
    last, every kind of failure with its first cause, dead knobs, learnt constraints, candidates
    and a line that counts what is missing stay: about 12000 tokens at most, 4500 once
    programs are cut.
    """

    def __init__(
        self,
        space: Space,
        scoring: Scoring,
        *,
        sandbox_rules: str = SANDBOX_RULES,
        turn_tokens: int = TURN_TOKENS,
    ) -> None:
        self._space = space
        self._scoring = scoring
        self._sandbox_rules = sandbox_rules
        self._turn_tokens = turn_tokens

    def write(
        self,
        study: Study,
        history: History,
        untried: Sequence[Config] | None,
        *,
        candidates: Sequence[Choice] = (),
        learnt: Sequence[Learnt] = (),
        turn_tokens: int | None = None,
    ) -> Prompt:
        """Give the prompt for the next trial; `untried` is None when too many to be listed.

        `turn_tokens` asks for a shorter turn than usual, as after one that was too long.
        """
        scoring = self._scoring.over(history)
        turn = TurnText(
            study=study,
            space=self._space,
            scoring=scoring,
            shown=Shown.of(history, scoring, study.measure),
            untried=untried,
            candidates=candidates,
            learnt=learnt,
        )
        return Prompt(
            system=words("system").substitute(sandbox_rules=self._sandbox_rules),
            task=self._task(study),
            turn=_fitting(turn, self._turn_tokens if turn_tokens is None else turn_tokens),
        )

    def _task(self, study: Study) -> str:
        lower = self._scoring.lower_is_better
        fields = _fields(study.workload, study.usable_environment)
        crowded = crowding_words(study.usable_environment)
        return words("task").substitute(
            direction="minimize" if lower else "maximize",
            objective=study.objective.expression,
            unit=f" ({self._scoring.unit})" if self._scoring.unit else "",
            better="Lower is better." if lower else "Higher is better.",
            more=_more_words(self._scoring),
            work=work_words(study.workload),
            budget=study.budget.trials,
            limits=_limit_words(study),
            fields=fenced("\n".join(fields), limit=SOURCE_CHARS),
            crowding=f"\n{crowded}\n" if crowded else "",
            contexts=_contexts(study, fields),
            space=self._space.words() + _memory_words(self._space),
        )


def _fitting(turn: TurnText, limit: int) -> str:
    """As much of the turn as the limit lets through, or the least there is."""
    text = ""
    for detail in _ever_less(turn, limit):
        text = turn.told(detail)
        if estimated_tokens(text) <= limit:
            break
    return text


def _ever_less(turn: TurnText, limit: int) -> Iterator[Detail]:
    """Ways to tell the past, each shorter than the one before."""
    yield Detail()
    yield Detail(neighbours=False)
    short = Detail(neighbours=False, message_chars=SHORT_MESSAGE_CHARS)
    yield short
    order = least_useful_first(turn.history)

    def fits(count: int) -> bool:
        detail = replace(short, dropped=frozenset(order[:count]))
        return estimated_tokens(turn.told(detail)) <= limit

    enough = bisect_left(range(len(order)), True, key=fits)
    least = replace(short, dropped=frozenset(order[:enough]))
    yield least
    for source_chars in SHORT_SOURCE_CHARS:
        yield replace(least, source_chars=source_chars)


def _memory_words(space: Space) -> str:
    """Where to find the one number of the constraints that nobody can work out from the above."""
    if not any(MEMORY in rule.expression.names for rule in space.rules):
        return ""
    return (
        f"\n`{MEMORY}` is an estimate; turns give it for the best, candidates and neighbours. The "
        "measured peak may be another kind of memory than what is limited."
    )


def _limit_words(study: Study) -> str:
    """What asking the model may cost in all, where that is limited."""
    budget = study.budget
    limits = [
        *([f"{budget.max_tokens} tokens"] if budget.max_tokens is not None else []),
        *([f"{budget.max_cost_usd:g} USD"] if budget.max_cost_usd is not None else []),
    ]
    return f" You may be asked for at most {' and '.join(limits)} in all." if limits else ""


def _more_words(scoring: Scoring) -> str:
    """Other objectives and limits, in words that follow the main objective."""
    others = (
        f"{'minimize' if one.lower_is_better else 'maximize'} `{one.expression.text}`"
        for one in scoring.more
    )
    limits = ", ".join(f"`{one.text}`" for one in scoring.limits)
    return (
        "".join(f" Also {other}." for other in others)
        + (" No objective is given up: each turn says how it weighs them." if scoring.more else "")
        + (f" A trial never leads unless {limits}." if limits else "")
    )


def _contexts(study: Study, own: Sequence[str]) -> str:
    """What other contexts have instead of the study's own; those held out stay unknown."""
    lines: list[str] = []
    for context in study.contexts:
        if not context.held_out:
            fields = _fields(context.workload, study_in(study, context).usable_environment)
            other = [field for field in fields if field not in own]
            choices = [f"knob {knob}" for knob in other_choices(study, context)]
            told = "\n".join((f"context {context.name}:", *other, *choices))
            lines.append(fenced(told, limit=SOURCE_CHARS))
    held_out = sum(context.held_out for context in study.contexts)
    if held_out:
        lines.append(
            f"At the end it is launched in {held_out} more that are not shown; it must be valid "
            "there as well."
        )
    return words("contexts").substitute(lines="\n\n".join(lines)) if lines else ""


def _fields(workload: Workload, environment: Environment) -> list[str]:
    return [
        *_field_lines("workload", workload_fields(workload)),
        *_field_lines("environment", environment_fields(environment)),
    ]


def _field_lines(path: str, fields: Mapping[str, object]) -> Iterator[str]:
    """Every field that says something, as a policy would read it."""
    for name, value in fields.items():
        where = f"{path}[{name!r}]"
        if isinstance(value, Mapping):
            yield from _field_lines(where, value)
        elif value is not None and value != ():
            yield f"{where} == {value!r}"
