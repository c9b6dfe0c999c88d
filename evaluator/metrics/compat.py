"""The metrics of CCL-Bench's Table 3 as its published toolkit computes them, faults and all.

To compare with the published leaderboard, and to see what a difference comes from: the same names,
their units, and for each in `differs` what is wrong with it. Origin: the toolkit's code, read at
git 1d257f0, for Kineto traces, and for Nsight Systems where it has another way. Its order of files,
sampling of 16 ranks and failures to read are not imitated: where it gives -1, nan or an error, the
value is absent and the reason says so. Sizes of collectives come from our readers.
"""

from collections.abc import Callable
from typing import Final

from evaluator.metrics import compat_collectives, compat_kernels, compat_steps
from evaluator.metrics.base import Absent, Better, Evidence, Formula, Source
from evaluator.metrics.registry import Measures, measure_each
from evaluator.traces.collectives import CollectiveKind

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
        compat_collectives.bandwidth(kind),
        f"Median over the kernels of the first rank of {description} over its own duration.",
        f"{wrong}{waits}called GB.",
    )


CCL_BENCH: Final = (
    _published(
        "avg_step_time",
        "Step time",
        "s",
        "lower",
        compat_steps.avg_step_time,
        "Mean over ranks of the mean host step, without the first and last where above two.",
        "A job is as slow as its slowest rank, not as the mean of them.",
    ),
    _published(
        "mfu",
        "Model FLOPs utilization",
        "%",
        "higher",
        compat_steps.mfu,
        "FLOP of the card's model and batch over host step time, peak and the card's devices.",
        "It knows three devices, counts those of the card and not those that ran, and in "
        "inference leaves out the answers' tokens but not their time.",
    ),
    _published(
        "ttft",
        "Time to first token",
        "s",
        "lower",
        compat_steps.ttft,
        "First step of the engine, mean over ranks.",
        "It is a step and no request; its patterns miss the steps of newer servers, which our "
        "readers find.",
    ),
    _published(
        "tpot",
        "Time per output token",
        "s",
        "lower",
        compat_steps.tpot,
        "Mean of the engine's steps but the first and last, mean over ranks.",
        "Later prefills count as decoding, and the time between steps does not count at all.",
    ),
    _published(
        "mean_sm_coverage",
        "Multiprocessor coverage",
        "%",
        "higher",
        compat_kernels.mean_sm_coverage,
        "Blocks per multiprocessor, at most 1, over kernels weighted by their duration.",
        "From Nsight Systems it is not weighted, so that thousands of tiny kernels outvote the "
        "long ones; collectives, which need few blocks, count as poor coverage.",
    ),
    _published(
        "dominant_kernel_concentration",
        "Dominant kernel",
        "%",
        "lower",
        compat_kernels.dominant_kernel_concentration,
        "Share of the kernel name with the most summed time.",
        "A collective that waits for a late rank is counted as its heaviest kernel.",
    ),
    _published(
        "compute_bound_fraction",
        "Compute bound",
        "%",
        "higher",
        compat_kernels.compute_bound_fraction,
        "Share of kernel time with coverage above 70 % and more than 10 us long.",
        "Its dispatcher does not know the name, and many blocks say nothing of the bound.",
    ),
    _published(
        "memory_bound_fraction",
        "Memory bound",
        "%",
        "lower",
        compat_kernels.memory_bound_fraction,
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
        compat_kernels.moe_fraction,
        "Share of kernel time by names (moe, expert, gate, topk, dispatch, combine, ...).",
        "Samplers, sorting libraries and the dispatch of a dense model carry these words too.",
    ),
    _published(
        "average_memory_bandwidth",
        "Copy bandwidth",
        "GB/s",
        "higher",
        compat_kernels.memory_bandwidth,
        "Bytes over summed durations of copies and fills.",
        "Copies within a device and fills, many times faster, are mixed with those over the bus.",
    ),
    _published(
        "memory_transfer_overhead",
        "Exposed copies",
        "%",
        "lower",
        compat_kernels.transfer_overhead,
        "Time in kernels called copies while no other runs, over the time that kernels span.",
        "Real copies are no kernels in these traces and are never counted, conversions of number "
        "formats are; from Nsight Systems all devices are merged into one.",
    ),
    _published(
        "communication_fraction",
        "Communication share",
        "%",
        "lower",
        compat_steps.communication_fraction,
        "Summed durations of communication over those of all kernels that touch an inner step.",
        "Kernels at the same time count twice, those at a boundary count whole in both steps, and "
        "elementwise kernels that broadcast count as communication.",
    ),
    _published(
        "total_communication_time",
        "Communication time",
        "s",
        "lower",
        compat_steps.total_communication_time,
        "Time with communication under way per inner host step, mean over ranks.",
        "What computation hides is not subtracted, against its description; from Nsight Systems "
        "it is the sum over all devices and the whole trace.",
    ),
    _published(
        "compute_comm_overlap",
        "Overlap",
        "%",
        "higher",
        compat_steps.compute_comm_overlap,
        "Share of communication beside other kernels within inner host steps, mean over ranks.",
        "Kernels run after the host's step has ended, so its windows cut off what they should "
        "hold, and ranks that do not communicate are dropped.",
    ),
    _published(
        "load_imbalance_ratio",
        "Imbalance",
        "ratio",
        "lower",
        compat_collectives.load_imbalance_ratio,
        "Most over least time in which any kernel ran, over ranks.",
        "Ranks that wait in a collective count as active, so it stays near 1 however late one is.",
    ),
    _published(
        "straggler",
        "Spread of NCCL time",
        "ratio",
        "lower",
        compat_collectives.straggler,
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
        compat_collectives.peer_to_peer,
        "Mean of the NVLink transmit counters that are not zero.",
        "It is a utilization and no bandwidth, and works for three models by name.",
    ),
)
