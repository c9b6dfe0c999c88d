"""One turn's text for the model: all that there is to say, at the length that is asked for."""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import islice
from string import Template

from policies.space import Space
from records.history import History
from records.study import Study
from records.trial import Config, Failed, Measured, Trial
from search.budget import launches_since_best, remaining_launches
from search.choosers.chooser import Choice
from search.effects import TIE_SHARE, dead_knobs
from search.known_words import (
    candidate_lines,
    config_words,
    dead_knob_lines,
    failure_lines,
    learnt_lines,
    pending_lines,
)
from search.learnt import Learnt
from search.trial_rows import FRONT_KEPT, changed_words, raced_words, rows, within
from search.words.diagnosis import diagnosis_lines, diagnosis_of, diagnosis_words
from search.words.trial import change, fenced, one_line, row, score_words

TIES_SHOWN, NEIGHBOURS_SHOWN, RACES_SHOWN = 8, 12, 5
MESSAGE_CHARS, WHOLE_MESSAGE_CHARS = 160, 2000
SOURCE_CHARS = 8000
RATIONALE_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """How much of the past a turn tells."""

    neighbours: bool = True
    message_chars: int = MESSAGE_CHARS
    source_chars: int = SOURCE_CHARS
    dropped: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnText:
    """What a turn is about; `metrics` are shown beside the score."""

    study: Study
    space: Space
    history: History
    untried: Sequence[Config] | None
    candidates: Sequence[Choice]
    learnt: Sequence[Learnt]
    metrics: Set[str]

    def told(self, detail: Detail) -> str:
        """The whole text."""
        history, budget = self.history, self.study.budget
        facts: dict[str, object] = {
            "remaining": remaining_launches(self.study, history),
            "budget": budget.trials,
            "untried": self._untried_words(),
            "pending": _section("pending", pending_lines(history.pending)),
            "candidates": _section("candidates", candidate_lines(self.candidates)),
        }
        if not len(history):
            return words("first_turn").substitute(facts)
        table = rows(
            history,
            metrics=self.metrics,
            message_chars=detail.message_chars,
            dropped=detail.dropped,
        )
        failures = "\n".join(failure_lines(history))
        return words("turn").substitute(
            facts,
            patience=budget.patience,
            flat_count=launches_since_best(history),
            trial_count=len(history),
            measured_count=len(history.measured),
            best=self._best(detail),
            latest=self._latest(detail),
            failures=_section(
                "failures", [fenced(failures, limit=len(failures))] if failures else []
            ),
            dead_knobs=_section(
                "dead_knobs",
                dead_knob_lines(dead_knobs(self.space, history)),
                share=f"{TIE_SHARE:.0%}",
            ),
            learnt=_section("learnt", learnt_lines(self.learnt)),
            rows=fenced(table, limit=len(table)),
            near=self._near() if detail.neighbours else "(left out for want of room)",
        )

    def _untried_words(self) -> str:
        if self.untried is None:
            return f"The space has {self.space.size} points before constraints."
        return (
            f"{len(self.untried)} of {len(self.space.feasible)} feasible configurations were never "
            "launched."
        )

    def _best(self, detail: Detail) -> str:
        history, best = self.history, self.history.best
        if best is None or best.score is None:
            return "No trial was measured yet."
        ties = [
            f"#{trial.ordinal} ({score_words(trial.score)})"
            for trial in history.ranked
            if trial is not best and trial.score and within(trial, best, TIE_SHARE, history)
        ]
        races = [
            f"#{race.challenger} was {raced_words(race)}"
            for race in history.raced
            if best.ordinal in (race.challenger, race.incumbent)
        ]
        told = row(best, metrics=self.metrics, message_chars=MESSAGE_CHARS)
        lines = _whole(best, told, detail)
        if history.front:
            front = ", ".join(f"#{ordinal}" for ordinal in history.front[:FRONT_KEPT])
            weights = ", ".join(f"{weight:.2f} for `{text}`" for text, weight in history.weights)
            weighed = f" This turn weighs {weights}; that trial is the best so." if weights else ""
            lines.append(f"No trial beats these in all objectives: {front}.{weighed}")
        if races:
            lines.append(f"Raced: {'; '.join(races[-RACES_SHOWN:])}.")
        if ties:
            lines.append(
                f"Within {TIE_SHARE:.0%} of it, too close to tell apart by one launch each: "
                + ", ".join(ties[:TIES_SHOWN])
            )
        return "\n".join(lines)

    def _latest(self, detail: Detail) -> str:
        latest, best = self.history.trials[-1], self.history.best
        if latest is best:
            return f"#{latest.ordinal}, the best so far."
        chars = WHOLE_MESSAGE_CHARS if isinstance(latest.outcome, Failed) else MESSAGE_CHARS
        told = row(latest, metrics=self.metrics, message_chars=min(chars, detail.source_chars))
        match latest.outcome, best and best.outcome:
            case Failed(), _:
                return "\n".join(_whole(latest, told, detail))
            case Measured(breakdown=new), Measured(breakdown=old) if new and old:
                told += f"\nagainst the best, per profiled step: {change(new, old)}"
        races = (raced_words(r) for r in self.history.raced if r.challenger == latest.ordinal)
        told = "\n".join((told, *(f"raced: {words}" for words in races)))
        return "\n".join((fenced(told, limit=detail.source_chars), *_diagnosis(latest)))

    def _near(self) -> str:
        history, best = self.history, self.history.best
        decided = [trial.config for trial in history if trial.config is not None]
        centre = best.config if best else (decided[-1] if decided else None)
        if not self.untried:
            return "(not listed)"
        if centre is None:
            return "\n".join(f"- {config_words(c)}" for c in self.untried[:NEIGHBOURS_SHOWN])
        nearest = sorted(self.untried, key=lambda config: self.space.distance(centre, config))
        allowed = (c for c in nearest if not any(one.breaks(c) for one in self.learnt))
        shown = [*islice(allowed, NEIGHBOURS_SHOWN)]
        listed = "\n".join(f"- {changed_words(config, centre)}" for config in shown)
        return f"The {len(shown)} nearest to {config_words(centre)}, which set\n{listed}"


@cache
def words(name: str) -> Template:
    """The text of this name, with places to fill in."""
    return Template((files("search") / "prompts" / f"{name}.md").read_text(encoding="utf-8"))


def _section(name: str, lines: Iterable[str], **facts: object) -> str:
    """A section of its own, or nothing where it has no lines."""
    told = "\n".join(lines)
    return words(name).substitute(facts, lines=told) + "\n" if told else ""


def _whole(trial: Trial, told: str, detail: Detail) -> list[str]:
    """A trial with its author's reason, what its traces say, and its program."""
    why = one_line(trial.policy.rationale, RATIONALE_CHARS)
    reason = f"\nreason given: {why}" if why else ""
    return [
        fenced(told + reason, limit=SOURCE_CHARS),
        *_diagnosis(trial),
        "Its program:",
        fenced(trial.policy.source, "python", limit=detail.source_chars),
    ]


def _diagnosis(trial: Trial) -> list[str]:
    found = diagnosis_of(trial.outcome)
    if found is None:
        return []
    listed = "\n".join(f"- {line}" for line in (*diagnosis_lines(found), *_elsewhere(trial)))
    return [words("diagnosis").substitute(words=diagnosis_words(found), lines=listed).rstrip()]


def _elsewhere(trial: Trial) -> Iterator[str]:
    """What the traces say of contexts other than the study's own, which is the first."""
    if isinstance(trial.outcome, Measured):
        for context in trial.outcome.contexts[1:]:
            found = diagnosis_of(context.outcome)
            if found is not None:
                yield f"in context {context.name}: {diagnosis_words(found)}"
