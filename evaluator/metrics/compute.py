"""Metrics of computing: model FLOPs and their utilization, kernels, launches from the host.

Model FLOPs follow Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways" (2022),
appendix B: per token of training 6 N + 12 L H Q S, with N the parameters that a token meets, L
layers, H heads of size Q and sequences of S tokens; a forward pass alone is a third of it. What
activation checkpointing repeats does not count, and the upper half of attention does, though it may
be skipped. N excludes the table of embeddings, which is read and not multiplied, and includes only
those routed experts that one token is sent to, as in the published toolkit. Utilization is these
operations, not those carried out, over step time and the peak of all ranks' devices.

Each share of kernels is a ratio of sums of durations over all kernels of all traced ranks, in
marked steps or not. Origin: Table 3 of CCL-Bench; for launches and waits for the host, Holistic
Trace Analysis (Meta), redefined in `evaluator.traces.analysis.kernels`.
"""

import re
from collections.abc import Callable
from operator import truediv
from typing import Final

import numpy as np

from evaluator.accelerators import accelerator, peak_flops_per_s
from evaluator.estimate.memory import decoder_of, edge_weights, layer_weights
from evaluator.metrics.base import (
    ANY_WITH_CARD,
    KERNEL_TRACES,
    TRACES,
    UNTRACED,
    Absent,
    Evidence,
    combine,
    metric_of,
)
from evaluator.metrics.communication import UNPROFILED
from evaluator.metrics.throughput import job_rank_count, per_s, step_seconds, step_tokens
from evaluator.rank.job import Workload as Decoder
from evaluator.traces.analysis.kernels import (
    KernelCoverage,
    KernelTable,
    LaunchStatistics,
)
from evaluator.traces.intervals import latest_window
from evaluator.traces.model import Activity, RankTrace, TraceSet
from records.errors import shown
from records.workload import Workload

TRAINING_PER_FORWARD = 3
NAMED = 3
"""Devices that a reason names at most: traces may say anything."""
ON_HOST: Final = Absent("the work ran on the host, where operators are not kernels")
NO_KERNEL: Final = Absent("no kernel ran")
NO_LAUNCH: Final = Absent("no trace says which call launched what")

_MIXTURE: Final = re.compile(
    r"moe|expert|grouped_?(?:gemm|mm)|group_?gemm|matmul_ogs|deep_?ep", re.IGNORECASE
)
"""No bare topk, gate, dispatch or combine: samplers and sorting libraries use these words too."""

_HOST_DEVICE: Final = re.compile(
    r"H(?:ost)?[ _-]?(?:to|2|->)[ _-]?D|D(?:evice)?[ _-]?(?:to|2|->)[ _-]?H", re.IGNORECASE
)


@metric_of("Model FLOPs utilization", "fraction", "higher", ANY_WITH_CARD, version=2)
def mfu(evidence: Evidence) -> float | Absent:
    """FLOP that the model needs for a step, 6 N + 12 L H Q S per token in training and a third of
    it in inference, over step time, ranks and the dense peak of their device at the precision of
    its matrix products. From XLA traces without a card, what the computing operations state (at
    bf16), recomputation included; absent where custom calls, such as Pallas kernels, state none.

    The published one knows three devices, divides by the card's device count even if fewer ran, and
    in inference divides the prompt's tokens by the whole latency; in percent.
    """
    rate, peak = flops_per_s_and_rank(evidence), peak_per_rank(evidence)
    share = combine(truediv, rate, peak)
    if isinstance(share, Absent) or share <= 1:
        return share
    return Absent(
        f"the model needs {share:.3g} times the FLOP/s that a device has at "
        f"{_precision(evidence)!r}; precision, batch or device of the card are wrong"
    )


@metric_of("Model TFLOP/s per rank", "TFLOP/s", "higher", ANY_WITH_CARD, version=2)
def achieved_tflops(evidence: Evidence) -> float | Absent:
    """The numerator of mfu, for devices whose peak is not known: FLOP that the model needs for a
    step over step time and ranks.
    """
    return combine(lambda rate: rate / 1e12, flops_per_s_and_rank(evidence))


def flops_per_token(workload: Workload) -> float | Absent:
    """FLOP that one token costs on average, forward and in training backward too."""
    if workload.phase == "communication":
        return Absent("the workload only communicates")
    parameters = active_parameters(workload)
    if isinstance(parameters, Absent):
        return parameters
    if workload.layer_count is None or workload.hidden_size is None:
        return _missing_sizes(("layer_count", "hidden_size"))
    # The width of all heads' queries, where heads do not share the hidden size.
    width = (workload.head_count or 0) * (workload.head_size or 0) or workload.hidden_size
    # In inference a sequence is a prompt and its answer.
    tokens = workload.tokens_per_step // workload.global_batch
    attention = 4 * workload.layer_count * width * tokens
    passes = TRAINING_PER_FORWARD if workload.phase == "training" else 1
    return passes * (2 * parameters + attention)


def active_parameters(workload: Workload) -> float | Absent:
    """Parameters that a token meets in a decoder of these sizes, without the embedding table.

    Where sizes are missing, those of a dense model that says how many it has, less one table.
    """
    decoder = decoder_of(workload)
    if isinstance(decoder, Decoder):
        return _counted(decoder)
    count, vocabulary, hidden = workload.parameter_count, workload.vocab_size, workload.hidden_size
    if count and vocabulary and hidden and not workload.expert_count:
        return float(count - vocabulary * hidden)
    return _missing_sizes(decoder)


def all_parameters(workload: Workload) -> float | Absent:
    """Parameters of a decoder of these sizes, every expert and the embedding table included."""
    decoder = decoder_of(workload)
    if isinstance(decoder, tuple):
        return _missing_sizes(decoder)
    layers = sum(layer_weights(decoder, layer).total for layer in range(decoder.layer_count))
    return layers + edge_weights(decoder, first=True, last=True).total


def flops_per_s_and_rank(evidence: Evidence) -> float | Absent:
    """FLOP/s of one rank on average, counted from the workload's sizes, else by the trace."""
    by_sizes = _by_sizes(evidence)
    if not isinstance(by_sizes, Absent) or evidence.whole is None:
        return by_sizes
    by_trace = _by_trace(evidence.whole)
    return by_sizes if by_trace is None else by_trace


def peak_per_rank(evidence: Evidence) -> float | Absent:
    """FLOP/s that one rank's device can do in the number format of its matrix products."""
    precision = _precision(evidence)
    traced = evidence.traces.ranks if evidence.traces else ()
    names = [trace.device.name for trace in traced if trace.device and trace.device.name]
    if evidence.environment is not None:
        names.append(evidence.environment.accelerator)
    names = list(dict.fromkeys(names))
    known = next((found for found in map(accelerator, names) if found is not None), None)
    if known is None:
        of_what = " or ".join(map(shown, names[:NAMED])) or "an unnamed device"
        return Absent(
            f"the peak of {of_what} is not known; name a known accelerator as accelerator in "
            "[environment], or in the card"
        )
    peak = peak_flops_per_s(known, precision)
    if peak is None:
        return Absent(f"no peak of {known.name} is stated for {precision!r}")
    return peak


@metric_of("Dominant kernel", "fraction", "lower", TRACES)
def dominant_kernel_concentration(evidence: Evidence) -> float | Absent:
    """Share of the kernel of most time in the time of all kernels, by full name:
    max over names of sum(duration) / sum(duration); communication is among them.

    From Nsight Systems the published metric goes by short names, which merge instances of a
    template; from XLA it gives the category of most time, not the operation.
    """
    return _share_of_kernels(evidence, lambda table: table.kernels[0].total_s)


@metric_of("Multiprocessor coverage", "fraction", "higher", KERNEL_TRACES)
def mean_sm_coverage(evidence: Evidence) -> float | Absent:
    """Blocks of a kernel per multiprocessor, 1 at most, weighted by duration:
    sum(min(blocks / multiprocessors, 1) * duration) / sum(duration). Launch geometry, not
    occupancy.

    From Nsight Systems the published metric is not weighted by duration.
    """
    return _covered(evidence, lambda coverage: coverage.mean)


@metric_of("Compute bound", "fraction", "higher", KERNEL_TRACES)
def compute_bound_fraction(evidence: Evidence) -> float | Absent:
    """Share of compute kernels with a coverage above 70 % that last more than 10 us in the time of
    all compute kernels; kernels that communicate are left out.

    The published toolkit names the metric and does not register it; its code counts kernels that
    communicate in the whole.
    """
    return _covered(evidence, lambda coverage: coverage.compute_bound)


@metric_of("Memory bound", "fraction", "lower", KERNEL_TRACES)
def memory_bound_fraction(evidence: Evidence) -> float | Absent:
    """Share of compute kernels with a coverage below 50 % in the time of all compute kernels;
    kernels that communicate are left out, as they occupy few multiprocessors by design.

    The published metric goes by coverage from Nsight Systems only, where communication counts as
    bound by memory; from Kineto it sums classes of kernel names instead.
    """
    return _covered(evidence, lambda coverage: coverage.memory_bound)


@metric_of("Mixture of experts", "fraction", "lower", TRACES)
def moe_fraction(evidence: Evidence) -> float | Absent:
    """Share of kernels of mixtures of experts in the time of all kernels, by words in their names:
    moe, expert, grouped_gemm or groupgemm, grouped_mm, matmul_ogs, deep_ep. Kernels whose names do
    not say so are missed.

    The published metric also takes bare topk, gate_, dispatch and combine, so that samplers, sorts
    and reductions of dense models count.
    """
    return _share_of_kernels(
        evidence,
        lambda table: sum(row.total_s for row in table.kernels if _MIXTURE.search(row.name)),
    )


@metric_of("Copy bandwidth", "GB/s", "higher", KERNEL_TRACES)
def average_memory_bandwidth(evidence: Evidence) -> float | Absent:
    """Bytes over durations of the copies between host and device, both ways:
    sum(bytes) / sum(duration), 1e9 bytes a GB. Fills and copies within or between devices are left
    out; `trace kernels` has each direction.

    The published metric mixes copies of every direction, fills, and kernels with copy in their
    names.
    """
    table = _job_kernels(evidence)
    if isinstance(table, Absent):
        return table
    copies = [
        row for row in table.rows if row.activity is Activity.COPY and _HOST_DEVICE.search(row.name)
    ]
    if not copies:
        return Absent("nothing was copied between host and device")
    lasting_s = sum(row.bytes_s for row in copies)
    if not lasting_s:
        return Absent("no copy between host and device says its bytes")
    return sum(row.bytes for row in copies) / lasting_s / 1e9


@metric_of("Launch delay", "s", "lower", KERNEL_TRACES)
def kernel_launch_delay(evidence: Evidence) -> float | Absent:
    """Median time from the start of a launch call to the start of the first work that it started,
    over all ranks. Long where the host is far ahead of the device, short where the device waits for
    the host; launches that seem to start late by their clocks are left out.
    """
    missing = "all work starts before its launch, so clocks differ"
    return _of_launches(evidence, lambda job: job.delay_median_s, missing)


@metric_of("Launches per step", "launches", "lower", KERNEL_TRACES)
def launches_per_step(evidence: Evidence) -> float | Absent:
    """Calls with which the host hands work to its device, per step of the host and rank; a graph is
    one.
    """
    return _of_launches(evidence, lambda job: job.launches_per_step, "the host marks no step")


@metric_of("Short kernels", "fraction", "lower", KERNEL_TRACES)
def short_kernel_fraction(evidence: Evidence) -> float | Absent:
    """Share of kernels that last less than 10 us in the number of all kernels."""
    return _of_launches(evidence, lambda job: job.short_kernel_share, "no kernel ran")


@metric_of("Waiting for the host", "fraction", "lower", KERNEL_TRACES)
def host_wait_fraction(evidence: Evidence) -> float | Absent:
    """Time in which a device is idle because nothing was handed to it, be it that the host was slow
    or that it had stopped to wait for the device, over step time.
    """
    if evidence.split is None:
        return UNPROFILED if evidence.traces else UNTRACED
    if evidence.idle is None:
        return NO_LAUNCH
    known = {rank.rank for rank in evidence.idle}
    own = (parts for parts in evidence.split.parts if parts.rank in known)
    window_ns = sum(sum(parts.window_ns.tolist()) for parts in own)
    waits_ns = (column for rank in evidence.idle for column in (rank.host_wait_ns, rank.sync_ns))
    waited_ns = sum(sum(column.tolist()) for column in waits_ns)
    return waited_ns / window_ns if window_ns else Absent("profiled steps take no time")


def _job_kernels(evidence: Evidence) -> KernelTable | Absent:
    if evidence.traces is None or evidence.kernels is None:
        return UNTRACED
    return evidence.kernels.job if _on_device(evidence.traces) else ON_HOST


def _on_device(traces: TraceSet) -> bool:
    return any(trace.on_device for trace in traces.ranks)


def _share_of_kernels(evidence: Evidence, chosen: Callable[[KernelTable], float]) -> float | Absent:
    table = _job_kernels(evidence)
    if isinstance(table, Absent):
        return table
    return chosen(table) / table.kernel_s if table.kernel_s else NO_KERNEL


def _covered(evidence: Evidence, part: Callable[[KernelCoverage], float | None]) -> float | Absent:
    if evidence.traces is None:
        return UNTRACED
    if not _on_device(evidence.traces):
        return ON_HOST
    if evidence.coverage is None:
        return Absent("no trace says how many blocks its kernels have")
    share = part(evidence.coverage)
    return Absent("no kernel that computes says its blocks") if share is None else share


def _of_launches(
    evidence: Evidence, part: Callable[[LaunchStatistics], float | None], missing: str
) -> float | Absent:
    if evidence.launches is None:
        return NO_LAUNCH if evidence.traces else UNTRACED
    value = part(evidence.launches.job)
    return Absent(missing) if value is None else value


def _counted(decoder: Decoder) -> float:
    layers = decoder.layer_count
    mixed = max(0, layers - decoder.dense_layer_count) if decoder.expert_count else 0
    total = edge_weights(decoder, first=False, last=True).total
    if mixed < layers:
        total += (layers - mixed) * layer_weights(decoder, 0).total
    if mixed:
        layer = layer_weights(decoder, layers - 1)
        met = decoder.experts_per_token / decoder.expert_count
        total += mixed * (layer.plain + layer.routed * met)
    return total


def _missing_sizes(sizes: tuple[str, ...]) -> Absent:
    return Absent(f"the workload does not say its {', '.join(sizes)}")


def _by_sizes(evidence: Evidence) -> float | Absent:
    if evidence.workload is None:
        return Absent("the model that ran is unknown; give its card")
    return combine(
        lambda per_token, tokens, ranks, seconds: per_s(per_token * tokens / ranks, seconds),
        flops_per_token(evidence.workload),
        step_tokens(evidence),
        job_rank_count(evidence),
        step_seconds(evidence),
    )


def _by_trace(traces: TraceSet) -> float | Absent | None:
    """What the computing operations state, over all profiled time; None if they state nothing.

    XLA states the operations of each instruction, but knows none of a kernel that it did not write.
    """
    found = [_stated_flops(trace) for trace in traces.ranks]
    flops, unstated_ns, compute_ns, time_ns = (sum(column) for column in zip(*found, strict=True))
    if not flops > 0 or not time_ns > 0:
        return None
    if unstated_ns:
        return Absent(
            f"custom calls, {100 * unstated_ns / compute_ns:.2g} % of the compute time, do not "
            "state their FLOPs; give a card with the model's sizes"
        )
    return float(flops / time_ns * 1e9)


def _stated_flops(trace: RankTrace) -> tuple[float, float, float, int]:
    """FLOPs of computing spans; ns of those that state none, of all of them, and profiled."""
    spans, steps = trace.spans, trace.steps
    within, profiled_ns = spans.doing(Activity.COMPUTE), 0
    if steps.count:
        # Spans belong to the step in which they start.
        within &= latest_window(steps.start_ns, steps.end_ns, spans.start_ns) >= 0
        profiled_ns = int(steps.duration_ns.sum())
    elif spans.count:
        profiled_ns = int(spans.end_ns.max() - spans.start_ns[0])
    flops, duration_ns = spans.flops[within], spans.duration_ns[within].astype(np.float64)
    sums = (np.nansum(flops), duration_ns[np.isnan(flops)].sum(), duration_ns.sum())
    stated, unstated_ns, computing_ns = map(float, sums)
    return stated, unstated_ns, computing_ns, profiled_ns


def _precision(evidence: Evidence) -> str:
    if evidence.compute_precision is not None:
        return evidence.compute_precision
    return evidence.workload.precision if evidence.workload else "bf16"
