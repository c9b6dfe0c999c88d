"""What a user's script left in TRACE_DIR, read into one measurement.

The script says in `steps.json` what it did; where it says nothing of step times, they come from
the profiled steps in its traces, and are marked as such. Nothing is taken from another trial.
"""

import math

import msgspec

from evaluator.job import Job, JobResult
from evaluator.ports import Reading
from evaluator.readers.files import read_bytes
from evaluator.recipes.script_traces import TraceFolder
from evaluator.recipes.variables import TRACE_DIR
from evaluator.samples import RANK_FILE_LIMITS
from evaluator.traces.errors import TraceError
from evaluator.traces.job import TraceSet
from records.study import Command, Study
from records.trial import Failed, FailureKind, Measurement, Stage

REPORT = "steps.json"


class StepsReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a script says of its steps: seconds shaped (ranks, steps), bytes per rank."""

    tokens_per_step: int | None = None
    step_times_s: list[list[float]] | None = None
    losses: list[float] = []
    peak_memory_bytes: list[int] = []


def read_script(
    study: Study, command: Command, job: Job, result: JobResult, launched_ns: int
) -> Reading | Failed:
    """Read a finished script's folder; raises `TraceError` for a trace that is refused."""
    folder = TraceFolder(path=result.workdir / job.folders[TRACE_DIR], launched_ns=launched_ns)
    try:
        report = _report(folder)
        fault = _fault(report, study, job)
    except (TraceError, msgspec.MsgspecError) as error:
        fault = f"{REPORT}: {str(error).removeprefix(f'{folder.path / REPORT}: ')}"
    if fault is not None:
        return _no_samples(fault)
    if report.tokens_per_step not in {None, study.workload.tokens_per_step}:
        return _other_work(report, study)
    traces = None
    if study.measure.profiled_steps or report.step_times_s is None:
        found = folder.traces(command.trace_files, job.world_size, besides=REPORT)
        if isinstance(found, str):
            return Failed(stage=Stage.READ, kind=FailureKind.METRIC_ERROR, message=found)
        traces = found
    return _reading(study, job, result, report, traces)


def _report(folder: TraceFolder) -> StepsReport:
    path = folder.path / REPORT
    if not path.exists() and not path.is_symlink():
        return StepsReport()
    folder.refuse_foreign(path)
    return msgspec.json.decode(read_bytes(path, RANK_FILE_LIMITS), type=StepsReport)


def _fault(report: StepsReport, study: Study, job: Job) -> str | None:
    """What is wrong with a report in itself, if anything is."""
    peaks, ranks = report.peak_memory_bytes, report.step_times_s
    if peaks and (len(peaks) != job.world_size or min(peaks) < 0):
        return (
            f"{REPORT}: peak_memory_bytes must have one number for each of {job.world_size} ranks"
        )
    if ranks is None:
        return None
    asked = study.measure.timed_steps
    if len(ranks) != job.world_size:
        return (
            f"{REPORT}: step_times_s has {len(ranks)} lists; this configuration takes "
            f"{job.world_size} ranks, and each has a list of its own"
        )
    if len({len(steps) for steps in ranks}) > 1:
        return f"{REPORT}: step_times_s has lists of different lengths"
    if len(ranks[0]) < asked:
        return f"{REPORT}: step_times_s has {len(ranks[0])} steps, {asked} were asked for"
    if not all(math.isfinite(step_s) and step_s > 0 for steps in ranks for step_s in steps):
        return f"{REPORT}: step_times_s holds a time that is not above 0"
    return None


def _other_work(report: StepsReport, study: Study) -> Failed:
    return Failed(
        stage=Stage.MEASURE,
        kind=FailureKind.INVALID_CONFIG,
        message=f"processed {report.tokens_per_step} tokens per step, the study asks for "
        f"{study.workload.tokens_per_step}; trials must do the same work: reach the global batch "
        "by gradient accumulation, and constrain the batch size by "
        "global_batch % (batch_size * world_size) == 0",
    )


def _reading(
    study: Study, job: Job, result: JobResult, report: StepsReport, traces: TraceSet | None
) -> Reading | Failed:
    timed = report.step_times_s if report.step_times_s is not None else _windows_s(traces)
    if not timed:
        return _no_samples(
            f"no step was timed: TRACE_DIR/{REPORT} gives no step_times_s, and no ProfilerStep "
            "mark is in the traces of all ranks"
        )
    return Reading(
        measurement=Measurement(
            step_times_s=tuple(tuple(steps) for steps in timed),
            warmup_times_s=((),) * job.world_size,
            losses=tuple(report.losses),
            tokens_per_step=study.workload.tokens_per_step,
            peak_memory_bytes=tuple(report.peak_memory_bytes),
            wall_s=result.wall_s,
            device=study.environment.device,
            torch_version=None,
            profiled=report.step_times_s is None,
            tokens_verified=report.tokens_per_step is not None,
        ),
        traces=traces,
    )


def _windows_s(traces: TraceSet | None) -> list[list[float]]:
    """Lengths of the steps that all ranks profiled; empty when there are none, or one has none."""
    if traces is None or not traces.common_steps.size:
        return []
    steps = [trace.steps.among(traces.common_steps) for trace in traces.ranks]
    windows_s = [[float(ns) / 1e9 for ns in rank.end_ns - rank.start_ns] for rank in steps]
    return windows_s if all(min(rank) > 0 for rank in windows_s) else []


def _no_samples(message: str) -> Failed:
    return Failed(stage=Stage.MEASURE, kind=FailureKind.METRIC_ERROR, message=message)
