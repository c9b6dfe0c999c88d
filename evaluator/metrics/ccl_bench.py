"""CCL-Bench's Table 3 as its published toolkit computes it, faults included.

For comparison with the published leaderboard, and to see where a difference comes from: the same
names and units, and in `differs` what is wrong with each. Origin: the toolkit's code, read at git
1d257f0, for Kineto traces, and for Nsight Systems where it has another way. The words that kernel
names are searched for are the toolkit's. Its order of files, sampling of 16 ranks and failures to
read are not imitated: where it gives -1, nan or an error, the value is absent and the reason says
so. Sizes of collectives come from our readers.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evaluator.metrics.base import Absent, Better, Evidence, Formula, Source
from evaluator.metrics.compute import flops_per_token
from evaluator.metrics.throughput import inner
from evaluator.traces.intervals import Intervals, Nanoseconds
from evaluator.traces.model import (
    Activity,
    CollectiveKind,
    RankGroup,
    RankTrace,
    StepWindows,
)

NO_KERNEL: Final = Absent("the published tool reads kernels of GPUs, and there are none")
KINETO_ONLY: Final = Absent("the published tool reads it from Kineto traces only")
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

TRACES: Final[frozenset[Source]] = frozenset({"kineto", "nsys"})


def _published(
    name: str, label: str, unit: str, better: Better
) -> Callable[[Callable[[Evidence], float | Absent]], Formula]:
    """Make a metric of a function, whose docstring says what it is and then what is wrong."""

    def metric(formula: Callable[[Evidence], float | Absent]) -> Formula:
        description, _, differs = (formula.__doc__ or "").partition("\n\n")
        return Formula(
            name=name,
            label=label,
            unit=unit,
            better=better,
            sources=TRACES,
            description=" ".join(description.split()),
            formula=formula,
            differs=" ".join(differs.split()),
        )

    return metric


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


KernelFormula: TypeAlias = Callable[[tuple[Kernels, ...]], float | Absent]


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


def _from_kernels(
    evidence: Evidence, formula: KernelFormula, in_nsys: KernelFormula | None = None
) -> float | Absent:
    """Apply a formula to all kernels of all ranks; for Nsight Systems another one if given."""
    found = kernels(evidence)
    if isinstance(found, Absent):
        return found
    return (in_nsys if in_nsys and of_nsys(evidence) else formula)(found)


def percent(part: float, whole: float) -> float | Absent:
    """A share in percent; the toolkit gives -1 where there is nothing to share."""
    return 100 * part / whole if whole else Absent("the published tool gives -1: nothing took time")


def share_of(chosen: Callable[[Kernels], NDArray[np.bool_]]) -> KernelFormula:
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


def _with_blocks(formula: KernelFormula) -> KernelFormula:
    def checked(ranks: tuple[Kernels, ...]) -> float | Absent:
        if not any(np.any(np.isfinite(rank.blocks_per_sm)) for rank in ranks):
            return Absent("the published tool gives -1: no kernel says its blocks")
        return formula(ranks)

    return checked


def _weighted_coverage(ranks: tuple[Kernels, ...]) -> float | Absent:
    known = [np.isfinite(rank.blocks_per_sm) for rank in ranks]
    weighted, total = 0.0, 0
    for rank, rows in zip(ranks, known, strict=True):
        durations = rank.duration_ns[rows]
        weighted += float((np.minimum(rank.blocks_per_sm[rows], 1) * durations).sum())
        total += int(durations.sum())
    return percent(weighted, total)


def _plain_coverage(ranks: tuple[Kernels, ...]) -> float | Absent:
    coverage = np.concatenate([rank.blocks_per_sm for rank in ranks])
    return 100 * float(np.minimum(coverage[np.isfinite(coverage)], 1).mean())


def _dominant(ranks: tuple[Kernels, ...]) -> float | Absent:
    totals: dict[str, int] = {}
    for rank in ranks:
        sums = np.bincount(rank.name_id, rank.duration_ns, len(rank.names))
        for name, total in zip(rank.names, sums, strict=True):
            totals[name] = totals.get(name, 0) + int(total)
    return percent(max(totals.values()), sum(totals.values()))


@_published("average_memory_bandwidth", "Copy bandwidth", "GB/s", "higher")
def average_memory_bandwidth(evidence: Evidence) -> float | Absent:
    """Bytes over summed durations of copies and fills.

    Copies within a device and fills, many times faster, are mixed with those over the bus.
    """
    if evidence.traces is None:
        return Absent("nothing was profiled")
    kinds = (Activity.COPY,) if of_nsys(evidence) else (Activity.COPY, Activity.FILL)
    moved, time_ns = 0, 0
    for spans in (trace.spans for trace in evidence.traces.ranks if trace.on_device):
        rows = spans.doing(*kinds) & (spans.bytes > 0) & (spans.end_ns > spans.start_ns)
        moved += int(spans.bytes[rows].sum())
        time_ns += int(spans.duration_ns[rows].sum())
    return moved / time_ns if time_ns else Absent("the published tool gives -1: no copy says bytes")


@_published("memory_transfer_overhead", "Exposed copies", "%", "lower")
def memory_transfer_overhead(evidence: Evidence) -> float | Absent:
    """Time in kernels called copies while no other runs, over the time that kernels span.

    Real copies are no kernels in these traces and are never counted, conversions of number formats
    are; from Nsight Systems all devices are merged into one.
    """
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


@_published("mean_sm_coverage", "Multiprocessor coverage", "%", "higher")
def mean_sm_coverage(evidence: Evidence) -> float | Absent:
    """Blocks per multiprocessor, at most 1, over kernels weighted by their duration.

    From Nsight Systems it is not weighted, so that thousands of tiny kernels outvote the long ones;
    collectives, which need few blocks, count as poor coverage.
    """
    return _from_kernels(evidence, _with_blocks(_weighted_coverage), _with_blocks(_plain_coverage))


@_published("dominant_kernel_concentration", "Dominant kernel", "%", "lower")
def dominant_kernel_concentration(evidence: Evidence) -> float | Absent:
    """Share of the kernel name with the most summed time.

    A collective that waits for a late rank is counted as its heaviest kernel.
    """
    return _from_kernels(evidence, _dominant)


@_published("compute_bound_fraction", "Compute bound", "%", "higher")
def compute_bound_fraction(evidence: Evidence) -> float | Absent:
    """Share of kernel time with coverage above 70 % and more than 10 us long.

    Its dispatcher does not know the name, and many blocks say nothing of the bound.
    """
    if not of_nsys(evidence):
        found = kernels(evidence)
        refused = Absent("the published tool has it for Nsight Systems only, and refuses its name")
        return found if isinstance(found, Absent) else refused
    return _from_kernels(evidence, _with_blocks(share_of(_high_coverage)))


@_published("memory_bound_fraction", "Memory bound", "%", "lower")
def memory_bound_fraction(evidence: Evidence) -> float | Absent:
    """Share of kernel time by names (elementwise, norm, softmax, reduction, copy); from Nsight
    Systems that with coverage below 50 %.

    These are two quantities under one name, and in the second a collective that waits is bound by
    memory.
    """  # noqa: D205 - one sentence, shown whole
    return _from_kernels(evidence, share_of(_bound_by_name), _with_blocks(share_of(_low_coverage)))


@_published("moe_fraction", "Mixture of experts", "%", "lower")
def moe_fraction(evidence: Evidence) -> float | Absent:
    """Share of kernel time by names (moe, expert, gate, topk, dispatch, combine, ...).

    Samplers, sorting libraries and the dispatch of a dense model carry these words too.
    """
    return _from_kernels(
        evidence,
        share_of(lambda rank: rank.named(_MIXTURE)),
        share_of(lambda rank: rank.named(_MIXTURE_NSYS)),
    )


GIB: Final = 1 << 30
_NAMES: Final = {
    CollectiveKind.ALL_GATHER: "AllGather",
    CollectiveKind.ALL_REDUCE: "AllReduce",
    CollectiveKind.REDUCE_SCATTER: "ReduceScatter",
    CollectiveKind.ALL_TO_ALL: "SendRecv",
}


def _bandwidth(name: str, label: str, kind: CollectiveKind, sent: str, wrong: str) -> Formula:
    """Make the metric of one kind: median over the first rank that has any, 2^30 bytes a second."""

    def formula(evidence: Evidence) -> float | Absent:
        found = kernels(evidence)
        if isinstance(found, Absent) or evidence.traces is None:
            return found if isinstance(found, Absent) else Absent("nothing was profiled")
        if of_nsys(evidence):
            return KINETO_ONLY
        for trace in evidence.traces.ranks:
            rates = _rates(trace, kind)
            if rates.size:
                return float(np.median(rates))
        return Absent("the published tool gives nan: no such collective says its size")

    formula.__doc__ = (
        f"Median over the kernels of the first rank of {sent} over its own duration.\n\n"
        f"{wrong}Its duration includes the wait for late ranks, only one rank counts, and GiB are "
        "called GB."
    )
    return _published(name, label, "GiB/s", "higher")(formula)


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


def _size(group: RankGroup) -> int:
    return group.size or len(group.ranks or ())


def _named(names: tuple[str, ...], collective: str) -> NDArray[np.bool_]:
    starts = (f"ncclDevKernel_{collective}", f"ncclKernel_{collective}")
    return np.array([name.startswith(starts) for name in names], bool)


bw_allgather = _bandwidth(
    "bw_allgather",
    "All-gather bandwidth",
    CollectiveKind.ALL_GATHER,
    "the input of an all-gather times (n - 1) / n",
    "The input is one rank's part, so it is n times too low. ",
)
bw_allreduce = _bandwidth(
    "bw_allreduce",
    "All-reduce bandwidth",
    CollectiveKind.ALL_REDUCE,
    "the input of an all-reduce times 2 (n - 1) / n",
    "",
)
bw_reducescatter = _bandwidth(
    "bw_reducescatter",
    "Reduce-scatter bandwidth",
    CollectiveKind.REDUCE_SCATTER,
    "the input of a reduce-scatter times (n - 1) / n",
    "",
)
bw_alltoall = _bandwidth(
    "bw_alltoall",
    "All-to-all bandwidth",
    CollectiveKind.ALL_TO_ALL,
    "the input of an all-to-all times (n - 1) / n",
    "Sends and receives that make up an all-to-all without its name are lost. ",
)


@_published("straggler", "Spread of NCCL time", "ratio", "lower")
def straggler(evidence: Evidence) -> float | Absent:
    """Spread of the ranks' summed NCCL time over the largest.

    It names no rank, and the late rank is the one with the least: the others wait for it.
    """
    found = kernels(evidence)
    if isinstance(found, Absent):
        return found
    if of_nsys(evidence):
        return KINETO_ONLY
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


@_published("load_imbalance_ratio", "Imbalance", "ratio", "lower")
def load_imbalance_ratio(evidence: Evidence) -> float | Absent:
    """Most over least time in which any kernel ran, over ranks.

    Ranks that wait in a collective count as active, so it stays near 1 however late one is.
    """
    found = kernels(evidence)
    if isinstance(found, Absent):
        return found
    busy_ns = [rank.union(np.full(rank.start_ns.size, True)).total_ns for rank in found]
    if len(busy_ns) <= 1 or not min(busy_ns):
        return Absent("the published tool gives -1: fewer than two ranks ran kernels")
    return max(busy_ns) / min(busy_ns)


@_published("bw_peertopeer", "Link utilization", "%", "higher")
def bw_peertopeer(_evidence: Evidence) -> Absent:
    """Mean of the NVLink transmit counters that are not zero.

    It is a utilization and no bandwidth, and works for three models by name.
    """
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


@_published("avg_step_time", "Step time", "s", "lower")
def avg_step_time(evidence: Evidence) -> float | Absent:
    """Mean over ranks of the mean host step, without the first and last where above two.

    A job is as slow as its slowest rank, not as the mean of them.
    """
    if of_xla(evidence):
        return XLA
    means = [fmean(inner(steps).duration_ns) for steps in _host_steps(evidence) if steps.count]
    return fmean(means) / 1e9 if means else NO_STEP


@_published("mfu", "Model FLOPs utilization", "%", "higher")
def mfu(evidence: Evidence) -> float | Absent:
    """FLOP of the card's model and batch over host step time, peak and the card's devices.

    It knows three devices, counts those of the card and not those that ran, and in inference leaves
    out the answers' tokens but not their time.
    """
    work, machine = evidence.workload, evidence.environment
    if work is None or machine is None:
        return Absent("the published tool needs the card of the workload")
    peak = PEAK_TFLOPS.get(machine.accelerator.lower())
    if peak is None:
        known = ", ".join(PEAK_TFLOPS)
        return Absent(f"the published tool knows no {machine.accelerator!r}, only {known}")
    per_token, seconds = flops_per_token(work), avg_step_time.measure(evidence)
    if isinstance(per_token, Absent):
        return per_token
    if isinstance(seconds, Absent):
        return seconds
    flops = per_token * work.global_batch * work.sequence_length
    return percent(flops, peak * 1e12 * machine.world_size * seconds)


@_published("ttft", "Time to first token", "s", "lower")
def ttft(evidence: Evidence) -> float | Absent:
    """First step of the engine, mean over ranks.

    It is a step and no request; its patterns miss the steps of newer servers, which our readers
    find.
    """
    if of_xla(evidence):
        return XLA
    first = [float(steps.duration_ns[0]) for steps in _engine_steps(evidence)]
    return fmean(first) / 1e9 if first else Absent("the published tool finds no engine steps")


@_published("tpot", "Time per output token", "s", "lower")
def tpot(evidence: Evidence) -> float | Absent:
    """Mean of the engine's steps but the first and last, mean over ranks.

    Later prefills count as decoding, and the time between steps does not count at all.
    """
    if of_xla(evidence):
        return XLA
    rest = [steps.duration_ns[1:-1] for steps in _engine_steps(evidence)]
    means = [fmean(durations) for durations in rest if durations.size]
    return fmean(means) / 1e9 if means else Absent("the published tool finds too few engine steps")


@_published("communication_fraction", "Communication share", "%", "lower")
def communication_fraction(evidence: Evidence) -> float | Absent:
    """Summed durations of communication over those of all kernels that touch an inner step.

    Kernels at the same time count twice, those at a boundary count whole in both steps, and
    elementwise kernels that broadcast count as communication.
    """
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


@_published("total_communication_time", "Communication time", "s", "lower")
def total_communication_time(evidence: Evidence) -> float | Absent:
    """Time with communication under way per inner host step, mean over ranks.

    What computation hides is not subtracted, against its description; from Nsight Systems it is the
    sum over all devices and the whole trace.
    """
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


@_published("compute_comm_overlap", "Overlap", "%", "higher")
def compute_comm_overlap(evidence: Evidence) -> float | Absent:
    """Share of communication beside other kernels within inner host steps, mean over ranks.

    Kernels run after the host's step has ended, so its windows cut off what they should hold, and
    ranks that do not communicate are dropped.
    """
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


CCL_BENCH: Final = (
    *(avg_step_time, mfu, ttft, tpot, mean_sm_coverage, dominant_kernel_concentration),
    *(compute_bound_fraction, memory_bound_fraction, moe_fraction, average_memory_bandwidth),
    *(memory_transfer_overhead, communication_fraction, total_communication_time),
    *(compute_comm_overlap, load_imbalance_ratio, straggler, bw_allgather, bw_allreduce),
    *(bw_reducescatter, bw_alltoall, bw_peertopeer),
)
