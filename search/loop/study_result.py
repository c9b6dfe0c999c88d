"""The result of a study: its winner, evidence and ties; also by other objectives or limits."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from statistics import median

from evaluator.metrics.base import Absent, Formula, Metric
from evaluator.metrics.registry import metric_names
from evaluator.objective import Scoring, scoring_of
from evaluator.timing.decision import TOO_FEW_ROUNDS, Comparison, Noise, Spread, Verdict, spread
from records.codec import from_json, to_json
from records.errors import StudyError
from records.store.rows import ComputedMetric, StudyRow, with_newest
from records.store.store import Store
from records.study import Measure, Study
from records.trial import History, Measured, Purpose, Repeat, Trial
from search.loop.final import worth_launching
from search.loop.inert import InertKnob, inert_knobs
from search.loop.leader import (
    SEED,
    FrontMember,
    Leader,
    Race,
    compared,
    counted,
    front_of,
    is_disturbed,
    log_slowdown,
    objective_values,
    study_leader,
    supported_values,
    unreliable,
)
from search.loop.relative_speed import RelativeSpeeds, single_launch_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextResult:
    """The winner against the seed in one context, or on average over `context_count` of them.

    `against_seed` compares costs: a ratio below 1 is better; None where they share no round.
    """

    name: str
    held_out: bool
    against_seed: Comparison | None
    context_count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmingRounds:
    """The rounds of the final: all that count, and those disturbed by other work.

    `seed_launched` is whether they include the seed, also if its launches failed.
    """

    count: int
    disturbed_count: int
    seed_launched: bool

    @property
    def caveat(self) -> str | None:
        """A warning if other work disturbed a round, else None."""
        if not self.disturbed_count:
            return None
        disturbed = f"{self.disturbed_count} of the {self.count} deciding rounds"
        return f"other work on the machine disturbed {disturbed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """The final result of a study; `winner` is the ordinal of a trial, None if none was measured.

    `result` is in the unit of the objective, from the launches of `supported_values`.
    `against_seed` and `against` compare costs of the winner with those of the seed and of the other
    finalists: a ratio below 1 is better in either direction. Of these, `ties` are not shown to be
    worse. `unreliable` finalists failed in a confirming launch, other than by infrastructure.
    `not_ruled_out` are
    trials that the final did not compare with the winner, and that no other launches show to be
    slower; too little was to be gained from those in `unlikely` to launch them. `noise` is how much
    a round's ratio varies between equal sides. `front` is empty with one objective. `confirming`
    are the rounds that count in the final; None where there was none. `inert` are knobs that
    changed nothing.
    """

    stop_reason: str
    winner: int | None
    unit: str
    result: Spread | None
    against_seed: Comparison | None
    ties: tuple[int, ...]
    unreliable: tuple[int, ...]
    races: tuple[Race, ...] = ()
    noise: Noise | None = None
    contexts: tuple[ContextResult, ...] = ()
    front: tuple[FrontMember, ...] = ()
    confirming: ConfirmingRounds | None = None
    not_ruled_out: tuple[int, ...] = ()
    unlikely: tuple[int, ...] = ()
    inert: tuple[InertKnob, ...] = ()
    against: Mapping[int, Comparison] = field(default_factory=dict)


def find(
    leader: Leader,
    launches: Sequence[Repeat],
    scoring: Scoring,
    measure: Measure,
    stop_reason: str,
) -> StudyResult:
    """Return the result by the launches that confirmed the finalists."""
    history = leader.history
    admissible = {trial.ordinal for trial in history.admissible}
    winner = None if history.best is None else history.best.ordinal
    failed = unreliable(launches)
    against = {
        ordinal: _compared(leader, launches, winner, ordinal, scoring, measure)
        for ordinal in objective_values(launches, scoring)
        if winner is not None and ordinal != winner
    }
    others = not_ruled_out(leader, {*against, *failed}, scoring, measure)
    worth = worth_launching(leader, scoring, measure) if others else frozenset()
    return StudyResult(
        stop_reason=stop_reason,
        winner=winner,
        unit=scoring.unit,
        result=None if history.best is None else trial_spread(history.best, history),
        against_seed=against.get(0),
        ties=tuple(
            ordinal
            for ordinal, comparison in against.items()
            if comparison.verdict is not Verdict.FAST
            and ordinal in admissible
            and ordinal not in failed
        ),
        unreliable=failed,
        races=leader.races,
        noise=leader.noise,
        front=leader.front,
        confirming=_confirming(launches),
        inert=inert_knobs(history, scoring, measure),
        against={ordinal: found for ordinal, found in against.items() if ordinal != 0},
        not_ruled_out=others,
        unlikely=tuple(n for n in others if n not in worth),
    )


def _compared(
    leader: Leader,
    launches: Sequence[Repeat],
    winner: int,
    other: int,
    scoring: Scoring,
    measure: Measure,
) -> Comparison:
    """Compare the winner with another finalist.

    One that the final launched too seldom is no tie where the noise of the study shows it to be
    worse; the claim over the seed rests on the final alone.
    """
    found = compared(launches, winner, other, scoring, measure)
    if found.reason != TOO_FEW_ROUNDS or other == SEED:
        return found
    return compared(launches, winner, other, scoring, measure, leader.noise)


def not_ruled_out(
    leader: Leader, settled: Set[int], scoring: Scoring, measure: Measure
) -> tuple[int, ...]:
    """Return the measured trials outside `settled` whose interval reaches the winner's speed.

    A speed without an interval has that of a single round; without known noise it is exact. A
    launch that other work disturbed alone rules out no more than that work can have slowed it.
    """
    best = leader.history.best
    if best is None:
        return ()
    speeds = RelativeSpeeds.of(leader.history, scoring, measure)
    by_chance = single_launch_ratio(leader.noise) if leader.noise else 1.0
    found: list[int] = []
    for trial in leader.history.admissible:
        if trial.ordinal == best.ordinal or trial.ordinal in settled:
            continue
        speed = speeds.speed(trial.ordinal, best.ordinal)
        if speed is None:
            continue
        slowed = 0.0 if speed.side_by_side else log_slowdown(trial.outcome)
        if math.log(speed.high or speed.ratio * by_chance) + slowed > 0:
            found.append(trial.ordinal)
    return tuple(found)


def _confirming(launches: Sequence[Repeat]) -> ConfirmingRounds | None:
    """Return the rounds of finals among these launches."""
    final = [launch for launch in launches if launch.purpose is Purpose.CONFIRM]
    rounds = {(launch.series, launch.round) for launch in final}
    disturbed = {(x.series, x.round) for x in final if is_disturbed(x.outcome)}
    if not rounds:
        return None
    return ConfirmingRounds(
        count=len(rounds),
        disturbed_count=len(disturbed),
        seed_launched=any(launch.ordinal == SEED for launch in final),
    )


def final_result(row: StudyRow) -> StudyResult | None:
    """Return the result of a finished study; None before its end, or while it is resumed."""
    if row.summary is None or row.status != "finished":
        return None
    return from_json(StudyResult, row.summary)


def leader_of(row: StudyRow, store: Store) -> Trial | None:
    """Return the trial of a recorded study that won or leads so far; None if none was measured."""
    finding = final_result(row)
    if finding is not None and finding.winner is not None:
        return store.trial(row.id, finding.winner)
    if not store.counts(row.id).repeats and not scoring_of(row.study).needs_seed:
        return store.best(row.id)
    return study_leader(row, store).history.best


def trials_named(
    which: str, history: History, best: Trial | None, study_id: str
) -> tuple[Trial, ...]:
    """Return the trials that `best`, `seed`, `all` or an ordinal name, at least one."""
    trials: dict[str, Sequence[Trial | None]]
    trials = {"all": history.trials, "best": (best,), "seed": (history.find(0),)}
    if which.isdecimal():
        trials[which] = (history.find(int(which)),)
    if which not in trials:
        raise StudyError(f"--trial {which!r} is not a trial; write best, seed, all or a number")
    found = tuple(trial for trial in trials[which] if trial is not None)
    if not found:
        what = {"all": "trial", "best": "measured trial"}.get(which, f"trial {which}")
        raise StudyError(f"study {study_id} has no {what}; see `cclsearch show {study_id}`")
    return found


def best_result(row: StudyRow, leader: Trial | None, store: Store) -> Spread | None:
    """Return the value of the trial that leads a study."""
    finding = final_result(row)
    if finding is not None and finding.result is not None:
        return finding.result
    if leader is None:
        return None
    return trial_spread(leader, History(again=repeated_values(row, store)))


def repeated_values(row: StudyRow, store: Store) -> Mapping[int, tuple[float, ...]]:
    """Return the `supported_values` of each repeated trial of a study.

    Return nothing for an imported study whose objective is unknown here.
    """
    if not store.counts(row.id).repeats:
        return {}
    first = store.first_measured(row.id)
    try:
        scoring = scoring_of(row.study).against(() if first is None else (first.outcome,))
    except StudyError:
        return {}
    return supported_values(counted(store.repeats(row.id), row.study.measure), scoring)


def trial_spread(trial: Trial, history: History) -> Spread | None:
    """Return the value of a trial over its launches that count; None where it has no score."""
    values = history.values(trial)
    return spread(values) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """A recorded study with the result by other objectives or limits, without launches."""

    row: StudyRow
    """The study with `finding` as its summary."""
    history: History
    finding: StudyResult
    scoring: Scoring


def rescore(row: StudyRow, store: Store, other: Study) -> Rescored:
    """Score the recorded launches of a study by the objectives and limits of `other`.

    The leader has the lowest cost over all launches; races do not count. A trial that lacks a
    metric is a failure. Metrics computed later count as measured. Raises `StudyError` where `other`
    is unclear.
    """
    computed = store.computed_metrics(row.id)
    history = with_computed(store.history(row.id), computed)
    launches = same_definitions(counted(store.repeats(row.id), row.study.measure), history)
    return rescore_history(row, history, launches, other, stored_definitions(computed))


def rescore_history(
    row: StudyRow,
    stored: History,
    repeats: Sequence[Repeat],
    other: Study,
    added: Sequence[Metric] = (),
) -> Rescored:
    """Score these trials and launches; `added` are metrics of the user."""
    scoring = scoring_of(other, added).over(stored)
    values = supported_values(repeats, scoring)
    scored = History(
        trials=tuple(map(scoring.scored, stored)),
        costs={ordinal: scoring.sign * median(found) for ordinal, found in values.items()},
        again=values,
    )
    front = front_of(scored, repeats, scoring)
    history = replace(scored, front=tuple(member.ordinal for member in front))
    leader = Leader(history=history, races=(), noise=None, front=front)
    reason = "scored again from its records, without launches or races"
    finding = find(leader, repeats, scoring, other.measure, reason)
    row = replace(row, study=other, summary=to_json(finding))
    return Rescored(row=row, history=history, finding=finding, scoring=scoring)


def with_computed(history: History, computed: Mapping[int, Sequence[ComputedMetric]]) -> History:
    """Return the history as if the newest version of every metric had been measured."""

    def updated(trial: Trial) -> Trial:
        newer = computed.get(trial.ordinal)
        if not newer or not isinstance(trial.outcome, Measured):
            return trial
        return replace(trial, outcome=with_newest(trial.outcome, newer))

    return replace(history, trials=tuple(map(updated, history)))


def same_definitions(repeats: Sequence[Repeat], history: History) -> tuple[Repeat, ...]:
    """Return the launches without metrics of another version than in their trial."""
    versions = {
        trial.ordinal: {value.name: value.version for value in trial.outcome.metrics}
        for trial in history
        if isinstance(trial.outcome, Measured)
    }

    def matching(repeat: Repeat) -> Repeat:
        if not isinstance(repeat.outcome, Measured):
            return repeat
        own = versions.get(repeat.ordinal, {})
        same = tuple(v for v in repeat.outcome.metrics if own.get(v.name, v.version) == v.version)
        return replace(repeat, outcome=replace(repeat.outcome, metrics=same))

    return tuple(map(matching, repeats))


def stored_definitions(computed: Mapping[int, Sequence[ComputedMetric]]) -> tuple[Metric, ...]:
    """Return definitions for stored metrics that are not defined here, enough to score them."""
    found = {each.name: each for values in computed.values() for each in values}
    for name in metric_names() if found else ():
        found.pop(name, None)
    undefined = Absent("its definition is missing here; give it with --metrics-file")
    return tuple(
        Formula(
            name=name,
            label=name,
            unit=each.unit,
            better=each.better,
            sources=frozenset({"samples"}),
            description="Computed later, by a definition that is missing here.",
            formula=lambda _: undefined,
            version=each.version,
        )
        for name, each in sorted(found.items())
    )
