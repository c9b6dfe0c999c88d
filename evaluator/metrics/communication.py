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
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evaluator.metrics.base import Absent, Better, Evidence, Formula, Source
from evaluator.metrics.throughput import UNTIMED, job_rank_count, per_s
from evaluator.traces.analysis.breakdown import StepSplit
from evaluator.traces.analysis.collectives import Bandwidths, Matches
from evaluator.traces.analysis.stragglers import imbalance, stragglers
from evaluator.traces.model import SYNCHRONISING, TRANSFERS, CollectiveKind
from evaluator.workloads.collectives.operations import Collective, DType, Operation
from records.workload import Message

TRACES: Final[frozenset[Source]] = frozenset({"kineto", "xla", "nsys"})
UNTRACED: Final = Absent("nothing was profiled")
UNPROFILED: Final = Absent("no step was profiled on every traced rank")


def _ratio(
    part: Callable[[StepSplit], float],
    whole: Callable[[StepSplit], float] = lambda step: step.window_s,
    missing: str = "profiled steps take no time",
) -> Callable[[Evidence], float | Absent]:
    def formula(evidence: Evidence) -> float | Absent:
        if evidence.traces is None:
            return UNTRACED
        if evidence.split is None:
            return UNPROFILED
        whole_s = whole(evidence.split.mean)
        return part(evidence.split.mean) / whole_s if whole_s else Absent(missing)

    return formula


def fraction(
    name: str,
    label: str,
    better: Better,
    description: str,
    formula: Callable[[Evidence], float | Absent],
    *,
    sources: frozenset[Source] = TRACES,
    differs: str = "",
) -> Formula:
    """A metric from traces whose values are from 0 to 1."""
    return Formula(
        name=name,
        label=label,
        unit="fraction",
        better=better,
        sources=sources,
        description=description,
        formula=formula,
        differs=differs,
    )


def _exposed_s(evidence: Evidence) -> float | Absent:
    if evidence.traces is None:
        return UNTRACED
    if evidence.split is None:
        return UNPROFILED
    if not evidence.split.step_numbers:
        return Absent("no step is marked, so no time is one per step")
    return evidence.split.mean.exposed_communication_s


def _bubble(evidence: Evidence) -> float | Absent:
    if evidence.split is not None and evidence.split.mean.pipeline_bubble_s is None:
        return Absent("no rank is known to send to another or receive from one")
    return _share_of_bubble(evidence)


def _copies(evidence: Evidence) -> float | Absent:
    if evidence.traces is not None and not any(rank.on_device for rank in evidence.traces.ranks):
        return Absent("the work ran on the host, which copies nothing to a device")
    return _share_of_copies(evidence)


_share_of_bubble: Final = _ratio(lambda step: step.pipeline_bubble_s or 0.0)
_share_of_copies: Final = _ratio(lambda step: step.exposed_copy_s)

communication_fraction = fraction(
    "communication_fraction",
    "Communication share",
    "lower",
    "Time with at least one collective under way, over step time: |comm| / |window|.",
    _ratio(lambda step: step.communication_s),
    differs="The published metric divides summed kernel durations: kernels that overlap count "
    "twice, those at the border of a step count whole, and its names take ATen's broadcast kernels "
    "for communication and miss all-to-all. Its denominator is kernel time, ours is step time.",
)

exposed_communication_fraction = fraction(
    "exposed_communication_fraction",
    "Exposed communication share",
    "lower",
    "Time in communication while nothing computes, over step time: |comm - compute| / |window|.",
    _ratio(lambda step: step.exposed_communication_s),
)

total_communication_time = Formula(
    name="total_communication_time",
    label="Exposed communication",
    unit="s",
    better="lower",
    sources=TRACES,
    description="Time in communication while nothing computes, |comm - compute|, per step; mean "
    "over steps and ranks.",
    formula=_exposed_s,
    differs="The paper subtracts what compute hides, its code does not; from Nsight Systems it "
    "sums all devices over the whole trace instead of one step.",
)

compute_comm_overlap = fraction(
    "compute_comm_overlap",
    "Overlap",
    "higher",
    "Share of communication hidden behind compute, |comm and compute| / |comm|; "
    "no answer without communication.",
    _ratio(
        lambda step: step.hidden_communication_s,
        lambda step: step.communication_s,
        "nothing communicates in the profiled steps",
    ),
    differs="The published metric clips kernels to the steps of the host, which the device lags "
    "behind, and takes the mean over ranks that communicate; ours clips to the steps of the "
    "device and sums over all ranks before it divides.",
)

compute_fraction = fraction(
    "compute_fraction",
    "Compute share",
    "higher",
    "Time in which something computes, over step time: |compute| / |window|.",
    _ratio(lambda step: step.compute_s),
)

idle_fraction = fraction(
    "idle_fraction",
    "Idle share",
    "lower",
    "Time with neither compute, communication, copies nor fills, over step time: "
    "1 - |compute or comm or copies or fills| / |window|.",
    _ratio(lambda step: step.idle_s),
)

pipeline_bubble_fraction = fraction(
    "pipeline_bubble_fraction",
    "Pipeline bubble",
    "lower",
    "Time in which a rank only waits for a neighbour or receives from it, over step time: "
    "|transfers - compute - collectives| / |window|, transfers being sends and receives; a part of "
    "exposed communication. Rings of context parallelism transfer too, and count.",
    _bubble,
)

memory_transfer_overhead = fraction(
    "memory_transfer_overhead",
    "Exposed copies",
    "lower",
    "Time in copies while neither compute nor communication runs, over step time: "
    "|copies - compute - comm| / |window|; fills are no copies.",
    _copies,
    differs="From Kineto the published metric never counts real copies (category gpu_memcpy) but "
    "does count kernels whose name says copy; its denominator is the span of kernels.",
)


_TRACES: Final[frozenset[Source]] = frozenset({"kineto", "xla", "nsys"})
_BYTES_PER_GB: Final = 1e9
_DIFFERS: Final = (
    "Theirs takes one rank's own durations, which include waiting for the others, divides by 2^30 "
    "bytes while saying GB, and on TPUs takes memory traffic for the payload."
)


@dataclass(frozen=True, slots=True)
class _Rate:
    """The bus bandwidth of all bytes of the kinds called by one word."""

    word: str
    kinds: tuple[CollectiveKind, ...]

    def __call__(self, evidence: Evidence) -> float | Absent:
        """GB/s."""
        table, matches = evidence.bandwidths, evidence.matches
        if table is None or matches is None:
            return Absent("nothing was profiled")
        chosen = np.isin(table.kind, self.kinds)
        if not chosen.any():
            return Absent(self._why_none(matches))
        whole = chosen & ~table.partial
        if whole.any():
            return _gb_per_s(table, whole)
        least = _gb_per_s(table, chosen)
        return Absent(
            f"no {self.word} is in the traces of all ranks of its group; as others may have come "
            f"later, those with a trace only show that it is at least {least:.4g} GB/s"
        )

    def _why_none(self, matches: Matches) -> str:
        calls = matches.calls.doing(*self.kinds)
        if not calls.any():
            return f"no {self.word} ran"
        if not matches.doing(*self.kinds).any():
            words = matches.unmatched_words(*self.kinds)
            return f"no {self.word} could be matched over the ranks ({words})"
        if not matches.calls.bytes[calls].any():
            return f"the traces do not say how large any {self.word} was"
        return f"the traces do not say how many ranks take part in any {self.word}, or how long"


def _gb_per_s(table: Bandwidths, chosen: NDArray[np.bool_]) -> float:
    """Bytes over the bus by the time that they took."""
    seconds = table.time_ns[chosen] / 1e9
    return float((table.bus_bytes_per_s[chosen] * seconds).sum() / seconds.sum()) / _BYTES_PER_GB


def _bandwidth(name: str, word: str, factor: str, differs: str, *kinds: CollectiveKind) -> Formula:
    return Formula(
        name=name,
        label=f"{word.capitalize()} bandwidth",
        unit="GB/s",
        better="higher",
        sources=_TRACES,
        description=(
            f"Sum of S {factor} over sum of t, over every {word} that all ranks of its group show: "
            "S bytes of the whole buffer, t its least duration over the ranks, factor as in "
            "nccl-tests."
        ),
        formula=_Rate(word, kinds),
        version=2,
        differs=differs,
    )


bw_allreduce = _bandwidth(
    "bw_allreduce", "all-reduce", "2 (n - 1) / n", _DIFFERS, CollectiveKind.ALL_REDUCE
)

bw_allgather = _bandwidth(
    "bw_allgather",
    "all-gather",
    "(n - 1) / n",
    f"{_DIFFERS} Its S is the part of one rank, which is n times too small.",
    CollectiveKind.ALL_GATHER,
)

bw_reducescatter = _bandwidth(
    "bw_reducescatter",
    "reduce-scatter",
    "(n - 1) / n",
    _DIFFERS,
    CollectiveKind.REDUCE_SCATTER,
)

bw_alltoall = _bandwidth(
    "bw_alltoall",
    "all-to-all",
    "(n - 1) / n",
    f"{_DIFFERS} It knows NCCL's send-receive kernels only.",
    CollectiveKind.ALL_TO_ALL,
)

bw_peertopeer = _bandwidth(
    "bw_peertopeer",
    "transfer",
    "1",
    "Theirs is the mean of the NVLink or PCIe utilisation samples that are not zero, for three "
    "models by name: how busy a link is while it is used, not how fast a transfer is.",
    *TRANSFERS,
)


_NO_STEP: Final = Absent("no marked step was profiled on every traced rank")


def _communication_volume(evidence: Evidence) -> float | Absent:
    found = evidence.volume
    if found is None:
        return _NO_STEP
    total = found.traced_ranks
    if total.bytes is None:
        return Absent(
            f"{total.untold_count} of {round(total.call_count * found.step_count)} collectives do "
            "not tell their size"
        )
    return total.bytes / len(found.by_rank)


def _collective_count(evidence: Evidence) -> float | Absent:
    found = evidence.volume
    return _NO_STEP if found is None else found.traced_ranks.call_count / len(found.by_rank)


communication_volume = Formula(
    name="communication_volume",
    label="Communication volume",
    unit="bytes",
    better="lower",
    sources=_TRACES,
    description=(
        "Bytes of the buffers that a rank hands to collectives and sends in a step, mean over "
        "traced ranks; S as in nccl-tests, of an all-gather the gathered buffer."
    ),
    formula=_communication_volume,
    differs="Their collective_vol_total_gb adds up all steps of the first rank, in 2^30 bytes.",
)

collective_count = Formula(
    name="collective_count",
    label="Collectives",
    unit="collectives",
    better="lower",
    sources=_TRACES,
    description="Collectives and sends of a rank in a step, mean over traced ranks.",
    formula=_collective_count,
)


def _straggler(evidence: Evidence) -> float | Absent:
    if evidence.traces is None or evidence.matches is None:
        return Absent("nothing was profiled")
    if len(evidence.traces.ranks) < 2:
        return Absent("one rank was traced, and who waits for whom takes two")
    found = stragglers(evidence.traces, evidence.matches)
    if found is None:
        return Absent(_why_none(evidence.matches))
    if found.partial_count == found.collective_count:
        return Absent(
            "no collective is in the traces of all ranks of its group, so that ranks may wait for "
            "one that left no trace"
        )
    return found.exposed_share


def _why_none(matches: Matches) -> str:
    if not matches.calls.doing(*SYNCHRONISING).any():
        return "no collective ran that all ranks of a group must attend"
    alone = "none is in the traces of two ranks, in steps that all of them show"
    words = matches.unmatched_words(*SYNCHRONISING) or alone
    return f"no collective could be matched over two ranks ({words})"


def _load_imbalance_ratio(evidence: Evidence) -> float | Absent:
    if evidence.traces is None:
        return Absent("nothing was profiled")
    if len(evidence.traces.ranks) < 2:
        return Absent("one rank was traced, and a comparison takes two")
    if evidence.split is None:
        return Absent("no step was profiled on every traced rank")
    found = imbalance(evidence.split)
    return Absent("a rank computes nothing") if found is None else found.max_over_min


straggler = Formula(
    name="straggler",
    label="Waiting for the straggler",
    unit="fraction",
    better="lower",
    sources=_TRACES,
    description=(
        "Share of their step time that the other ranks spend waiting inside collectives, with "
        "nothing to compute, for the rank they wait for most: the part of a collective beyond its "
        "least duration over ranks, where that is the straggler's. Which rank it is: cclsearch "
        "trace stragglers."
    ),
    formula=_straggler,
    differs=(
        "Theirs is (max - min) / max over ranks of summed communication time, in which a rank "
        "that makes others wait has the least; it names no rank."
    ),
)

load_imbalance_ratio = Formula(
    name="load_imbalance_ratio",
    label="Compute imbalance",
    unit="ratio",
    better="lower",
    sources=_TRACES,
    description=(
        "Most compute time of a rank over the least, over the steps that all traced ranks show: "
        "max |compute| / min |compute|. 1 is balanced; stages of a pipeline differ by design."
    ),
    formula=_load_imbalance_ratio,
    differs=(
        "Theirs counts communication as work, in which all wait for the slowest, so that it is "
        "near 1 whatever ranks compute; and it looks at the whole trace."
    ),
)


def _messages(evidence: Evidence) -> tuple[Message, ...] | Absent:
    if not evidence.step_times_s:
        return UNTIMED
    if evidence.workload is None or not evidence.workload.messages:
        return Absent("the workload is not one of messages alone")
    return evidence.workload.messages


def _bus_gb_per_s(evidence: Evidence) -> float | Absent:
    messages, ranks = _messages(evidence), job_rank_count(evidence)
    if isinstance(messages, Absent):
        return messages
    if isinstance(ranks, Absent):
        return ranks
    moved = sum(_bus_gb(message, ranks) * message.count for message in messages)
    return per_s(moved, median(evidence.step_times_s)) if moved else Absent("no link is used")


def _bus_gb(message: Message, rank_count: int) -> float:
    """What one call puts on each link, decimal GB; nothing for a barrier."""
    # Imported here: metrics are listed without what measures collectives.
    from evaluator.bench.record import bandwidth

    operation = Operation(
        collective=Collective(message.collective),
        size_bytes=message.size_bytes,
        dtype=DType(message.dtype),
    )
    # In a second, so that bytes per second are bytes; a send_recv goes there and back.
    moved = bandwidth(operation.collective, operation.message_bytes, rank_count, 1.0, "nccl-tests")
    ways = 2 if operation.collective is Collective.SEND_RECV else 1
    return 0.0 if moved is None else moved.bus_gbps * ways


def _latency_s(evidence: Evidence) -> float | Absent:
    messages = _messages(evidence)
    if isinstance(messages, Absent):
        return messages
    return median(evidence.step_times_s) / sum(message.count for message in messages)


bus_bandwidth = Formula(
    name="bus_bandwidth",
    label="Bus bandwidth",
    unit="GB/s",
    better="higher",
    sources=frozenset({"samples"}),
    description="What the messages of a step put on each link, S times the factor of nccl-tests "
    "for each call, over the median step time; S and the factors are those of the bw_ metrics, 1 "
    "for a broadcast, a reduce and each way of a send_recv.",
    formula=_bus_gb_per_s,
)

latency = Formula(
    name="latency",
    label="Latency",
    unit="s",
    better="lower",
    sources=frozenset({"samples"}),
    description="Median step time over the calls of a step, where a step only exchanges messages; "
    "however these are put together, cut or overlapped, the calls that were asked for count.",
    formula=_latency_s,
)
