"""The leader of a study, from its records alone: races, confirmation, noise, the Pareto front.

Launches are compared by cost: the objective where lower is better, its inverse where higher is
better. Only a positive objective has one.

A round that other work on the machine disturbed is repeated, a few times. Whether it was disturbed
is read from the machine only, never from the times: omitting what looks slow would choose the
result. Such a round, and one that lost a launch to the infrastructure, is omitted as a
whole, and only once it was replaced.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
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
    mean_of_faster_half,
    pooled,
    spread,
    values_in_turns,
)
from evaluator.timing.steady import steady_part
from records.store.rows import StudyRow
from records.store.store import Store
from records.study import Measure
from records.trial import (
    Failed,
    History,
    Measured,
    Outcome,
    Purpose,
    RaceResult,
    Repeat,
    Score,
    Trial,
)
from search.loop.learned import same_work

LEAST_RACE_ROUNDS = 2
Key = TypeVar("Key", bound=Hashable)


def race_rule(measure: Measure) -> DecisionRule:
    """Return the rule for races: few rounds, with the noise of earlier ones."""
    return _rule(measure, LEAST_RACE_ROUNDS, measure.race_rounds)


STRICTER = 12
"""How many times less often than `alpha` a claim in the final may err: several trials are compared
with the seed, and of all announced winners hardly any should be wrong."""


def claim_rule(measure: Measure) -> DecisionRule:
    """Return the rule for the final claim: new launches only.

    It claims any difference that is sure; what lies within the margin is the same.
    """
    rule = _rule(measure, max(measure.confirm_rounds, 1), measure.max_confirm_rounds)
    return replace(rule, claim_alpha=measure.alpha / STRICTER, claim_margin=0.0)


def _rule(measure: Measure, least: int, most: int) -> DecisionRule:
    return DecisionRule(
        margin=measure.margin, alpha=measure.alpha, min_rounds=least, max_rounds=max(most, least)
    )


def least_rounds(purpose: Purpose, measure: Measure) -> int:
    """Return the rounds needed for a decision; halving and self-tests need one."""
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
"""Rounds of a series that are repeated; on a machine always disturbed, later rounds count."""

Rounds: TypeAlias = Mapping[int, Sequence[Repeat]]
"""The launches of one series, by round."""


def counted(repeats: Iterable[Repeat], measure: Measure) -> tuple[Repeat, ...]:
    """Return the launches that count for the search; those in held-out contexts do not."""
    return without_replaced((r for r in repeats if r.purpose is not Purpose.HELD_OUT), measure)


def without_replaced(repeats: Iterable[Repeat], measure: Measure) -> tuple[Repeat, ...]:
    """Return the launches whose rounds count, in their order."""
    launches = tuple(repeats)
    left_out = left_out_rounds(launches, measure)
    return tuple(r for r in launches if (r.series, r.purpose, r.round) not in left_out)


def left_out_rounds(
    launches: Iterable[Repeat], measure: Measure
) -> frozenset[tuple[int, Purpose, int]]:
    """Return the rounds that do not count, by series, purpose and number."""
    return frozenset(
        (series, purpose, number)
        for (series, purpose), rounds in _by_series(launches).items()
        for number in _replaced(rounds, least_rounds(purpose, measure))
    )


def run_again(rounds: Rounds) -> tuple[int, ...]:
    """Return the rounds of a series to repeat, or repeated; a self-test repeats none.

    A self-test measures the noise, so it includes disturbances.
    """
    first = next((launch for launches in rounds.values() for launch in launches), None)
    if first is None or first.purpose is Purpose.SELF_TEST:
        return ()
    return tuple(n for n in sorted(rounds) if _is_disturbed(rounds[n]))[:MOST_RUN_AGAIN]


def is_disturbed(outcome: Outcome) -> bool:
    """Whether other work on the machine may have slowed a measured launch."""
    return isinstance(outcome, Measured) and any(
        one.conditions is not None and one.conditions.disturbances for one in outcome.measurements
    )


def log_slowdown(outcome: Outcome) -> float:
    """Return the logarithm of the factor by which other work may have slowed a measured launch."""
    if not isinstance(outcome, Measured):
        return 0.0
    known = (one.conditions for one in outcome.measurements)
    return math.log(max((each.largest_slowdown for each in known if each is not None), default=1.0))


def _by_series(
    launches: Iterable[Repeat],
) -> Mapping[tuple[int, Purpose], Mapping[int, list[Repeat]]]:
    by_series: dict[tuple[int, Purpose], dict[int, list[Repeat]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for repeat in launches:
        by_series[repeat.series, repeat.purpose][repeat.round].append(repeat)
    return by_series


def _replaced(rounds: Rounds, least: int) -> tuple[int, ...]:
    """Return disturbed rounds that a later undisturbed one replaced, while `least` remain."""
    left_out: list[int] = []
    for number in run_again(rounds):
        entrants = _entrants(rounds[number])
        others = {
            other: rounds[other]
            for other in rounds
            if other not in (number, *left_out) and _entrants(rounds[other]) >= entrants
        }
        quiet = [n for n, launches in others.items() if n > number and not _is_disturbed(launches)]
        if len(others) >= least and quiet:
            left_out.append(number)
    return tuple(left_out)


def _entrants(launches: Iterable[Repeat]) -> frozenset[int]:
    return frozenset(launch.ordinal for launch in launches)


def _is_disturbed(launches: Iterable[Repeat]) -> bool:
    """Whether all were measured and some were disturbed, or the infrastructure ended one."""
    outcomes = [launch.outcome for launch in launches]
    if any(isinstance(each, Failed) and each.kind.is_infrastructure for each in outcomes):
        return True
    measured = [outcome for outcome in outcomes if isinstance(outcome, Measured)]
    conditions = [one.conditions for outcome in measured for one in outcome.measurements]
    is_whole = len(measured) == len(outcomes) and None not in conditions
    return is_whole and any(each.disturbances for each in conditions if each)


STEP_OBJECTIVES = ("step_time", "tokens_per_s")
"""Objectives that are the step time or its inverse."""


def is_step_time(scoring: Scoring) -> bool:
    """Whether the objective is the step time or its inverse."""
    return scoring.expression.text.strip() in STEP_OBJECTIVES


def launch_of(outcome: Outcome, scoring: Scoring) -> LaunchValue | None:
    """Return a launch as a comparison takes it; None without a positive objective.

    Its steps count by the mean of the faster half, unless they took turns with others: what slows
    a few steps says little of a configuration.
    """
    if not isinstance(outcome, Measured):
        return None
    score = scoring.score(outcome.metrics, outcome.absent)
    if not isinstance(score, Score) or score.value <= 0:
        return None
    cost = score.value if scoring.lower_is_better else 1 / score.value
    each_steps_s = [measurement.slowest_rank_s for measurement in outcome.measurements]
    if not is_step_time(scoring):
        return LaunchValue(value=cost, late_shift=_late_shifts(outcome))
    to_mean, to_faster = (
        statistics.geometric_mean([mean(steps_s) / median(steps_s) for steps_s in each_steps_s])
        for mean in (statistics.fmean, mean_of_faster_half)
    )
    return LaunchValue(
        value=cost if took_turns(outcome) else cost * to_faster,
        mean=cost * to_mean,
        late_shift=_late_shifts(outcome),
    )


def _late_shifts(outcome: Measured) -> float:
    if took_turns(outcome):
        return 0.0
    return max(_late_shift(each.slowest_rank_s) for each in outcome.measurements)


@lru_cache(maxsize=4096)  # every decision asks it of every launch again
def _late_shift(steps_s: tuple[float, ...]) -> float:
    return steady_part(steps_s).late_shift


def launches_of(launched: Mapping[Key, Repeat], scoring: Scoring) -> dict[Key, LaunchValue]:
    """Return the measured launches of one round as a comparison takes them.

    Where they took turns step by step, each step is compared with those of the others beside it:
    what slows one of them mostly slows its neighbours too.
    """
    found = {key: launch_of(repeat.outcome, scoring) for key, repeat in launched.items()}
    launches = {key: launch for key, launch in found.items() if launch is not None}
    steps = {key: _turns_s(launched[key].outcome) for key in launches}
    if len(launches) < 2 or not all(steps.values()) or not is_step_time(scoring):
        return launches
    if len({len(steps_s) for steps_s in steps.values()}) > 1:
        return launches
    return {
        key: replace(launches[key], value=launches[key].value * value / median(steps[key]))
        for key, value in values_in_turns(steps).items()
    }


def _turns_s(outcome: Outcome) -> tuple[float, ...]:
    """Return the times of steps that were turns each; none of any other launch."""
    if not isinstance(outcome, Measured) or {*outcome.measurement.turn_steps} != {1}:
        return ()
    return outcome.measurement.slowest_rank_s


def rounds_between(
    repeats: Iterable[Repeat], candidate: int, anchor: int, scoring: Scoring
) -> tuple[Round, ...]:
    """Return the rounds in which both trials were measured, in the order of launches."""
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
    own, other = launched[candidate], launched[anchor]
    launches = launches_of({candidate: own, anchor: other}, scoring)
    if len(launches) < 2:
        return None
    first = None if own.position == other.position else own.position < other.position
    return Round(
        candidate=launches[candidate],
        anchor=launches[anchor],
        candidate_first=first,
        disturbed=is_disturbed(own.outcome) or is_disturbed(other.outcome),
    )


def objective_values(repeats: Iterable[Repeat], scoring: Scoring) -> dict[int, list[float]]:
    """Return the objective of each measured launch, by trial."""
    values: dict[int, list[float]] = defaultdict(list)
    for repeat in repeats:
        if isinstance(repeat.outcome, Measured):
            score = scoring.score(repeat.outcome.metrics, repeat.outcome.absent)
            if isinstance(score, Score):
                values[repeat.ordinal].append(score.value)
    return dict(values)


def supported_launches(repeats: Iterable[Repeat], scoring: Scoring) -> tuple[Repeat, ...]:
    """Return the launches that give each repeated trial its value.

    These are the launches of its last final, if they suffice for an interval; otherwise all its
    repeat launches. The first launch counts only if it is the only one: a trial is raced because
    its first launch was fast, which biases it.
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
    """Return the objective in the launches of `supported_launches`, by trial."""
    values = objective_values(supported_launches(repeats, scoring), scoring)
    return {ordinal: tuple(found) for ordinal, found in values.items()}


def noise_of(repeats: Sequence[Repeat], scoring: Scoring, *, together: bool) -> Noise | None:
    """Return the noise of a round's ratio; None while nothing was launched twice.

    Either only interleaved launches count or only the others: they differ in noise.
    """
    tests: dict[tuple[int, int], dict[int, Repeat]] = defaultdict(dict)
    contests: dict[tuple[int, Purpose], dict[int, dict[int, Repeat]]] = {}
    for repeat in repeats:
        if not isinstance(repeat.outcome, Measured) or took_turns(repeat.outcome) is not together:
            continue
        if repeat.purpose is Purpose.SELF_TEST:
            tests[repeat.series, repeat.round // 2][repeat.round] = repeat
        else:
            contest = contests.setdefault((repeat.series, repeat.purpose), {})
            contest.setdefault(repeat.round, {})[repeat.ordinal] = repeat
    tables = [
        [[launch.value] for launch in launches_of(pair, scoring).values()]
        for pair in tests.values()
    ]
    for rounds in contests.values():
        found = [launches_of(launched, scoring) for launched in rounds.values()]
        # Trials that the final no longer launched are missing in its later rounds.
        for entrants in dict.fromkeys(frozenset(each) for each in found if len(each) > 1):
            whole = [launches for launches in found if launches.keys() == entrants]
            tables.append([[each[n].value for n in sorted(entrants)] for each in whole])
    return pooled(tables)


def took_turns(outcome: Outcome) -> bool:
    """Whether the steps of a launch were interleaved with others."""
    return isinstance(outcome, Measured) and bool(outcome.measurement.turn_steps)


SEED = 0


def confirming(repeats: Iterable[Repeat], series: int) -> tuple[Repeat, ...]:
    """Return the launches that confirm the finalists chosen after `series` trials."""
    return tuple(r for r in repeats if r.series == series and r.purpose is Purpose.CONFIRM)


def winner_of(
    history: History, launches: Sequence[Repeat], scoring: Scoring, measure: Measure
) -> int | None:
    """Return the trial that wins these confirmation launches; None where nothing was measured.

    Of trials that ran the same work, and that the launches do not tell apart, it is the one with
    most values of the seed: what another value seems to gain is chance.
    """
    winner = _fastest(history, launches, scoring, measure)
    first, seed = history.find(winner) if winner is not None else None, history.find(SEED)
    if first is None or seed is None or seed.config is None:
        return winner
    finalists = {launch.ordinal for launch in launches} - {*unreliable(launches)}
    equal = [
        trial
        for trial in history.admissible
        if trial.ordinal in finalists
        and same_work(first, trial)
        and compared(launches, first.ordinal, trial.ordinal, scoring, measure).verdict
        not in {Verdict.FAST, Verdict.SLOW}
    ]
    own = seed.config.values.items()
    return min(
        [first, *equal],
        key=lambda trial: -len(own & trial.config.values.items()) if trial.config else 0,
    ).ordinal


def _fastest(
    history: History, launches: Sequence[Repeat], scoring: Scoring, measure: Measure
) -> int | None:
    """Return the trial that wins by its times.

    `history` is the one before them. What was shown to be the best in it stays, or else the seed,
    unless another trial is shown to be faster, or equal with less memory or fewer ranks. If neither
    is shown, a trial better by more than the margin wins over the leader, but not over the seed;
    such ties are reported. A trial that was not shown to be faster than the seed never wins over
    one that was. A finalist that failed, other than by infrastructure, wins only when no other is
    left.
    """
    admissible = {trial.ordinal for trial in history.admissible}
    found = objective_values(launches, scoring).items()
    values = {ordinal: each for ordinal, each in found if ordinal in admissible}
    if not values or history.best is None:
        return history.incumbent
    failed = unreliable(launches)
    sound = [ordinal for ordinal in values if ordinal not in failed] or list(values)
    incumbent = history.best.ordinal
    if history.incumbent is None and SEED in sound:
        rounds = [rounds_between(launches, n, SEED, scoring) for n in sound if n != SEED]
        least = max(claim_rule(measure).min_rounds, LEAST_FOR_INTERVAL)
        if any(len(each) >= least for each in rounds):
            incumbent = SEED  # a single launch that was faster shows little
    costs = {ordinal: scoring.sign * median(values[ordinal]) for ordinal in sound}
    if incumbent not in costs:
        return min(costs, key=lambda ordinal: (costs[ordinal], ordinal))
    against = {
        ordinal: compared(launches, ordinal, incumbent, scoring, measure)
        for ordinal in sound
        if ordinal != incumbent
    }
    by_rounds = any(found.ratio_low is not None for found in against.values())
    ratios = {
        ordinal: found.ratio
        for ordinal, found in against.items()
        if found.ratio is not None and (found.ratio_low is not None or not by_rounds)
    }
    faster = [ordinal for ordinal in ratios if against[ordinal].verdict is Verdict.FAST]
    leaning = [
        ordinal
        for ordinal, ratio in ratios.items()
        if against[ordinal].verdict is Verdict.UNDECIDED and ratio < 1 - measure.margin
    ]
    if faster or (leaning and incumbent != SEED):
        winner = min(faster or leaning, key=lambda ordinal: (ratios[ordinal], ordinal))
    else:
        same = [ordinal for ordinal in ratios if against[ordinal].verdict is Verdict.SAME]
        winner = min([incumbent, *same], key=lambda ordinal: demand(history, ordinal))
    winner = _unbeaten(winner, set(sound), launches, scoring, measure)
    if winner == SEED or SEED not in sound:
        return winner
    shown = _shown_faster(sound, SEED, launches, scoring, measure)
    if not shown or winner in shown:
        return winner
    best = min(shown, key=lambda ordinal: (shown[ordinal], ordinal))
    return _unbeaten(best, set(sound), launches, scoring, measure)


def _unbeaten(
    winner: int, others: Set[int], launches: Sequence[Repeat], scoring: Scoring, measure: Measure
) -> int:
    """Return the winner, or who was shown to be faster than it in later rounds, and so on."""
    faster = _shown_faster(others - {winner}, winner, launches, scoring, measure)
    if not faster:
        return winner
    best = min(faster, key=lambda ordinal: (faster[ordinal], ordinal))
    return _unbeaten(best, others - {winner}, launches, scoring, measure)


def _shown_faster(
    others: Iterable[int],
    anchor: int,
    launches: Sequence[Repeat],
    scoring: Scoring,
    measure: Measure,
) -> dict[int, float]:
    """Return who was shown to be faster than the anchor, with its ratio to it."""
    return {
        ordinal: found.ratio
        for ordinal in others
        if (found := compared(launches, ordinal, anchor, scoring, measure)).ratio is not None
        and found.verdict is Verdict.FAST
    }


def compared(
    launches: Iterable[Repeat],
    candidate: int,
    anchor: int,
    scoring: Scoring,
    measure: Measure,
    noise: Noise | None = None,
) -> Comparison:
    """Compare two finalists over their common rounds, which may be few where the noise is known."""
    rounds = rounds_between(launches, candidate, anchor, scoring)
    return decide(rounds, claim_rule(measure), noise=noise)


def unreliable(launches: Iterable[Repeat]) -> tuple[int, ...]:
    """Return the finalists that failed, other than by infrastructure, in order."""
    failed = {
        launch.ordinal
        for launch in launches
        if isinstance(launch.outcome, Failed) and not launch.outcome.kind.is_infrastructure
    }
    return tuple(sorted(failed))


def demand(history: History, ordinal: int) -> tuple[int, int]:
    """Return what a measured trial takes: the largest peak memory of a rank, and the rank count."""
    trial = history.find(ordinal)
    if trial is None or not isinstance(trial.outcome, Measured):
        raise ValueError(f"trial {ordinal} was not measured")
    measurement = trial.outcome.measurement
    return max(measurement.peak_memory_bytes, default=0), len(measurement.step_times_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveValue:
    """The value of a trial in one objective, over all its launches."""

    objective: str
    unit: str
    value: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontMember:
    """A trial on the Pareto front and its values, the main objective first."""

    ordinal: int
    reached: tuple[ObjectiveValue, ...]


def front_of(
    history: History, repeats: Sequence[Repeat], scoring: Scoring
) -> tuple[FrontMember, ...]:
    """Return the Pareto front, best in the main objective first; empty with one objective.

    The value of a trial comes from its repeat launches, or else from its first. A trial that
    breaks a limit or lacks an objective is not on the front.
    """
    if not scoring.more:
        return ()
    own = {trial.ordinal: own_values(trial, scoring) for trial in history.admissible}
    reached = {ordinal: values for ordinal, values in own.items() if values is not None}
    return front_over(reached, repeats, scoring)


def front_over(
    own: Mapping[int, tuple[float, ...]], repeats: Sequence[Repeat], scoring: Scoring
) -> tuple[FrontMember, ...]:
    """Return the front of trials with these values of their first launches."""
    objectives = [(one, supported_values(repeats, one)) for one in scoring.objectives]
    launches = {
        ordinal: [
            (one, repeated.get(ordinal) or (value,))
            for (one, repeated), value in zip(objectives, values, strict=True)
        ]
        for ordinal, values in own.items()
    }
    costs = {
        ordinal: tuple(one.sign * median(values) for one, values in each)
        for ordinal, each in launches.items()
    }
    return tuple(
        FrontMember(
            ordinal=ordinal,
            reached=tuple(
                ObjectiveValue(objective=one.expression.text, unit=one.unit, value=spread(values))
                for one, values in launches[ordinal]
            ),
        )
        for ordinal in unbeaten(costs)
    )


def own_values(trial: Trial, scoring: Scoring) -> tuple[float, ...] | None:
    """Return each objective of a trial's first launch; None where it lacks one."""
    outcome = trial.outcome
    if not isinstance(outcome, Measured):
        return None
    scores = [one.score(outcome.metrics, outcome.absent) for one in scoring.objectives]
    values = tuple(score.value for score in scores if isinstance(score, Score))
    return values if len(values) == len(scores) else None


def unbeaten(costs: Mapping[Key, tuple[float, ...]]) -> tuple[Key, ...]:
    """Return the keys that no other dominates, lowest first cost first; equal ones all stay.

    With two costs, sorting suffices: of all with a lower first cost, the last on the front has the
    lowest second cost.
    """
    front: list[Key] = []
    for key, cost in sorted(costs.items(), key=lambda item: item[1]):
        rivals = front[-1:] if len(cost) == 2 else front
        if not any(
            costs[rival] != cost and all(a <= b for a, b in zip(costs[rival], cost, strict=True))
            for rival in rivals
        ):
            front.append(key)
    return tuple(front)


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """A challenger against the leader at the time it was measured."""

    challenger: int
    incumbent: int
    comparison: Comparison

    @property
    def leader(self) -> int:
        """The incumbent, unless the challenger was shown to be faster."""
        return self.challenger if self.comparison.verdict is Verdict.FAST else self.incumbent

    @property
    def result(self) -> RaceResult:
        """The race as the history records it."""
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
    """Who leads, as a history with its races, noise and front; `history.best` is the trial."""

    history: History
    races: tuple[Race, ...]
    noise: Noise | None
    front: tuple[FrontMember, ...] = ()


def find_leader(
    history: History, repeats: Sequence[Repeat], scoring: Scoring, measure: Measure
) -> Leader:
    """Decide every race and every confirmation in their order."""
    scoring = scoring.over(history)
    if scoring.needs_seed:  # parallel trials may be scored before the reference is known
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
            updated = _with_costs(history.before(series), before, scoring, incumbent)
            incumbent = winner_of(updated, launches, scoring, measure)
    updated = _with_costs(history, repeats, scoring, incumbent)
    front = front_of(history, repeats, scoring)
    return Leader(
        history=replace(
            updated,
            races=tuple(race.result for race in races),
            repeats=tuple(repeats),
            front=tuple(member.ordinal for member in front),
        ),
        races=tuple(races),
        noise=noise_of(repeats, scoring, together=any(took_turns(r.outcome) for r in repeats)),
        front=front,
    )


def study_leader(row: StudyRow, store: Store) -> Leader:
    """Return the leader of a recorded study."""
    history, repeats = store.history(row.id), counted(store.repeats(row.id), row.study.measure)
    return find_leader(history, repeats, scoring_of(row.study), row.study.measure)


def judge_race(
    repeats: Sequence[Repeat], series: int, scoring: Scoring, measure: Measure
) -> Race | None:
    """Decide the race after `series` trials by its rounds so far; None where there is none.

    The noise comes from the launches before it.
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


def _with_costs(
    history: History, repeats: Sequence[Repeat], scoring: Scoring, incumbent: int | None
) -> History:
    """Return the trials with the costs that these launches give them."""
    values = supported_values(repeats, scoring)
    costs = {ordinal: scoring.sign * median(found) for ordinal, found in values.items()}
    return History(trials=history.trials, costs=costs, incumbent=incumbent, again=values)
