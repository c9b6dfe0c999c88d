"""The prompt: what the model reads before it writes a policy, from a study and its history.

The text is in `search/llm/prompts`; this module fills it in and limits the size of a turn.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import islice
from statistics import median
from string import Template

from evaluator.machine import core_count
from evaluator.objective import Scoring
from evaluator.timing.decision import Noise
from policies.contract import environment_fields, workload_fields
from policies.sandbox import SANDBOX_RULES
from policies.space import Space
from records.expression import Rule, format_bytes
from records.machine import Conditions
from records.study import Environment, Study
from records.trial import Config, Failed, FailureKind, History, Measured, Outcome, RaceResult, Trial
from records.workload import Workload
from search.llm.messages import Prompt, estimated_tokens
from search.llm.tools import MEMO_CHARS
from search.loop.budget import launches_since_best, remaining_launches
from search.loop.inert import inert_knobs
from search.loop.leader import noise_of, took_turns
from search.loop.learned import TIE_SHARE, DeadKnob, LearnedConstraint, dead_knobs
from search.loop.relative_speed import RelativeSpeeds, Speed, single_launch_ratio
from search.loop.study_result import trial_spread
from search.strategies.base import Choice
from search.strategies.cost_model import MEMORY
from search.study.spaces import study_in
from search.views.diagnosis import diagnosis_lines, diagnosis_of, diagnosis_words
from search.views.format import (
    NO_CONFIG,
    disturbed_words,
    fenced,
    format_count,
    format_difference,
    format_whole_percent,
    knob_change,
    one_line,
    ordinals_words,
    speed_words,
    work_words,
)
from search.views.machine import conditions_of
from search.views.study import USELESS_RATIO, inert_words, noise_words, other_choices
from search.views.trial import trial_row

LAST = 5
"""Launches that count as lately."""
NOTABLE_DRIFT = 1.10


def condition_lines(
    study: Study, history: History, scoring: Scoring, scale: RelativeSpeeds
) -> Iterator[str]:
    """Each fact with its numbers, and what it means for scores."""
    yield _noise_line(noise_now(history, scoring), study)
    launches: list[tuple[float, Outcome]] = [(t.ordinal, t.outcome) for t in history]
    launches += [(repeat.series - 0.5, repeat.outcome) for repeat in history.repeats]
    launches.sort(key=lambda launch: launch[0])
    conditions = conditions_of(outcome for _, outcome in launches)
    if conditions:
        yield _load_line(conditions)
    drift = _drift(scale)
    if drift is not None:
        yield drift


def noise_now(history: History, scoring: Scoring) -> Noise | None:
    """How much rounds of equal launches differ, by all repeat launches."""
    repeats = history.repeats
    return noise_of(repeats, scoring, together=any(took_turns(r.outcome) for r in repeats))


def crowding_words(environment: Environment) -> str | None:
    """That ranks share cores, where they do."""
    cores = core_count(environment)
    ranks = min(environment.world_size, environment.ranks_per_node)
    if cores is None or ranks <= cores:
        return None
    return (
        f"Up to {ranks} ranks share {format_count(cores, 'core')} of a node, so one rank's "
        "compute shows up as another's waiting, and an idle rank may leave its core to another."
    )


def _noise_line(noise: Noise | None, study: Study) -> str:
    if noise is None:
        return "- noise: not known yet, no configuration was launched twice"
    alone = single_launch_ratio(noise)
    single = "none" if alone > USELESS_RATIO else f"none below {alone:.2f}x"
    return f"- noise: {noise_words(noise, study.measure)}; two single launches (~) show {single}"


def _load_line(conditions: Sequence[Conditions]) -> str:
    disturbed = [each.disturbances for each in conditions if each.disturbances]
    count = format_count(len(conditions), "launch", "launches")
    line = f"- load: {len(disturbed)} of {count} disturbed"
    shares = [c.others_cpu_share for c in conditions if c.others_cpu_share is not None]
    if len(shares) > LAST:
        first, last = median(shares[:LAST]), median(shares[-LAST:])
        then, now = format_whole_percent(first), format_whole_percent(last)
        return f"{line}; other processes used {then} of the cores at first, {now} lately"
    return f"{line}, the last because {disturbed[-1][0]}" if disturbed else line


def _drift(scale: RelativeSpeeds) -> str | None:
    """How the configuration changed whose launches lie furthest apart in time."""
    widest = max(
        scale.launches.items(),
        key=lambda launched: launched[1][-1][0] - launched[1][0][0],
        default=None,
    )
    if widest is None or widest[1][-1][0] == widest[1][0][0]:
        return None
    ordinal, launches = widest
    factor = math.exp(launches[-1][1] - launches[0][1])
    if 1 / NOTABLE_DRIFT < factor < NOTABLE_DRIFT:
        return f"- drift: little, #{ordinal} was {1 / factor:.2f}x as good at last as at first"
    return (
        f"- drift: the same configuration (#{ordinal}) was {1 / factor:.2f}x as good when launched "
        "last as at first, so values of different times do not compare"
    )


FAR_SHARE = 0.10
LATEST_KEPT, FRONT_KEPT = 5, 12


def race_text(raced: RaceResult) -> str:
    """Return the result of a race: `1.48x better than #3 (1.16 to 1.90)`."""
    ratio, low, high = raced.ratio, raced.ratio_low, raced.ratio_high
    if ratio is None:
        return f"not distinguishable from #{raced.incumbent}"
    words = f"{speed_words(ratio)} {'than' if ratio < 1 else 'as'} #{raced.incumbent}"
    evidence = [] if low is None or high is None else [f"{1 / high:.2f} to {1 / low:.2f}"]
    if raced.round_count:
        disturbed = disturbed_words(raced.disturbed_count, raced.round_count)
        evidence.append(format_count(raced.round_count, "round") + disturbed)
    words += f" ({', '.join(evidence)})" if evidence else ""
    match raced.verdict:
        case "fast" | "slow":
            return words
        case "same":
            return f"{words}, no difference in practice"
        case _:
            return f"{words}, undecided"


def within(trial: Trial, best: Trial, share: float, history: History) -> bool:
    """Whether the cost of a trial is within this share of the best."""
    if trial.score is None or best.score is None:
        return False
    cost, least = history.cost(trial), history.cost(best)
    return abs(cost - least) <= share * abs(least)


def least_useful_first(history: History) -> list[int]:
    """Return the trials whose rows may be omitted, in the order of omission.

    First those measured far from the best, then those never launched, then other failures, then the
    rest; the oldest first in each group. The best, a front and the latest five always stay.
    """
    best = history.best
    kept = {trial.ordinal for trial in history.trials[-LATEST_KEPT:]}
    kept |= {*history.front[:FRONT_KEPT]}
    if best is not None:
        kept.add(best.ordinal)

    def use(trial: Trial) -> tuple[int, int]:
        if trial.score is not None and best is not None:
            return (3 if within(trial, best, FAR_SHARE, history) else 0), trial.ordinal
        return (2 if trial.reached_launch else 1), trial.ordinal

    rest = (trial for trial in history if trial.ordinal not in kept)
    return [trial.ordinal for trial in sorted(rest, key=use)]


def others_share(outcome: Outcome) -> float | None:
    """Return the share of the cores that other processes used, if it disturbs a launch."""
    if not isinstance(outcome, Measured):
        return None
    conditions = (one.conditions for one in outcome.measurements)
    shares = [c.disturbing_share for c in conditions if c is not None]
    return max((share for share in shares if share is not None), default=None)


def _causes(history: History) -> dict[int, str]:
    """Return what rows show instead of failure messages that appear elsewhere."""
    causes: dict[int, str] = {}
    first: dict[FailureKind, int] = {}
    by_message: dict[str, int] = {}
    for trial in history:
        if isinstance(trial.outcome, Failed):
            if first.setdefault(trial.outcome.kind, trial.ordinal) == trial.ordinal:
                causes[trial.ordinal] = ""
            elif trial.outcome.message in by_message:
                causes[trial.ordinal] = f"as #{by_message[trial.outcome.message]}"
            by_message.setdefault(trial.outcome.message, trial.ordinal)
    if len(history) and isinstance(history.trials[-1].outcome, Failed):
        causes[history.trials[-1].ordinal] = ""
    return causes


TIES_SHOWN, NEIGHBOURS_SHOWN, RACES_SHOWN, TOO_LARGE_SHOWN = 8, 12, 5, 6
REASONS_SHOWN, REASON_CHARS = 6, 160
MESSAGE_CHARS, WHOLE_MESSAGE_CHARS = 160, 2000
SOURCE_CHARS = 8000
RATIONALE_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """How much of the history a turn shows."""

    neighbours: bool = True
    message_chars: int = MESSAGE_CHARS
    source_chars: int = SOURCE_CHARS
    dropped: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnText:
    """The content of a turn."""

    study: Study
    space: Space
    scoring: Scoring
    history: History
    scale: RelativeSpeeds
    """The speeds of all trials of the history."""
    untried: Sequence[Config] | None = None
    candidates: Sequence[Choice] = ()
    learned: Sequence[LearnedConstraint] = ()
    memo: str = ""

    def rows(self, detail: Detail) -> str:
        """Return a row per trial, newest first; dropped trials are only counted."""
        best, causes = self.history.best, _causes(self.history)
        rows = [
            self._row(
                trial,
                detail.message_chars,
                None if best is trial else best,
                brief=True,
                against=self._speed_words(trial),
                cause=causes.get(trial.ordinal),
            )
            for trial in reversed(self.history.trials)
            if trial.ordinal not in detail.dropped
        ]
        if detail.dropped:
            rows.append(f"({len(detail.dropped)} more trials omitted)")
        return "\n".join(rows)

    def text(self, detail: Detail) -> str:
        """Return the text of the turn."""
        history, budget = self.history, self.study.budget
        sections: dict[str, Iterable[str]] = {
            "pending": pending_lines(history.pending),
            "candidates": candidate_lines(self.candidates, history.best, self._memory_words),
        }
        facts: dict[str, object] = {
            "remaining": remaining_launches(self.study, history),
            "budget": budget.trials,
            "untried": self._untried_words(),
        }
        if not len(history):
            return template("first_turn").substitute(facts, **_filled(sections))
        failures = "\n".join(failure_lines(history))
        memo = one_line(self.memo, MEMO_CHARS)
        sections |= {
            "reasons": self._reasons(),
            "failures": [fenced(failures, limit=len(failures))] if failures else (),
            "dead_knobs": (
                *(
                    f"- {inert_words(knob)}"
                    for knob in inert_knobs(history, self.scoring, self.study.measure)
                ),
                *dead_knob_lines(dead_knobs(self.space, history)),
            ),
            "learned": learned_constraint_lines(self.learned),
            "memo": [fenced(memo, limit=MEMO_CHARS)] if memo else (),
        }
        table = self.rows(detail)
        return template("turn").substitute(
            facts,
            **_filled(sections),
            patience=_patience_words(budget.patience),
            flat_count=launches_since_best(history),
            trials=format_count(len(history), "trial"),
            measured_count=len(history.measured),
            today="\n".join(condition_lines(self.study, history, self.scoring, self.scale)),
            best=self._best(detail),
            latest=self._latest(detail),
            rows=fenced(table, limit=len(table)),
            near=self._near() if detail.neighbours else "(omitted for length)",
        )

    def _untried_words(self) -> str:
        if self.untried is None:
            return f"The space has {self.space.size} points before constraints."
        return (
            f"{len(self.untried)} of {len(self.space.feasible)} feasible configurations were not "
            "launched yet."
        )

    def _best(self, detail: Detail) -> str:
        history, best = self.history, self.history.best
        if best is None or best.score is None:
            return "No trial is measured yet."
        races = [
            f"#{race.challenger} was {race_text(race)}"
            for race in history.races
            if best.ordinal in (race.challenger, race.incumbent)
        ]
        lines = _whole(best, self._row(best, MESSAGE_CHARS), detail)
        size = None if best.config is None else self._memory_words(best.config)
        if size:
            lines.insert(1, f"Estimated memory per rank: {size}")
        if history.front:
            front = ", ".join(f"#{ordinal}" for ordinal in history.front[:FRONT_KEPT])
            weights = ", ".join(f"{weight:.2f} for `{text}`" for text, weight in history.weights)
            weighed = (
                f" This turn weighs {weights}; by these weights it is the best." if weights else ""
            )
            lines.append(f"Pareto front: {front}.{weighed}")
        if races:
            lines.append(f"Races: {'; '.join(races[-RACES_SHOWN:])}.")
        ties = list(self._ties(best))
        if ties:
            lines.append(f"Not distinguishable from it: {', '.join(ties[:TIES_SHOWN])}.")
        return "\n".join(lines)

    def _ties(self, best: Trial) -> Iterator[str]:
        """Yield trials that may be as good, by their interval or the noise of single launches."""
        noise = noise_now(self.history, self.scoring)
        chance = max(1 + TIE_SHARE, single_launch_ratio(noise) if noise else 1.0)
        for trial in self.history.ranked:
            speed = None if trial is best else self._speed(trial)
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
        text = self._row(latest, min(chars, detail.source_chars))
        match latest.outcome, best and best.outcome:
            case Failed(), _:
                return "\n".join(_whole(latest, text, detail))
            case Measured(breakdown=new), Measured(breakdown=old) if new and old:
                speed = self._speed(latest)
                if speed is not None:
                    text += f"\nagainst the best: {speed}; by part of the step: "
                    text += knob_change(new, old, speed.ratio)
        races = (race_text(r) for r in self.history.races if r.challenger == latest.ordinal)
        lines = (text, *_disturbances(latest), *(f"race: {words}" for words in races))
        return "\n".join((fenced("\n".join(lines), limit=detail.source_chars), *_diagnosis(latest)))

    def _near(self) -> str:
        history, best = self.history, self.history.best
        decided = [trial.config for trial in history if trial.config is not None]
        centre = best.config if best else (decided[-1] if decided else None)
        if not self.untried:
            return "(not listed)"
        if centre is None:
            return "\n".join(f"- {config_words(c)}" for c in self.untried[:NEIGHBOURS_SHOWN])
        nearest = sorted(self.untried, key=lambda config: self.space.distance(centre, config))
        allowed = (c for c in nearest if not any(one.breaks(c) for one in self.learned))
        shown = [*islice(allowed, NEIGHBOURS_SHOWN)]
        whose = f"#{best.ordinal}" if best else config_words(centre)
        sizes = " (estimated memory per rank)" if self._memory_words(centre) else ""
        listed = [self._with_memory(format_difference(each, centre), each) for each in shown]
        return "\n".join(
            (
                f"The {len(shown)} nearest to {whose}, by their changes{sizes}",
                *(f"- {line}" for line in listed),
                *self._too_large(centre),
            )
        )

    def _too_large(self, centre: Config) -> Iterator[str]:
        """Yield the neighbours that only their estimated memory excludes."""
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
        """Return the estimated memory per rank, if the space has an estimate."""
        estimate = self.space.derived_number(config, MEMORY)
        return None if estimate is None else format_bytes(estimate)

    def _row(
        self,
        trial: Trial,
        message_chars: int,
        base: Trial | None = None,
        *,
        brief: bool = False,
        against: str = "",
        cause: str | None = None,
    ) -> str:
        """Return a trial on one line, its settings as changes from `base` where that is shorter."""
        return trial_row(
            trial,
            trial_spread(trial, self.history),
            NO_CONFIG if trial.config is None else config_words(trial.config, base),
            metrics=self.scoring.shown_metrics,
            message_chars=message_chars,
            brief=brief,
            against=against,
            cause=cause,
        )

    def _speed(self, trial: Trial) -> Speed | None:
        """Return the speed of a trial over the best; None for the best itself, or if unknown."""
        best = self.history.best
        if best is None or best is trial:
            return None
        return self.scale.speed(trial.ordinal, best.ordinal)

    def _speed_words(self, trial: Trial) -> str:
        """Return the speed as text, for a single launch with the load from other processes."""
        if self.history.best is trial:
            return "the best"
        speed = self._speed(trial)
        if speed is None:
            return ""
        share = None if speed.side_by_side else others_share(trial.outcome)
        return str(speed) if share is None else f"{speed} (others {share:.0%})"

    def _reasons(self) -> Iterator[str]:
        history, best = self.history, self.history.best
        whole = {best.ordinal} if best else set[int]()
        if isinstance(history.trials[-1].outcome, Failed):
            whole.add(history.trials[-1].ordinal)
        lines = reason_lines(history, self.scale, REASONS_SHOWN, REASON_CHARS, whole)
        text = "\n".join(lines)
        if text:
            yield fenced(text, limit=len(text))


CAUSE_CHARS = 160
WHY_CHARS = 200
CHOICE_CHARS = 500
LINES_SHOWN = 12


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
        blame = ", not the configuration's fault" if kind.is_infrastructure else ""
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
    if best is not None and config == best.config:
        return f"as #{best.ordinal}"
    if best is not None and best.config is not None:
        changed = f"as #{best.ordinal} but {format_difference(config, best.config)}"
        whole = min(whole, changed, key=len)
    return one_line(whole, CHOICE_CHARS)


@cache
def template(name: str) -> Template:
    """Return the template with this name."""
    return Template((files("search.llm") / "prompts" / f"{name}.md").read_text(encoding="utf-8"))


def _patience_words(patience: int | None) -> str:
    return "" if patience is None else f"; after {patience} measured ones the search ends"


def _filled(sections: Mapping[str, Iterable[str]]) -> Mapping[str, str]:
    """Return each section from its template, or nothing where it has no lines."""
    texts = {name: "\n".join(lines) for name, lines in sections.items()}
    return {
        name: template(name).substitute(lines=text, share=f"{TIE_SHARE:.0%}") + "\n" if text else ""
        for name, text in texts.items()
    }


def _whole(trial: Trial, row: str, detail: Detail) -> list[str]:
    """Return a trial with its rationale, the diagnosis of its traces, and its program."""
    why = one_line(trial.policy.rationale, RATIONALE_CHARS)
    reason = f"\nreason given: {why}" if why else ""
    return [
        fenced(row + reason, limit=SOURCE_CHARS),
        *_diagnosis(trial),
        "Its program:",
        fenced(trial.policy.source, "python", limit=detail.source_chars),
    ]


def _disturbances(trial: Trial) -> Iterator[str]:
    """Yield what disturbed the launches of a trial."""
    if isinstance(trial.outcome, Measured):
        for measurement in trial.outcome.measurements:
            if measurement.conditions is not None and measurement.conditions.disturbances:
                yield f"disturbed: {', '.join(measurement.conditions.disturbances)}"


def _diagnosis(trial: Trial) -> list[str]:
    """Return the diagnosis of a trial, with those of its other contexts."""
    found = diagnosis_of(trial.outcome)
    if found is None or not isinstance(trial.outcome, Measured):
        return []
    others = ((each.name, diagnosis_of(each.outcome)) for each in trial.outcome.contexts[1:])
    contexts = (f"in context {name}: {diagnosis_words(each)}" for name, each in others if each)
    listed = "\n".join(f"- {line}" for line in (*diagnosis_lines(found), *contexts))
    return [template("diagnosis").substitute(words=diagnosis_words(found), lines=listed).rstrip()]


TURN_TOKENS = 24_000
SHORT_MESSAGE_CHARS = 60
SHORT_SOURCE_CHARS = (2000, 500)


@dataclass(frozen=True, slots=True)
class PromptWriter:
    """Writes prompts for one space and objective; `turn_tokens` limits their variable part.

    A history that is too long is shortened in this order: the list of untried configurations, the
    length of failure messages, rows as `least_useful_first` orders them, and the middle of
    programs. Everything else always stays: about 12000 tokens at most, 4500 once programs are cut.
    """

    space: Space
    scoring: Scoring
    _: KW_ONLY
    sandbox_rules: str = SANDBOX_RULES
    turn_tokens: int = TURN_TOKENS

    def write(
        self,
        study: Study,
        history: History,
        untried: Sequence[Config] | None,
        *,
        candidates: Sequence[Choice] = (),
        learned: Sequence[LearnedConstraint] = (),
        memo: str = "",
        turn_tokens: int | None = None,
    ) -> Prompt:
        """Return the prompt for the next trial; `untried` is None when too many to list.

        `memo` is what the model wrote to itself in its last reply.
        `turn_tokens` sets a lower limit than usual, as after a prompt that was too long.
        """
        scoring = self.scoring.over(history)
        turn = TurnText(
            study=study,
            space=self.space,
            scoring=scoring,
            history=history,
            scale=RelativeSpeeds.of(history, scoring, study.measure),
            untried=untried,
            candidates=candidates,
            learned=learned,
            memo=memo,
        )
        return Prompt(
            system=template("system").substitute(sandbox_rules=self.sandbox_rules),
            task=self._task(study),
            turn=_turn_text(turn, self.turn_tokens if turn_tokens is None else turn_tokens),
        )

    def _task(self, study: Study) -> str:
        lower = self.scoring.lower_is_better
        fields = _fields(study.workload, study.usable_environment)
        topology = study.environment.topology
        nodes = None if topology is None else f"The nodes: {topology}."
        notes = [*filter(None, (crowding_words(study.usable_environment), nodes))]
        return template("task").substitute(
            direction="minimize" if lower else "maximize",
            objective=study.objective.expression,
            unit=f" ({self.scoring.unit})" if self.scoring.unit else "",
            better="Lower is better." if lower else "Higher is better.",
            more=_more_words(self.scoring),
            work=work_words(study.workload),
            budget=study.budget.trials,
            limits=_limit_words(study),
            fields=fenced("\n".join(fields), limit=SOURCE_CHARS),
            crowding="".join(f"\n{note}\n" for note in notes),
            contexts=_contexts(study, fields),
            space=self.space.words() + _memory_note(self.space),
        )


def _turn_text(turn: TurnText, limit: int) -> str:
    """Return the longest text of the turn within the limit, or the shortest."""
    text = ""
    for detail in _shorter_details(turn, limit):
        text = turn.text(detail)
        if estimated_tokens(text) <= limit:
            break
    return text


def _shorter_details(turn: TurnText, limit: int) -> Iterator[Detail]:
    """Yield ever shorter levels of detail."""
    yield Detail()
    yield Detail(neighbours=False)
    short = Detail(neighbours=False, message_chars=SHORT_MESSAGE_CHARS)
    yield short
    order = least_useful_first(turn.history)

    def fits(count: int) -> bool:
        detail = replace(short, dropped=frozenset(order[:count]))
        return estimated_tokens(turn.text(detail)) <= limit

    enough = bisect_left(range(len(order)), True, key=fits)
    least = replace(short, dropped=frozenset(order[:enough]))
    yield least
    for source_chars in SHORT_SOURCE_CHARS:
        yield replace(least, source_chars=source_chars)


def _memory_note(space: Space) -> str:
    """Return where to find the memory estimate, which cannot be derived from the text."""
    if not any(MEMORY in rule.expression.names for rule in space.rules):
        return ""
    return (
        f"\n`{MEMORY}` is an estimate; turns show it for the best, candidates and neighbours. The "
        "measured peak may count a different kind of memory than the limit."
    )


def _limit_words(study: Study) -> str:
    """Return the limits of tokens and cost for the model."""
    tokens, cost_usd = study.budget.max_tokens, study.budget.max_cost_usd
    limits = [] if tokens is None else [f"{tokens} tokens"]
    limits += [] if cost_usd is None else [f"{cost_usd:g} USD"]
    words = " and ".join(limits)
    return f" All requests to you together may use at most {words}." if limits else ""


def _more_words(scoring: Scoring) -> str:
    """Return the other objectives and the limits, as text after the main objective."""
    others = (
        f"{'minimize' if one.lower_is_better else 'maximize'} `{one.expression.text}`"
        for one in scoring.more
    )
    limits = ", ".join(f"`{one.text}`" for one in scoring.limits)
    return (
        "".join(f" Also {other}." for other in others)
        + (" Each turn weighs the objectives differently." if scoring.more else "")
        + (f" A trial can only lead if {limits}." if limits else "")
    )


def _contexts(study: Study, own: Sequence[str]) -> str:
    """Return how other contexts differ from the study's own; held-out ones stay unknown."""
    lines: list[str] = []
    for context in study.contexts:
        if not context.held_out:
            fields = _fields(context.workload, study_in(study, context).usable_environment)
            other = [field for field in fields if field not in own]
            choices = [f"knob {knob}" for knob in other_choices(study, context)]
            text = "\n".join((f"context {context.name}:", *other, *choices))
            lines.append(fenced(text, limit=SOURCE_CHARS))
    held_out = sum(context.held_out for context in study.contexts)
    if held_out:
        lines.append(
            f"At the end it is launched in {held_out} more contexts, not shown here; it must be "
            "valid there too."
        )
    return template("contexts").substitute(lines="\n\n".join(lines)) if lines else ""


def _fields(workload: Workload, environment: Environment) -> list[str]:
    return [
        *_field_lines("workload", workload_fields(workload)),
        *_field_lines("environment", environment_fields(environment)),
    ]


def _field_lines(path: str, fields: Mapping[str, object]) -> Iterator[str]:
    """Yield every field that has a value, as a policy reads it."""
    for name, value in fields.items():
        where = f"{path}[{name!r}]"
        if isinstance(value, Mapping):
            yield from _field_lines(where, value)
        elif value is not None and value != ():
            yield f"{where} == {value!r}"
