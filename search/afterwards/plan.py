"""Which metrics are to be computed of which trials: what is missing, or of an older version."""

from collections.abc import Iterator, Mapping, Sequence

from evaluator.metrics.base import MetricError
from evaluator.metrics.definitions import Definition
from records.computed import ComputedMetric
from records.history import History
from records.store import Store
from records.study import Study
from records.trial import Measured
from search.afterwards.computing import Work, needs_traces


def refuse_other_code(known: Sequence[Definition], store: Store) -> None:
    """Raise MetricError where a version on record was computed by other code than it is now.

    Of metrics that come with us the version alone counts.
    """
    by_name = {each.metric.name: each for each in known if each.digest is not None}
    for name, version, digest in store.metric_definitions():
        now = by_name.get(name)
        if now is not None and now.metric.version == version and now.digest != digest:
            raise MetricError(
                f"metric {name!r} version {version} is on record as computed by other code; "
                f"give what you have now version {version + 1}, and its values are computed again"
            )


def works(
    study_id: str,
    study: Study,
    history: History,
    computed: Mapping[int, Sequence[ComputedMetric]],
    known: Sequence[Definition],
) -> Iterator[Work]:
    """What is to be done for each measured trial that lacks anything, oldest first."""
    for trial in history:
        outcome = trial.outcome
        if not isinstance(outcome, Measured):
            continue
        before = computed.get(trial.ordinal, ())
        fitting = computable(known, outcome)
        names = tuple(each.metric.name for each in fitting if _is_due(each, outcome, before))
        if names:
            yield Work(
                study_id=study_id,
                study=study,
                ordinal=trial.ordinal,
                config=trial.config,
                outcome=outcome,
                names=names,
            )


def computable(known: Sequence[Definition], outcome: Measured) -> Sequence[Definition]:
    """The metrics that a trial left something for.

    Of another tool's record there are traces at most: its one number stands for no samples.
    """
    if not outcome.measurement.imported:
        return known
    return [each for each in known if needs_traces(each.metric)] if outcome.artifacts else ()


def _is_due(known: Definition, outcome: Measured, computed: Sequence[ComputedMetric]) -> bool:
    """Whether nothing on record is of this version, or of a newer one.

    A launch did not keep which version of a metric had no value: that of the first counts.
    """
    metric = known.metric
    if any(each.name == metric.name and each.version >= metric.version for each in computed):
        return False
    if any(each.name == metric.name for each in outcome.metrics):
        return all(
            each.version < metric.version for each in outcome.metrics if each.name == metric.name
        )
    return metric.name not in outcome.absent or metric.version > 1
