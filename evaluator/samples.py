"""The step files of all ranks, read and checked: one `Measurement` per launch.

The files were written by a job under test: nothing in them is believed without a check. Some
combinations of parallelism run at full speed and compute something else, so losses are compared.
"""

import math
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import msgspec

from evaluator.ports import JobResult, Reading
from evaluator.rank.job import Measure as RankMeasure
from evaluator.rank.protocol import LEAST_SLOWER_STEPS, RankFile, reason_to_stop
from evaluator.traces.readers.files import ReadLimits, read_bytes
from records.errors import TraceError
from records.study import Measure, Study
from records.trial import Failed, FailureKind, Measurement, Serving, Stage
from records.workload import Message, Workload

if TYPE_CHECKING:
    from evaluator.traces.model import TraceSet


Steps: TypeAlias = Sequence[tuple[int, ...]]
"""Timed steps of one rank, each its start and the end of each part in ns.

Parts are in turn the prefill and the decode of one round of requests.
"""


def parts_fault(ranks: Sequence[Steps], messages: Sequence[Message]) -> str | None:
    """Why the parts of steps are not one for each message, or a prefill and a decode in turn.

    None where they are, or steps have a single part: nothing is known of what happens in it.
    """
    part_counts = {len(step) - 1 for steps in ranks for step in steps}
    if messages and (len(part_counts) > 1 or not part_counts <= {1, len(messages)}):
        return f"steps differ in their parts, or have others than {len(messages)} messages"
    is_paired = all(count == 1 or count % 2 == 0 for count in part_counts)
    if not messages and (len(part_counts) > 1 or not is_paired):
        return "steps differ in their parts, or have parts that do not pair"
    return None


def serving(ranks: Sequence[Steps], workload: Workload) -> Serving | None:
    """How the requests were answered; None in training and where no step has parts."""
    answer_length = workload.output_length
    in_parts = all(len(step) > 2 for steps in ranks for step in steps)
    if workload.phase != "inference" or answer_length is None or not in_parts:
        return None
    return Serving(
        first_token_times_s=tuple(tuple(map(_first_token_s, steps)) for steps in ranks),
        next_token_times_s=tuple(
            tuple(_decode_s(step) / (answer_length - 1) for step in steps) for steps in ranks
        )
        if answer_length > 1
        else None,
        output_tokens_per_step=workload.global_batch * answer_length,
    )


def _first_token_s(step: tuple[int, ...]) -> float:
    """Mean over the rounds, which answer equally many requests each."""
    return fmean(prefilled - step[0] for prefilled in step[1::2]) / 1e9


def _decode_s(step: tuple[int, ...]) -> float:
    rounds = zip(step[1::2], step[2::2], strict=True)
    return fmean(answered - prefilled for prefilled, answered in rounds) / 1e9


def message_times_s(ranks: Sequence[Steps], messages: Sequence[Message]) -> tuple[float, ...]:
    """Seconds of each message over its calls, median over the steps of the slowest rank.

    Empty where steps of several messages are timed as a whole. Each of the timed steps is its
    start and the ends of its parts, in ns; part p are all calls of message p.
    """
    if any(len(step) != len(messages) + 1 for steps in ranks for step in steps):
        return ()
    # (ranks, steps, parts)
    parts_ns = [[[end - start for start, end in pairwise(s)] for s in steps] for steps in ranks]
    return tuple(
        median(max(step[part] for step in slowest) for slowest in zip(*parts_ns, strict=True))
        / (1e9 * message.count)
        for part, message in enumerate(messages)
    )


RANK_FILE_LIMITS = ReadLimits(file_bytes=16 << 20, decompressed_bytes=16 << 20)
Instant: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Window: TypeAlias = Annotated[tuple[Instant, ...], msgspec.Meta(min_length=2)]


class DeviceEnergy(msgspec.Struct, frozen=True):
    """What one device used in the timed steps, by NVML; ranks may share the device."""

    device: str
    joules: Annotated[float, msgspec.Meta(ge=0, lt=1e12)]


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
    energy: DeviceEnergy | None = None


def rank_measure(measure: Measure) -> RankMeasure:
    """What a study asks of the ranks of one launch."""
    return RankMeasure(**{each.name: getattr(measure, each.name) for each in fields(RankMeasure)})


def read_measurement(result: JobResult, study: Study) -> Measurement | Failed:
    """Samples of all ranks; a failure when one is missing, malformed or did other work."""
    ranks: list[RankSamples] = []
    for number in (rank.rank for rank in result.ranks if rank.rank is not None):
        samples = _read_rank(result, number)
        if isinstance(samples, Failed):
            return samples
        ranks.append(samples)
    if not ranks:
        return no_samples("no rank left its steps")
    measure = rank_measure(study.measure)
    fault = _time_fault(ranks, study.workload) or _count_fault(ranks, measure)
    if fault is not None:
        return no_samples(fault)
    tokens = sum(rank.tokens_per_step for rank in ranks)
    if tokens != study.workload.tokens_per_step:
        return unequal_work(
            f"processed {tokens} tokens per step, the study asks for "
            f"{study.workload.tokens_per_step}; trials must do the same work"
        )
    return Measurement(
        step_times_s=tuple(_seconds(rank.timed) for rank in ranks),
        warmup_times_s=tuple(_seconds(rank.warmup) for rank in ranks),
        losses=next((tuple(rank.losses) for rank in ranks if rank.losses), ()),
        tokens_per_step=tokens,
        peak_memory_bytes=tuple(rank.peak_memory_bytes for rank in ranks),
        wall_s=result.wall_s,
        device=ranks[0].device,
        torch_version=ranks[0].torch,
        serving=serving([rank.timed for rank in ranks], study.workload),
        stopped=ranks[0].stopped,
        message_times_s=message_times_s([rank.timed for rank in ranks], study.workload.messages),
        energy_j=_energy_j([rank.energy for rank in ranks]),
    )


def _energy_j(ranks: Sequence[DeviceEnergy | None]) -> float | None:
    """Joules of all devices, each counted once; None where one is not known."""
    known = [energy for energy in ranks if energy is not None]
    if len(known) < len(ranks):
        return None
    return sum({energy.device: energy.joules for energy in known}.values())


def _read_rank(result: JobResult, rank: int) -> RankSamples | Failed:
    path = result.workdir / RankFile.STEPS.of(rank)
    if not path.exists():
        return no_samples(f"rank {rank} ended without leaving {path.name}")
    try:
        samples = msgspec.json.decode(read_bytes(path, RANK_FILE_LIMITS), type=RankSamples)
    except (TraceError, msgspec.MsgspecError) as error:
        return no_samples(f"{path.name}: {str(error).removeprefix(f'{path}: ')}")
    if samples.rank != rank:
        return no_samples(f"{path.name} says that it is of rank {samples.rank}")
    return samples


def _time_fault(ranks: Sequence[RankSamples], workload: Workload) -> str | None:
    """Why the steps are no times."""
    for rank in ranks:
        if any(later <= earlier for step in rank.timed for earlier, later in pairwise(step)):
            return f"rank {rank.rank} has a step that ends before it starts"
    return parts_fault([rank.timed for rank in ranks], workload.messages)


def _count_fault(ranks: Sequence[RankSamples], measure: RankMeasure) -> str | None:
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
        reported, found = first.stopped or "no reason", reason or "no reason"
        return f"the ranks stopped for {reported}, their steps show {found}"
    return None


def read_ranks(result: JobResult, study: Study, profiled_steps: int) -> Reading | Failed:
    """Samples of all ranks, and their traces unless they were stopped for being slower."""
    measurement = read_measurement(result, study)
    if isinstance(measurement, Failed):
        return measurement
    is_traced = profiled_steps and measurement.stopped != "slower"
    traces = read_profiles(result, profiled_steps) if is_traced else None
    return Reading(measurement=measurement, traces=traces)


def read_profiles(result: JobResult, profiled_steps: int) -> "TraceSet":
    """The traces of all ranks; raises `TraceError` when one is missing or of other steps."""
    # Imported here: recipes describe spaces without reading traces.
    from evaluator.traces.readers.read import read_traces

    paths = sorted(result.workdir.glob("node*.columns"))
    own = (result.workdir / f"rank{rank.rank}_trace.json" for rank in result.ranks)
    traces = read_traces([*(path for path in own if not paths or path.exists()), *paths])
    present = {trace.rank for trace in traces.ranks}
    missing = next((rank.rank for rank in result.ranks if rank.rank not in present), None)
    if missing is not None:
        raise TraceError(result.workdir, f"holds no trace of rank {missing}")
    for path, trace in zip(traces.files, traces.ranks, strict=True):
        step_count = trace.steps.number.size
        if step_count != profiled_steps:
            raise TraceError(
                path, f"holds {step_count} profiled steps, {profiled_steps} were asked for"
            )
    return traces


def no_samples(message: str) -> Failed:
    """Return the failure of a launch whose samples are missing or cannot be believed."""
    return Failed(stage=Stage.MEASURE, kind=FailureKind.METRIC_ERROR, message=message)


def unequal_work(message: str) -> Failed:
    """Return the failure of a launch that did other work than the study asks for."""
    return Failed(stage=Stage.MEASURE, kind=FailureKind.INVALID_CONFIG, message=message)


def _seconds(steps: list[Window]) -> tuple[float, ...]:
    return tuple((step[-1] - step[0]) / 1e9 for step in steps)


TOLERANCE = {"fp32": 2e-3, "tf32": 1e-2, "bf16": 5e-2}
"""Largest relative difference of a loss; reduction order alone gives about 1e-5 in fp32."""
GRAD_NORM_RATIO = 1.25
"""Largest ratio of gradient norms of equal work: one that lacks half of the ranks is off by 1.41.

Losses do not show that gradients have the wrong scale, as Adam does not depend on it.
"""


def other_work(measured: Measurement, reference: Measurement, study: Study) -> Failed | None:
    """Return a failure when losses or gradient norms differ from those of the reference trial.

    Losses are compared step by step, norms by the median ratio of all steps. Steps of other batch
    sizes have others: these are not compared.
    """
    if measured.tokens_per_step != reference.tokens_per_step:
        return None
    formats = study.workload.precision, measured.compute_precision, reference.compute_precision
    coarsest = max(TOLERANCE.values())
    tolerance = max(TOLERANCE.get(each, coarsest) for each in formats if each is not None)
    for step, (loss, expected) in enumerate(zip(measured.losses, reference.losses, strict=False)):
        if not math.isclose(loss, expected, rel_tol=tolerance):
            return unequal_work(
                f"computed something else: loss {loss:.5g} at step {step}, "
                f"the first measured trial had {expected:.5g}"
            )
    norms = [
        (norm, expected)
        for norm, expected in zip(measured.grad_norms, reference.grad_norms, strict=False)
        if expected > 0
    ]
    ratio = median(norm / expected for norm, expected in norms) if norms else 1
    if not 1 / GRAD_NORM_RATIO <= ratio <= GRAD_NORM_RATIO:
        norm, expected = norms[0]
        return unequal_work(
            f"computed something else: gradient norm {norm:.4g} at step 0, the first measured "
            f"trial had {expected:.4g}; losses alone may not show it"
        )
    return None
