"""Final result; rescoring a stored study.

What a search found: the re-measured winner, how sure that is, and who ties with it.

What is on record, scored by other objectives or limits than it was searched by.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from evaluator.metrics.base import Absent, Evidence, Formula, Metric
from evaluator.metrics.registry import metric_names
from evaluator.objective import Scoring, scoring_of
from evaluator.timing.decision import Comparison, Noise, Spread, Verdict, spread
from records.codec import from_json, to_json
from records.errors import StudyError
from records.store.rows import ComputedMetric, StudyRow, with_newest
from records.store.store import Store
from records.study import Measure, Study
from records.trial import History, Measured, Purpose, Repeat, Trial
from search.loop.leader import (
    SEED,
    FrontMember,
    Leader,
    Race,
    compared,
    counted,
    front_of,
    is_disturbed,
    objective_values,
    study_leader,
    supported_values,
    unreliable,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InContextFinding:
    """The winner against the seed in one context, or on average over `context_count` of them.

    `against_seed` compares burdens, so a ratio below 1 is better; None where they share no round.
    """

    name: str
    held_out: bool
    against_seed: Comparison | None
    context_count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmingRounds:
    """The rounds in which the finalists were launched: all that count, and those disturbed.

    `seed_launched` is whether the seed was among them, however its launches ended.
    """

    count: int
    disturbed_count: int
    seed_launched: bool

    @property
    def caveat(self) -> str | None:
        """What to keep in mind where the machine was not quiet; None where it was."""
        if not self.disturbed_count:
            return None
        some = f"{self.disturbed_count} of the {self.count}"
        which = "every one" if self.disturbed_count == self.count else some
        return f"{which} of the rounds that decide it was disturbed by other work on the machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The closing summary of a study; `winner` is the ordinal of a trial, None when none ran.

    `result` is in the unit of the objective, from the launches that `supported_values` names.
    `against_seed` compares burdens, so a ratio below 1 is better whatever the direction.
    `unreliable` finalists failed in a confirming launch by their own doing. `noise` is how much a
    round's ratio varies between equal sides. `front` is empty where the study has one objective.
    `confirming` are the rounds that count in the final; None where there was none.
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
    contexts: tuple[InContextFinding, ...] = ()
    front: tuple[FrontMember, ...] = ()
    confirming: ConfirmingRounds | None = None


def find(
    led: Leader,
    launches: Sequence[Repeat],
    scoring: Scoring,
    measure: Measure,
    stop_reason: str,
) -> Finding:
    """Name the winner among the finalists by the launches that confirmed them."""
    history = led.history
    admissible = {trial.ordinal for trial in history.admissible}
    winner = None if history.best is None else history.best.ordinal
    failed = unreliable(launches)
    against = {
        ordinal: compared(launches, winner, ordinal, scoring, measure)
        for ordinal in objective_values(launches, scoring)
        if winner is not None and ordinal != winner
    }
    return Finding(
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
        races=led.races,
        noise=led.noise,
        front=led.front,
        confirming=_confirming(launches),
    )


def _confirming(launches: Sequence[Repeat]) -> ConfirmingRounds | None:
    """The rounds of finals among these launches."""
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


def final_finding(row: StudyRow) -> Finding | None:
    """What a study found; None before its end, and while it goes on and may find better."""
    if row.summary is None or row.status != "finished":
        return None
    return from_json(Finding, row.summary)


def leader_of(row: StudyRow, store: Store) -> Trial | None:
    """The trial of a study on record that won, or leads so far; None where none was measured."""
    finding = final_finding(row)
    if finding is not None and finding.winner is not None:
        return store.trial(row.id, finding.winner)
    if not store.counts(row.id).repeats and not scoring_of(row.study).needs_seed:
        return store.best(row.id)
    return study_leader(row, store).history.best


def best_result(row: StudyRow, leader: Trial | None, store: Store) -> Spread | None:
    """How good the trial is that leads a study."""
    finding = final_finding(row)
    if finding is not None and finding.result is not None:
        return finding.result
    return (
        None if leader is None else trial_spread(leader, History(again=repeated_values(row, store)))
    )


def repeated_values(row: StudyRow, store: Store) -> Mapping[int, tuple[float, ...]]:
    """What counts of each trial of a study that was launched again, as `supported_values` says.

    Nothing where a record from elsewhere does not say how it is scored.
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
    """The one number of a trial, over the launches that count; None where it has no score."""
    values = history.values(trial)
    return spread(values) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """A study as it would be if it had been asked this; nothing was launched for it."""

    row: StudyRow
    """With `finding` as its summary."""
    history: History
    finding: Finding
    scoring: Scoring


def rescore(row: StudyRow, store: Store, asked: Study) -> Rescored:
    """Score what is on record of a study by the objectives and limits of `asked`.

    Who leads is who has the lowest cost over all launches: nobody was raced for it. A trial that
    lacks a metric is a failure that says which. What was computed afterwards counts as if it had
    been measured. Raises `StudyError` where `asked` is unclear.
    """
    computed = store.computed_metrics(row.id)
    history = with_computed(store.history(row.id), computed)
    launches = same_definitions(counted(store.repeats(row.id), row.study.measure), history)
    return rescore_history(row, history, launches, asked, stored_definitions(computed))


def rescore_history(
    row: StudyRow,
    stored: History,
    repeats: Sequence[Repeat],
    asked: Study,
    added: Sequence[Metric] = (),
) -> Rescored:
    """The same for these trials and launches; `added` are metrics of the user's own."""
    scoring = scoring_of(asked, added).over(stored)
    values = supported_values(repeats, scoring)
    scored = History(
        trials=tuple(map(scoring.scored, stored)),
        costs={ordinal: scoring.sign * median(found) for ordinal, found in values.items()},
        again=values,
    )
    front = front_of(scored, repeats, scoring)
    history = replace(scored, front=tuple(member.ordinal for member in front))
    led = Leader(history=history, races=(), noise=None, front=front)
    reason = "scored again by what is on record; nothing was launched, and nobody raced for it"
    finding = find(led, repeats, scoring, asked.measure, reason)
    return Rescored(
        row=replace(row, study=asked, summary=to_json(finding)),
        history=history,
        finding=finding,
        scoring=scoring,
    )


def with_computed(history: History, computed: Mapping[int, Sequence[ComputedMetric]]) -> History:
    """The history as if the newest version of every metric had been measured."""

    def told(trial: Trial) -> Trial:
        known = computed.get(trial.ordinal)
        if not known or not isinstance(trial.outcome, Measured):
            return trial
        return replace(trial, outcome=with_newest(trial.outcome, known))

    return replace(history, trials=tuple(map(told, history)))


def same_definitions(repeats: Sequence[Repeat], history: History) -> tuple[Repeat, ...]:
    """The launches without what another version of a metric said than it did of their trial."""
    versions = {
        trial.ordinal: {value.name: value.version for value in trial.outcome.metrics}
        for trial in history
        if isinstance(trial.outcome, Measured)
    }

    def told(repeat: Repeat) -> Repeat:
        if not isinstance(repeat.outcome, Measured):
            return repeat
        own = versions.get(repeat.ordinal, {})
        same = tuple(v for v in repeat.outcome.metrics if own.get(v.name, v.version) == v.version)
        return replace(repeat, outcome=replace(repeat.outcome, metrics=same))

    return tuple(map(told, repeats))


def stored_definitions(computed: Mapping[int, Sequence[ComputedMetric]]) -> tuple[Metric, ...]:
    """What is known of metrics whose definition is not at hand: enough to score what is stored."""
    found = {each.name: each for told in computed.values() for each in told}
    names = set(metric_names()) if found else set()
    return tuple(
        Formula(
            name=name,
            label=name,
            unit=each.unit,
            better=each.better,
            sources=frozenset({"samples"}),
            description="Computed afterwards, by a definition that is not at hand.",
            formula=_not_at_hand,
            version=each.version,
        )
        for name, each in sorted(found.items())
        if name not in names
    )


def _not_at_hand(_: Evidence) -> Absent:
    return Absent("its definition is not at hand; give it with --metrics-file")
