"""What a metric is, and the evidence that it may use."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, get_args, runtime_checkable

from records.errors import SHOWN_CHARS, StudyError, shown
from records.study import Environment
from records.trial import Serving, TrafficResult
from records.workload import Workload

if TYPE_CHECKING:
    from evaluator.traces.analysis.breakdown import JobSplit
    from evaluator.traces.analysis.collectives import Bandwidths, Matches, Volume
    from evaluator.traces.analysis.kernels import (
        IdleCauses,
        JobLaunches,
        KernelCoverage,
        KernelTables,
    )
    from evaluator.traces.model import TraceSet
    from evaluator.whatif.questions import Unanswered, WhatIf


Better: TypeAlias = Literal["lower", "higher"]
Source: TypeAlias = Literal["samples", "kineto", "xla", "nsys", "card"]
"""Where evidence comes from: timed steps, a trace of one format, or a workload card."""

SAMPLES: Final[frozenset[Source]] = frozenset({"samples"})
TRACES: Final[frozenset[Source]] = frozenset({"kineto", "xla", "nsys"})
KERNEL_TRACES: Final[frozenset[Source]] = frozenset({"kineto", "nsys"})
"""Those that show kernels and what launched them."""
ANY: Final[frozenset[Source]] = TRACES | SAMPLES
ANY_WITH_CARD: Final[frozenset[Source]] = ANY | {"card"}

_TEXTS = ("label", "unit", "description")
_DECLARED = (*_TEXTS, "better", "version", "sources")


class MetricError(StudyError):
    """A metric is unknown, defined twice, or does not keep to its contract."""


@dataclass(frozen=True, slots=True)
class Absent:
    """Why a metric has no value here, as the end of a sentence: `no collective ran`."""

    reason: str


UNTRACED: Final = Absent("nothing was profiled")


# Not slotted: what several metrics share is computed once, by the first that asks.
@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What one measured launch, or a folder of traces, left behind; nothing is certain to be there.

    `step_times_s` are the untraced timed steps, seconds, each that of its slowest rank.
    `peak_memory_bytes` has one entry per rank. `traces` is None when nothing was profiled,
    `serving` when nothing was served, or no request was timed, `traffic` is empty unless a server
    was loaded; `workload` and `environment` when it is unknown what ran.
    """

    step_times_s: tuple[float, ...] = ()
    tokens_per_step: int | None = None
    rank_count: int | None = None
    peak_memory_bytes: tuple[int, ...] = ()
    traces: "TraceSet | None" = None
    serving: Serving | None = None
    traffic: tuple[TrafficResult, ...] = ()
    workload: Workload | None = None
    environment: Environment | None = None
    compute_precision: str | None = None
    """Number format that matrices were multiplied in, where it is not the workload's."""

    @cached_property
    def split(self) -> "JobSplit | None":
        """Where profiled time went; None without traces, or when ranks have no step in common."""
        from evaluator.traces.analysis.breakdown import job_split

        return job_split(self.traces) if self.traces else None

    @cached_property
    def whole(self) -> "TraceSet | None":
        """The traces that say which kernels ran and who launched them, not those reduced."""
        return self.traces.whole if self.traces else None

    @cached_property
    def kernels(self) -> "KernelTables | None":
        """The work of ranks by name; None without traces."""
        from evaluator.traces.analysis.kernels import top_kernels

        return top_kernels(self.whole) if self.whole else None

    @cached_property
    def coverage(self) -> "KernelCoverage | None":
        """How far kernels fill their devices; None where no trace says."""
        from evaluator.traces.analysis.kernels import coverage

        return coverage(self.whole.ranks) if self.whole else None

    @cached_property
    def launches(self) -> "JobLaunches | None":
        """How hosts hand work to their devices; None where no trace says."""
        from evaluator.traces.analysis.kernels import launch_statistics

        return launch_statistics(self.whole) if self.whole else None

    @cached_property
    def idle(self) -> "tuple[IdleCauses, ...] | None":
        """Why each rank was idle; None where no launch is known or no step is in common."""
        from evaluator.traces.analysis.kernels import idle_causes

        return idle_causes(self.whole) if self.whole else None

    @cached_property
    def matches(self) -> "Matches | None":
        """Which collective of each rank belongs to which; None without traces."""
        from evaluator.traces.analysis.collectives import match

        return match(self.traces) if self.traces else None

    @cached_property
    def bandwidths(self) -> "Bandwidths | None":
        """How fast matched collectives moved their bytes; None without traces."""
        from evaluator.traces.analysis.collectives import bandwidths

        return bandwidths(self.traces, self.matches) if self.traces and self.matches else None

    @cached_property
    def volume(self) -> "Volume | None":
        """What ranks communicate per step; None without traces or steps in common."""
        from evaluator.traces.analysis.collectives import volume

        return volume(self.traces, self.matches) if self.traces and self.matches else None

    @cached_property
    def whatif(self) -> "WhatIf | Unanswered | None":
        """The job ready to be replayed, or why it cannot be; None without traces."""
        from evaluator.whatif.questions import WhatIf

        ranks_per_node = self.environment.ranks_per_node if self.environment else None
        if self.traces is None or self.matches is None:
            return None
        return WhatIf.of(self.traces, self.matches, ranks_per_node)


def describe_error(error: Exception) -> str:
    """What code that is not ours raised, on one line that can be stored."""
    text = "".join(traceback.format_exception_only(error))
    text = " ".join(text.split())[: 3 * SHOWN_CHARS]
    return text.encode("utf-8", "backslashreplace").decode()


@runtime_checkable
class Metric(Protocol):
    """One number about a launch. A new definition of the same name has a higher version."""

    @property
    def name(self) -> str:
        """The name it is registered under."""

    @property
    def label(self) -> str:
        """The name it is shown under, to be read by people."""

    @property
    def unit(self) -> str:
        """Unit of its values."""

    @property
    def better(self) -> Better:
        """Which way is better."""

    @property
    def version(self) -> int:
        """Version of its definition, from 1."""

    @property
    def sources(self) -> frozenset[Source]:
        """What it can be computed from, any of them."""

    @property
    def description(self) -> str:
        """What it says and how it is computed, in a sentence or two."""

    @property
    def differs(self) -> str:
        """How the published toolkit's metric of this name differs; empty if it does not."""

    def measure(self, evidence: Evidence) -> float | Absent:
        """Give the finite value, or why this evidence has none."""


MetricFormula: TypeAlias = Callable[[Evidence], float | Absent]


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """A metric that is a function of the evidence."""

    name: str
    label: str
    unit: str
    better: Better
    sources: frozenset[Source]
    description: str
    formula: MetricFormula
    version: int = 1
    differs: str = ""

    def measure(self, evidence: Evidence) -> float | Absent:
        """Give the finite value, or why this evidence has none."""
        return self.formula(evidence)


def metric_of(
    label: str, unit: str, better: Better, sources: frozenset[Source], *, version: int = 1
) -> Callable[[MetricFormula], Formula]:
    """Make a metric of a function, which gives it its name and by its docstring its texts.

    The first paragraph is the description, the others are how the published metric differs.
    """

    def metric(formula: MetricFormula) -> Formula:
        description, _, differs = (formula.__doc__ or "").partition("\n\n")
        return Formula(
            name=formula.__name__,
            label=label,
            unit=unit,
            better=better,
            sources=sources,
            description=" ".join(description.split()),
            formula=formula,
            version=version,
            differs=" ".join(differs.split()),
        )

    return metric


def combine(compute: Callable[..., float | Absent], *values: float | Absent) -> float | Absent:
    """Compute something of values; where any of them is absent, return the first that is."""
    absent = (value for value in values if isinstance(value, Absent))
    return next(absent, None) or compute(*values)


def contract_fault(found: Metric) -> str | None:
    """What a metric declares wrongly, as text after its name; None if nothing."""
    declared: dict[str, object] = {key: getattr(found, key) for key in _DECLARED}
    empty = [key for key in _TEXTS if not (isinstance(declared[key], str) and declared[key])]
    if empty:
        return f"has no {' and no '.join(empty)}"
    if declared["better"] not in get_args(Better):
        return f"calls {shown(declared['better'])} better; say lower or higher"
    version, sources = declared["version"], declared["sources"]
    if not isinstance(version, int) or version < 1:
        return f"has version {shown(version)}; count from 1"
    if not (isinstance(sources, frozenset) and sources and sources <= set(get_args(Source))):
        return f"is computed from {shown(sources)}; say which of {', '.join(get_args(Source))}"
    return None


PUBLISHED_PREFIX: Final = "published_"
PUBLISHED_SCORE: Final = f"{PUBLISHED_PREFIX}score"
"""What another tool called the score of a trial; which way it is better, the study says."""


def published(name: str) -> Formula:
    """The metric of a published number, which no evidence of ours can answer."""
    return Formula(
        name=name,
        label=name.replace("_", " ").capitalize(),
        unit="",
        better="lower",
        sources=frozenset({"samples"}),
        description="A number out of another tool's record, as it was published.",
        formula=lambda _: Absent("only records of other tools have it"),
    )
