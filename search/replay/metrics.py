"""Compute and store metrics of recorded trials that are missing or of an older version."""

import os
import signal
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path

from evaluator.evaluate import evidence
from evaluator.metrics.base import TRACES, Metric, MetricError
from evaluator.metrics.registry import Definition, definitions, measure_each
from evaluator.rank.protocol import die_with
from evaluator.traces.model import TraceSet
from records.codec import utc_now
from records.errors import StoreError, StudyError
from records.store.artifacts import Artifacts
from records.store.rows import ComputedMetric, StudyRow, newest
from records.store.store import Store
from records.study import Study
from records.trial import Config, History, Measured, MetricValue
from search.storage import read_stored_traces, trace_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Metrics to compute of a trial that was measured, by name."""

    study: Study
    ordinal: int
    config: Config | None
    outcome: Measured
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of it; `unread` says of metrics why the files that they need cannot be read."""

    ordinal: int
    values: tuple[MetricValue, ...] = ()
    absent: Mapping[str, str]
    unread: Mapping[str, str]


def compute_trial(work: Work, known: Mapping[str, Metric], artifacts: Artifacts) -> Answer:
    """Compute the metrics of a trial; those whose files are missing or changed are `unread`."""
    metrics = [known[name] for name in work.names]
    ended: list[tuple[str, Measured]] = []
    unread: dict[str, str] = {}
    for name, study, launch, context in _launches(work):
        traces, problem = _traces(work, context, artifacts, metrics)
        if problem is not None:
            unread |= {each.name: problem for each in metrics if needs_traces(each)}
        readable = [each for each in metrics if each.name not in unread]
        found = measure_each(readable, evidence(study, launch.measurement, traces))
        measured = replace(launch, metrics=found.values, absent=found.absent, contexts=())
        ended.append((name, measured))
    mean = ended[0][1]
    if len(ended) > 1:
        # Imported here: what launches in contexts takes longer to load than most traces to read.
        from search.loop.trial import mean_outcome

        mean = mean_outcome(ended)
    return Answer(
        ordinal=work.ordinal,
        values=tuple(value for value in mean.metrics if value.name not in unread),
        absent={name: why for name, why in mean.absent.items() if name not in unread},
        unread=unread,
    )


def needs_traces(metric: Metric) -> bool:
    """Whether a metric may look at traces, so that those that were left have to be there."""
    return bool(metric.sources & TRACES)


def _launches(work: Work) -> Iterator[tuple[str, Study, Measured, str | None]]:
    """Each launch with the name and the study of its context, and None for the study's own."""
    study, outcome = work.study, work.outcome
    if not outcome.contexts or work.config is None:
        yield study.name, study, outcome, None
        return
    # Imported here: what launches in contexts takes longer to load than most traces to read.
    from search.study.spaces import parts

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
        return read_stored_traces(paths, f"trial {work.ordinal}"), None
    except (StoreError, StudyError) as error:
        return None, str(error)


def refuse_other_code(known: Sequence[Definition], store: Store) -> None:
    """Raise MetricError where a recorded version was computed by other code.

    Of metrics that come with us the version alone counts.
    """
    by_name = {each.metric.name: each for each in known if each.digest is not None}
    for name, version, digest in store.metric_definitions():
        now = by_name.get(name)
        if now is not None and now.metric.version == version and now.digest != digest:
            raise MetricError(
                f"metric {name!r} version {version} was computed by other code; "
                f"give what you have now version {version + 1}, and its values are computed again"
            )


def works(
    study: Study,
    history: History,
    known: Sequence[Definition],
    computed: Mapping[int, Sequence[ComputedMetric]] | None = None,
) -> Iterator[Work]:
    """Yield what to compute of each measured trial; with `computed`, only what is missing there."""
    for trial in history:
        outcome = trial.outcome
        if not isinstance(outcome, Measured):
            continue
        names = tuple(
            each.metric.name
            for each in computable(known, outcome)
            if computed is None or _is_due(each, outcome, computed.get(trial.ordinal, ()))
        )
        if names:
            yield Work(
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
    """Whether nothing recorded is of this version, or of a newer one.

    A launch did not keep which version of a metric had no value: that of the first counts.
    """
    metric = known.metric
    recorded = [each.version for each in outcome.metrics if each.name == metric.name]
    if not recorded and metric.name in outcome.absent:
        recorded = [1]
    recorded += (each.version for each in computed if each.name == metric.name)
    return max(recorded, default=0) < metric.version


ENDED = "the process that computed it ended on its own, as happens when memory runs out"
# What is computed in the time that a process takes to start.
_WORTH_A_PROCESS_BYTES = 8 << 20
_WORTH_A_PROCESS_COUNT = 2000
_MOST_PROCESSES = 16


def compute_trials(
    works: Sequence[Work],
    metrics: Mapping[str, Metric],
    artifacts: Path,
    metrics_file: Path | None,
) -> Generator[Answer, None, None]:
    """The answer to each, in the order in which they are ready.

    `metrics` are by name, and those of the file among them; processes read it again.
    `artifacts` is the folder of the files that trials left. Every process ends with this iterator.
    Where one is killed the trial that it had says so, and the others go on.
    """
    kept_bytes = sum(each.size_bytes for work in works for each in work.outcome.artifacts)
    is_short = kept_bytes < _WORTH_A_PROCESS_BYTES and len(works) < _WORTH_A_PROCESS_COUNT
    count = 1 if is_short else min(len(works), len(os.sched_getaffinity(0)), _MOST_PROCESSES)
    if count == 1:
        for work in works:
            yield compute_trial(work, metrics, Artifacts(artifacts))
        return
    waiting, idle = iter(works), [_Process(artifacts, metrics_file) for _ in range(count)]
    busy: dict[object, _Process] = {}
    try:
        while True:
            while idle and (following := next(waiting, None)) is not None:
                process = idle.pop()
                process.begin(following)
                busy[process.connection] = process
            if not busy:
                return
            for connection in wait([each.connection for each in busy.values()]):
                process = busy.pop(connection)
                answer = process.answer()
                if answer is None:
                    process.end()
                    answer, process = process.lost(), _Process(artifacts, metrics_file)
                idle.append(process)
                yield answer
    finally:
        for process in (*idle, *busy.values()):
            process.end()


class _Process:
    """A process that computes on request; it dies with this one."""

    def __init__(self, artifacts: Path, metrics_file: Path | None) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._work: Work | None = None
        self._process = context.Process(
            target=_serve, args=(theirs, artifacts, metrics_file, os.getpid()), daemon=True
        )
        self._process.start()
        theirs.close()

    def begin(self, work: Work) -> None:
        """Have it computed; the answer can be received when it is."""
        self._work = work
        with suppress(OSError):  # the missing answer says so
            self.connection.send(work)

    def answer(self) -> Answer | None:
        """The answer; None when the process has ended on its own."""
        try:
            received = self.connection.recv()
        except (EOFError, OSError):
            return None
        return received if isinstance(received, Answer) else None

    def lost(self) -> Answer:
        """What to tell of the trial that it had."""
        assert self._work is not None
        return Answer(
            ordinal=self._work.ordinal,
            absent={},
            unread=dict.fromkeys(self._work.names, ENDED),
        )

    def end(self) -> None:
        """Kill it, whatever it does."""
        self._process.kill()
        self._process.join()
        self._process.close()
        self.connection.close()


def _serve(connection: Connection, artifacts: Path, metrics_file: Path | None, parent: int) -> None:
    """Answer until the pipe closes; die with the parent, and before it if memory runs out."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who pressed Ctrl-C means the process that asks
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    metrics = {each.metric.name: each.metric for each in definitions(metrics_file).known}
    with suppress(EOFError):
        while True:
            connection.send(compute_trial(connection.recv(), metrics, Artifacts(artifacts)))


KEEP_AFTER_S = 1.0
KEEP_AFTER_COUNT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputedTrial:
    """What was computed of one trial; `before` are the values that older versions had given it."""

    study_id: str
    answer: Answer
    before: Mapping[str, MetricValue]


def recompute_metrics(
    rows: Iterable[StudyRow],
    store: Store,
    known: Sequence[Definition],
    metrics_file: Path | None,
    on_study: Callable[[StudyRow, int], None],
) -> Generator[RecomputedTrial, None, None]:
    """Compute what trials of these studies lack, and record it; close it to stop and keep all.

    `on_study` receives the number of trials of each study to compute. What files cannot be read
    for is not recorded, so that it is computed once they are back. Raises MetricError where the
    same version of a metric was computed by other code.
    """
    refuse_other_code(known, store)
    by_name = {each.metric.name: each for each in known}
    metrics = {name: each.metric for name, each in by_name.items()}
    for row in rows:
        computed = store.computed_metrics(row.id)
        missing = works(row.study, store.history(row.id), known, computed)
        due = {work.ordinal: work for work in missing}
        on_study(row, len(due))
        artifacts = store.root / "artifacts"
        with (
            closing(compute_trials([*due.values()], metrics, artifacts, metrics_file)) as found,
            closing(_recorded(row.id, found, store, by_name)) as recorded,
        ):
            for answer in recorded:
                work = due[answer.ordinal]
                values = newest(work.outcome.metrics, computed.get(answer.ordinal, ()))
                before = {value.name: value for value in values if value.name in work.names}
                yield RecomputedTrial(study_id=row.id, answer=answer, before=before)


def _recorded(
    study_id: str, found: Iterator[Answer], store: Store, by_name: Mapping[str, Definition]
) -> Generator[Answer, None, None]:
    """Yield every answer, recorded together with those around it."""
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
            yield answer
    finally:
        if waiting:
            store.record_metrics(study_id, waiting)


def as_computed(answer: Answer, by_name: Mapping[str, Definition]) -> Iterator[ComputedMetric]:
    """An answer as it is recorded: each value, or why there is none, with what defined it."""
    computed_at = utc_now()
    values = {value.name: value.value for value in answer.values}
    for name in sorted({*values, *answer.absent}):
        known = by_name[name]
        yield ComputedMetric(
            name=name,
            version=known.metric.version,
            unit=known.metric.unit,
            better=known.metric.better,
            value=values.get(name),
            absent=None if name in values else answer.absent[name],
            definition=known.digest,
            computed_at=computed_at,
        )
