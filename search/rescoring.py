"""What is on record, scored by other objectives or limits than it was searched by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from evaluator.metrics.base import Absent, Evidence, Formula, Metric
from evaluator.metrics.registry import metric_names
from evaluator.objective import Scoring, scoring_of
from records.codec import to_json
from records.computed import ComputedMetric, with_newest
from records.history import History
from records.rows import StudyRow
from records.store import Store
from records.study import Study
from records.trial import Measured, Repeat, Trial
from search.disturbed import counted
from search.finding import Finding, find
from search.front import front_of
from search.rounds import supported_values
from search.standing import Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """A study as it would be if it had been asked this; nothing was launched for it."""

    row: StudyRow
    """With `finding` as its summary."""
    history: History
    finding: Finding
    scoring: Scoring


def rescored(row: StudyRow, store: Store, asked: Study) -> Rescored:
    """Score what is on record of a study by the objectives and limits of `asked`.

    Who leads is who has the lowest cost over all launches: nobody was raced for it. A trial that
    lacks a metric is a failure that says which. What was computed afterwards counts as if it had
    been measured. Raises `StudyError` where `asked` is unclear.
    """
    computed = store.computed_metrics(row.id)
    history = with_computed(store.history(row.id), computed)
    launches = same_definitions(counted(store.repeats(row.id), row.study.measure), history)
    return scored_again(row, history, launches, asked, known_here(computed))


def scored_again(
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
    led = Standing(history=history, races=(), noise=None, front=front)
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


def known_here(computed: Mapping[int, Sequence[ComputedMetric]]) -> tuple[Metric, ...]:
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
