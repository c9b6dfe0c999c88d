"""What ranks left in a job's folder, read into one measurement.

The files were written by a job under test: nothing in them is believed without a check.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import msgspec

from evaluator.job import JobResult
from evaluator.message_times import message_times_s, unmatched
from evaluator.rank.job import Measure as RankMeasure
from evaluator.rank.sampling import LEAST_SLOWER_STEPS, reason_to_stop
from evaluator.readers.files import ReadLimits, read_bytes
from evaluator.serving import serving, uneven
from evaluator.traces.errors import TraceError
from records.study import Measure, Study
from records.trial import Failed, FailureKind, Measurement, Stage
from records.workload import Workload

if TYPE_CHECKING:
    from evaluator.traces.job import TraceSet

RANK_FILE_LIMITS = ReadLimits(file_bytes=16 << 20, decompressed_bytes=16 << 20)
Instant: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Window: TypeAlias = Annotated[tuple[Instant, ...], msgspec.Meta(min_length=2)]


class RankSamples(msgspec.Struct, frozen=True):
    """One rank's file: losses where it has them, and steps in ns of its monotonic clock.

    A step is its start, the ends of its parts if it has any, and its end. `stopped` is why no more
    of them were timed, where their number was not fixed.
    """

    rank: int
    warmup: list[Window]
    timed: list[Window]
    stopped: Literal["precise", "most_steps", "slower"] | None
    losses: list[float]
    tokens_per_step: int
    peak_memory_bytes: int
    device: str
    torch: str


def asked_of_ranks(measure: Measure) -> RankMeasure:
    """What a study asks of the ranks of one launch."""
    return RankMeasure(
        warmup_steps=measure.warmup_steps,
        timed_steps=measure.timed_steps,
        profiled_steps=measure.profiled_steps,
        max_timed_steps=measure.max_timed_steps,
        step_precision=measure.step_precision,
        stop_above_s=measure.stop_above_s,
    )


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
        stopped=ranks[0].stopped,
        message_times_s=message_times_s([rank.timed for rank in ranks], study.workload.messages),
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


def _fault(ranks: Sequence[RankSamples], study: Study) -> Failed | None:
    fault = _unreadable(ranks, study.workload) or _uncounted(ranks, asked_of_ranks(study.measure))
    if fault is not None:
        return _no_samples(fault)
    tokens = sum(rank.tokens_per_step for rank in ranks)
    if tokens != study.workload.tokens_per_step:
        return Failed(
            stage=Stage.MEASURE,
            kind=FailureKind.INVALID_CONFIG,
            message=f"processed {tokens} tokens per step, the study asks for "
            f"{study.workload.tokens_per_step}; trials must do the same work",
        )
    return None


def _unreadable(ranks: Sequence[RankSamples], workload: Workload) -> str | None:
    """Why the steps are no times."""
    for rank in ranks:
        if any(later <= earlier for step in rank.timed for earlier, later in pairwise(step)):
            return f"rank {rank.rank} has a step that ends before it starts"
    steps, messages = [rank.timed for rank in ranks], workload.messages
    if messages and unmatched(steps, messages):
        return f"steps differ in their parts, or have others than {len(messages)} messages"
    if not messages and uneven(steps):
        return "steps differ in their parts, or have parts that do not pair"
    return None


def _uncounted(ranks: Sequence[RankSamples], measure: RankMeasure) -> str | None:
    """Why the ranks cannot have timed these many steps together, as they were asked to."""
    first = ranks[0]
    for rank in ranks:
        least, most = measure.timed_steps, measure.most_timed_steps
        if rank.stopped == "slower":
            least = min(least, LEAST_SLOWER_STEPS)
        if not least <= len(rank.timed) <= most:
            wanted = f"{least}" if least == most else f"{least} to {most}"
            return f"rank {rank.rank} timed {len(rank.timed)} steps, {wanted} were asked for"
        if len(rank.timed) != len(first.timed):
            return (
                f"rank {rank.rank} timed {len(rank.timed)} steps, "
                f"rank {first.rank} timed {len(first.timed)}"
            )
        if rank.stopped != first.stopped:
            return (
                f"rank {rank.rank} stopped for {rank.stopped}, "
                f"rank {first.rank} for {first.stopped}"
            )
    times_s = [max(step) for step in zip(*(_seconds(rank.timed) for rank in ranks), strict=True)]
    reason = None if measure.is_fixed else reason_to_stop(measure, times_s)
    if reason != first.stopped:
        told, found = first.stopped or "no reason", reason or "no reason"
        return f"the ranks stopped for {told}, their steps show {found}"
    return None


def read_profiles(result: JobResult, profiled_steps: int) -> "TraceSet":
    """The traces of all ranks; raises `TraceError` when one is missing or of other steps."""
    # Imported here: recipes describe spaces without reading traces.
    from evaluator.readers.job import read_traces

    paths = [result.workdir / f"rank{rank.rank}_trace.json" for rank in result.ranks]
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
