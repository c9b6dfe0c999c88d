"""A study scored by what metrics say today of the samples and traces that its trials left."""

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from evaluator.evaluate import evidence
from evaluator.metrics.base import Metric
from evaluator.metrics.definitions import Definition, Definitions, definitions
from evaluator.metrics.registry import ALIASES, measure_each
from evaluator.objective import Scoring
from evaluator.readings import AT_SEED
from records.history import History
from records.rows import StudyRow
from records.store import Store
from records.study import Study
from records.trial import Measured, MetricValue, Repeat, Score, Trial
from search.afterwards.computing import Answer, Work, needs_traces
from search.afterwards.plan import computable
from search.afterwards.processes import answers
from search.afterwards.recording import as_computed
from search.disturbed import counted
from search.rescoring import Rescored, known_here, same_definitions, scored_again, with_computed

SAME_WITHIN = 1e-9
"""Of a value: sums in another order differ by as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTrial:
    """A trial by the same question: its score by what is on record, and by what is computed today.

    None is a trial without a score. `changed` are metrics whose value or version is another one
    today, as they were and as they are; `unread` says why files cannot be read.
    """

    trial: Trial
    then: Score | None
    now: Score | None
    changed: tuple[tuple[MetricValue | None, MetricValue | None], ...]
    unread: str | None

    @property
    def is_same(self) -> bool:
        """Whether the score is what it was."""
        if self.then is None or self.now is None:
            return self.then is self.now
        close = math.isclose(self.then.value, self.now.value, rel_tol=SAME_WITHIN)
        return close and self.then.broken == self.now.broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Today:
    """A study scored again: `then` by what is on record, `now` by what was computed today.

    `newer` are metrics of which the study has values of older versions, with both versions.
    """

    then: Rescored
    now: Rescored
    trials: tuple[ScoredTrial, ...]
    newer: Mapping[str, tuple[int, int]]

    @property
    def same(self) -> bool:
        """Whether every score and the leader are what they were."""
        leaders = self.then.finding.winner, self.now.finding.winner
        return leaders[0] == leaders[1] and all(each.is_same for each in self.trials)


def scored_today(row: StudyRow, store: Store, asked: Study, metrics_file: Path | None) -> Today:
    """Compute what the objectives and limits of `asked` read, and score by it.

    Nothing is launched or stored. What has no definition at hand, and files that cannot be read,
    leave what is on record. Raises `StudyError` where `asked` is unclear.
    """
    computed = store.computed_metrics(row.id)
    found = definitions(metrics_file)
    added = _added(found, known_here(computed))
    history = with_computed(store.history(row.id), computed)
    repeats = counted(store.repeats(row.id), row.study.measure)
    then = scored_again(row, history, same_definitions(repeats, history), asked, added)
    names = _names_read(then.scoring)
    known = [each for each in found.known if each.metric.name in names]
    answered = _answers(row, history, known, store, metrics_file)
    by_name = {each.metric.name: each for each in known}
    today = {n: tuple(as_computed(answer, by_name)) for n, answer in answered.items()}
    recomputed = with_computed(history, today)
    again = tuple(_measured_today(repeat, row.study, known) for repeat in repeats)
    seen = scored_again(row, recomputed, same_definitions(again, recomputed), asked, added)
    pairs = zip(history, then.history, seen.history, recomputed, strict=True)
    return Today(
        then=then,
        now=seen,
        trials=tuple(
            ScoredTrial(
                trial=trial,
                then=old.score,
                now=new.score,
                changed=_changed(trial, told, names),
                unread=_unread(answered.get(trial.ordinal)),
            )
            for trial, old, new, told in pairs
        ),
        newer=_newer(history, found.known),
    )


def _added(found: Definitions, stored: Sequence[Metric]) -> tuple[Metric, ...]:
    """Metrics of the user's file, and those on record that nothing at hand defines."""
    own = [each.metric for each in found.known if each.metric.name in found.from_file]
    return (*own, *(each for each in stored if each.name not in found.from_file))


def _names_read(scoring: Scoring) -> frozenset[str]:
    """The metrics that objectives and limits name."""
    objectives = (one.expression for one in scoring.objectives)
    read = (*objectives, *(one.expression for one in scoring.limits))
    names = {name.removesuffix(AT_SEED) for expression in read for name in expression.names}
    return frozenset(names | {ALIASES[name] for name in names if name in ALIASES})


def _answers(
    row: StudyRow,
    history: History,
    known: Sequence[Definition],
    store: Store,
    metrics_file: Path | None,
) -> dict[int, Answer]:
    """What these metrics say of every measured trial, by its ordinal."""
    metrics = {each.metric.name: each.metric for each in known}
    works = [
        Work(
            study_id=row.id,
            study=row.study,
            ordinal=trial.ordinal,
            config=trial.config,
            outcome=trial.outcome,
            names=names,
        )
        for trial in history
        if isinstance(trial.outcome, Measured)
        and (names := tuple(each.metric.name for each in computable(known, trial.outcome)))
    ]
    with closing(answers(works, metrics, store.root / "artifacts", metrics_file)) as found:
        return {answer.ordinal: answer for answer in found}


def _measured_today(repeat: Repeat, study: Study, known: Sequence[Definition]) -> Repeat:
    """A launch that was made again, with what samples say today; traces are not read for it."""
    outcome = repeat.outcome
    if not isinstance(outcome, Measured) or outcome.contexts or outcome.measurement.imported:
        return repeat
    sampled = [each.metric for each in known if not needs_traces(each.metric)]
    measures = measure_each(sampled, evidence(study, outcome.measurement, None))
    values = {value.name: value for value in (*outcome.metrics, *measures.values)}
    left = tuple(value for name, value in values.items() if name not in measures.absent)
    return replace(repeat, outcome=replace(outcome, metrics=left))


def _changed(
    trial: Trial, recomputed: Trial, names: frozenset[str]
) -> tuple[tuple[MetricValue | None, MetricValue | None], ...]:
    old, new = _values(trial), _values(recomputed)
    pairs = ((old.get(name), new.get(name)) for name in sorted({*old, *new} & names))
    return tuple((was, now) for was, now in pairs if not _is_equal(was, now))


def _is_equal(was: MetricValue | None, now: MetricValue | None) -> bool:
    if was is None or now is None:
        return was is now
    return was.version == now.version and math.isclose(was.value, now.value, rel_tol=SAME_WITHIN)


def _values(trial: Trial) -> dict[str, MetricValue]:
    metrics = trial.outcome.metrics if isinstance(trial.outcome, Measured) else ()
    return {value.name: value for value in metrics}


def _unread(answer: Answer | None) -> str | None:
    return next(iter(answer.unread.values()), None) if answer is not None else None


def _newer(history: History, known: Sequence[Definition]) -> dict[str, tuple[int, int]]:
    """Metrics of which a newer version is at hand than some trial has, and both versions."""
    found: dict[str, tuple[int, int]] = {}
    for trial in history:
        if not isinstance(trial.outcome, Measured):
            continue
        fitting = computable(known, trial.outcome)
        versions = {each.metric.name: each.metric.version for each in fitting}
        for name, value in _values(trial).items():
            if versions.get(name, 0) > value.version:
                oldest = min(value.version, found.get(name, (value.version, 0))[0])
                found[name] = oldest, versions[name]
    return dict(sorted(found.items()))
