"""One turn's text for the model: all that there is to say, at the length that is asked for."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import islice
from string import Template

from evaluator.objective import Scoring
from policies.space import Space
from records.history import History
from records.rule import size_words
from records.study import Study
from records.trial import Config, Failed, Measured, Trial
from search.budget import launches_since_best, remaining_launches
from search.choosers.chooser import Choice
from search.effects import TIE_SHARE, dead_knobs
from search.finding import reached
from search.known_words import (
    candidate_lines,
    config_words,
    dead_knob_lines,
    failure_lines,
    learnt_lines,
    pending_lines,
    reason_lines,
)
from search.learnt import Learnt
from search.trial_rows import FRONT_KEPT, Shown, raced_words, rows
from search.words.config import changed_words
from search.words.diagnosis import diagnosis_lines, diagnosis_of, diagnosis_words
from search.words.quantities import many
from search.words.today import noise_now, single_launch_ratio, today_lines
from search.words.trial import change, fenced, one_line, row

TIES_SHOWN, NEIGHBOURS_SHOWN, RACES_SHOWN, TOO_LARGE_SHOWN = 8, 12, 5, 6
REASONS_SHOWN, REASON_CHARS = 6, 160
MEMORY = "estimated_memory_bytes"
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
    """What a turn is about."""

    study: Study
    space: Space
    scoring: Scoring
    shown: Shown
    untried: Sequence[Config] | None
    candidates: Sequence[Choice]
    learnt: Sequence[Learnt]

    @property
    def history(self) -> History:
        """All that happened."""
        return self.shown.history

    def told(self, detail: Detail) -> str:
        """The whole text."""
        history, budget = self.history, self.study.budget
        facts: dict[str, object] = {
            "remaining": remaining_launches(self.study, history),
            "budget": budget.trials,
            "untried": self._untried_words(),
            "pending": _section("pending", pending_lines(history.pending)),
            "candidates": _section(
                "candidates", candidate_lines(self.candidates, history.best, self._memory_words)
            ),
        }
        if not len(history):
            return words("first_turn").substitute(facts)
        table = rows(self.shown, message_chars=detail.message_chars, dropped=detail.dropped)
        failures = "\n".join(failure_lines(history))
        return words("turn").substitute(
            facts,
            patience=budget.patience,
            flat_count=launches_since_best(history),
            trials=many(len(history), "trial"),
            measured_count=len(history.measured),
            today="\n".join(today_lines(self.study, history, self.scoring, self.shown.scale)),
            best=self._best(detail),
            latest=self._latest(detail),
            reasons=_section("reasons", self._reasons()),
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
        races = [
            f"#{race.challenger} was {raced_words(race)}"
            for race in history.raced
            if best.ordinal in (race.challenger, race.incumbent)
        ]
        lines = _whole(best, self._row(best, MESSAGE_CHARS), detail)
        size = None if best.config is None else self._memory_words(best.config)
        if size:
            lines.insert(1, f"Estimated memory of a rank: {size}")
        if history.front:
            front = ", ".join(f"#{ordinal}" for ordinal in history.front[:FRONT_KEPT])
            weights = ", ".join(f"{weight:.2f} for `{text}`" for text, weight in history.weights)
            weighed = f" This turn weighs {weights}; that trial is the best so." if weights else ""
            lines.append(f"No trial beats these in all objectives: {front}.{weighed}")
        if races:
            lines.append(f"Raced: {'; '.join(races[-RACES_SHOWN:])}.")
        ties = list(self._ties(best))
        if ties:
            lines.append(f"Not told apart from it: {', '.join(ties[:TIES_SHOWN])}.")
        return "\n".join(lines)

    def _ties(self, best: Trial) -> Iterator[str]:
        """Trials that may be as good: by their interval, or by what single launches can show."""
        noise = noise_now(self.history, self.scoring)
        chance = max(1 + TIE_SHARE, single_launch_ratio(noise) if noise else 1.0)
        for trial in self.history.ranked:
            speed = None if trial is best else self.shown.speed(trial)
            if speed is None:
                continue
            low, high = speed.low or speed.ratio / chance, speed.high or speed.ratio * chance
            if low <= 1 <= high:
                yield f"#{trial.ordinal} {speed}"

    def _latest(self, detail: Detail) -> str:
        latest, best = self.history.trials[-1], self.history.best
        if latest is best:
            return f"#{latest.ordinal}, the best so far."
        chars = WHOLE_MESSAGE_CHARS if isinstance(latest.outcome, Failed) else MESSAGE_CHARS
        told = self._row(latest, min(chars, detail.source_chars))
        match latest.outcome, best and best.outcome:
            case Failed(), _:
                return "\n".join(_whole(latest, told, detail))
            case Measured(breakdown=new), Measured(breakdown=old) if new and old:
                speed = self.shown.speed(latest)
                if speed is not None:
                    told += f"\nagainst the best: {speed}; in parts of its step: "
                    told += change(new, old, speed.ratio)
        told += "".join(f"\n{line}" for line in _disturbances(latest))
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
        whose = f"#{best.ordinal}" if best else config_words(centre)
        sizes = " (estimated memory of a rank)" if self._memory_words(centre) else ""
        listed = [self._with_memory(changed_words(each, centre), each) for each in shown]
        return "\n".join(
            (
                f"The {len(shown)} nearest to {whose}, which set{sizes}",
                *(f"- {line}" for line in listed),
                *self._too_large(centre),
            )
        )

    def _too_large(self, centre: Config) -> Iterator[str]:
        """Neighbours that nothing but their estimated memory rules out."""
        if self.study.contexts or self._memory_words(centre) is None:
            return
        found = [
            self._with_memory(f"{knob.name}={choice}", config)
            for knob in self.space.knobs
            for choice in knob.choices
            for config in [Config({**centre.values, knob.name: choice})]
            if knob.name in centre.values
            and (broken := self.space.violations(config))
            and all(MEMORY in words for words in broken)
        ]
        if found:
            yield f"Too large by the estimate: {'; '.join(found[:TOO_LARGE_SHOWN])}"

    def _with_memory(self, words: str, config: Config) -> str:
        size = self._memory_words(config)
        return f"{words}: {size}" if size else words

    def _memory_words(self, config: Config) -> str | None:
        """What a rank should take by the estimate, where the space has one."""
        estimate = self.space.derived_number(config, MEMORY)
        return None if estimate is None else size_words(estimate)

    def _row(self, trial: Trial, message_chars: int) -> str:
        result = reached(trial, self.history)
        return row(trial, result, metrics=self.shown.metrics, message_chars=message_chars)

    def _reasons(self) -> Iterator[str]:
        history, best = self.history, self.history.best
        whole = {best.ordinal} if best else set[int]()
        if isinstance(history.trials[-1].outcome, Failed):
            whole.add(history.trials[-1].ordinal)
        told = "\n".join(
            reason_lines(history, self.shown.scale, REASONS_SHOWN, REASON_CHARS, whole)
        )
        return iter([fenced(told, limit=len(told))] if told else [])


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


def _disturbances(trial: Trial) -> Iterator[str]:
    """What else the machine did while a trial was measured."""
    if isinstance(trial.outcome, Measured):
        for measurement in trial.outcome.measurements:
            if measurement.conditions is not None and measurement.conditions.disturbances:
                yield f"disturbed: {', '.join(measurement.conditions.disturbances)}"


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
