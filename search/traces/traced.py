"""Traces ready to be looked at, and what else is known of the job that left them."""

from dataclasses import dataclass

from evaluator.analysis.kernels import KernelTables, top_kernels
from evaluator.analysis.matching import Matches, match
from evaluator.metrics.base import Evidence
from evaluator.traces.job import TraceSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """Traces, how to call them, and what metrics may look at."""

    name: str
    evidence: Evidence
    traces: TraceSet

    @property
    def matches(self) -> Matches:
        """Which collective of each rank belongs to which."""
        return self.evidence.matches or match(self.traces)

    @property
    def kernels(self) -> KernelTables:
        """The work of ranks by name."""
        return self.evidence.kernels or top_kernels(self.traces)
