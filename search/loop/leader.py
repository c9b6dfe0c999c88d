"""Who leads, from records alone; Pareto front; rounds.

How sure the search wants to be: while it looks around, and when it claims.

Which rounds count: one that something else on the machine disturbed is run again, a few times.

Whether it was disturbed is read from the machine alone, never from the times: leaving out what
looks slow would be choosing the result. A disturbed round is left out whole, and only once it was
replaced: where no launch is left for that, or nothing comes out undisturbed, it counts.

Re-measuring launches as rounds that can be compared: what each launch is worth, and with whom.

What is compared is a launch's burden: the objective where less is better, its inverse where more
is. Only a positive objective has one.

Who wins among the finalists, from the launches that were made to confirm it.

The front of several objectives: the trials that no other trial beats in all of them.

Who leads a study, decided from records alone: a trial leads once it was shown to be faster.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeAlias, TypeVar, assert_never

from evaluator.objective import Scoring, scoring_of
from evaluator.timing.decision import (
    LEAST_FOR_INTERVAL,
    Comparison,
    DecisionRule,
    LaunchValue,
    Noise,
    Round,
    Spread,
    Verdict,
    decide,
    pooled,
    spread,
)
from records.machine import Conditions
from records.store.rows import StudyRow
from records.store.store import Store
from records.study import Measure
from records.trial import (
    Failed,
    FailureKind,
    History,
    Measured,
    Outcome,
    Purpose,
    RaceResult,
    Repeat,
    Score,
    Trial,
)

LEAST_RACE_ROUNDS = 2


def race_rule(measure: Measure) -> DecisionRule:
    """How a challenger is judged while searching: on few rounds, with the noise of earlier ones."""
    return DecisionRule(
        margin=measure.margin,
        alpha=measure.alpha,
        min_rounds=LEAST_RACE_ROUNDS,
        max_rounds=max(measure.race_rounds, LEAST_RACE_ROUNDS),
    )


def claim_rule(measure: Measure) -> DecisionRule:
    """How a claim is judged at the end: on fresh launches that have to speak for themselves."""
    least = max(measure.confirm_rounds, 1)
    return DecisionRule(
        margin=measure.margin,
        alpha=measure.alpha,
        min_rounds=least,
        max_rounds=max(measure.max_confirm_rounds, least),
    )


def least_rounds(purpose: Purpose, measure: Measure) -> int:
    """Rounds without which a contest decides nothing, or one where it is only thinned out."""
    match purpose:
        case Purpose.RACE:
            return race_rule(measure).min_rounds
        case Purpose.CONFIRM | Purpose.HELD_OUT:
            return claim_rule(measure).min_rounds
        case Purpose.HALVING | Purpose.SELF_TEST:
            return 1
        case _:
            assert_never(purpose)


MOST_RUN_AGAIN = 2
"""Rounds of a contest; on a machine that is always disturbed the later ones count all the same."""

Rounds: TypeAlias = Mapping[int, Sequence[Repeat]]
"""The launches of one contest, by the number of their round."""


def counted(repeats: Iterable[Repeat], measure: Measure) -> tuple[Repeat, ...]:
    """The launches that count where the study searches, so none in contexts that are held out."""
    searched = (r for r in repeats if r.purpose is not Purpose.HELD_OUT)
    return without_replaced(searched, measure)


def without_replaced(repeats: Iterable[Repeat], measure: Measure) -> tuple[Repeat, ...]:
    """The launches whose rounds count, in their order."""
    launches = tuple(repeats)
    left_out = left_out_rounds(launches, measure)
    return tuple(r for r in launches if (r.series, r.purpose, r.round) not in left_out)


def left_out_rounds(
    launches: Iterable[Repeat], measure: Measure
) -> frozenset[tuple[int, Purpose, int]]:
    """The rounds that do not count: their series, purpose and number."""
    return frozenset(
        (series, purpose, number)
        for (series, purpose), rounds in _contests(launches).items()
        for number in _replaced(rounds, least_rounds(purpose, measure))
    )


def run_again(rounds: Rounds) -> tuple[int, ...]:
    """Rounds of a contest that are to be run again, or were; of a self-test there are none.

    A self-test is about the noise, and shows it as it is.
    """
    first = next((launch for launches in rounds.values() for launch in launches), None)
    if first is None or first.purpose is Purpose.SELF_TEST:
        return ()
    return tuple(n for n in sorted(rounds) if _is_disturbed(rounds[n]))[:MOST_RUN_AGAIN]


def is_disturbed(outcome: Outcome) -> bool:
    """Whether something else on the machine may have slowed a launch; a failed one counts not."""
    return isinstance(outcome, Measured) and any(
        one.conditions is not None and one.conditions.disturbances for one in outcome.measurements
    )


def _contests(
    launches: Iterable[Repeat],
) -> Mapping[tuple[int, Purpose], Mapping[int, list[Repeat]]]:
    contests: dict[tuple[int, Purpose], dict[int, list[Repeat]]] = defaultdict(dict)
    for repeat in launches:
        rounds = contests[repeat.series, repeat.purpose]
        rounds.setdefault(repeat.round, []).append(repeat)
    return contests


def _replaced(rounds: Rounds, least: int) -> tuple[int, ...]:
    """Disturbed rounds after which one of the same trials was undisturbed, while `least` remain."""
    left_out: list[int] = []
    for number in run_again(rounds):
        entrants = _entrants(rounds[number])
        others = [
            other
            for other in rounds
            if other not in (number, *left_out) and _entrants(rounds[other]) >= entrants
        ]
        later = (other for other in others if other > number)
        if len(others) >= least and not all(_is_disturbed(rounds[other]) for other in later):
            left_out.append(number)
    return tuple(left_out)


def _entrants(launches: Iterable[Repeat]) -> frozenset[int]:
    return frozenset(launch.ordinal for launch in launches)


def _is_disturbed(launches: Iterable[Repeat]) -> bool:
    """Whether all were measured, and some while the machine did something else."""
    conditions: list[Conditions | None] = []
    for launch in launches:
        if not isinstance(launch.outcome, Measured):
            return False
        conditions += [measurement.conditions for measurement in launch.outcome.measurements]
    return None not in conditions and any(each.disturbances for each in conditions if each)


STEP_OBJECTIVES = ("step_time", "tokens_per_s")
"""Objectives that are the step time, or its inverse, and nothing else."""


def is_step_time(scoring: Scoring) -> bool:
    """Whether the objective says nothing but how long steps take."""
    return scoring.expression.text.strip() in STEP_OBJECTIVES


def launch_of(outcome: Outcome, scoring: Scoring) -> LaunchValue | None:
    """What a launch brings to a comparison; None where it has no positive objective."""
    if not isinstance(outcome, Measured):
        return None
    score = scoring.score(outcome.metrics, outcome.absent)
    if not isinstance(score, Score) or score.value <= 0:
        return None
    burden = score.value if scoring.lower_is_better else 1 / score.value
    each_steps_s = [measurement.slowest_rank_s for measurement in outcome.measurements]
    to_means = [statistics.fmean(steps_s) / statistics.median(steps_s) for steps_s in each_steps_s]
    to_mean = math.prod(to_means) ** (1 / len(to_means))
    return LaunchValue(
        value=burden,
        mean=burden * to_mean if is_step_time(scoring) else None,
        steady=took_turns(outcome) or all(_settled(steps) for steps in each_steps_s),
    )


def _settled(steps_s: Sequence[float]) -> bool:
    from evaluator.timing.steady import steady_part  # brings numpy

    return steady_part(steps_s).settled


def rounds_between(
    repeats: Iterable[Repeat], candidate: int, anchor: int, scoring: Scoring
) -> tuple[Round, ...]:
    """The rounds in which both trials were launched and measured, in the order of launches."""
    rounds: dict[tuple[int, int], dict[int, Repeat]] = defaultdict(dict)
    for repeat in repeats:
        rounds[repeat.series, repeat.round][repeat.ordinal] = repeat
    found = (_round(both, candidate, anchor, scoring) for both in rounds.values())
    return tuple(one for one in found if one is not None)


def _round(
    launched: Mapping[int, Repeat], candidate: int, anchor: int, scoring: Scoring
) -> Round | None:
    if candidate not in launched or anchor not in launched:
        return None
    ours, theirs = launched[candidate], launched[anchor]
    launches = launch_of(ours.outcome, scoring), launch_of(theirs.outcome, scoring)
    if launches[0] is None or launches[1] is None:
        return None
    first = None if ours.position == theirs.position else ours.position < theirs.position
    return Round(
        candidate=launches[0],
        anchor=launches[1],
        candidate_first=first,
        disturbed=is_disturbed(ours.outcome) or is_disturbed(theirs.outcome),
    )


def objective_values(repeats: Iterable[Repeat], scoring: Scoring) -> dict[int, list[float]]:
    """Objective of each measured launch, by trial."""
    values: dict[int, list[float]] = defaultdict(list)
    for repeat in repeats:
        if isinstance(repeat.outcome, Measured):
            score = scoring.score(repeat.outcome.metrics, repeat.outcome.absent)
            if isinstance(score, Score):
                values[repeat.ordinal].append(score.value)
    return dict(values)


def supported_launches(repeats: Iterable[Repeat], scoring: Scoring) -> tuple[Repeat, ...]:
    """The launches that give each trial its one number, of all trials that were launched again.

    They are those of the last final that the trial was in, where these are enough for an interval;
    otherwise all that were made again. The first launch counts only where there is no other: a
    trial is raced because its first launch came out well.
    """
    launches = tuple(repeats)
    finals: dict[int, list[Repeat]] = defaultdict(list)
    for launch in launches:
        if launch.purpose is Purpose.CONFIRM:
            finals[launch.series].append(launch)
    last: dict[int, int] = {}
    for series in sorted(finals):
        confirmed = objective_values(finals[series], scoring)
        last |= {n: series for n, found in confirmed.items() if len(found) >= LEAST_FOR_INTERVAL}
    return tuple(
        launch
        for launch in launches
        if launch.ordinal not in last
        or (launch.purpose is Purpose.CONFIRM and launch.series == last[launch.ordinal])
    )


def supported_values(repeats: Iterable[Repeat], scoring: Scoring) -> dict[int, tuple[float, ...]]:
    """The objective in the launches that `supported_launches` names, by trial."""
    values = objective_values(supported_launches(repeats, scoring), scoring)
    return {ordinal: tuple(found) for ordinal, found in values.items()}


def centred_costs(repeats: Iterable[Repeat], scoring: Scoring) -> dict[int, float]:
    """Mean burden of each trial, every launch divided by the median of its round."""
    rounds: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for repeat in repeats:
        launch = launch_of(repeat.outcome, scoring)
        if launch is not None:
            rounds[repeat.series, repeat.round][repeat.ordinal] = launch.value
    centred: dict[int, list[float]] = defaultdict(list)
    for values in rounds.values():
        middle = statistics.median(values.values())
        for ordinal, value in values.items():
            centred[ordinal].append(value / middle)
    return {ordinal: statistics.fmean(values) for ordinal, values in centred.items()}


def noise_of(repeats: Sequence[Repeat], scoring: Scoring, *, together: bool) -> Noise | None:
    """How much a round's ratio varies by itself; None while nothing was launched twice.

    Only launches that took turns count, or only those that did not: they differ in noise.
    """
    values: dict[tuple[int, Purpose], dict[int, dict[int, float]]] = {}
    for repeat in repeats:
        launch = launch_of(repeat.outcome, scoring)
        if launch is not None and took_turns(repeat.outcome) is together:
            contest = values.setdefault((repeat.series, repeat.purpose), {})
            contest.setdefault(repeat.round, {})[repeat.ordinal] = launch.value
    tables: list[list[list[float]]] = []
    for (_, purpose), rounds in values.items():
        if purpose is Purpose.SELF_TEST:
            pairs: dict[int, list[list[float]]] = defaultdict(list)
            for number, launched in rounds.items():
                pairs[number // 2].append(list(launched.values()))
            tables += pairs.values()
        else:
            everyone = max(rounds.values(), key=len).keys()
            whole = [launched for launched in rounds.values() if launched.keys() == everyone]
            tables.append([[launched[n] for n in sorted(everyone)] for launched in whole])
    return pooled(tables)


def took_turns(outcome: Outcome) -> bool:
    """Whether a launch took turns with others on the same machine."""
    return isinstance(outcome, Measured) and bool(outcome.measurement.turn_steps)


SEED = 0


def confirming(repeats: Iterable[Repeat], series: int) -> tuple[Repeat, ...]:
    """Launches that confirm the finalists chosen after `series` trials."""
    return tuple(r for r in repeats if r.series == series and r.purpose is Purpose.CONFIRM)


def winner_of(
    history: History, launches: Sequence[Repeat], scoring: Scoring, measure: Measure
) -> int | None:
    """Ordinal of the trial that wins these confirming launches; None where nothing was measured.

    `history` is what was known before them. Who led by it stays, unless another was shown to be
    faster, or to be the same in less memory or on fewer ranks. Where neither could be shown, what
    came out better by more than the margin wins over who led, though not over the seed: these are
    ties, and are named. A finalist that failed by its own doing wins only when no other is left.
    """
    admissible = {trial.ordinal for trial in history.admissible}
    found = objective_values(launches, scoring)
    values = {ordinal: found[ordinal] for ordinal in found if ordinal in admissible}
    if not values or history.best is None:
        return history.incumbent
    incumbent = history.best.ordinal
    failed = unreliable(launches)
    sound = [ordinal for ordinal in values if ordinal not in failed] or list(values)
    costs = {ordinal: scoring.sign * median(values[ordinal]) for ordinal in sound}
    if incumbent not in costs:
        return min(costs, key=lambda ordinal: (costs[ordinal], ordinal))
    against = {
        ordinal: compared(launches, ordinal, incumbent, scoring, measure)
        for ordinal in sound
        if ordinal != incumbent
    }
    faster = [ordinal for ordinal, found in against.items() if found.verdict is Verdict.FAST]
    if faster:
        return min(faster, key=lambda ordinal: (costs[ordinal], ordinal))
    ratios = {n: found.ratio for n, found in against.items() if _leans(found, measure)}
    if ratios and incumbent != SEED:
        return min(ratios, key=lambda ordinal: (ratios[ordinal], ordinal))
    same = [ordinal for ordinal, found in against.items() if found.verdict is Verdict.SAME]
    return min([incumbent, *same], key=lambda ordinal: _demand(history, ordinal))


def _leans(found: Comparison, measure: Measure) -> bool:
    """Whether a candidate came out better by more than the margin, without being shown to be."""
    undecided = found.verdict is Verdict.UNDECIDED
    return undecided and found.ratio is not None and found.ratio < 1 - measure.margin


def compared(
    launches: Iterable[Repeat], candidate: int, anchor: int, scoring: Scoring, measure: Measure
) -> Comparison:
    """Judge one finalist against another over the rounds that both have."""
    return decide(rounds_between(launches, candidate, anchor, scoring), claim_rule(measure))


def unreliable(launches: Iterable[Repeat]) -> tuple[int, ...]:
    """Finalists that failed by their own doing, ordinals in order."""
    failed = {
        launch.ordinal
        for launch in launches
        if isinstance(launch.outcome, Failed)
        and launch.outcome.kind is not FailureKind.INFRASTRUCTURE
    }
    return tuple(sorted(failed))


def _demand(history: History, ordinal: int) -> tuple[int, int]:
    """What a trial takes: peak memory of its fullest rank, and ranks."""
    trial = history.find(ordinal)
    if trial is None or not isinstance(trial.outcome, Measured):
        raise ValueError(f"trial {ordinal} was not measured")
    measurement = trial.outcome.measurement
    return max(measurement.peak_memory_bytes, default=0), len(measurement.step_times_s)


Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveValue:
    """What a trial reached in one objective, over all its launches."""

    objective: str
    unit: str
    value: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontMember:
    """A trial on the front, by ordinal, and what it reached, the main objective first."""

    ordinal: int
    reached: tuple[ObjectiveValue, ...]


def front_of(
    history: History, repeats: Sequence[Repeat], scoring: Scoring
) -> tuple[FrontMember, ...]:
    """The front of a study, best in its main objective first; empty where it has but one.

    A trial speaks by its launches that were made again, or else by the one that it had. One that
    breaks a limit, or lacks an objective, is not on it.
    """
    if not scoring.more:
        return ()
    own = {trial.ordinal: own_values(trial, scoring) for trial in history.admissible}
    reached = {ordinal: values for ordinal, values in own.items() if values is not None}
    return front_over(reached, repeats, scoring)


def front_over(
    own: Mapping[int, tuple[float, ...]], repeats: Sequence[Repeat], scoring: Scoring
) -> tuple[FrontMember, ...]:
    """The front of what trials reached in each objective by their own launches."""
    again = [supported_values(repeats, one) for one in scoring.objectives]
    launches = {
        ordinal: tuple(
            values.get(ordinal) or [value] for values, value in zip(again, reached, strict=True)
        )
        for ordinal, reached in own.items()
    }
    costs = {
        ordinal: tuple(
            one.sign * median(values) for one, values in zip(scoring.objectives, each, strict=True)
        )
        for ordinal, each in launches.items()
    }
    return tuple(
        FrontMember(
            ordinal=ordinal,
            reached=tuple(
                ObjectiveValue(objective=one.expression.text, unit=one.unit, value=spread(values))
                for one, values in zip(scoring.objectives, launches[ordinal], strict=True)
            ),
        )
        for ordinal in unbeaten(costs)
    )


def own_values(trial: Trial, scoring: Scoring) -> tuple[float, ...] | None:
    """What a trial's own launch reached in each objective; None where it lacks one."""
    outcome = trial.outcome
    if not isinstance(outcome, Measured):
        return None
    scores = [one.score(outcome.metrics, outcome.absent) for one in scoring.objectives]
    values = tuple(score.value for score in scores if isinstance(score, Score))
    return values if len(values) == len(scores) else None


def unbeaten(costs: Mapping[Key, tuple[float, ...]]) -> tuple[Key, ...]:
    """Those that no other beats, lowest first cost first; equal ones are all in.

    One is beaten by another that is nowhere worse and somewhere better. Two costs are looked at in
    the time that sorting takes: among those with a lower first cost the last kept has the lowest
    second one.
    """
    kept: list[Key] = []
    for key, cost in sorted(costs.items(), key=lambda item: item[1]):
        rivals = kept[-1:] if len(cost) == 2 else kept
        if not any(_beats(costs[rival], cost) for rival in rivals):
            kept.append(key)
    return tuple(kept)


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """A challenger against the trial that led when it was measured."""

    challenger: int
    incumbent: int
    comparison: Comparison

    @property
    def leader(self) -> int:
        """Who leads after it: the incumbent, unless the challenger was shown to be faster."""
        return self.challenger if self.comparison.verdict is Verdict.FAST else self.incumbent

    @property
    def raced(self) -> RaceResult:
        """The same as a value of the history."""
        return RaceResult(
            challenger=self.challenger,
            incumbent=self.incumbent,
            verdict=self.comparison.verdict.value,
            ratio=self.comparison.ratio,
            ratio_low=self.comparison.ratio_low,
            ratio_high=self.comparison.ratio_high,
            round_count=self.comparison.round_count,
            disturbed_count=self.comparison.disturbed_count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """A study's history with what its re-measuring launches say."""

    history: History
    races: tuple[Race, ...]
    noise: Noise | None
    front: tuple[FrontMember, ...] = ()


def find_leader(
    history: History, repeats: Sequence[Repeat], scoring: Scoring, measure: Measure
) -> Leader:
    """Judge every race and every confirmation in the order in which they were run."""
    scoring = scoring.over(history)
    if scoring.needs_seed:  # trials at once may have been scored before it was clear who stands in
        history = replace(history, trials=tuple(map(scoring.scored, history)))
    races: list[Race] = []
    incumbent: int | None = None
    for series in sorted({repeat.series for repeat in repeats}):
        race = judge_race(repeats, series, scoring, measure)
        if race is not None:
            races.append(race)
            incumbent = race.leader
        launches = confirming(repeats, series)
        if launches:
            before = [r for r in repeats if r.series < series or r not in launches]
            known = _known(history.before(series), before, scoring, incumbent)
            incumbent = winner_of(known, launches, scoring, measure)
    known = _known(history, repeats, scoring, incumbent)
    front = front_of(history, repeats, scoring)
    return Leader(
        history=replace(
            known,
            raced=tuple(race.raced for race in races),
            repeats=tuple(repeats),
            front=tuple(member.ordinal for member in front),
        ),
        races=tuple(races),
        noise=noise_of(repeats, scoring, together=any(took_turns(r.outcome) for r in repeats)),
        front=front,
    )


def study_leader(row: StudyRow, store: Store) -> Leader:
    """Judge who leads a study on record."""
    history, repeats = store.history(row.id), counted(store.repeats(row.id), row.study.measure)
    return find_leader(history, repeats, scoring_of(row.study), row.study.measure)


def judge_race(
    repeats: Sequence[Repeat], series: int, scoring: Scoring, measure: Measure
) -> Race | None:
    """Judge the race after `series` trials as far as it was run; None where there was none.

    The noise comes from what was launched before it.
    """
    raced = [r for r in repeats if r.series == series and r.purpose is Purpose.RACE]
    challenger = series - 1
    others = {repeat.ordinal for repeat in raced} - {challenger}
    if not others:
        return None
    (incumbent,) = others
    rounds = rounds_between(raced, challenger, incumbent, scoring)
    earlier = [repeat for repeat in repeats if repeat.series < series]
    noise = noise_of(earlier, scoring, together=any(took_turns(r.outcome) for r in raced))
    comparison = decide(rounds, race_rule(measure), noise=noise)
    return Race(challenger=challenger, incumbent=incumbent, comparison=comparison)


def _known(
    history: History,
    repeats: Sequence[Repeat],
    scoring: Scoring,
    incumbent: int | None,
) -> History:
    """The trials, with what these launches say of them."""
    values = supported_values(repeats, scoring)
    costs = {ordinal: scoring.sign * median(found) for ordinal, found in values.items()}
    return History(trials=history.trials, costs=costs, incumbent=incumbent, again=values)
