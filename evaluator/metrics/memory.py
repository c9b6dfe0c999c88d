"""How much memory a job needs."""

from evaluator.metrics.base import Evidence, Formula


def _peak_bytes(evidence: Evidence) -> float | None:
    return float(max(evidence.peak_memory_bytes)) if evidence.peak_memory_bytes else None


peak_memory = Formula(
    name="peak_memory",
    unit="bytes",
    better="lower",
    version=1,
    description="Peak memory of the rank that needs most.",
    formula=_peak_bytes,
)
