"""What the model reads before it writes a policy, from a study and its whole history.

The words are in `search/prompts`; this file fills in the numbers and keeps them to a size. Knows
nothing of how the prompt is sent.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from string import Template

from evaluator.objective import Scoring
from policies.contract import environment_fields, workload_fields
from policies.sandbox import SANDBOX_RULES
from policies.space import Space
from records.study import Study
from records.trial import Config, Failed, History, Measured, Trial
from search.budget import launches_since_best
from search.llm.request import Prompt
from search.trial_words import change, fenced, number, one_line, row, score_words, work_words

TURN_TOKENS = 24_000
CHARS_PER_TOKEN = 3
TIE_SHARE = 0.03  # launches of one configuration were seen to vary by 2.4 % (median of 27 groups)
FAR_SHARE = 0.10
LATEST_KEPT = 5
TIES_SHOWN, NEIGHBOURS_SHOWN = 8, 12
MESSAGE_CHARS, SHORT_MESSAGE_CHARS, WHOLE_MESSAGE_CHARS = 160, 60, 2000
SOURCE_CHARS = 8000
RATIONALE_CHARS = 300


def estimated_tokens(text: str) -> int:
    """Upper estimate of tokens: bytes over 3, where English has about 4 a token and code 3."""
    return -(-len(text.encode("utf-8", "replace")) // CHARS_PER_TOKEN)


def remaining_launches(study: Study, history: History) -> int:
    """Launches that the budget still pays for."""
    return max(0, study.budget.trials - history.launched_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Detail:
    """How much of the past a turn tells."""

    neighbours: bool = True
    message_chars: int = MESSAGE_CHARS
    dropped: frozenset[int] = frozenset()


class PromptWriter:
    """Writes prompts for one space and objective; `turn_tokens` bounds their changing part.

    A history that is too long gives way in this order: the list of untried configurations, the
    length of failure messages, then rows: of trials measured far from the best, of trials that
    never launched, of other failures, of what is left, oldest first within each. The best trial
    and its program, the latest five, the program that failed last and a line that counts what is
    missing stay, programs cut in the middle: about 8000 tokens at most.
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
        single = scoring.expression.text.strip() in scoring.expression.names
        self._metrics = frozenset[str]() if single else scoring.expression.names

    def write(self, study: Study, history: History, untried: Sequence[Config] | None) -> Prompt:
        """Give the prompt for the next trial; `untried` is None when too many to be listed."""
        return Prompt(
            system=_words("system").substitute(sandbox_rules=self._sandbox_rules),
            task=self._task(study),
            turn=self._turn(study, history, untried),
        )

    def _task(self, study: Study) -> str:
        lower = self._scoring.lower_is_better
        fields = [
            *_field_lines("workload", workload_fields(study.workload)),
            *_field_lines("environment", environment_fields(study.usable_environment)),
        ]
        return _words("task").substitute(
            direction="minimize" if lower else "maximize",
            objective=study.objective.expression,
            unit=f" ({self._scoring.unit})" if self._scoring.unit else "",
            better="Lower is better." if lower else "Higher is better.",
            work=work_words(study.workload),
            budget=study.budget.trials,
            fields=fenced("\n".join(fields), limit=SOURCE_CHARS),
            space=self._space.words(),
        )

    def _turn(self, study: Study, history: History, untried: Sequence[Config] | None) -> str:
        numbers = {
            "remaining": remaining_launches(study, history),
            "budget": study.budget.trials,
            "untried": self._untried_words(untried),
        }
        if not len(history):
            return _words("first_turn").substitute(numbers)
        facts = {
            **numbers,
            "patience": study.budget.patience,
            "flat_count": launches_since_best(history),
            "trial_count": len(history),
            "measured_count": len(history.measured),
            "best": self._best(history),
            "latest": self._latest(history),
            "near": self._near(history, untried or ()),
        }
        text = ""
        for detail in self._ever_less(history, facts):
            text = _filled(history, facts, detail, self._metrics)
            if estimated_tokens(text) <= self._turn_tokens:
                break
        return text

    def _ever_less(self, history: History, facts: Mapping[str, object]) -> Iterator[_Detail]:
        """Ways to tell the past, each shorter than the one before."""
        yield _Detail()
        yield _Detail(neighbours=False)
        short = _Detail(neighbours=False, message_chars=SHORT_MESSAGE_CHARS)
        yield short
        order = _least_useful_first(history)

        def fits(count: int) -> bool:
            detail = replace(short, dropped=frozenset(order[:count]))
            text = _filled(history, facts, detail, self._metrics)
            return estimated_tokens(text) <= self._turn_tokens

        enough = bisect_left(range(len(order)), True, key=fits)
        yield replace(short, dropped=frozenset(order[:enough]))

    def _untried_words(self, untried: Sequence[Config] | None) -> str:
        if untried is None:
            return f"The space has {self._space.size} points before constraints."
        return (
            f"{len(untried)} of {len(self._space.feasible)} feasible configurations were never "
            "launched."
        )

    def _best(self, history: History) -> str:
        best = history.best
        if best is None or best.score is None:
            return "No trial was measured yet."
        ties = [
            f"#{trial.ordinal} ({score_words(trial.score)})"
            for trial in history.ranked
            if trial is not best and trial.score and _within(trial, best, TIE_SHARE)
        ]
        lines = _told(best, row(best, metrics=self._metrics, message_chars=MESSAGE_CHARS))
        if ties:
            lines.append(
                f"Within {TIE_SHARE:.0%} of it, too close to tell apart by one launch each: "
                + ", ".join(ties[:TIES_SHOWN])
            )
        return "\n".join(lines)

    def _latest(self, history: History) -> str:
        latest, best = history.trials[-1], history.best
        if latest is best:
            return f"#{latest.ordinal}, the best so far."
        chars = WHOLE_MESSAGE_CHARS if isinstance(latest.outcome, Failed) else MESSAGE_CHARS
        words = row(latest, metrics=self._metrics, message_chars=chars)
        match latest.outcome, best and best.outcome:
            case Failed(), _:
                return "\n".join(_told(latest, words))
            case Measured(breakdown=new), Measured(breakdown=old) if new and old:
                words += f"\nagainst the best, per profiled step: {change(new, old)}"
        return fenced(words, limit=SOURCE_CHARS)

    def _near(self, history: History, untried: Sequence[Config]) -> str:
        decided = [trial.config for trial in history if trial.config is not None]
        centre = history.best.config if history.best else (decided[-1] if decided else None)
        if not untried:
            return "(not listed)"
        if centre is None:
            return "\n".join(f"- {config}" for config in untried[:NEIGHBOURS_SHOWN])
        nearest = sorted(untried, key=lambda config: self._space.distance(centre, config))
        listed = "\n".join(f"- {config}" for config in nearest[:NEIGHBOURS_SHOWN])
        return f"The {min(len(untried), NEIGHBOURS_SHOWN)} nearest to {centre}:\n{listed}"


@cache
def _words(name: str) -> Template:
    return Template((files("search") / "prompts" / f"{name}.md").read_text(encoding="utf-8"))


def _filled(
    history: History, facts: Mapping[str, object], detail: _Detail, metrics: Set[str]
) -> str:
    rows = [
        row(trial, metrics=metrics, message_chars=detail.message_chars) + _again(trial, history)
        for trial in reversed(history.trials)
        if trial.ordinal not in detail.dropped
    ]
    if detail.dropped:
        rows.append(f"({len(detail.dropped)} more trials are left out)")
    text = "\n".join(rows)
    near = facts["near"] if detail.neighbours else "(left out for want of room)"
    return _words("turn").substitute({**facts, "near": near}, rows=fenced(text, limit=len(text)))


def _again(trial: Trial, history: History) -> str:
    """What a trial scored when it was launched again, which counts more than its own launch."""
    cost = history.costs.get(trial.ordinal)
    if cost is None or trial.score is None:
        return ""
    value = cost if trial.score.cost == trial.score.value else -cost
    return f"; {number(value)} {trial.score.unit}".rstrip() + " when launched again"


def _field_lines(path: str, fields: Mapping[str, object]) -> Iterator[str]:
    """Every field as a policy would read it."""
    for name, value in fields.items():
        where = f"{path}[{name!r}]"
        if isinstance(value, Mapping):
            yield from _field_lines(where, value) if value else [f"{where} == {{}}"]
        else:
            yield f"{where} == {value!r}"


def _told(trial: Trial, words: str) -> list[str]:
    """A trial with its author's reason and its program."""
    why = one_line(trial.policy.rationale, RATIONALE_CHARS)
    reason = f"\nreason given: {why}" if why else ""
    return [
        fenced(words + reason, limit=SOURCE_CHARS),
        "Its program:",
        fenced(trial.policy.source, "python", limit=SOURCE_CHARS),
    ]


def _within(trial: Trial, best: Trial, share: float) -> bool:
    if trial.score is None or best.score is None:
        return False
    return abs(trial.score.value - best.score.value) <= share * abs(best.score.value)


def _least_useful_first(history: History) -> list[int]:
    """Ordinals of the trials whose rows may be left out, in the order in which they go."""
    best = history.best
    kept = {trial.ordinal for trial in history.trials[-LATEST_KEPT:]}
    if best is not None:
        kept.add(best.ordinal)

    def use(trial: Trial) -> tuple[int, int]:
        if trial.score is not None and best is not None:
            return (3 if _within(trial, best, FAR_SHARE) else 0), trial.ordinal
        return (2 if trial.reached_launch else 1), trial.ordinal

    rest = (trial for trial in history if trial.ordinal not in kept)
    return [trial.ordinal for trial in sorted(rest, key=use)]
