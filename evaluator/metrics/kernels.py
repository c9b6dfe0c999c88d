"""What kernels do with a device, from their durations, launch geometry, bytes and names.

Each share is a ratio of sums of durations over all kernels of all traced ranks, in marked steps
or not. Origin: Table 3 of CCL-Bench.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Final

from evaluator.analysis.kernels import Coverage, KernelRow, KernelTables
from evaluator.metrics.base import Absent, Evidence, Formula, Source
from evaluator.metrics.communication import UNTRACED, fraction
from evaluator.traces.spans import Activity

KERNELS: Final[frozenset[Source]] = frozenset({"kineto", "nsys"})
DEVICES: Final[frozenset[Source]] = frozenset({"kineto", "xla", "nsys"})
ON_HOST: Final = Absent("the work ran on the host, where operators are no kernels")
NO_KERNEL: Final = Absent("no kernel ran")

_MIXTURE: Final = re.compile(
    r"moe|expert|grouped_?(?:gemm|mm)|group_?gemm|matmul_ogs|deep_?ep", re.IGNORECASE
)
"""No bare topk, gate, dispatch or combine: samplers and sorting libraries use these words too."""

_HOST_DEVICE: Final = re.compile(
    r"H(?:ost)?[ _-]?(?:to|2|->)[ _-]?D|D(?:evice)?[ _-]?(?:to|2|->)[ _-]?H", re.IGNORECASE
)


def _from_kernels(
    formula: Callable[[KernelTables], float | Absent],
) -> Callable[[Evidence], float | Absent]:
    def checked(evidence: Evidence) -> float | Absent:
        if evidence.traces is None or evidence.kernels is None:
            return UNTRACED
        if not any(trace.on_device for trace in evidence.traces.ranks):
            return ON_HOST
        return formula(evidence.kernels)

    return checked


def _from_coverage(
    part: Callable[[Coverage], float | None],
) -> Callable[[Evidence], float | Absent]:
    def formula(evidence: Evidence) -> float | Absent:
        if evidence.traces is None:
            return UNTRACED
        if not any(trace.on_device for trace in evidence.traces.ranks):
            return ON_HOST
        if evidence.coverage is None:
            return Absent("no trace tells how many blocks its kernels have")
        share = part(evidence.coverage)
        return Absent("no kernel that computes tells its blocks") if share is None else share

    return formula


def _dominant(tables: KernelTables) -> float | Absent:
    table = tables.job
    return table.kernels[0].total_s / table.kernel_s if table.kernel_s else NO_KERNEL


def _mixture(tables: KernelTables) -> float | Absent:
    table = tables.job
    if not table.kernel_s:
        return NO_KERNEL
    return sum(row.total_s for row in table.kernels if _MIXTURE.search(row.name)) / table.kernel_s


def _copy_bandwidth(tables: KernelTables) -> float | Absent:
    copies = [row for row in tables.job.rows if between_host_and_device(row)]
    if not copies:
        return Absent("nothing was copied between host and device")
    lasting_s = sum(row.bytes_s for row in copies)
    if not lasting_s:
        return Absent("no copy between host and device tells its bytes")
    return sum(row.bytes for row in copies) / lasting_s / 1e9


def between_host_and_device(row: KernelRow) -> bool:
    """Whether spans of this name copy from the host to a device or back."""
    return row.activity is Activity.COPY and _HOST_DEVICE.search(row.name) is not None


_fraction = partial(fraction, sources=KERNELS)

dominant_kernel_concentration = _fraction(
    "dominant_kernel_concentration",
    "Dominant kernel",
    "lower",
    "Share of the kernel of most time in the time of all kernels, by full name: "
    "max over names of sum(duration) / sum(duration); communication is among them.",
    _from_kernels(_dominant),
    sources=DEVICES,
    differs="From Nsight Systems the published metric goes by short names, which merge instances "
    "of a template; from XLA it tells the category of most time, not the operation.",
)

mean_sm_coverage = _fraction(
    "mean_sm_coverage",
    "Multiprocessor coverage",
    "higher",
    "Blocks of a kernel per multiprocessor, 1 at most, weighted by duration: "
    "sum(min(blocks / multiprocessors, 1) * duration) / sum(duration). Launch geometry, not "
    "occupancy.",
    _from_coverage(lambda coverage: coverage.mean),
    differs="From Nsight Systems the published metric is not weighted by duration.",
)

compute_bound_fraction = _fraction(
    "compute_bound_fraction",
    "Compute bound",
    "higher",
    "Share of compute kernels with a coverage above 70 % that last more than 10 us in the time of "
    "all compute kernels; kernels that communicate are left out.",
    _from_coverage(lambda coverage: coverage.compute_bound),
    differs="The published toolkit names the metric and does not register it; its code counts "
    "kernels that communicate in the whole.",
)

memory_bound_fraction = _fraction(
    "memory_bound_fraction",
    "Memory bound",
    "lower",
    "Share of compute kernels with a coverage below 50 % in the time of all compute kernels; "
    "kernels that communicate are left out, as they occupy few multiprocessors by design.",
    _from_coverage(lambda coverage: coverage.memory_bound),
    differs="The published metric goes by coverage from Nsight Systems only, where communication "
    "counts as bound by memory; from Kineto it sums classes of kernel names instead.",
)

moe_fraction = _fraction(
    "moe_fraction",
    "Mixture of experts",
    "lower",
    "Share of kernels of mixtures of experts in the time of all kernels, by words in their names: "
    "moe, expert, grouped_gemm or groupgemm, grouped_mm, matmul_ogs, deep_ep. Kernels whose names "
    "do not tell are missed.",
    _from_kernels(_mixture),
    sources=DEVICES,
    differs="The published metric also takes bare topk, gate_, dispatch and combine, so that "
    "samplers, sorts and reductions of dense models count.",
)

average_memory_bandwidth = Formula(
    name="average_memory_bandwidth",
    label="Copy bandwidth",
    unit="GB/s",
    better="higher",
    sources=KERNELS,
    description="Bytes over durations of the copies between host and device, both ways: "
    "sum(bytes) / sum(duration), 1e9 bytes a GB. Fills and copies within or between devices are "
    "left out; `trace kernels` has each direction.",
    formula=_from_kernels(_copy_bandwidth),
    differs="The published metric mixes copies of every direction, fills, and kernels with copy "
    "in their names.",
)
