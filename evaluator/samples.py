"""What ranks left in a job's folder, read into one measurement.

The files were written by a job under test: nothing in them is believed without a check.
"""

from itertools import pairwise
from typing import Annotated, TypeAlias

import msgspec

from evaluator.job import JobResult
from evaluator.readers.files import ReadLimits, read_bytes
from evaluator.readers.job import read_traces
from evaluator.serving import serving, uneven
from evaluator.traces.errors import TraceError
from evaluator.traces.job import TraceSet
from records.study import Study
from records.trial import Failed, FailureKind, Measurement, Stage

RANK_FILE_LIMITS = ReadLimits(file_bytes=16 << 20, decompressed_bytes=16 << 20)
Window: TypeAlias = Annotated[tuple[int, ...], msgspec.Meta(min_length=2)]


class RankSamples(msgspec.Struct, frozen=True):
    """One rank's file: losses where it has them, and steps in ns of its monotonic clock.

    A step is its start, the ends of its parts if it has any, and its end.
    """

    rank: int
    warmup: list[Window]
    timed: list[Window]
    losses: list[float]
    tokens_per_step: int
    peak_memory_bytes: int
    device: str
    torch: str


def read_measurement(result: JobResult, study: Study) -> Measurement | Failed:
    """Samples of all ranks; a failure when one is missing, malformed or did other work."""
    ranks: list[RankSamples] = []
    for number in (rank.rank for rank in result.ranks if rank.rank is not None):
        samples = _read_rank(result, number)
        if isinstance(samples, Failed):
            return samples
        ranks.append(samples)
    fault = _fault(ranks, study)
    if fault is not None:
        return fault
    return Measurement(
        step_times_s=tuple(_seconds(rank.timed) for rank in ranks),
        warmup_times_s=tuple(_seconds(rank.warmup) for rank in ranks),
        losses=next((tuple(rank.losses) for rank in ranks if rank.losses), ()),
        tokens_per_step=sum(rank.tokens_per_step for rank in ranks),
        peak_memory_bytes=tuple(rank.peak_memory_bytes for rank in ranks),
        wall_s=result.wall_s,
        device=ranks[0].device,
        torch_version=ranks[0].torch,
        serving=serving([rank.timed for rank in ranks], study.workload),
    )


def _read_rank(result: JobResult, rank: int) -> RankSamples | Failed:
    path = result.workdir / f"rank{rank}.steps.json"
    if not path.exists():
        return _no_samples(f"rank {rank} ended without leaving {path.name}")
    try:
        samples = msgspec.json.decode(read_bytes(path, RANK_FILE_LIMITS), type=RankSamples)
    except (TraceError, msgspec.MsgspecError) as error:
        return _no_samples(f"{path.name}: {str(error).removeprefix(f'{path}: ')}")
    if samples.rank != rank:
        return _no_samples(f"{path.name} says that it is of rank {samples.rank}")
    return samples


def _fault(ranks: list[RankSamples], study: Study) -> Failed | None:
    asked = study.measure.timed_steps
    for rank in ranks:
        if len(rank.timed) != asked:
            return _no_samples(
                f"rank {rank.rank} timed {len(rank.timed)} steps, {asked} were asked for"
            )
        if any(later <= earlier for step in rank.timed for earlier, later in pairwise(step)):
            return _no_samples(f"rank {rank.rank} has a step that ends before it starts")
    if uneven([rank.timed for rank in ranks]):
        return _no_samples("steps differ in their parts, or have parts that do not pair")
    tokens = sum(rank.tokens_per_step for rank in ranks)
    if tokens != study.workload.tokens_per_step:
        return Failed(
            stage=Stage.MEASURE,
            kind=FailureKind.INVALID_CONFIG,
            message=f"processed {tokens} tokens per step, the study asks for "
            f"{study.workload.tokens_per_step}; trials must do the same work",
        )
    return None


def read_profiles(result: JobResult, profiled_steps: int) -> TraceSet:
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


def _no_samples(message: str) -> Failed:
    return Failed(stage=Stage.MEASURE, kind=FailureKind.METRIC_ERROR, message=message)


def _seconds(steps: list[Window]) -> tuple[float, ...]:
    return tuple((step[-1] - step[0]) / 1e9 for step in steps)
