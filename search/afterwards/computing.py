"""Computes metrics of one trial from what it left: its samples, and its traces where they are."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from evaluator.evaluate import evidence
from evaluator.metrics.base import Metric
from evaluator.metrics.registry import Measures, measure_each
from evaluator.traces.job import TraceSet
from records.artifacts import Artifacts
from records.errors import StoreError, StudyError
from records.study import Study
from records.trial import Config, Measured, MetricValue
from search.kept.traces import read_kept, trace_files

FROM_TRACES = frozenset({"kineto", "xla", "nsys"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Metrics to compute of a trial that was measured, by name."""

    study_id: str
    study: Study
    ordinal: int
    config: Config | None
    outcome: Measured
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of it; `unread` says of metrics why the files that they need cannot be read."""

    study_id: str
    ordinal: int
    values: tuple[MetricValue, ...] = ()
    absent: Mapping[str, str]
    unread: Mapping[str, str]


def answered(work: Work, metrics: Sequence[Metric], artifacts: Artifacts) -> Answer:
    """Compute the metrics of a trial; files that are gone or were altered leave the others be."""
    ended: list[tuple[str, Measured]] = []
    unread: dict[str, str] = {}
    for name, study, launch, context in _launches(work):
        traces, problem = _traces(work, context, artifacts, metrics)
        if problem is not None:
            unread |= {each.name: problem for each in metrics if needs_traces(each)}
        asked = [each for each in metrics if each.name not in unread]
        measures = measure_each(asked, evidence(study, launch.measurement, traces))
        ended.append((name, _with(launch, measures)))
    told = _mean(ended) if len(ended) > 1 else ended[0][1]
    return Answer(
        study_id=work.study_id,
        ordinal=work.ordinal,
        values=tuple(value for value in told.metrics if value.name not in unread),
        absent={name: why for name, why in told.absent.items() if name not in unread},
        unread=unread,
    )


def _mean(ended: Sequence[tuple[str, Measured]]) -> Measured:
    # Imported here: what launches in contexts takes longer to load than most traces to read.
    from search.context_launches import mean_outcome

    return mean_outcome(ended)


def needs_traces(metric: Metric) -> bool:
    """Whether a metric may look at traces, so that those that were left have to be there."""
    return bool(metric.sources & FROM_TRACES)


def _launches(work: Work) -> Iterator[tuple[str, Study, Measured, str | None]]:
    """Each launch with the name and the study of its context, and None for the study's own."""
    study, outcome = work.study, work.outcome
    if not outcome.contexts or work.config is None:
        yield study.name, study, outcome, None
        return
    # Imported here: what launches in contexts takes longer to load than most traces to read.
    from search.contexts import parts

    inside = {part.name: part.study for part in parts(study, work.config)}
    for one in outcome.contexts:
        if isinstance(one.outcome, Measured):
            own = one.name == study.name
            yield one.name, inside.get(one.name, study), one.outcome, None if own else one.name


def _traces(
    work: Work, context: str | None, artifacts: Artifacts, metrics: Sequence[Metric]
) -> tuple[TraceSet | None, str | None]:
    """The traces of a launch, or why they cannot be read; neither where none are needed or left."""
    if not any(map(needs_traces, metrics)):
        return None, None
    try:
        paths = trace_files(work.study, work.outcome.artifacts, artifacts, context)
        if not paths:
            return None, None
        for artifact in work.outcome.artifacts:
            if artifact.name in paths.values():
                artifacts.check(artifact.digest)
        return read_kept(paths, f"trial {work.ordinal}"), None
    except (StoreError, StudyError) as error:
        return None, str(error)


def _with(launch: Measured, measures: Measures) -> Measured:
    return replace(launch, metrics=measures.values, absent=measures.absent, contexts=())
