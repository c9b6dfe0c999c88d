"""What a metric is, and the evidence it may look at."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from evaluator.metrics.breakdown import JobSplit, job_split
from evaluator.traces import TraceSet
from records.errors import StudyError
from records.trial import Serving

Better: TypeAlias = Literal["lower", "higher"]


class MetricError(StudyError):
    """A metric is unknown, defined twice, or does not keep to its contract."""


# Not slotted: what several metrics share is computed once, by the first that asks.
@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What one measured launch left behind.

    `step_times_s` are the untraced timed steps, seconds, each that of its slowest rank.
    `peak_memory_bytes` has one entry per rank. `traces` is None when nothing was profiled,
    `serving` when nothing was served.
    """

    step_times_s: tuple[float, ...]
    tokens_per_step: int
    rank_count: int
    peak_memory_bytes: tuple[int, ...]
    traces: TraceSet | None
    serving: Serving | None = None

    @cached_property
    def split(self) -> JobSplit | None:
        """Where profiled time went; None without steps profiled on every traced rank."""
        return job_split(self.traces) if self.traces else None


@runtime_checkable
class Metric(Protocol):
    """One number about a launch. A new definition of the same name has a higher version."""

    @property
    def name(self) -> str:
        """The name it is registered under."""
        ...

    @property
    def unit(self) -> str:
        """Unit of its values."""
        ...

    @property
    def better(self) -> Better:
        """Which way is better."""
        ...

    @property
    def version(self) -> int:
        """Version of its definition, from 1."""
        ...

    @property
    def description(self) -> str:
        """What it says, in one sentence."""
        ...

    def measure(self, evidence: Evidence) -> float | None:
        """Give the finite value; None when this evidence cannot answer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """A metric that is a function of the evidence."""

    name: str
    unit: str
    better: Better
    version: int
    description: str
    formula: Callable[[Evidence], float | None]

    def measure(self, evidence: Evidence) -> float | None:
        """Give the finite value; None when this evidence cannot answer."""
        return self.formula(evidence)
