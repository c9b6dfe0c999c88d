"""What a script leaves in TRACE_DIR: traces, and the steps that it reports."""

import math
import re
import stat
import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from evaluator.objective import may_vary_work
from evaluator.ports import Job, JobResult, Reading
from evaluator.rank.protocol import COMMAND_LOG
from evaluator.samples import RANK_FILE_LIMITS, no_samples, unequal_work
from evaluator.traces.readers.files import read_bytes
from records.errors import TraceError
from records.study import TIME_UNITS, Command, Study
from records.trial import Failed, FailureKind, Measurement, Stage
from records.workload import Workload

if TYPE_CHECKING:
    from evaluator.traces.model import RankTrace, TraceSet

_Report = TypeVar("_Report")

TRACE_DIR = "TRACE_DIR"
REPORT = "steps.json"
MOST_LINE_CHARS = 100_000
MOST_VERSIONS = 40
VERSION_CHARS = 80
REDUCED = "node*.columns"
"""What a node of a cluster left in the place of the traces of its ranks."""
RANK_REPORTS = "steps"
"""The folder of what `cclsearch.steps()` writes: `rank{r}.json` of each rank."""


CLOCK_SKEW_NS = 1_000_000_000
"""How much the clocks of two nodes may differ."""

_SINCE_EPOCH_NS = 10**18
"""Later than this, in 2001, a time is since the Unix epoch; earlier, on another clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFolder:
    """A folder that was empty at the launch, `launched_ns` after the Unix epoch."""

    path: Path
    launched_ns: int

    def trace_files(self, patterns: Sequence[str]) -> Sequence[Path]:
        """Return the files that are no reports."""
        found = {path for pattern in (*patterns, REDUCED) for path in self.path.glob(pattern)}
        reports = {self.path / REPORT, *self.path.glob(f"{RANK_REPORTS}/*")}
        return sorted(path for path in found - reports if not path.is_dir())

    def traces(self, patterns: Sequence[str], rank_count: int) -> "TraceSet | str":
        """The traces of all ranks, or what is missing; raises `TraceError` for one it refuses."""
        from evaluator.traces.readers.read import read_traces

        paths = self.trace_files(patterns)
        if not paths:
            wanted = " or ".join(patterns)
            return (
                f"the script ended with status 0 but left no trace: no {wanted} in TRACE_DIR; "
                "write `for batch in cclsearch.steps(batches)` in its training loop; or write a "
                f"trace of each rank there; or {REPORT} with the step times, and set [measure] "
                "profiled_steps = 0; see docs/recipes.md"
            )
        for path in paths:
            self.refuse_foreign(path)
        traces = read_traces(paths, only_rank=0 if rank_count == 1 else None)
        for trace in traces.ranks:
            self._refuse_old(trace)
        return _missing_traces(traces, rank_count) or traces

    def refuse_foreign(self, path: Path) -> None:
        """Raise `TraceError` for a file that this trial has not written here itself."""
        if stat.S_ISLNK(self.path.lstat().st_mode):
            raise TraceError(path, "TRACE_DIR was replaced by a link")
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode) or self.path.resolve() not in path.resolve().parents:
            raise TraceError(path, "is a link; a trial's files must be its own")
        if not stat.S_ISREG(found.st_mode):
            raise TraceError(path, "is not a regular file")
        if found.st_nlink > 1:
            raise TraceError(path, "is also linked from elsewhere; a trial's files must be its own")
        if found.st_mtime_ns < self.launched_ns:
            raise TraceError(path, "was written before this trial was launched")

    def _refuse_old(self, trace: "RankTrace") -> None:
        """Raise for a copy of an older trace: a copy's date is new, its clock is not."""
        starts_ns = [
            int(column[0]) for column in (trace.spans.start_ns, trace.steps.start_ns) if column.size
        ]
        if starts_ns and _SINCE_EPOCH_NS < min(starts_ns) < self.launched_ns - CLOCK_SKEW_NS:
            early_s = (self.launched_ns - min(starts_ns)) / 1e9
            raise TraceError(
                self.path,
                f"the trace of rank {trace.rank} begins {early_s:.1f} s before the launch: "
                "it is of an older trial",
            )


def _missing_traces(traces: "TraceSet", rank_count: int) -> str | None:
    """Return what a set of traces lacks, as text."""
    if traces.world_size is not None and traces.world_size != rank_count:
        return (
            f"the traces are of a job of {traces.world_size} ranks, but [command] rank_count "
            f"gives {rank_count}"
        )
    present = [trace.rank for trace in traces.ranks]
    missing = [rank for rank in range(rank_count) if rank not in present]
    there = f"there are traces of rank {_list_ranks(present)}"
    if missing:
        return f"rank {_list_ranks(missing)} left no trace in TRACE_DIR; {there}"
    if len(present) > rank_count:
        return f"{there} in TRACE_DIR, but [command] rank_count gives {rank_count}"
    return None


def _list_ranks(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")


class StepsReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a script says of its steps: seconds shaped (ranks, steps), bytes per rank.

    A single process that drives several devices reports their number as `device_count`.
    """

    tokens_per_step: int | None = None
    step_times_s: list[list[float]] | None = None
    losses: list[float] = []
    grad_norms: list[float] = []
    peak_memory_bytes: list[int] = []
    warmup_times_s: list[list[float]] | None = None
    torch_version: str | None = None
    versions: dict[str, str] = {}
    device_count: int | None = None


class RankSteps(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `cclsearch.steps()` says of one rank: seconds and tokens by step."""

    rank: int
    warmup_times_s: list[float]
    step_times_s: list[float]
    losses: list[float]
    tokens: list[int]
    peak_memory_bytes: int
    versions: dict[str, str]
    fault: str | None
    device_count: int | None = None
    grad_norms: list[float] = []


def read_script(
    study: Study, command: Command, job: Job, result: JobResult, launched_ns: int
) -> Reading | Failed:
    """Read a finished script's folder; raises `TraceError` for a trace that is refused."""
    folder = TraceFolder(path=result.workdir / job.folders[TRACE_DIR], launched_ns=launched_ns)
    if command.step_time is not None:
        printed = _printed_report(study, command.step_time, job, result)
        if isinstance(printed, Failed):
            return printed
        printed_traces = _traces_besides(study, command, job, folder)
        return _reading(study, job, result, printed, printed_traces, printed=True)
    report = _job_report(study, command, job, folder)
    if isinstance(report, str):
        return no_samples(report)
    asked, tokens = study.workload.tokens_per_step, report.tokens_per_step
    if tokens is not None and tokens != asked and not may_vary_work(study):
        return unequal_work(
            f"processed {tokens} tokens per step, the study asks for {asked}; trials must do the "
            "same work: keep the global batch by gradient accumulation, or compare throughput "
            f"with --objective tokens_per_s, or {_correction(study.workload, tokens)} in "
            "[workload] of the study file if all trials do this"
        )
    traces = None
    if study.measure.profiled_steps or report.step_times_s is None:
        found = folder.traces(command.trace_files, job.world_size)
        if isinstance(found, str):
            return Failed(stage=Stage.READ, kind=FailureKind.METRIC_ERROR, message=found)
        traces = found
    return _reading(study, job, result, report, traces)


def _correction(workload: Workload, tokens: int) -> str:
    """Return what to set in a study for this many tokens: the length, if nobody has set it."""
    length, rest = divmod(tokens, workload.global_batch)
    if workload.sequence_length == 1 and length and not rest:
        return f"set sequence_length = {length}"
    return "correct global_batch"


def _traces_besides(
    study: Study, command: Command, job: Job, folder: TraceFolder
) -> "TraceSet | None":
    """Return the traces of a script that prints its step times; None where it leaves none."""
    if not study.measure.profiled_steps or not folder.trace_files(command.trace_files):
        return None
    traces = folder.traces(command.trace_files, job.world_size)
    if isinstance(traces, str):
        raise TraceError(folder.path, traces)
    return traces


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOutput:
    """All that a script left: a text in the place of what is missing or refused says why.

    `report` is None where step times are printed, `traces` where none are asked for.
    """

    report: StepsReport | str | None
    traces: "TraceSet | str | None"


def script_output(
    study: Study, command: Command, job: Job, result: JobResult, launched_ns: int
) -> ScriptOutput:
    """Read each part of what a script left, whatever is wrong with the others."""
    folder = TraceFolder(path=result.workdir / job.folders[TRACE_DIR], launched_ns=launched_ns)
    if command.step_time is not None:
        return ScriptOutput(report=None, traces=None)
    traces: TraceSet | str | None = None
    if study.measure.profiled_steps:
        try:
            traces = folder.traces(command.trace_files, job.world_size)
        except TraceError as error:
            traces = str(error).removeprefix(f"{folder.path}/")
    return ScriptOutput(report=_job_report(study, command, job, folder), traces=traces)


def _job_report(study: Study, command: Command, job: Job, folder: TraceFolder) -> StepsReport | str:
    """Read the report of all ranks; a text says why it cannot be used."""
    try:
        report = _report(folder, job.world_size)
    except TraceError as error:
        return str(error).removeprefix(f"{folder.path}/")
    if isinstance(report, str):
        return report
    if report.step_times_s is not None and len(report.step_times_s) == 1 < job.world_size:
        traced = study.measure.profiled_steps and len(folder.trace_files(command.trace_files))
        if report.device_count == job.world_size or traced == 1:
            report = _of_each_rank(report, job.world_size)
    return _fault(report, study, job) or report


def _of_each_rank(report: StepsReport, rank_count: int) -> StepsReport:
    """Return the report of a process that is the whole job, its times given to each rank."""
    return msgspec.structs.replace(
        report,
        step_times_s=(report.step_times_s or []) * rank_count,
        warmup_times_s=report.warmup_times_s and report.warmup_times_s * rank_count,
        peak_memory_bytes=[] if len(report.peak_memory_bytes) == 1 else report.peak_memory_bytes,
    )


def _printed_report(
    study: Study, expression: str, job: Job, result: JobResult
) -> StepsReport | Failed:
    """Read the step times that a script printed: of the job, so each rank has all of them."""
    warmup_count, timed_count = study.measure.warmup_steps, study.measure.timed_steps
    times_s = list(_printed_s(result.workdir / COMMAND_LOG, expression))
    if len(times_s) < warmup_count + timed_count:
        return no_samples(
            f"[command] step_time found {len(times_s)} step times in what the script printed; "
            f"{warmup_count} warm-up steps and {timed_count} timed steps were asked for: "
            f"check the expression {expression!r} against `cclsearch trial logs`, or run more steps"
        )
    return StepsReport(
        step_times_s=[times_s[warmup_count:]] * job.world_size,
        warmup_times_s=[times_s[:warmup_count]] * job.world_size,
    )


def _printed_s(log: Path, expression: str) -> Iterator[float]:
    """Yield the times above 0 that lines of a log state, in seconds."""
    pattern = re.compile(expression)
    ((unit, factor),) = ((n, TIME_UNITS[n]) for n in pattern.groupindex if n in TIME_UNITS)
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in iter(partial(lines.readline, MOST_LINE_CHARS), ""):
            found = pattern.search(line)
            with suppress(ValueError, TypeError):  # what matched is not a number
                time_s = float(found[unit]) * factor if found else 0.0
                if math.isfinite(time_s) and time_s > 0:
                    yield time_s


def _report(folder: TraceFolder, rank_count: int) -> StepsReport | str:
    """Read what the script reports of its steps; a text says why that cannot be used."""
    if (folder.path / RANK_REPORTS).exists():
        return _of_all_ranks(folder, rank_count)
    path = folder.path / REPORT
    if not path.exists() and not path.is_symlink():
        return StepsReport()
    return _decoded(folder, path, StepsReport)


def _of_all_ranks(folder: TraceFolder, rank_count: int) -> StepsReport | str:
    ranks: list[RankSteps] = []
    for number in range(rank_count):
        path = folder.path / RANK_REPORTS / f"rank{number}.json"
        if ranks and ranks[0].device_count == rank_count:
            break
        if not path.exists():
            return (
                f"rank {number} reported no steps, although others did: each of {rank_count} "
                "ranks runs the loop over cclsearch.steps()"
            )
        rank = _decoded(folder, path, RankSteps)
        if rank.fault is not None:
            return f"rank {number}: {rank.fault}"
        ranks.append(rank)
    tokens = {sum(step) for step in zip(*(r.tokens for r in ranks if r.tokens), strict=False)}
    if len(tokens) > 1:
        return (
            f"steps fed from {min(tokens)} to {max(tokens)} tokens, so their times do not "
            "compare; feed the same number in each step"
        )
    return StepsReport(
        tokens_per_step=next(iter(tokens), None),
        step_times_s=[rank.step_times_s for rank in ranks],
        losses=_means_of_ranks([rank.losses for rank in ranks]),
        grad_norms=_means_of_ranks([rank.grad_norms for rank in ranks]),
        peak_memory_bytes=[rank.peak_memory_bytes for rank in ranks],
        warmup_times_s=[rank.warmup_times_s for rank in ranks],
        versions=ranks[0].versions,
        device_count=ranks[0].device_count,
    )


def _means_of_ranks(ranks: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean of each step over the ranks that report any."""
    steps = zip(*(values for values in ranks if values), strict=False)
    return [statistics.fmean(step) for step in steps]


def _decoded(folder: TraceFolder, path: Path, kind: type[_Report]) -> _Report:
    """Read one file of the script's; raises `TraceError` for one that is refused."""
    folder.refuse_foreign(path)
    try:
        return msgspec.json.decode(read_bytes(path, RANK_FILE_LIMITS), type=kind)
    except msgspec.MsgspecError as error:
        raise TraceError(path, str(error)) from error


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
            f"{job.world_size} ranks, and each has its own list; a single process that drives all "
            f'devices, as with JAX, gives one list and "device_count": {job.world_size}'
        )
    if len({len(steps) for steps in ranks}) > 1:
        return f"{REPORT}: step_times_s has lists of different lengths"
    if len(ranks[0]) < asked:
        return f"{REPORT}: step_times_s has {len(ranks[0])} steps, {asked} were asked for"
    if not all(math.isfinite(step_s) and step_s > 0 for steps in ranks for step_s in steps):
        return f"{REPORT}: step_times_s holds a time that is not above 0"
    return None


def _reading(
    study: Study,
    job: Job,
    result: JobResult,
    report: StepsReport,
    traces: "TraceSet | None",
    *,
    printed: bool = False,
) -> Reading | Failed:
    timed = report.step_times_s if report.step_times_s is not None else _windows_s(traces)
    if not timed:
        return no_samples(
            f"no step was timed: TRACE_DIR/{REPORT} gives no step_times_s, and no ProfilerStep "
            "mark is in the traces of all ranks"
        )
    return Reading(
        measurement=Measurement(
            step_times_s=tuple(tuple(steps) for steps in timed),
            warmup_times_s=tuple(map(tuple, report.warmup_times_s or [[]] * job.world_size)),
            losses=tuple(report.losses),
            grad_norms=tuple(report.grad_norms),
            tokens_per_step=report.tokens_per_step or study.workload.tokens_per_step,
            peak_memory_bytes=tuple(report.peak_memory_bytes),
            wall_s=result.wall_s,
            device=study.environment.device,
            torch_version=report.torch_version or report.versions.get("torch"),
            versions={
                name[:VERSION_CHARS]: version[:VERSION_CHARS]
                for name, version in islice(report.versions.items(), MOST_VERSIONS)
            },
            profiled=report.step_times_s is None,
            tokens_verified=report.tokens_per_step is not None,
            printed=printed,
            varies_work=report.tokens_per_step not in {None, study.workload.tokens_per_step},
            ranks_are_separate=_are_separate(traces),
        ),
        traces=traces,
    )


def _are_separate(traces: "TraceSet | None") -> bool:
    """Whether several ranks were traced, each with work but none with communication."""
    ranks = traces.ranks if traces is not None else ()
    works = len(ranks) > 1 and all(rank.has_work for rank in ranks)
    return works and not any(len(rank.collectives.span) for rank in ranks)


def _windows_s(traces: "TraceSet | None") -> list[list[float]]:
    """Lengths of the steps that all ranks profiled; empty when there are none, or one has none."""
    if traces is None or not traces.common_steps.size:
        return []
    steps = [trace.steps.among(traces.common_steps) for trace in traces.ranks]
    windows_s = [[float(ns) / 1e9 for ns in rank.end_ns - rank.start_ns] for rank in steps]
    return windows_s if all(min(rank) > 0 for rank in windows_s) else []
