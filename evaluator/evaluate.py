"""One configuration, launched and measured: the path from a config to an outcome."""

import json
from dataclasses import replace
from pathlib import Path

from evaluator.analysis.breakdown import breakdown
from evaluator.conditions import conditions_between, gpu_conditions, take_snapshot
from evaluator.failures.classify import classify
from evaluator.job import Job
from evaluator.metrics.base import Evidence
from evaluator.metrics.registry import measure_all
from evaluator.ports import Launcher, PhaseListener, Reading, Recipe
from evaluator.traces.errors import TraceError
from evaluator.traces.job import TraceSet
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
        job = _placed(self._recipe.job(study, config), workdir)
        record = workdir / "launch.json"
        record.write_text(_by_hand(job), encoding="utf-8")
        launched_ns = record.stat().st_mtime_ns
        before = take_snapshot()
        result = self._launcher.run(job, workdir, self._on_phase)
        gpus = gpu_conditions() if study.environment.device == "cuda" else ()
        conditions = conditions_between(before, take_snapshot(), gpus)
        failed = classify(result)
        if failed is not None:
            return failed
        try:
            reading = self._recipe.read(study, job, result, launched_ns)
        except TraceError as error:
            message = str(error).replace(f"{result.workdir}/", "")
            return Failed(stage=Stage.READ, kind=FailureKind.METRIC_ERROR, message=message)
        if isinstance(reading, Failed):
            return reading
        measurement = replace(reading.measurement, conditions=conditions)
        return _measured(study, replace(reading, measurement=measurement))


def _placed(job: Job, workdir: Path) -> Job:
    """The job with its folders made, and told where they are."""
    places = {variable: workdir.absolute() / name for variable, name in job.folders.items()}
    for folder in places.values():
        folder.mkdir()
    told = {variable: str(folder) for variable, folder in places.items()}
    return replace(job, environment={**job.environment, **told})


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


def evidence(study: Study, measurement: Measurement, traces: TraceSet | None) -> Evidence:
    """What metrics may look at: samples, what was asked, and traces if there are any."""
    return Evidence(
        step_times_s=measurement.slowest_rank_s,
        tokens_per_step=measurement.tokens_per_step,
        rank_count=len(measurement.step_times_s),
        peak_memory_bytes=measurement.peak_memory_bytes,
        traces=traces,
        serving=measurement.serving,
        workload=study.workload,
        environment=study.usable_environment,
    )


def _measured(study: Study, reading: Reading) -> Measured:
    seen = evidence(study, reading.measurement, reading.traces)
    measures = measure_all(seen)
    return Measured(
        measurement=reading.measurement,
        metrics=measures.values,
        absent=measures.absent,
        breakdown=breakdown(seen.split) if seen.split else None,
    )
