"""Computes what studies on record lack; what was computed is kept, also when it is interrupted."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from evaluator.metrics.definitions import Definition
from records.computed import ComputedMetric, newest
from records.instants import now
from records.rows import StudyRow
from records.store import Store
from records.trial import MetricValue
from search.afterwards.computing import Answer, Work
from search.afterwards.plan import refuse_other_code, works
from search.afterwards.processes import answers

KEEP_AFTER_S = 1.0
KEEP_AFTER_COUNT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What was computed of one trial; `before` are the values that older versions had given it."""

    answer: Answer
    before: Mapping[str, MetricValue]


def computed_afterwards(
    rows: Iterable[StudyRow],
    store: Store,
    known: Sequence[Definition],
    metrics_file: Path | None,
    on_study: Callable[[StudyRow, int], None],
) -> Generator[Done, None, None]:
    """Compute what trials of these studies lack, and record it; close it to stop and keep all.

    `on_study` is told how many trials of each study are to be looked at. What files cannot be read
    for is not recorded, so that it is computed once they are back. Raises MetricError where the
    same version of a metric was computed by other code.
    """
    refuse_other_code(known, store)
    by_name = {each.metric.name: each for each in known}
    metrics = {name: each.metric for name, each in by_name.items()}
    for row in rows:
        computed = store.computed_metrics(row.id)
        due = list(works(row.id, row.study, store.history(row.id), computed, known))
        on_study(row, len(due))
        before = {work.ordinal: _before(work, computed.get(work.ordinal, ())) for work in due}
        with closing(answers(due, metrics, store.root / "artifacts", metrics_file)) as found:
            yield from _kept(row.id, found, store, by_name, before)


def _kept(
    study_id: str,
    found: Iterator[Answer],
    store: Store,
    by_name: Mapping[str, Definition],
    before: Mapping[int, Mapping[str, MetricValue]],
) -> Iterator[Done]:
    """Every answer, recorded with those around it."""
    waiting: dict[int, tuple[ComputedMetric, ...]] = {}
    kept_at_s = time.monotonic()
    try:
        for answer in found:
            metrics = tuple(as_computed(answer, by_name))
            if metrics:
                waiting[answer.ordinal] = metrics
            late = time.monotonic() - kept_at_s > KEEP_AFTER_S
            if late or len(waiting) >= KEEP_AFTER_COUNT:
                store.record_metrics(study_id, waiting)
                waiting, kept_at_s = {}, time.monotonic()
            yield Done(answer=answer, before=before[answer.ordinal])
    finally:
        if waiting:
            store.record_metrics(study_id, waiting)


def _before(work: Work, computed: Sequence[ComputedMetric]) -> Mapping[str, MetricValue]:
    """What is on record of the metrics that are to be computed."""
    known = newest(work.outcome.metrics, computed)
    return {value.name: value for value in known if value.name in work.names}


def as_computed(answer: Answer, by_name: Mapping[str, Definition]) -> Iterator[ComputedMetric]:
    """An answer as it is recorded: each value, or why there is none, with what defined it."""
    computed_at = now()
    told = {value.name: value.value for value in answer.values}
    for name in sorted({*told, *answer.absent}):
        known = by_name[name]
        yield ComputedMetric(
            name=name,
            version=known.metric.version,
            unit=known.metric.unit,
            better=known.metric.better,
            value=told.get(name),
            absent=None if name in told else answer.absent[name],
            definition=known.digest,
            computed_at=computed_at,
        )
