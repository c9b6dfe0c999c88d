"""How much a job computes, and how much of what its accelerators could.

Model FLOPs utilization after Chowdhery et al., "PaLM" (2022): operations that the model needs, not
those that were carried out, over step time and the peak of all ranks' devices.
"""

import numpy as np

from evaluator.metrics.base import Absent, Evidence, Formula
from evaluator.metrics.model_flops import flops_per_token
from evaluator.metrics.peaks import accelerator, peak_flops_per_s
from evaluator.metrics.throughput import ANY, per_s, told_ranks, told_step_s, told_tokens
from evaluator.traces.job import TraceSet
from evaluator.traces.rank import RankTrace
from evaluator.traces.spans import Activity
from records.errors import shown

NAMED = 3
"""Devices that a reason names at most: traces may say anything."""


def flops_per_s_and_rank(evidence: Evidence) -> float | Absent:
    """FLOP/s of one rank on average, counted from the workload's sizes, else by the trace."""
    by_sizes = _by_sizes(evidence)
    if not isinstance(by_sizes, Absent) or evidence.traces is None:
        return by_sizes
    by_trace = _by_trace(evidence.traces)
    return by_sizes if by_trace is None else by_trace


def _by_sizes(evidence: Evidence) -> float | Absent:
    if evidence.workload is None:
        return Absent("nobody says which model ran; give its card")
    per_token, tokens = flops_per_token(evidence.workload), told_tokens(evidence)
    ranks, seconds = told_ranks(evidence), told_step_s(evidence)
    if isinstance(per_token, Absent):
        return per_token
    if isinstance(tokens, Absent):
        return tokens
    if isinstance(ranks, Absent):
        return ranks
    return seconds if isinstance(seconds, Absent) else per_s(per_token * tokens / ranks, seconds)


def _by_trace(traces: TraceSet) -> float | Absent | None:
    """What the computing operations state, over all profiled time; None if they state nothing.

    XLA states the operations of each instruction, but knows none of a kernel that it did not write.
    """
    found = [(*_stated(trace), _profiled_ns(trace)) for trace in traces.ranks]
    flops, unstated_ns, compute_ns, time_ns = (sum(column) for column in zip(*found, strict=True))
    if not flops > 0 or not time_ns > 0:
        return None
    if unstated_ns:
        return Absent(
            f"custom calls, {100 * unstated_ns / compute_ns:.2g} % of the compute time, do not "
            "state their FLOPs; give a card with the model's sizes"
        )
    return float(flops / time_ns * 1e9)


def _stated(trace: RankTrace) -> tuple[float, float, float]:
    """FLOPs of the computing spans; time of those that state none, and of all of them, ns."""
    spans, steps = trace.spans, trace.steps
    within = spans.doing(Activity.COMPUTE)
    if steps.count:
        # Spans belong to the step in which they start.
        step = np.searchsorted(steps.start_ns, spans.start_ns, side="right") - 1
        within &= (step >= 0) & (spans.start_ns < steps.end_ns[step])
    flops, duration_ns = spans.flops[within], spans.duration_ns[within].astype(np.float64)
    unstated = np.isnan(flops)
    return float(np.nansum(flops)), float(duration_ns[unstated].sum()), float(duration_ns.sum())


def _profiled_ns(trace: RankTrace) -> int:
    if trace.steps.count:
        return int(trace.steps.duration_ns.sum())
    spans = trace.spans
    return int(spans.end_ns.max() - spans.start_ns[0]) if spans.count else 0


def peak_per_rank(evidence: Evidence) -> float | Absent:
    """FLOP/s that one rank's device can do at the workload's precision."""
    precision = _precision(evidence)
    names = device_names(evidence)
    known = next((found for found in map(accelerator, names) if found is not None), None)
    if known is None:
        of_what = " or ".join(map(shown, names[:NAMED])) or "a device that nobody names"
        return Absent(
            f"the peak of {of_what} is not known; name a known accelerator as accelerator in "
            "[environment], or in the card"
        )
    peak = peak_flops_per_s(known, precision)
    if peak is None:
        return Absent(f"no peak of {known.name} is stated for {precision!r}")
    return peak


def _precision(evidence: Evidence) -> str:
    return evidence.workload.precision if evidence.workload else "bf16"


def device_names(evidence: Evidence) -> tuple[str, ...]:
    """What the traces call the devices, then what the environment does."""
    traced = evidence.traces.ranks if evidence.traces else ()
    names = [trace.device.name for trace in traced if trace.device and trace.device.name]
    if evidence.environment is not None:
        names.append(evidence.environment.accelerator)
    return tuple(dict.fromkeys(names))


def _mfu(evidence: Evidence) -> float | Absent:
    rate, peak = flops_per_s_and_rank(evidence), peak_per_rank(evidence)
    if isinstance(rate, Absent):
        return rate
    if isinstance(peak, Absent):
        return peak
    if rate > peak:
        return Absent(
            f"the model needs {rate / peak:.3g} times the FLOP/s that a device has at "
            f"{_precision(evidence)!r}; precision, batch or device of the card are wrong"
        )
    return rate / peak


def _achieved_tflops(evidence: Evidence) -> float | Absent:
    rate = flops_per_s_and_rank(evidence)
    return rate if isinstance(rate, Absent) else rate / 1e12


mfu = Formula(
    name="mfu",
    label="Model FLOPs utilization",
    unit="fraction",
    better="higher",
    sources=ANY | {"card"},
    description="FLOP that the model needs for a step, 6 N + 12 L H Q S per token in training and "
    "a third of it in inference, over step time, ranks and the dense peak of their device at the "
    "workload's precision. From XLA traces without a card, what the computing operations state (at "
    "bf16), recomputation included; absent where custom calls, such as Pallas kernels, state none.",
    differs="The published one knows three devices, divides by the card's device count even if "
    "fewer ran, and in inference divides the prompt's tokens by the whole latency; in percent.",
    formula=_mfu,
    version=2,
)

achieved_tflops = Formula(
    name="achieved_tflops",
    label="Model TFLOP/s per rank",
    unit="TFLOP/s",
    better="higher",
    sources=ANY | {"card"},
    description="The numerator of mfu, for devices whose peak is not known: FLOP that the model "
    "needs for a step over step time and ranks.",
    formula=_achieved_tflops,
    version=2,
)
