"""One configuration, launched and measured: the path from a config to an outcome."""

import json
from pathlib import Path

from evaluator.classify import classify
from evaluator.job import Job, JobResult
from evaluator.metrics.base import Evidence, MetricError
from evaluator.metrics.breakdown import breakdown
from evaluator.metrics.registry import measure_all
from evaluator.ports import Launcher, PhaseListener, Recipe
from evaluator.readers.job import read_traces
from evaluator.samples import read_measurement
from evaluator.traces import TraceError, TraceSet
from records.study import Study
from records.trial import (
    Config,
    Failed,
    FailureKind,
    Measured,
    Measurement,
    Outcome,
    Stage,
)


class TrialEvaluator:
    """Launches through a recipe and a launcher, and measures what came back."""

    def __init__(self, recipe: Recipe, launcher: Launcher, on_phase: PhaseListener) -> None:
        self._recipe = recipe
        self._launcher = launcher
        self._on_phase = on_phase

    def evaluate(self, study: Study, config: Config, workdir: Path) -> Outcome:
        """Launch and measure in `workdir`, an empty folder; its files stay for the caller."""
        job = self._recipe.job(study, config)
        (workdir / "launch.json").write_text(_by_hand(job), encoding="utf-8")
        result = self._launcher.run(job, workdir, self._on_phase)
        failed = classify(result)
        if failed is not None:
            return failed
        measurement = read_measurement(result, study)
        if isinstance(measurement, Failed):
            return measurement
        return _measured(measurement, result, study.measure.profiled_steps)


def _by_hand(job: Job) -> str:
    """How to start the same job without us, for the record."""
    return json.dumps(
        {
            "argv": job.argv,
            "environment": dict(job.environment),
            "world_size": job.world_size,
            "timeout_s": job.timeout_s,
        },
        indent=1,
    )


def evidence(measurement: Measurement, traces: TraceSet | None) -> Evidence:
    """What metrics may look at: samples, and traces if there are any."""
    return Evidence(
        step_times_s=measurement.slowest_rank_s,
        tokens_per_step=measurement.tokens_per_step,
        rank_count=len(measurement.step_times_s),
        peak_memory_bytes=measurement.peak_memory_bytes,
        traces=traces,
    )


def _measured(measurement: Measurement, result: JobResult, profiled_steps: int) -> Outcome:
    try:
        traces = _traces(result, profiled_steps) if profiled_steps else None
        seen = evidence(measurement, traces)
        return Measured(
            measurement=measurement,
            metrics=measure_all(seen),
            breakdown=breakdown(seen.split) if seen.split else None,
        )
    except TraceError as error:
        message = str(error).replace(f"{result.workdir}/", "")
        return Failed(stage=Stage.READ, kind=FailureKind.METRIC_ERROR, message=message)
    except MetricError as error:
        return Failed(stage=Stage.MEASURE, kind=FailureKind.METRIC_ERROR, message=str(error))


def _traces(result: JobResult, profiled_steps: int) -> TraceSet:
    """The traces of all ranks; raises `TraceError` when one is missing or of other steps."""
    paths = [result.workdir / f"rank{rank.rank}_trace.json.gz" for rank in result.ranks]
    traces = read_traces(paths)
    for path, trace in zip(paths, traces.ranks, strict=True):
        step_count = trace.steps.number.size
        if step_count != profiled_steps:
            raise TraceError(
                path, f"holds {step_count} profiled steps, {profiled_steps} were asked for"
            )
    return traces
