"""CCL-Bench's published definitions.

Kernels as the published toolkit sees them: by name, whole, each counted for itself.

Part of `evaluator.metrics.compat`; the words that names are searched for are the toolkit's.

Bandwidth, stragglers and balance as the published toolkit sees them.

Part of `evaluator.metrics.compat`.

Steps and communication as the published toolkit sees them: in windows of the host.

Part of `evaluator.metrics.compat`; the words that names are searched for are the toolkit's.

The metrics of CCL-Bench's Table 3 as its published toolkit computes them, faults and all.

To compare with the published leaderboard, and to see what a difference comes from: the same
names, their units, and for each in `differs` what is wrong with it. Origin: the toolkit's code,
read at git 1d257f0, for Kineto traces, and for Nsight Systems where it has another way. Its order
of files, sampling of 16 ranks and failures to read are not imitated: where it gives -1, nan or an
error, the value is absent and the reason says so. Sizes of collectives come from our readers.

What says that traces are of another job than a card, in words.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from evaluator.accelerators import accelerator
from evaluator.metrics.base import Absent, Better, Evidence, Formula, Source
from evaluator.metrics.compute import flops_per_token
from evaluator.metrics.registry import Measures, measure_each
from evaluator.metrics.throughput import inner
from evaluator.traces.intervals import Intervals, Nanoseconds
from evaluator.traces.model import (
    Activity,
    CollectiveKind,
    Group,
    RankTrace,
    StepKind,
    StepWindows,
    TraceSet,
)
from records.errors import shown
from records.study import Environment
from records.workload import Workload

NO_KERNEL: Final = Absent("the published tool reads kernels of GPUs, and there are none")
XLA: Final = Absent("how the published tool reads XLA traces is not restated here")

COPIES: Final = re.compile(r"memcpy|memset|copy_kernel|copy\.|copy-start|copy-done|\bdma\b", re.I)
COLLECTIVE_WORDS: Final = (
    "allreduce|allgather|reducescatter|broadcast|cross[_-]?device|all_reduce|all_gather"
    "|reduce_scatter|sendrecv"
)
COLLECTIVES: Final = re.compile(f"nccl|{COLLECTIVE_WORDS}", re.I)
_MATRIX_PRODUCTS: Final = re.compile(r"gemm|cutlass|cublas|matmul|triton_mm", re.I)
_MEMORY_BOUND: Final = re.compile(
    r"softmax|layer_?norm|rms_?norm|batch_?norm|group_?norm|norm_kernel|elementwise|pointwise"
    r"|vectorized|unary|binary"
    r"|aten::(add|mul|div|sub|relu|gelu|silu|sigmoid|tanh|exp|neg|abs|clamp)"
    r"|reduce(?!scatter)|sum_kernel|mean_kernel",
    re.I,
)
_MIXTURE: Final = re.compile(
    r"moe|expert|routing|gating|gate_|topk|grouped_gemm|dispatch|combine", re.I
)
_MIXTURE_NSYS: Final = re.compile(
    r"moe|expert|routing|gating|\bgate\b|\btopk\b|dispatchkernel|combinekernel", re.I
)
LOW_COVERAGE, HIGH_COVERAGE, LONG_NS = 0.5, 0.7, 10_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kernels:
    """The kernels of one rank, collectives among them: columns of shape (kernels,)."""

    start_ns: Nanoseconds
    end_ns: Nanoseconds
    name_id: NDArray[np.int32]
    blocks_per_sm: NDArray[np.float32]
    names: tuple[str, ...]

    @classmethod
    def of(cls, trace: RankTrace) -> Self:
        """Copies and fills are no kernels."""
        spans = trace.spans
        rows = spans.doing(Activity.COMPUTE, Activity.COMMUNICATION)
        return cls(
            start_ns=spans.start_ns[rows],
            end_ns=spans.end_ns[rows],
            name_id=spans.name_id[rows],
            blocks_per_sm=spans.blocks_per_sm[rows],
            names=spans.names,
        )

    @property
    def duration_ns(self) -> Nanoseconds:
        """How long each took."""
        return self.end_ns - self.start_ns

    def named(self, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        """Which of them have the pattern in their name."""
        hits = np.array([bool(pattern.search(name)) for name in self.names], bool)
        return hits[self.name_id]

    def union(self, chosen: NDArray[np.bool_]) -> Intervals:
        """Time in which at least one of the chosen ran."""
        return Intervals.union(self.start_ns[chosen], self.end_ns[chosen])


def kernels(evidence: Evidence) -> tuple[Kernels, ...] | Absent:
    """The kernels of each rank that has any."""
    if evidence.traces is None:
        return Absent("nothing was profiled")
    if of_xla(evidence):
        return XLA
    ranks = [Kernels.of(trace) for trace in evidence.traces.ranks if trace.on_device]
    return tuple(rank for rank in ranks if rank.start_ns.size) or NO_KERNEL


def of_nsys(evidence: Evidence) -> bool:
    """Whether the traces are of Nsight Systems, which the toolkit reads in its own ways."""
    return evidence.traces is not None and evidence.traces.ranks[0].source == "nsys"


def of_xla(evidence: Evidence) -> bool:
    """Whether the traces are of XLA."""
    return evidence.traces is not None and evidence.traces.ranks[0].source == "xla"


def from_kernels(
    formula: Callable[[tuple[Kernels, ...]], float | Absent],
    in_nsys: Callable[[tuple[Kernels, ...]], float | Absent] | None = None,
) -> Callable[[Evidence], float | Absent]:
    """A metric of all kernels of all ranks; of Nsight Systems in another way if one is given."""

    def measured(evidence: Evidence) -> float | Absent:
        found = kernels(evidence)
        if isinstance(found, Absent):
            return found
        return (in_nsys if in_nsys and of_nsys(evidence) else formula)(found)

    return measured


def percent(part: float, whole: float) -> float | Absent:
    """A share in percent; the toolkit gives -1 where there is nothing to share."""
    return 100 * part / whole if whole else Absent("the published tool gives -1: nothing took time")


def share_of(
    chosen: Callable[[Kernels], NDArray[np.bool_]],
) -> Callable[[tuple[Kernels, ...]], float | Absent]:
    """Summed duration of the chosen kernels over that of all, in percent."""

    def formula(ranks: tuple[Kernels, ...]) -> float | Absent:
        part = sum(int(rank.duration_ns[chosen(rank)].sum()) for rank in ranks)
        return percent(part, sum(int(rank.duration_ns.sum()) for rank in ranks))

    return formula


def _bound_by_name(rank: Kernels) -> NDArray[np.bool_]:
    moved = rank.named(COPIES)
    counted = rank.named(_MEMORY_BOUND) & ~rank.named(_MATRIX_PRODUCTS)
    return (moved | counted) & ~rank.named(COLLECTIVES)


def _low_coverage(rank: Kernels) -> NDArray[np.bool_]:
    return np.less(rank.blocks_per_sm, LOW_COVERAGE)


def _high_coverage(rank: Kernels) -> NDArray[np.bool_]:
    long = rank.duration_ns > LONG_NS
    return np.greater(rank.blocks_per_sm, HIGH_COVERAGE) & long


def _with_blocks(
    formula: Callable[[tuple[Kernels, ...]], float | Absent],
) -> Callable[[tuple[Kernels, ...]], float | Absent]:
    def checked(ranks: tuple[Kernels, ...]) -> float | Absent:
        if not any(np.any(np.isfinite(rank.blocks_per_sm)) for rank in ranks):
            return Absent("the published tool gives -1: no kernel tells its blocks")
        return formula(ranks)

    return checked


def _weighted_coverage(ranks: tuple[Kernels, ...]) -> float | Absent:
    told = [np.isfinite(rank.blocks_per_sm) for rank in ranks]
    weighted, total = 0.0, 0
    for rank, rows in zip(ranks, told, strict=True):
        durations = rank.duration_ns[rows]
        weighted += float((np.minimum(rank.blocks_per_sm[rows], 1) * durations).sum())
        total += int(durations.sum())
    return percent(weighted, total)


def _plain_coverage(ranks: tuple[Kernels, ...]) -> float | Absent:
    told = np.concatenate([rank.blocks_per_sm for rank in ranks])
    return 100 * float(np.minimum(told[np.isfinite(told)], 1).mean())


def _dominant(ranks: tuple[Kernels, ...]) -> float | Absent:
    totals: dict[str, int] = {}
    for rank in ranks:
        sums = np.bincount(rank.name_id, rank.duration_ns, len(rank.names))
        for name, total in zip(rank.names, sums, strict=True):
            totals[name] = totals.get(name, 0) + int(total)
    return percent(max(totals.values()), sum(totals.values()))


def _only_nsys(_ranks: tuple[Kernels, ...]) -> Absent:
    return Absent("the published tool has it for Nsight Systems only, and refuses its name")


def memory_bandwidth(evidence: Evidence) -> float | Absent:
    """Bytes over summed durations of copies, and of fills unless in Nsight Systems, in GB/s."""
    if evidence.traces is None:
        return Absent("nothing was profiled")
    kinds = (Activity.COPY,) if of_nsys(evidence) else (Activity.COPY, Activity.FILL)
    moved, time_ns = 0, 0
    for spans in (trace.spans for trace in evidence.traces.ranks if trace.on_device):
        rows = spans.doing(*kinds) & (spans.bytes > 0) & (spans.end_ns > spans.start_ns)
        moved += int(spans.bytes[rows].sum())
        time_ns += int(spans.duration_ns[rows].sum())
    return moved / time_ns if time_ns else Absent("the published tool gives -1: no copy says bytes")


def transfer_overhead(evidence: Evidence) -> float | Absent:
    """Time in copies while nothing else runs over the time that the kernels span, in percent."""
    found = kernels(evidence)
    if isinstance(found, Absent) or evidence.traces is None:
        return found if isinstance(found, Absent) else NO_KERNEL
    pairs = _copies_of_nsys(evidence) if of_nsys(evidence) else map(_copy_kernels, found)
    alone_ns, whole_ns = 0, 0
    for copies, work, span_ns in pairs:
        if copies.total_ns:
            alone_ns += copies.subtract(work).total_ns
            whole_ns += span_ns
    if not whole_ns:
        return Absent("the published tool gives -1: no kernel is called a copy")
    return percent(alone_ns, whole_ns)


def _copy_kernels(rank: Kernels) -> tuple[Intervals, Intervals, int]:
    copies, communicates = rank.named(COPIES), rank.named(COLLECTIVES)
    span_ns = int(rank.end_ns.max() - rank.start_ns[0])
    return rank.union(copies), rank.union(~copies & ~communicates), span_ns


def _copies_of_nsys(evidence: Evidence) -> Iterator[tuple[Intervals, Intervals, int]]:
    """All devices as one, as the toolkit merges them."""
    traced = evidence.traces.ranks if evidence.traces else ()
    copies, work = Intervals.empty(), Intervals.empty()
    for trace in traced:
        copies = copies.unite(trace.covered(Activity.COPY))
        work = work.unite(trace.covered(Activity.COMPUTE, Activity.COMMUNICATION))
    both = copies.unite(work)
    yield copies, work, int(both.end_ns[-1] - both.start_ns[0]) if both.start_ns.size else 0


mean_sm_coverage = from_kernels(_with_blocks(_weighted_coverage), _with_blocks(_plain_coverage))
dominant_kernel_concentration = from_kernels(_dominant)
compute_bound_fraction = from_kernels(_only_nsys, _with_blocks(share_of(_high_coverage)))
memory_bound_fraction = from_kernels(
    share_of(_bound_by_name), _with_blocks(share_of(_low_coverage))
)
moe_fraction = from_kernels(
    share_of(lambda rank: rank.named(_MIXTURE)), share_of(lambda rank: rank.named(_MIXTURE_NSYS))
)


GIB: Final = 1 << 30
_NAMES: Final = {
    CollectiveKind.ALL_GATHER: "AllGather",
    CollectiveKind.ALL_REDUCE: "AllReduce",
    CollectiveKind.REDUCE_SCATTER: "ReduceScatter",
    CollectiveKind.ALL_TO_ALL: "SendRecv",
}


def bandwidth(kind: CollectiveKind) -> Callable[[Evidence], float | Absent]:
    """Median over the kernels of the first rank that has any, 2^30 bytes per second."""

    def formula(evidence: Evidence) -> float | Absent:
        found = kernels(evidence)
        if isinstance(found, Absent) or evidence.traces is None:
            return found if isinstance(found, Absent) else Absent("nothing was profiled")
        if of_nsys(evidence):
            return Absent("the published tool reads it from Kineto traces only")
        for trace in evidence.traces.ranks:
            rates = _rates(trace, kind)
            if rates.size:
                return float(np.median(rates))
        return Absent("the published tool gives nan: no such collective tells its size")

    return formula


def _rates(trace: RankTrace, kind: CollectiveKind) -> NDArray[np.float64]:
    """Bytes per second as the toolkit counts them, in 2^30: own duration, own input."""
    table, spans = trace.collectives, trace.spans
    sizes = np.array([_size(group) for group in table.groups] or [0])[table.group_id]
    duration_ns = spans.duration_ns[table.span]
    rows = (table.kind == kind) & (table.bytes > 0) & (sizes > 0) & (duration_ns > 0)
    if kind != CollectiveKind.ALL_REDUCE:
        rows &= _named(spans.names, _NAMES[kind])[spans.name_id[table.span]]
    size = sizes[rows]
    # The input of an all-gather is one rank's part of what it gives.
    sent = table.bytes[rows] / (size if kind == CollectiveKind.ALL_GATHER else 1)
    factor = (size - 1) / size * (2 if kind == CollectiveKind.ALL_REDUCE else 1)
    return np.asarray(sent * factor / GIB / (duration_ns[rows] / 1e9), np.float64)


def _size(group: Group) -> int:
    return group.size or len(group.ranks or ())


def _named(names: tuple[str, ...], collective: str) -> NDArray[np.bool_]:
    starts = (f"ncclDevKernel_{collective}", f"ncclKernel_{collective}")
    return np.array([name.startswith(starts) for name in names], bool)


def straggler(evidence: Evidence) -> float | Absent:
    """How much less the rank with the least NCCL time has than the one with the most, 0 to 1."""
    found = kernels(evidence)
    if isinstance(found, Absent):
        return found
    if of_nsys(evidence):
        return Absent("the published tool reads it from Kineto traces only")
    totals = [
        int(rank.duration_ns[_dev_kernels(rank)].sum())
        for rank in found
        if _dev_kernels(rank).any()
    ]
    if len(totals) <= 1:
        return Absent("the published tool gives 0: fewer than two ranks have ncclDevKernel kernels")
    return (max(totals) - min(totals)) / max(totals)


def _dev_kernels(rank: Kernels) -> NDArray[np.bool_]:
    starts = np.array([name.startswith("ncclDevKernel_") for name in rank.names], bool)
    return starts[rank.name_id]


def load_imbalance_ratio(evidence: Evidence) -> float | Absent:
    """Most over least time in which any kernel ran, communication too, over ranks."""
    found = kernels(evidence)
    if isinstance(found, Absent):
        return found
    busy_ns = [rank.union(np.full(rank.start_ns.size, True)).total_ns for rank in found]
    if len(busy_ns) <= 1 or not min(busy_ns):
        return Absent("the published tool gives -1: fewer than two ranks ran kernels")
    return max(busy_ns) / min(busy_ns)


def peer_to_peer(_evidence: Evidence) -> Absent:
    """Mean of the NVLink counters, which no reader of ours keeps."""
    return Absent("the published tool averages NVLink counters of three named models")


PEAK_TFLOPS: Final = {"nvidia_a100": 312.0, "nvidia_h100": 989.0, "tpu_v6e": 918.0}
NO_STEP: Final = Absent("the published tool gives -1: the host marked no step")
_IN_FRACTION: Final = re.compile(f"nccl|{COLLECTIVE_WORDS}|send|recv|p2p|communicate", re.I)
_IN_TIME: Final = re.compile(f"^nccl|ncclDevKernel|ncclKernel|{COLLECTIVE_WORDS}", re.I)
_IN_OVERLAP: Final = re.compile(
    r"nccl|all[_-]?reduce|all[_-]?gather|reduce[_-]?scatter|all[_-]?to[_-]?all|broadcast"
    r"|cross[_-]?device|sendrecv|collective",
    re.I,
)


def avg_step_time(evidence: Evidence) -> float | Absent:
    """Mean over ranks of the mean inner step of the host, seconds."""
    if of_xla(evidence):
        return XLA
    means = [fmean(inner(steps).duration_ns) for steps in _host_steps(evidence) if steps.count]
    return fmean(means) / 1e9 if means else NO_STEP


def mfu(evidence: Evidence) -> float | Absent:
    """Model FLOP of a step by its host time, over the peak of the card's devices, percent."""
    work, machine = evidence.workload, evidence.environment
    if work is None or machine is None:
        return Absent("the published tool needs the card of the workload")
    peak = PEAK_TFLOPS.get(machine.accelerator.lower())
    if peak is None:
        known = ", ".join(PEAK_TFLOPS)
        return Absent(f"the published tool knows no {machine.accelerator!r}, only {known}")
    per_token, seconds = flops_per_token(work), avg_step_time(evidence)
    if isinstance(per_token, Absent):
        return per_token
    if isinstance(seconds, Absent):
        return seconds
    flops = per_token * work.global_batch * work.sequence_length
    return percent(flops, peak * 1e12 * machine.world_size * seconds)


def ttft(evidence: Evidence) -> float | Absent:
    """Mean over ranks of the first step of the engine, seconds."""
    if of_xla(evidence):
        return XLA
    first = [float(steps.duration_ns[0]) for steps in _engine_steps(evidence)]
    return fmean(first) / 1e9 if first else Absent("the published tool finds no engine steps")


def tpot(evidence: Evidence) -> float | Absent:
    """Mean over ranks of the mean step of the engine but the first and last, seconds."""
    if of_xla(evidence):
        return XLA
    rest = [steps.duration_ns[1:-1] for steps in _engine_steps(evidence)]
    means = [fmean(durations) for durations in rest if durations.size]
    return fmean(means) / 1e9 if means else Absent("the published tool finds too few engine steps")


def communication_fraction(evidence: Evidence) -> float | Absent:
    """Summed durations of communication over those of all kernels that touch a step, percent."""
    found = kernels(evidence)
    if isinstance(found, Absent):
        return found
    if of_nsys(evidence):
        return share_of(lambda rank: rank.named(_IN_FRACTION))(found)
    shares = [
        share
        for trace, rank in _with_kernels(evidence)
        if (share := _mean_share(rank, trace.host_steps)) is not None
    ]
    return fmean(shares) if shares else Absent("the published tool gives -1: no kernel in a step")


def total_communication_time(evidence: Evidence) -> float | Absent:
    """Time in communication, hidden or not, per inner step of the host, mean over ranks, s."""
    found = kernels(evidence)
    if isinstance(found, Absent):
        return found
    if of_nsys(evidence):
        return sum(int(rank.duration_ns[rank.named(_IN_TIME)].sum()) for rank in found) / 1e9
    means = []
    for trace, rank in _with_kernels(evidence):
        communication, steps = rank.union(rank.named(_IN_TIME)), inner(trace.host_steps)
        if steps.count < trace.host_steps.count:
            communication = communication.clip(int(steps.start_ns[0]), int(steps.end_ns[-1]))
        means.append(communication.total_ns / max(steps.count, 1))
    return fmean(means) / 1e9


def compute_comm_overlap(evidence: Evidence) -> float | Absent:
    """Share of communication beside other kernels in the host's inner steps, percent."""
    found = kernels(evidence)
    if isinstance(found, Absent):
        return found
    if of_nsys(evidence):
        pairs = [_hidden(rank, None) for rank in found]
        hidden, whole = (sum(column) for column in zip(*pairs, strict=True))
        return percent(hidden, whole)
    pairs = [_hidden(rank, trace.host_steps) for trace, rank in _with_kernels(evidence)]
    ratios = [100 * hidden / whole for hidden, whole in pairs if whole]
    return fmean(ratios) if ratios else Absent("the published tool gives -1: none in a step")


def _host_steps(evidence: Evidence) -> list[StepWindows]:
    return [trace.host_steps for trace in evidence.traces.ranks] if evidence.traces else []


def _engine_steps(evidence: Evidence) -> list[StepWindows]:
    return [steps for steps in _host_steps(evidence) if steps.of_a_server]


def _with_kernels(evidence: Evidence) -> list[tuple[RankTrace, Kernels]]:
    traced = evidence.traces.ranks if evidence.traces else ()
    pairs = [(trace, Kernels.of(trace)) for trace in traced if trace.on_device]
    return [(trace, rank) for trace, rank in pairs if rank.start_ns.size]


def _mean_share(rank: Kernels, steps: StepWindows) -> float | None:
    """Mean over inner steps; of the whole trace where there is no step."""
    communicates, duration_ns = rank.named(_IN_FRACTION), rank.duration_ns
    if not steps.count:
        return 100 * float(duration_ns[communicates].sum() / max(duration_ns.sum(), 1))
    shares = []
    for start_ns, end_ns in zip(inner(steps).start_ns, inner(steps).end_ns, strict=True):
        touching = (rank.end_ns > start_ns) & (rank.start_ns < end_ns)
        if whole := int(duration_ns[touching].sum()):
            shares.append(100 * int(duration_ns[touching & communicates].sum()) / whole)
    return fmean(shares) if shares else None


def _hidden(rank: Kernels, steps: StepWindows | None) -> tuple[int, int]:
    """Communication beside other kernels and all of it, ns, within inner steps or anywhere."""
    communicates = rank.named(_IN_OVERLAP)
    communication, work = rank.union(communicates), rank.union(~communicates)
    if steps is not None:
        kept = Intervals.union(inner(steps).start_ns, inner(steps).end_ns)
        communication = communication.intersect(kept)
    return communication.intersect(work).total_ns, communication.total_ns


TRACES: Final[frozenset[Source]] = frozenset({"kineto", "nsys"})


def compat_measures(evidence: Evidence) -> Measures:
    """Every metric of Table 3 as published: its value in its unit, or why it gives none."""
    return measure_each(CCL_BENCH, evidence)


def _published(
    name: str,
    label: str,
    unit: str,
    better: Better,
    formula: Callable[[Evidence], float | Absent],
    description: str,
    wrong: str,
) -> Formula:
    return Formula(
        name=name,
        label=label,
        unit=unit,
        better=better,
        sources=TRACES,
        description=description,
        formula=formula,
        differs=wrong,
    )


def _bandwidth(
    name: str, label: str, kind: CollectiveKind, description: str, wrong: str
) -> Formula:
    waits = "Its duration includes the wait for late ranks, only one rank counts, and GiB are "
    return _published(
        name,
        label,
        "GiB/s",
        "higher",
        bandwidth(kind),
        f"Median over the kernels of the first rank of {description} over its own duration.",
        f"{wrong}{waits}called GB.",
    )


CCL_BENCH: Final = (
    _published(
        "avg_step_time",
        "Step time",
        "s",
        "lower",
        avg_step_time,
        "Mean over ranks of the mean host step, without the first and last where above two.",
        "A job is as slow as its slowest rank, not as the mean of them.",
    ),
    _published(
        "mfu",
        "Model FLOPs utilization",
        "%",
        "higher",
        mfu,
        "FLOP of the card's model and batch over host step time, peak and the card's devices.",
        "It knows three devices, counts those of the card and not those that ran, and in "
        "inference leaves out the answers' tokens but not their time.",
    ),
    _published(
        "ttft",
        "Time to first token",
        "s",
        "lower",
        ttft,
        "First step of the engine, mean over ranks.",
        "It is a step and no request; its patterns miss the steps of newer servers, which our "
        "readers find.",
    ),
    _published(
        "tpot",
        "Time per output token",
        "s",
        "lower",
        tpot,
        "Mean of the engine's steps but the first and last, mean over ranks.",
        "Later prefills count as decoding, and the time between steps does not count at all.",
    ),
    _published(
        "mean_sm_coverage",
        "Multiprocessor coverage",
        "%",
        "higher",
        mean_sm_coverage,
        "Blocks per multiprocessor, at most 1, over kernels weighted by their duration.",
        "From Nsight Systems it is not weighted, so that thousands of tiny kernels outvote the "
        "long ones; collectives, which need few blocks, count as poor coverage.",
    ),
    _published(
        "dominant_kernel_concentration",
        "Dominant kernel",
        "%",
        "lower",
        dominant_kernel_concentration,
        "Share of the kernel name with the most summed time.",
        "A collective that waits for a late rank is counted as its heaviest kernel.",
    ),
    _published(
        "compute_bound_fraction",
        "Compute bound",
        "%",
        "higher",
        compute_bound_fraction,
        "Share of kernel time with coverage above 70 % and more than 10 us long.",
        "Its dispatcher does not know the name, and many blocks say nothing of the bound.",
    ),
    _published(
        "memory_bound_fraction",
        "Memory bound",
        "%",
        "lower",
        memory_bound_fraction,
        "Share of kernel time by names (elementwise, norm, softmax, reduction, copy); from Nsight "
        "Systems that with coverage below 50 %.",
        "These are two quantities under one name, and in the second a collective that waits is "
        "bound by memory.",
    ),
    _published(
        "moe_fraction",
        "Mixture of experts",
        "%",
        "lower",
        moe_fraction,
        "Share of kernel time by names (moe, expert, gate, topk, dispatch, combine, ...).",
        "Samplers, sorting libraries and the dispatch of a dense model carry these words too.",
    ),
    _published(
        "average_memory_bandwidth",
        "Copy bandwidth",
        "GB/s",
        "higher",
        memory_bandwidth,
        "Bytes over summed durations of copies and fills.",
        "Copies within a device and fills, many times faster, are mixed with those over the bus.",
    ),
    _published(
        "memory_transfer_overhead",
        "Exposed copies",
        "%",
        "lower",
        transfer_overhead,
        "Time in kernels called copies while no other runs, over the time that kernels span.",
        "Real copies are no kernels in these traces and are never counted, conversions of number "
        "formats are; from Nsight Systems all devices are merged into one.",
    ),
    _published(
        "communication_fraction",
        "Communication share",
        "%",
        "lower",
        communication_fraction,
        "Summed durations of communication over those of all kernels that touch an inner step.",
        "Kernels at the same time count twice, those at a boundary count whole in both steps, and "
        "elementwise kernels that broadcast count as communication.",
    ),
    _published(
        "total_communication_time",
        "Communication time",
        "s",
        "lower",
        total_communication_time,
        "Time with communication under way per inner host step, mean over ranks.",
        "What computation hides is not subtracted, against its description; from Nsight Systems "
        "it is the sum over all devices and the whole trace.",
    ),
    _published(
        "compute_comm_overlap",
        "Overlap",
        "%",
        "higher",
        compute_comm_overlap,
        "Share of communication beside other kernels within inner host steps, mean over ranks.",
        "Kernels run after the host's step has ended, so its windows cut off what they should "
        "hold, and ranks that do not communicate are dropped.",
    ),
    _published(
        "load_imbalance_ratio",
        "Imbalance",
        "ratio",
        "lower",
        load_imbalance_ratio,
        "Most over least time in which any kernel ran, over ranks.",
        "Ranks that wait in a collective count as active, so it stays near 1 however late one is.",
    ),
    _published(
        "straggler",
        "Spread of NCCL time",
        "ratio",
        "lower",
        straggler,
        "Spread of the ranks' summed NCCL time over the largest.",
        "It names no rank, and the late rank is the one with the least: the others wait for it.",
    ),
    _bandwidth(
        "bw_allgather",
        "All-gather bandwidth",
        CollectiveKind.ALL_GATHER,
        "the input of an all-gather times (n - 1) / n",
        "The input is one rank's part, so it is n times too low. ",
    ),
    _bandwidth(
        "bw_allreduce",
        "All-reduce bandwidth",
        CollectiveKind.ALL_REDUCE,
        "the input of an all-reduce times 2 (n - 1) / n",
        "",
    ),
    _bandwidth(
        "bw_reducescatter",
        "Reduce-scatter bandwidth",
        CollectiveKind.REDUCE_SCATTER,
        "the input of a reduce-scatter times (n - 1) / n",
        "",
    ),
    _bandwidth(
        "bw_alltoall",
        "All-to-all bandwidth",
        CollectiveKind.ALL_TO_ALL,
        "the input of an all-to-all times (n - 1) / n",
        "Sends and receives that make up an all-to-all without its name are lost. ",
    ),
    _published(
        "bw_peertopeer",
        "Link utilization",
        "%",
        "higher",
        peer_to_peer,
        "Mean of the NVLink transmit counters that are not zero.",
        "It is a utilization and no bandwidth, and works for three models by name.",
    ),
)


MEMORY_TOLERANCE = 0.15
"""A device shows less memory than is on it, and makers count in other units."""


def mismatches(
    traces: TraceSet, workload: Workload | None, environment: Environment | None
) -> tuple[str, ...]:
    """Each a clause such as `the traces are of 8 ranks, the card is of 4`; empty if all agrees.

    None of them is certain: a card may count the whole machine, and names have many spellings.
    """
    found: list[str] = []
    if environment is not None:
        found += _of_environment(traces, environment)
    if workload is not None:
        found += _of_workload(traces, workload)
    return tuple(found)


def _of_environment(traces: TraceSet, environment: Environment) -> Iterator[str]:
    size = traces.world_size
    if size is not None and size != environment.world_size:
        yield f"the traces are of {size} ranks, the card is of {environment.world_size}"
    on_device = {trace.on_device for trace in traces.ranks}
    if on_device == {True} and environment.device == "cpu":
        yield "the traces are of accelerators, the card is of CPUs"
    if on_device == {False} and environment.device != "cpu":
        yield f"the traces show no work of an accelerator, the card is of {environment.accelerator}"
    told = dict.fromkeys(trace.device for trace in traces.ranks if trace.device is not None)
    asked = accelerator(environment.accelerator)
    for device in told:
        ran = accelerator(device.name)
        if ran is not None and asked is not None and ran is not asked:
            yield f"the traces are of {shown(device.name)}, the card of {environment.accelerator}"
        elif _differ(device.memory_bytes, environment.memory_bytes):
            yield (
                f"the traced device has {_gb(device.memory_bytes)} GB of memory, that of the card "
                f"{_gb(environment.memory_bytes)} GB"
            )


def _of_workload(traces: TraceSet, workload: Workload) -> Iterator[str]:
    kinds = np.concatenate([trace.steps.kind for trace in traces.ranks])
    serves = bool(np.any(kinds != StepKind.PLAIN))
    if serves and workload.phase == "training":
        yield "the traces show a server's prefill and decode steps, the card is of training"


def _differ(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and abs(one - other) > MEMORY_TOLERANCE * other


def _gb(count: int | None) -> str:
    return f"{(count or 0) / 1e9:.0f}"
