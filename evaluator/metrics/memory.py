"""How much memory a job needs."""

from evaluator.metrics.base import Absent, Evidence, Formula


def _peak_bytes(evidence: Evidence) -> float | Absent:
    if evidence.peak_memory_bytes:
        return float(max(evidence.peak_memory_bytes))
    traced = evidence.traces.ranks if evidence.traces else ()
    told = [trace.memory.allocated_bytes for trace in traced if trace.memory is not None]
    peaks = [int(allocated.max()) for allocated in told if allocated.size]
    return float(max(peaks)) if peaks else Absent("nothing told how much memory ranks took")


peak_memory = Formula(
    name="peak_memory",
    label="Peak memory",
    unit="bytes",
    better="lower",
    sources=frozenset({"samples", "kineto"}),
    description="Peak memory of the rank that needs most; of traces alone the most that its "
    "allocator had handed out in the profiled time.",
    formula=_peak_bytes,
    version=2,
)
