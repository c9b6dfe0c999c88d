"""Steps and communication as the published toolkit sees them: in windows of the host.

Part of `evaluator.metrics.compat`; the words that names are searched for are the toolkit's.
"""

import re
from statistics import fmean
from typing import Final

from evaluator.intervals import Intervals
from evaluator.metrics.base import Absent, Evidence
from evaluator.metrics.compat_kernels import (
    COLLECTIVE_WORDS,
    XLA,
    Kernels,
    kernels,
    of_nsys,
    of_xla,
    percent,
    share_of,
)
from evaluator.metrics.model_flops import flops_per_token
from evaluator.metrics.throughput import inner
from evaluator.traces.rank import RankTrace
from evaluator.traces.steps import StepWindows

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
