"""CCL-Bench's Table 3 as its published toolkit computes it, faults included, as a metrics file.

    cclsearch metrics compute TRACES --metrics-file benchmarks/ccl_bench_metrics.py

Its names begin with `published_`. For comparison with the published leaderboard, and to see where
a difference comes from: the same names and units, and in `differs` what is wrong with each.
Origin: the toolkit's code, read at git 1d257f0, for Kineto traces, and for Nsight Systems where it
has another way. The words that kernel names are searched for are the toolkit's. Its order of
files, sampling of 16 ranks and failures to read are not imitated: where it gives -1, nan or an
error, the value is absent and the reason says so. Sizes of collectives come from our readers.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from statistics import fmean
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evaluator.metrics.base import (
    KERNEL_TRACES,
    UNTRACED,
    Absent,
    Better,
    Evidence,
    Formula,
    metric_of,
)
from evaluator.metrics.compute import flops_per_token
from evaluator.metrics.throughput import inner
from evaluator.traces.intervals import Intervals
from evaluator.traces.model import Activity, CollectiveKind, RankTrace, Spans, StepWindows

PREFIX: Final = "published_"
NO_KERNEL: Final = Absent("the published tool reads kernels of GPUs, and there are none")
NO_STEP: Final = Absent("the published tool gives -1: the host marked no step")
NO_BLOCKS: Final = Absent("the published tool gives -1: no kernel says its blocks")
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

PEAK_TFLOPS: Final = {"nvidia_a100": 312.0, "nvidia_h100": 989.0, "tpu_v6e": 918.0}
_IN_FRACTION: Final = re.compile(f"nccl|{COLLECTIVE_WORDS}|send|recv|p2p|communicate", re.I)
_IN_TIME: Final = re.compile(f"^nccl|ncclDevKernel|ncclKernel|{COLLECTIVE_WORDS}", re.I)
_DEV_KERNELS: Final = re.compile("^ncclDevKernel_")
_IN_OVERLAP: Final = re.compile(
    r"nccl|all[_-]?reduce|all[_-]?gather|reduce[_-]?scatter|all[_-]?to[_-]?all|broadcast"
    r"|cross[_-]?device|sendrecv|collective",
    re.I,
)


@dataclass(frozen=True, slots=True)
class RankKernels:
    """The kernels of one rank, collectives among them; copies and fills are no kernels."""

    steps: StepWindows
    spans: Spans

    @property
    def total_ns(self) -> int:
        """Their durations added up."""
        return int(self.spans.duration_ns.sum())

    def named(self, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        """Which of them have the pattern in their name."""
        hits = np.array([bool(pattern.search(name)) for name in self.spans.names], bool)
        return hits[self.spans.name_id]

    def sum_ns(self, chosen: NDArray[np.bool_]) -> int:
        """Durations of the chosen ones added up."""
        return int(self.spans.duration_ns[chosen].sum())


Ranks: TypeAlias = tuple[RankKernels, ...]
Choice: TypeAlias = Callable[[RankKernels], NDArray[np.bool_]]


def _published(
    label: str, unit: str, better: Better
) -> Callable[[Callable[[Evidence], float | Absent]], Formula]:
    def metric(formula: Callable[[Evidence], float | Absent]) -> Formula:
        made = metric_of(label, unit, better, KERNEL_TRACES)(formula)
        return replace(made, name=f"{PREFIX}{made.name}")

    return metric


def _of_kernels(
    label: str, unit: str, better: Better
) -> Callable[[Callable[[Evidence, Ranks], float | Absent]], Formula]:
    """Make a metric of a function that is given the kernels of each rank that has any."""

    def metric(formula: Callable[[Evidence, Ranks], float | Absent]) -> Formula:
        @wraps(formula)
        def checked(evidence: Evidence) -> float | Absent:
            found = _kernels(evidence)
            return found if isinstance(found, Absent) else formula(evidence, found)

        return _published(label, unit, better)(checked)

    return metric


def _kernels(evidence: Evidence) -> Ranks | Absent:
    if evidence.traces is None:
        return UNTRACED
    if _source(evidence) == "xla":
        return XLA
    on_device = (trace for trace in evidence.traces.ranks if trace.on_device)
    ranks = (RankKernels(trace.host_steps, _kernel_spans(trace)) for trace in on_device)
    return tuple(rank for rank in ranks if rank.spans.count) or NO_KERNEL


def _kernel_spans(trace: RankTrace) -> Spans:
    return trace.spans.select(trace.spans.doing(Activity.COMPUTE, Activity.COMMUNICATION))


def _source(evidence: Evidence) -> str | None:
    """The format of the traces; the toolkit reads some in its own ways."""
    return evidence.traces.ranks[0].source if evidence.traces else None


def _percent(part: float, whole: float) -> float | Absent:
    """A share in percent; the toolkit gives -1 where there is nothing to share."""
    return 100 * part / whole if whole else Absent("the published tool gives -1: nothing took time")


def _share(ranks: Ranks, chosen: Choice) -> float | Absent:
    """Summed duration of the chosen kernels over that of all, in percent."""
    part = sum(rank.sum_ns(chosen(rank)) for rank in ranks)
    return _percent(part, sum(rank.total_ns for rank in ranks))


def _share_named(ranks: Ranks, pattern: re.Pattern[str]) -> float | Absent:
    return _share(ranks, lambda rank: rank.named(pattern))


def _say_blocks(ranks: Ranks) -> bool:
    return any(np.any(np.isfinite(rank.spans.blocks_per_sm)) for rank in ranks)


@_published("Copy bandwidth", "GB/s", "higher")
def average_memory_bandwidth(evidence: Evidence) -> float | Absent:
    """Bytes over summed durations of copies and fills.

    Copies within a device and fills, many times faster, are mixed with those over the bus.
    """
    if evidence.traces is None:
        return UNTRACED
    nsys = _source(evidence) == "nsys"
    kinds = (Activity.COPY,) if nsys else (Activity.COPY, Activity.FILL)
    moved, time_ns = 0, 0
    for spans in (trace.spans for trace in evidence.traces.ranks if trace.on_device):
        rows = spans.doing(*kinds) & (spans.bytes > 0) & (spans.end_ns > spans.start_ns)
        moved += int(spans.bytes[rows].sum())
        time_ns += int(spans.duration_ns[rows].sum())
    return moved / time_ns if time_ns else Absent("the published tool gives -1: no copy says bytes")


@_of_kernels("Exposed copies", "%", "lower")
def memory_transfer_overhead(evidence: Evidence, ranks: Ranks) -> float | Absent:
    """Time in kernels called copies while no other runs, over the time that kernels span.

    Real copies are no kernels in these traces and are never counted, conversions of number formats
    are; from Nsight Systems all devices are merged into one.
    """
    nsys = _source(evidence) == "nsys"
    parts = [_copies_of_nsys(evidence)] if nsys else [_copies_of_kineto(rank) for rank in ranks]
    alone_ns, whole_ns = 0, 0
    for copies, work, span_ns in parts:
        if copies.total_ns:
            alone_ns += copies.subtract(work).total_ns
            whole_ns += span_ns
    if not whole_ns:
        return Absent("the published tool gives -1: no kernel is called a copy")
    return _percent(alone_ns, whole_ns)


def _copies_of_kineto(rank: RankKernels) -> tuple[Intervals, Intervals, int]:
    copies, spans = rank.named(COPIES), rank.spans
    work = ~copies & ~rank.named(COLLECTIVES)
    return spans.union(copies), spans.union(work), int(spans.end_ns.max() - spans.start_ns[0])


def _copies_of_nsys(evidence: Evidence) -> tuple[Intervals, Intervals, int]:
    """All devices as one, as the toolkit merges them."""
    copies, work = Intervals.empty(), Intervals.empty()
    for trace in evidence.traces.ranks if evidence.traces else ():
        copies = copies.unite(trace.covered(Activity.COPY))
        work = work.unite(trace.covered(Activity.COMPUTE, Activity.COMMUNICATION))
    both = copies.unite(work)
    return copies, work, int(both.end_ns[-1] - both.start_ns[0]) if both.start_ns.size else 0


@_of_kernels("Multiprocessor coverage", "%", "higher")
def mean_sm_coverage(evidence: Evidence, ranks: Ranks) -> float | Absent:
    """Blocks per multiprocessor, at most 1, over kernels weighted by their duration.

    From Nsight Systems it is not weighted, so that thousands of tiny kernels outvote the long ones;
    collectives, which need few blocks, count as poor coverage.
    """
    if not _say_blocks(ranks):
        return NO_BLOCKS
    spans = [rank.spans.select(np.isfinite(rank.spans.blocks_per_sm)) for rank in ranks]
    covered = [np.minimum(own.blocks_per_sm, 1) for own in spans]
    if _source(evidence) == "nsys":
        return 100 * float(np.concatenate(covered).mean())
    pairs = list(zip(covered, (own.duration_ns for own in spans), strict=True))
    weighted = sum(float((share * lasting_ns).sum()) for share, lasting_ns in pairs)
    return _percent(weighted, sum(int(lasting_ns.sum()) for _, lasting_ns in pairs))


@_of_kernels("Dominant kernel", "%", "lower")
def dominant_kernel_concentration(_: Evidence, ranks: Ranks) -> float | Absent:
    """Share of the kernel name with the most summed time.

    A collective that waits for a late rank is counted as its heaviest kernel.
    """
    totals = Counter[str]()
    for spans in (rank.spans for rank in ranks):
        sums = np.bincount(spans.name_id, spans.duration_ns, len(spans.names))
        for name, total in zip(spans.names, sums, strict=True):
            totals[name] += int(total)
    return _percent(max(totals.values()), totals.total())


@_of_kernels("Compute bound", "%", "higher")
def compute_bound_fraction(evidence: Evidence, ranks: Ranks) -> float | Absent:
    """Share of kernel time with coverage above 70 % and more than 10 us long.

    Its dispatcher does not know the name, and many blocks say nothing of the bound.
    """
    if _source(evidence) != "nsys":
        return Absent("the published tool has it for Nsight Systems only, and refuses its name")
    return _share(ranks, _covers_much) if _say_blocks(ranks) else NO_BLOCKS


def _covers_much(rank: RankKernels) -> NDArray[np.bool_]:
    long = rank.spans.duration_ns > LONG_NS
    return np.greater(rank.spans.blocks_per_sm, HIGH_COVERAGE) & long


@_of_kernels("Memory bound", "%", "lower")
def memory_bound_fraction(evidence: Evidence, ranks: Ranks) -> float | Absent:
    """Share of kernel time by names (softmax, norm, copy); of Nsight that with coverage below 50 %.

    These are two quantities under one name, and in the second a collective that waits is bound by
    memory.
    """
    if _source(evidence) != "nsys":
        return _share(ranks, _bound_by_name)
    return _share(ranks, _covers_little) if _say_blocks(ranks) else NO_BLOCKS


def _covers_little(rank: RankKernels) -> NDArray[np.bool_]:
    return np.less(rank.spans.blocks_per_sm, LOW_COVERAGE)


def _bound_by_name(rank: RankKernels) -> NDArray[np.bool_]:
    counted = rank.named(_MEMORY_BOUND) & ~rank.named(_MATRIX_PRODUCTS)
    return (rank.named(COPIES) | counted) & ~rank.named(COLLECTIVES)


@_of_kernels("Mixture of experts", "%", "lower")
def moe_fraction(evidence: Evidence, ranks: Ranks) -> float | Absent:
    """Share of kernel time by names (moe, expert, gate, topk, dispatch, combine, ...).

    Samplers, sorting libraries and the dispatch of a dense model carry these words too.
    """
    nsys = _source(evidence) == "nsys"
    return _share_named(ranks, _MIXTURE_NSYS if nsys else _MIXTURE)


GIB: Final = 1 << 30
_NCCL_NAMES: Final = {
    CollectiveKind.ALL_GATHER: "AllGather",
    CollectiveKind.REDUCE_SCATTER: "ReduceScatter",
    CollectiveKind.ALL_TO_ALL: "SendRecv",
}
"""By which the toolkit finds kernels of a kind; all-reduces it takes by their arguments."""


def _bandwidth(name: str, kind: CollectiveKind, factor: str, wrong: str = "") -> Formula:
    """Make the metric of one kind: median over the first rank that has any, 2^30 bytes a second."""

    def formula(evidence: Evidence) -> float | Absent:
        found = _kernels(evidence)
        if isinstance(found, Absent) or evidence.traces is None:
            return found if isinstance(found, Absent) else UNTRACED
        if _source(evidence) == "nsys":
            return KINETO_ONLY
        for trace in evidence.traces.ranks:
            rates = _rates(trace, kind)
            if rates.size:
                return float(np.median(rates))
        return Absent("the published tool gives nan: no such collective says its size")

    what = kind.name.lower().replace("_", "-")
    article = "a" if kind is CollectiveKind.REDUCE_SCATTER else "an"
    return Formula(
        name=f"{PREFIX}{name}",
        label=f"{what.capitalize()} bandwidth",
        unit="GiB/s",
        better="higher",
        sources=KERNEL_TRACES,
        description=f"Median over the kernels of the first rank of the input of {article} {what} "
        f"times {factor} over its own duration.",
        formula=formula,
        differs=f"{wrong}Its duration includes the wait for late ranks, only one rank counts, and "
        "GiB are called GB.",
    )


def _rates(trace: RankTrace, kind: CollectiveKind) -> NDArray[np.float64]:
    """Bytes per second as the toolkit counts them, in 2^30: own duration, own input."""
    table, spans = trace.collectives, trace.spans
    known = [group.size or len(group.ranks or ()) for group in table.groups]
    sizes = np.array(known or [0])[table.group_id]
    duration_ns = spans.duration_ns[table.span]
    rows = (table.kind == kind) & (table.bytes > 0) & (sizes > 0) & (duration_ns > 0)
    if name := _NCCL_NAMES.get(kind):
        starts = (f"ncclDevKernel_{name}", f"ncclKernel_{name}")
        named = np.array([each.startswith(starts) for each in spans.names], bool)
        rows &= named[spans.name_id[table.span]]
    size = sizes[rows]
    # The input of an all-gather is one rank's part of what it gives.
    sent = table.bytes[rows] / (size if kind == CollectiveKind.ALL_GATHER else 1)
    factor = (size - 1) / size * (2 if kind == CollectiveKind.ALL_REDUCE else 1)
    return np.asarray(sent * factor / GIB / (duration_ns[rows] / 1e9), np.float64)


_SHARE, _TOO_LOW, _LOST = (
    "(n - 1) / n",
    "The input is one rank's part, so it is n times too low. ",
    "Sends and receives that make up an all-to-all without its name are lost. ",
)
bw_allreduce = _bandwidth("bw_allreduce", CollectiveKind.ALL_REDUCE, f"2 {_SHARE}")
bw_allgather = _bandwidth("bw_allgather", CollectiveKind.ALL_GATHER, _SHARE, _TOO_LOW)
bw_reducescatter = _bandwidth("bw_reducescatter", CollectiveKind.REDUCE_SCATTER, _SHARE)
bw_alltoall = _bandwidth("bw_alltoall", CollectiveKind.ALL_TO_ALL, _SHARE, _LOST)


@_of_kernels("Spread of NCCL time", "ratio", "lower")
def straggler(evidence: Evidence, ranks: Ranks) -> float | Absent:
    """Spread of the ranks' summed NCCL time over the largest.

    It names no rank, and the late rank is the one with the least: the others wait for it.
    """
    if _source(evidence) == "nsys":
        return KINETO_ONLY
    chosen = [(rank, rank.named(_DEV_KERNELS)) for rank in ranks]
    totals = [rank.sum_ns(rows) for rank, rows in chosen if rows.any()]
    if len(totals) <= 1:
        return Absent("the published tool gives 0: fewer than two ranks have ncclDevKernel kernels")
    return (max(totals) - min(totals)) / max(totals)


@_of_kernels("Imbalance", "ratio", "lower")
def load_imbalance_ratio(_: Evidence, ranks: Ranks) -> float | Absent:
    """Most over least time in which any kernel ran, over ranks.

    Ranks that wait in a collective count as active, so it stays near 1 however late one is.
    """
    busy_ns = [rank.spans.union(np.full(rank.spans.count, True)).total_ns for rank in ranks]
    if len(busy_ns) <= 1 or not min(busy_ns):
        return Absent("the published tool gives -1: fewer than two ranks ran kernels")
    return max(busy_ns) / min(busy_ns)


@_published("Link utilization", "%", "higher")
def bw_peertopeer(_: Evidence) -> float | Absent:
    """Mean of the NVLink transmit counters that are not zero.

    It is a utilization and no bandwidth, and works for three models by name.
    """
    return Absent("the published tool averages NVLink counters of three named models")


@_published("Step time", "s", "lower")
def avg_step_time(evidence: Evidence) -> float | Absent:
    """Mean over ranks of the mean host step, without the first and last where above two.

    A job is as slow as its slowest rank, not as the mean of them.
    """
    if _source(evidence) == "xla":
        return XLA
    means = [fmean(inner(steps).duration_ns) for steps in _host_steps(evidence) if steps.count]
    return fmean(means) / 1e9 if means else NO_STEP


@_published("Model FLOPs utilization", "%", "higher")
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
    return _percent(flops, peak * 1e12 * machine.world_size * seconds)


@_published("Time to first token", "s", "lower")
def ttft(evidence: Evidence) -> float | Absent:
    """First step of the engine, mean over ranks.

    It is a step and no request; its patterns miss the steps of newer servers, which our readers
    find.
    """
    if _source(evidence) == "xla":
        return XLA
    first = [float(steps.duration_ns[0]) for steps in _engine_steps(evidence)]
    return fmean(first) / 1e9 if first else Absent("the published tool finds no engine steps")


@_published("Time per output token", "s", "lower")
def tpot(evidence: Evidence) -> float | Absent:
    """Mean of the engine's steps but the first and last, mean over ranks.

    Later prefills count as decoding, and the time between steps does not count at all.
    """
    if _source(evidence) == "xla":
        return XLA
    rest = [steps.duration_ns[1:-1] for steps in _engine_steps(evidence)]
    means = [fmean(durations) for durations in rest if durations.size]
    return fmean(means) / 1e9 if means else Absent("the published tool finds too few engine steps")


def _host_steps(evidence: Evidence) -> list[StepWindows]:
    return [trace.host_steps for trace in evidence.traces.ranks] if evidence.traces else []


def _engine_steps(evidence: Evidence) -> list[StepWindows]:
    return [steps for steps in _host_steps(evidence) if steps.of_a_server]


@_of_kernels("Communication share", "%", "lower")
def communication_fraction(evidence: Evidence, ranks: Ranks) -> float | Absent:
    """Summed durations of communication over those of all kernels that touch an inner step.

    Kernels at the same time count twice, those at a boundary count whole in both steps, and
    elementwise kernels that broadcast count as communication.
    """
    if _source(evidence) == "nsys":
        return _share_named(ranks, _IN_FRACTION)
    shares = [share for share in map(_mean_share, ranks) if share is not None]
    return fmean(shares) if shares else Absent("the published tool gives -1: no kernel in a step")


def _mean_share(rank: RankKernels) -> float | None:
    """Mean over inner steps; of the whole trace where there is no step."""
    spans, communicates, steps = rank.spans, rank.named(_IN_FRACTION), inner(rank.steps)
    if not steps.count:
        return 100 * rank.sum_ns(communicates) / max(rank.total_ns, 1)
    shares = []
    for start_ns, end_ns in zip(steps.start_ns, steps.end_ns, strict=True):
        touching = (spans.end_ns > start_ns) & (spans.start_ns < end_ns)
        if whole := rank.sum_ns(touching):
            shares.append(100 * rank.sum_ns(touching & communicates) / whole)
    return fmean(shares) if shares else None


@_of_kernels("Communication time", "s", "lower")
def total_communication_time(evidence: Evidence, ranks: Ranks) -> float | Absent:
    """Time with communication under way per inner host step, mean over ranks.

    What computation hides is not subtracted, against its description; from Nsight Systems it is the
    sum over all devices and the whole trace.
    """
    if _source(evidence) == "nsys":
        return sum(rank.sum_ns(rank.named(_IN_TIME)) for rank in ranks) / 1e9
    means = []
    for rank in ranks:
        communication, steps = rank.spans.union(rank.named(_IN_TIME)), inner(rank.steps)
        if steps.count < rank.steps.count:
            communication = communication.clip(int(steps.start_ns[0]), int(steps.end_ns[-1]))
        means.append(communication.total_ns / max(steps.count, 1))
    return fmean(means) / 1e9


@_of_kernels("Overlap", "%", "higher")
def compute_comm_overlap(evidence: Evidence, ranks: Ranks) -> float | Absent:
    """Share of communication beside other kernels within inner host steps, mean over ranks.

    Kernels run after the host's step has ended, so its windows cut off what they should hold, and
    ranks that do not communicate are dropped.
    """
    nsys = _source(evidence) == "nsys"
    pairs = [_hidden_ns(rank, in_steps=not nsys) for rank in ranks]
    if nsys:
        hidden, whole = (sum(column) for column in zip(*pairs, strict=True))
        return _percent(hidden, whole)
    ratios = [100 * hidden / whole for hidden, whole in pairs if whole]
    return fmean(ratios) if ratios else Absent("the published tool gives -1: none in a step")


def _hidden_ns(rank: RankKernels, *, in_steps: bool) -> tuple[int, int]:
    """Communication that other kernels hide and all of it, within inner steps or anywhere."""
    communicates, steps = rank.named(_IN_OVERLAP), inner(rank.steps)
    communication, work = rank.spans.union(communicates), rank.spans.union(~communicates)
    if in_steps:
        communication = communication.intersect(Intervals.union(steps.start_ns, steps.end_ns))
    return communication.intersect(work).total_ns, communication.total_ns
