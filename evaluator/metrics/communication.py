"""Metrics of communication: shares of step time, bandwidth, volume, stragglers, message steps.

Each share is a ratio of sums over all traced ranks and the steps that all of them profiled, not a
mean of ratios (see `evaluator.traces.analysis.breakdown` for why, and the parts). Times are unions
of intervals clipped to the step's window on the device, so nothing is counted twice: two
simultaneous collectives are one time of communication. Where no rank marks steps, all work of a
rank is one window. Origin: Table 3 of CCL-Bench for the names, the temporal breakdown of Holistic
Trace Analysis (Meta) and the GPU timeline of TraceLens (AMD) for the definitions.

Bandwidth is taken once all ranks of a collective are there. S is as in nccl-tests the whole buffer,
of an all-gather the gathered one; t is the least duration over the ranks of the group, so that
waiting for a late rank is not taken for transfer. Bus bandwidth is S f / t with the factors f of
nccl-tests for n ranks: 2 (n - 1) / n for an all-reduce, (n - 1) / n for an all-gather,
reduce-scatter or all-to-all, 1 for a transfer. A metric is the sum of S f over the sum of t, over
the collectives that were traced on all ranks of their group: the rate at which a job of messages of
several sizes moves its bytes. A median would lie between the bandwidths of small and of large
messages, where none was ever measured.

The rank that comes last to a collective is in it for the shortest time; the additional time of the
others is waiting. Only waiting inside collectives is seen, and only by ranks that left a trace.
"""

from collections.abc import Callable
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evaluator.metrics.base import (
    SAMPLES,
    TRACES,
    UNTRACED,
    Absent,
    Evidence,
    MetricFormula,
    metric_of,
)
from evaluator.metrics.throughput import UNTIMED, job_rank_count, per_s
from evaluator.traces.analysis.breakdown import StepSplit
from evaluator.traces.analysis.collectives import Bandwidths, Matches
from evaluator.traces.analysis.stragglers import imbalance, stragglers
from evaluator.traces.model import SYNCHRONISING, TRANSFERS, CollectiveKind
from evaluator.workloads.collectives.operations import Collective, DType, Operation
from records.workload import Message

UNPROFILED: Final = Absent("no step was profiled on every traced rank")
_NO_STEP: Final = Absent("no marked step was profiled on every traced rank")


@metric_of("Communication share", "fraction", "lower", TRACES)
def communication_fraction(evidence: Evidence) -> float | Absent:
    """Time with at least one collective under way, over step time: |comm| / |window|.

    The published metric divides summed kernel durations: kernels that overlap count twice, those at
    the border of a step count whole, and its names take ATen's broadcast kernels for communication
    and miss all-to-all. Its denominator is kernel time, ours is step time.
    """
    return _share(evidence, lambda step: step.communication_s)


@metric_of("Exposed communication share", "fraction", "lower", TRACES)
def exposed_communication_fraction(evidence: Evidence) -> float | Absent:
    """Time in communication while nothing computes, over step time: |comm - compute| / |window|."""
    return _share(evidence, lambda step: step.exposed_communication_s)


@metric_of("Exposed communication", "s", "lower", TRACES)
def total_communication_time(evidence: Evidence) -> float | Absent:
    """Time in communication while nothing computes, |comm - compute|, per step; mean over steps and
    ranks.

    The paper subtracts what compute hides, its code does not; from Nsight Systems it sums all
    devices over the whole trace instead of one step.
    """
    step = _mean_step(evidence)
    if isinstance(step, Absent):
        return step
    if evidence.split and not evidence.split.step_numbers:
        return Absent("no step is marked, so no time is one per step")
    return step.exposed_communication_s


@metric_of("Overlap", "fraction", "higher", TRACES)
def compute_comm_overlap(evidence: Evidence) -> float | Absent:
    """Share of communication hidden behind compute, |comm and compute| / |comm|; no answer without
    communication.

    The published metric clips kernels to the steps of the host, which the device lags behind, and
    takes the mean over ranks that communicate; ours clips to the steps of the device and sums over
    all ranks before it divides.
    """
    step = _mean_step(evidence)
    if isinstance(step, Absent):
        return step
    if not step.communication_s:
        return Absent("nothing communicates in the profiled steps")
    return step.hidden_communication_s / step.communication_s


@metric_of("Compute share", "fraction", "higher", TRACES)
def compute_fraction(evidence: Evidence) -> float | Absent:
    """Time in which something computes, over step time: |compute| / |window|."""
    return _share(evidence, lambda step: step.compute_s)


@metric_of("Idle share", "fraction", "lower", TRACES)
def idle_fraction(evidence: Evidence) -> float | Absent:
    """Time with neither compute, communication, copies nor fills, over step time:
    1 - |compute or comm or copies or fills| / |window|.
    """
    return _share(evidence, lambda step: step.idle_s)


@metric_of("Pipeline bubble", "fraction", "lower", TRACES)
def pipeline_bubble_fraction(evidence: Evidence) -> float | Absent:
    """Time in which a rank only waits for a neighbour or receives from it, over step time:
    |transfers - compute - collectives| / |window|, transfers being sends and receives; a part of
    exposed communication. Rings of context parallelism transfer too, and count.
    """
    if evidence.split is not None and evidence.split.mean.pipeline_bubble_s is None:
        return Absent("no rank is known to send to another or receive from one")
    return _share(evidence, lambda step: step.pipeline_bubble_s or 0.0)


@metric_of("Exposed copies", "fraction", "lower", TRACES)
def memory_transfer_overhead(evidence: Evidence) -> float | Absent:
    """Time in copies while neither compute nor communication runs, over step time:
    |copies - compute - comm| / |window|; fills are no copies.

    From Kineto the published metric never counts real copies (category gpu_memcpy) but does count
    kernels whose name says copy; its denominator is the span of kernels.
    """
    if evidence.traces is not None and not any(rank.on_device for rank in evidence.traces.ranks):
        return Absent("the work ran on the host, which copies nothing to a device")
    return _share(evidence, lambda step: step.exposed_copy_s)


def _bandwidth(
    name: str, word: str, factor: str, differs: str, *kinds: CollectiveKind
) -> MetricFormula:
    """The bus bandwidth of all bytes of the kinds called by one word."""

    def formula(evidence: Evidence) -> float | Absent:
        table, matches = evidence.bandwidths, evidence.matches
        if table is None or matches is None:
            return UNTRACED
        chosen = np.isin(table.kind, kinds)
        if not chosen.any():
            return Absent(_why_no_rate(matches, word, kinds))
        whole = chosen & ~table.partial
        if whole.any():
            return _gb_per_s(table, whole)
        least = _gb_per_s(table, chosen)
        return Absent(
            f"no {word} is in the traces of all ranks of its group; as others may have come "
            f"later, those with a trace only show that it is at least {least:.4g} GB/s"
        )

    formula.__name__ = name
    formula.__doc__ = (
        f"Sum of S {factor} over sum of t, over every {word} that all ranks of its group show: S "
        "bytes of the whole buffer, t its least duration over the ranks, factor as in nccl-tests."
        f"\n\n{differs}"
    )
    return formula


def _why_no_rate(matches: Matches, word: str, kinds: tuple[CollectiveKind, ...]) -> str:
    calls = matches.calls.doing(*kinds)
    if not calls.any():
        return f"no {word} ran"
    if not matches.doing(*kinds).any():
        words = matches.unmatched_words(*kinds)
        return f"no {word} could be matched over the ranks ({words})"
    if not matches.calls.bytes[calls].any():
        return f"the traces do not say how large any {word} was"
    return f"the traces do not say how many ranks take part in any {word}, or how long"


def _gb_per_s(table: Bandwidths, chosen: NDArray[np.bool_]) -> float:
    """Bytes over the bus by the time that they took."""
    seconds = table.time_ns[chosen] / 1e9
    return float((table.bus_bytes_per_s[chosen] * seconds).sum() / seconds.sum()) / 1e9


_DIFFERS: Final = (
    "Theirs takes one rank's own durations, which include waiting for the others, divides by 2^30 "
    "bytes while saying GB, and on TPUs takes memory traffic for the payload."
)
_OF_PARTS = f"{_DIFFERS} Its S is the part of one rank, which is n times too small."
_OF_TRANSFERS = f"{_DIFFERS} It knows NCCL's send-receive kernels only."
_OF_LINKS = (
    "Theirs is the mean of the NVLink or PCIe utilisation samples that are not zero, for three "
    "models by name: how busy a link is while it is used, not how fast a transfer is."
)
_SHARE = "(n - 1) / n"

bw_allreduce, bw_allgather, bw_reducescatter, bw_alltoall, bw_peertopeer = (
    metric_of(f"{word.capitalize()} bandwidth", "GB/s", "higher", TRACES, version=2)(
        _bandwidth(name, word, factor, differs, *kinds)
    )
    for name, word, factor, differs, *kinds in (
        ("bw_allreduce", "all-reduce", f"2 {_SHARE}", _DIFFERS, CollectiveKind.ALL_REDUCE),
        ("bw_allgather", "all-gather", _SHARE, _OF_PARTS, CollectiveKind.ALL_GATHER),
        ("bw_reducescatter", "reduce-scatter", _SHARE, _DIFFERS, CollectiveKind.REDUCE_SCATTER),
        ("bw_alltoall", "all-to-all", _SHARE, _OF_TRANSFERS, CollectiveKind.ALL_TO_ALL),
        ("bw_peertopeer", "transfer", "1", _OF_LINKS, *TRANSFERS),
    )
)


@metric_of("Communication volume", "bytes", "lower", TRACES)
def communication_volume(evidence: Evidence) -> float | Absent:
    """Bytes of the buffers that a rank hands to collectives and sends in a step, mean over traced
    ranks; S as in nccl-tests, of an all-gather the gathered buffer.

    Their collective_vol_total_gb adds up all steps of the first rank, in 2^30 bytes.
    """
    found = evidence.volume
    if found is None:
        return _NO_STEP
    total = found.traced_ranks
    if total.bytes is None:
        return Absent(
            f"{total.untold_count} of {round(total.call_count * found.step_count)} collectives do "
            "not say their size"
        )
    return total.bytes / len(found.by_rank)


@metric_of("Collectives", "collectives", "lower", TRACES)
def collective_count(evidence: Evidence) -> float | Absent:
    """Collectives and sends of a rank in a step, mean over traced ranks."""
    found = evidence.volume
    return _NO_STEP if found is None else found.traced_ranks.call_count / len(found.by_rank)


@metric_of("Waiting for the straggler", "fraction", "lower", TRACES)
def straggler(evidence: Evidence) -> float | Absent:
    """Share of their step time that the other ranks spend waiting inside collectives, with nothing
    to compute, for the rank they wait for most: the part of a collective beyond its least duration
    over ranks, where that is the straggler's. Which rank it is: cclsearch trace stragglers.

    Theirs is (max - min) / max over ranks of summed communication time, in which a rank that makes
    others wait has the least; it names no rank.
    """
    if evidence.traces is None or evidence.matches is None:
        return UNTRACED
    if len(evidence.traces.ranks) < 2:
        return Absent("one rank was traced, and who waits for whom takes two")
    found = stragglers(evidence.traces, evidence.matches)
    if found is None:
        return Absent(_why_no_straggler(evidence.matches))
    if found.partial_count == found.collective_count:
        return Absent(
            "no collective is in the traces of all ranks of its group, so that ranks may wait for "
            "one that left no trace"
        )
    return found.exposed_share


@metric_of("Compute imbalance", "ratio", "lower", TRACES)
def load_imbalance_ratio(evidence: Evidence) -> float | Absent:
    """Most compute time of a rank over the least, over the steps that all traced ranks show:
    max |compute| / min |compute|. 1 is balanced; stages of a pipeline differ by design.

    Theirs counts communication as work, in which all wait for the slowest, so that it is near 1
    whatever ranks compute; and it looks at the whole trace.
    """
    if evidence.traces is None:
        return UNTRACED
    if len(evidence.traces.ranks) < 2:
        return Absent("one rank was traced, and a comparison takes two")
    if evidence.split is None:
        return UNPROFILED
    found = imbalance(evidence.split)
    return Absent("a rank computes nothing") if found is None else found.max_over_min


@metric_of("Bus bandwidth", "GB/s", "higher", SAMPLES)
def bus_bandwidth(evidence: Evidence) -> float | Absent:
    """What the messages of a step put on each link, S times the factor of nccl-tests for each call,
    over the median step time; S and the factors are those of the bw_ metrics, 1 for a broadcast, a
    reduce and each way of a send_recv.
    """
    messages, ranks = _messages(evidence), job_rank_count(evidence)
    if isinstance(messages, Absent):
        return messages
    if isinstance(ranks, Absent):
        return ranks
    moved = sum(_bus_gb(message, ranks) * message.count for message in messages)
    return per_s(moved, median(evidence.step_times_s)) if moved else Absent("no link is used")


@metric_of("Latency", "s", "lower", SAMPLES)
def latency(evidence: Evidence) -> float | Absent:
    """Median step time over the calls of a step, where a step only exchanges messages; however
    these are put together, cut or overlapped, the calls that were asked for count.
    """
    messages = _messages(evidence)
    if isinstance(messages, Absent):
        return messages
    return median(evidence.step_times_s) / sum(message.count for message in messages)


def _mean_step(evidence: Evidence) -> StepSplit | Absent:
    if evidence.split is None:
        return UNPROFILED if evidence.traces else UNTRACED
    return evidence.split.mean


def _share(evidence: Evidence, part: Callable[[StepSplit], float]) -> float | Absent:
    """A part of step time."""
    step = _mean_step(evidence)
    if isinstance(step, Absent):
        return step
    return part(step) / step.window_s if step.window_s else Absent("profiled steps take no time")


def _why_no_straggler(matches: Matches) -> str:
    if not matches.calls.doing(*SYNCHRONISING).any():
        return "no collective ran that all ranks of a group must attend"
    alone = "none is in the traces of two ranks, in steps that all of them show"
    words = matches.unmatched_words(*SYNCHRONISING) or alone
    return f"no collective could be matched over two ranks ({words})"


def _messages(evidence: Evidence) -> tuple[Message, ...] | Absent:
    if not evidence.step_times_s:
        return UNTIMED
    if evidence.workload is None or not evidence.workload.messages:
        return Absent("the workload is not one of messages alone")
    return evidence.workload.messages


def _bus_gb(message: Message, rank_count: int) -> float:
    """What one call puts on each link, decimal GB; nothing for a barrier."""
    # Imported here: metrics are listed without what measures collectives.
    from evaluator.bus_bandwidth import bandwidth

    operation = Operation(
        collective=Collective(message.collective),
        size_bytes=message.size_bytes,
        dtype=DType(message.dtype),
    )
    # In a second, so that bytes per second are bytes; a send_recv goes there and back.
    moved = bandwidth(operation.collective, operation.message_bytes, rank_count, 1.0, "nccl-tests")
    ways = 2 if operation.collective is Collective.SEND_RECV else 1
    return 0.0 if moved is None else moved.bus_gbps * ways
