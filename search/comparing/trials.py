"""Compares two trials of a study: proof from launches that took turns, else what steps suggest."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

from evaluator.objective import Scoring, scoring_of
from evaluator.timing.paired import Comparison, Launch, Round, Rule, decide
from evaluator.timing.spread import ALPHA, spread
from evaluator.timing.verdict import Verdict
from records.errors import StudyError
from records.study import Study
from records.trial import Failed, FailureKind, Measured, Purpose, Repeat, Score
from search.comparing.compared import (
    Compared,
    Comparisons,
    Pair,
    Party,
    Reading,
    Terms,
    differing,
    reading,
    undecided,
)
from search.comparing.launches import failure, screened, unfit
from search.comparing.sides import OnRecord
from search.rounds import is_step_time, launch_of, rounds_between, supported_launches
from search.rules import claim_rule
from search.words.condition import disturbed_among
from search.words.config import difference
from search.words.trial import one_line

CAUSE_CHARS = 300
MORE_TRIALS = 5

Launched: TypeAlias = Sequence[Measured]
"""The launches that speak for one side."""


def compare_trials(a: OnRecord, b: OnRecord, terms: Terms) -> Comparisons:
    """Judge trial B against trial A; raises `StudyError` where they are one trial."""
    if a.name == b.name:
        raise StudyError(f"A and B are both {a.name}; give two trials")
    study = a.row.study
    objective = scoring_of(study).against(a.seed)
    rule = terms.over(claim_rule(study.measure))
    found = (
        _failure("A", a)
        or _failure("B", b)
        or differing(study.objective.expression, _facts(a), _facts(b))
        or _judged(a, b, objective, rule, terms)
    )
    return Comparisons(
        a=_party(a, b),
        b=_party(b, a),
        quantity=study.objective.expression,
        unit=objective.unit,
        lines=(found,),
        rule=rule,
        lower_is_better=objective.lower_is_better,
        is_time=is_step_time(objective),
        caveats=(*_caveats("A", a), *_caveats("B", b)),
        next_steps=tuple(_next_steps(found.comparison, a, b)),
    )


def _party(side: OnRecord, other: OnRecord) -> Party:
    config, base = side.trial.config, other.trial.config
    if config is None or base is None:
        return Party(name=side.name, settings="" if config is None else str(config))
    return Party(name=side.name, settings=difference(config, base))


def _failure(which: str, side: OnRecord) -> Compared | None:
    outcome = side.trial.outcome
    if not isinstance(outcome, Failed):
        return None
    return failure(side.row.study.objective.expression, which, outcome)


def _facts(side: OnRecord) -> list[tuple[str, object]]:
    """What two trials must share to be compared, the most telling first."""
    study: Study = side.row.study
    told = [
        (field.name, getattr(part, field.name))
        for part in (study.environment, study.workload)
        for field in fields(part)
        if field.name != "name"
    ]
    return [
        ("tokens_per_step", study.workload.tokens_per_step),
        *told,
        ("objective", study.objective.expression),
        ("study", side.row.id),
    ]


def _judged(a: OnRecord, b: OnRecord, objective: Scoring, rule: Rule, terms: Terms) -> Compared:
    shared = max(_series(a, b, objective), key=lambda series: series.rank, default=None)
    own = [x.trial.outcome for x in (a, b) if isinstance(x.trial.outcome, Measured)]
    launches = ([own[0]], [own[1]]) if shared is None else (shared.a, shared.b)
    name = a.row.study.objective.expression
    timings = [[launch.measurement for launch in side] for side in launches]
    wrong = unfit(name, timings[0], timings[1])
    if wrong is not None:
        return wrong
    if shared is not None:
        comparison = decide(shared.rounds, rule)
    else:
        comparison = _unpaired(*(launch_of(launch, objective) for launch in own))
    return Compared(
        name=name,
        comparison=comparison,
        a=_reading(a, objective, rule),
        b=_reading(b, objective, rule),
        pairs=() if shared is None else shared.pairs(objective),
        screening=screened(timings[0][0], timings[1][0], terms.thresholds),
    )


def _unpaired(a: Launch | None, b: Launch | None) -> Comparison:
    """One launch of each, which were no round."""
    if a is None or b is None:
        return Comparison(verdict=Verdict.UNKNOWN, reason="bad_time")
    return undecided("not_interleaved", b.value / a.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """Rounds of one series in which both sides were launched, and those launches."""

    purpose: Purpose
    series: int
    numbers: tuple[int, ...]
    rounds: tuple[Round, ...]
    a: Launched
    b: Launched

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Which series speaks: a confirming one, for others chose what the best is."""
        return self.purpose is Purpose.CONFIRM, len(self.rounds), self.series

    def pairs(self, objective: Scoring) -> tuple[Pair, ...]:
        """What both gave in each round."""
        names = (f"{self.purpose} {self.series} {number}" for number in self.numbers)
        a, b = _values(self.a, objective), _values(self.b, objective)
        return tuple(
            Pair(round=name, a=one, b=other) for name, one, other in zip(names, a, b, strict=True)
        )


def _series(a: OnRecord, b: OnRecord, objective: Scoring) -> Iterator[_Shared]:
    series: dict[tuple[Purpose, int], list[Repeat]] = defaultdict(list)
    for repeat in a.repeats:
        if launch_of(repeat.outcome, objective) is not None:
            series[repeat.purpose, repeat.series].append(repeat)
    for (purpose, number), repeats in series.items():
        ours, theirs = _by_round(repeats, a), _by_round(repeats, b)
        both = tuple(each for each in ours if each in theirs)
        if both:
            yield _Shared(
                purpose=purpose,
                series=number,
                numbers=both,
                rounds=rounds_between(repeats, b.trial.ordinal, a.trial.ordinal, objective),
                a=[ours[each] for each in both],
                b=[theirs[each] for each in both],
            )


def _by_round(repeats: Sequence[Repeat], side: OnRecord) -> Mapping[int, Measured]:
    return {
        repeat.round: repeat.outcome
        for repeat in repeats
        if repeat.ordinal == side.trial.ordinal and isinstance(repeat.outcome, Measured)
    }


def _values(launches: Launched, objective: Scoring) -> list[float]:
    scores = [objective.score(launch.metrics, launch.absent) for launch in launches]
    return [score.value for score in scores if isinstance(score, Score)]


def _reading(side: OnRecord, objective: Scoring, rule: Rule) -> Reading | None:
    """The number of a trial as it is shown everywhere, by more launches than the rounds have."""
    counts = supported_launches(side.repeats, objective)
    outcomes = [launch.outcome for launch in counts if launch.ordinal == side.trial.ordinal]
    measured = [outcome for outcome in outcomes if isinstance(outcome, Measured)]
    if not measured and isinstance(side.trial.outcome, Measured):
        measured = [side.trial.outcome]
    values = _values(measured, objective)
    if not values:
        return None
    found = spread(values)
    ends = found if rule.alpha == ALPHA else reading(values, rule.alpha)
    return Reading(
        centre=found.centre,
        low=ends.low,
        high=ends.high,
        launch_count=found.launch_count,
        step_count=sum(len(launch.measurement.slowest_rank_s) for launch in measured),
    )


def _caveats(which: str, side: OnRecord) -> Iterator[str]:
    """What to keep in mind about a side: its samples, and launches that failed later."""
    if isinstance(side.trial.outcome, Measured):
        for caveat in side.trial.outcome.measurement.caveats:
            yield f"{which}: {caveat}"
    again = [r.outcome for r in side.repeats if r.ordinal == side.trial.ordinal]
    disturbed = disturbed_among((side.trial.outcome, *again))
    if disturbed is not None:
        yield f"{which}: {disturbed.caveat}"
    failed = [
        outcome
        for outcome in again
        if isinstance(outcome, Failed) and outcome.kind is not FailureKind.INFRASTRUCTURE
    ]
    if failed:
        cause = one_line(str(failed[0]), CAUSE_CHARS)
        yield f"{which}: {len(failed)} of {len(again)} launches to re-measure it failed; {cause}"


def _next_steps(comparison: Comparison, a: OnRecord, b: OnRecord) -> Iterator[str]:
    """What to type, from here; the store is not named in it."""
    if comparison.verdict is Verdict.UNDECIDED:
        yield f"cclsearch resume {a.row.id} --trials {MORE_TRIALS}"
        return
    outcomes = [side.trial.outcome for side in (a, b)]
    if all(isinstance(x, Measured) and x.breakdown is not None for x in outcomes):
        yield f"cclsearch trace diff {a.name} {b.name}"
        return
    faulty = next((side for side in (a, b) if isinstance(side.trial.outcome, Failed)), b)
    yield f"cclsearch trial show {faulty.row.id} {faulty.trial.ordinal}"
