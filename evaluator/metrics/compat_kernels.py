"""Kernels as the published toolkit sees them: by name, whole, each counted for itself.

Part of `evaluator.metrics.compat`; the words that names are searched for are the toolkit's.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from evaluator.intervals import Intervals, Nanoseconds
from evaluator.metrics.base import Absent, Evidence
from evaluator.traces.rank import RankTrace
from evaluator.traces.spans import Activity

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
