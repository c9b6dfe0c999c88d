"""Which operator, module, named range and phase of the program the work of ranks belongs to.

Work on a device belongs to what was under way on the host when it was launched, work of a host to
what was under way when it began. Operators are the innermost ones, as kernels are launched from
there. Modules of the backward pass are those of the operators that it differentiates, by autograd's
sequence numbers. Work that a compiler names itself, as XLA does, belongs to what its name says.
The roofline is that of Williams, Waterman and Patterson (CACM 52, 2009).
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evaluator.accelerators import Accelerator, accelerator, peak_flops_per_s
from evaluator.traces.analysis.breakdown import WORK
from evaluator.traces.analysis.kernels import durations_ns, launch_pairs
from evaluator.traces.host_ranges import HostRanges, Nesting, RangeKind
from evaluator.traces.intervals import Nanoseconds, first_place
from evaluator.traces.model import RankTrace

_EVALUATES = "autograd::engine::evaluate_function"
_OPTIMIZER = "Optimizer."
NOWHERE: Final = -1


class Phase(IntEnum):
    """What a step was doing."""

    FORWARD = 0
    """In an operator, and none of the next."""
    BACKWARD = 1
    RECOMPUTATION = 2
    """The forward pass again, within the backward pass."""
    OPTIMIZER = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionRow:
    """The work that belongs to one operator, module, range or phase; None: to none that is known.

    `total_s` sums durations, those that overlap too, over all ranks; `share` is of all work.
    `phase_s` has the seconds by phase. Of operators, `flops` are floating-point operations in
    `flops_s` of the work, `bytes` were moved at least in `bytes_s`, and `limit_s` is the least time
    that the device needs for those of which `limited_s` was the time; 0: unknown.
    """

    name: str | None
    count: int
    total_s: float
    share: float
    phase_s: tuple[float, ...]
    flops: float = 0.0
    flops_s: float = 0.0
    bytes: float = 0.0
    bytes_s: float = 0.0
    limit_s: float = 0.0
    limited_s: float = 0.0
    compute_bound_s: float = 0.0
    """How much of `limit_s` is that of arithmetic, not of memory."""

    @property
    def flops_per_s(self) -> float | None:
        """Arithmetic reached; None: unknown."""
        return self.flops / self.flops_s if self.flops_s else None

    @property
    def bytes_per_s(self) -> float | None:
        """Bandwidth reached at least; None: unknown."""
        return self.bytes / self.bytes_s if self.bytes_s else None

    @property
    def roofline_share(self) -> float | None:
        """How near it is to what the device can do at best, 0 to 1; None: unknown."""
        return self.limit_s / self.limited_s if self.limited_s else None

    @property
    def bound(self) -> str | None:
        """What limits it at best: `compute` or `memory`; None: unknown."""
        if not self.limit_s:
            return None
        return "compute" if 2 * self.compute_bound_s >= self.limit_s else "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """All work of a job by operator, module, named range and phase, the longest total first.

    A table is empty where the traces name nothing of its kind.
    """

    operators: tuple[AttributionRow, ...]
    modules: tuple[AttributionRow, ...]
    ranges: tuple[AttributionRow, ...]
    phases: tuple[AttributionRow, ...]


def attribute(
    traces: Iterable[tuple[RankTrace, HostRanges | None]], accelerator_name: str = ""
) -> Attribution:
    """Attribute the work of ranks; the ranges of each are on the clock of its trace.

    `accelerator_name` counts where a trace does not name its device, as those of XLA.
    """
    tables = _Tables()
    all_traces = list(traces)
    differentiates = any("jvp(" in text for trace, _ in all_traces for text in trace.spans.scopes)
    for trace, ranges in all_traces:
        name = trace.device.name if trace.device else None
        # XLA says only that it is a TPU or a GPU; a part of a GPU (MIG) has a name, and no peak.
        is_named = name and trace.source != "xla"
        known = None if name is None else accelerator(name if is_named else accelerator_name)
        roofline = Roofline(known)
        if ranges is not None and ranges.count:
            _add_called(tables, trace, ranges, roofline)
        else:
            _add_compiled(tables, trace, roofline, differentiates=differentiates)
    return Attribution(
        operators=tables.operators.rows(),
        modules=tables.modules.rows(),
        ranges=tables.ranges.rows(),
        phases=tables.phases.rows(),
    )


_Columns: TypeAlias = dict[str, NDArray[np.float64]]


class _Sums:
    """Sums of columns by name."""

    def __init__(self) -> None:
        self._by_name: dict[str | None, Counter[str]] = defaultdict(Counter)

    def add(self, number: NDArray[np.int64], texts: Sequence[str], columns: _Columns) -> None:
        """Add rows; `number` of shape (rows,) indexes `texts`; -1: to none that is known."""
        found, place = np.unique(number, return_inverse=True)
        for name, values in columns.items():
            sums = np.bincount(place, values, found.size).tolist()
            for which, added in zip(found.tolist(), sums, strict=True):
                self._by_name[None if which == NOWHERE else texts[which]][name] += added

    def rows(self) -> tuple[AttributionRow, ...]:
        """The longest first; none where no work is attributed."""
        if not self._by_name.keys() - {None}:
            return ()
        all_ns = sum(sums["total"] for sums in self._by_name.values())
        rows = [
            AttributionRow(
                name=name,
                count=int(sums["count"]),
                total_s=sums["total"] / 1e9,
                share=sums["total"] / all_ns if all_ns else 0.0,
                phase_s=tuple(sums[phase.name] / 1e9 for phase in Phase),
                flops=sums["flops"],
                bytes=sums["bytes"],
                **{
                    f"{each}_s": sums[f"{each}_ns"] / 1e9
                    for each in ("flops", "bytes", "limit", "limited", "compute_bound")
                },
            )
            for name, sums in self._by_name.items()
        ]
        return tuple(sorted(rows, key=lambda row: (-row.total_s, row.name or "")))


class _Tables:
    """Sums by operator, module, range and phase."""

    def __init__(self) -> None:
        self.operators, self.modules, self.ranges, self.phases = (_Sums() for _ in range(4))


_PHASE_NAMES: Final = tuple(each.name.lower() for each in Phase)


def _time_columns(duration_ns: NDArray[np.float64], phase: NDArray[np.int64]) -> _Columns:
    columns: _Columns = {"count": np.ones(duration_ns.size), "total": duration_ns}
    return columns | {each.name: np.where(phase == each, duration_ns, 0.0) for each in Phase}


def _add_called(
    tables: _Tables, trace: RankTrace, ranges: HostRanges, roofline: "Roofline"
) -> None:
    """Add work by what the host called."""
    nesting = Nesting(ranges)
    work = np.flatnonzero(trace.spans.doing(*WORK))
    lane_id, moments_ns = _moments(trace, ranges, work)
    call = nesting.innermost(lane_id, moments_ns)
    duration_ns = durations_ns(trace, work).astype(np.float64)
    phase = _at(_phases(ranges, nesting), call)
    columns = _time_columns(duration_ns, phase)
    operator = nesting.nearest(
        np.where(ranges.kind == RangeKind.OPERATOR, np.arange(ranges.count), NOWHERE)
    )
    own = _at(operator, call)
    name_id = np.where(own >= 0, np.append(ranges.name_id, NOWHERE)[own], NOWHERE)
    tables.operators.add(name_id, ranges.names, columns)
    called, place = np.unique(own[own >= 0], return_inverse=True)
    tables.operators.add(
        ranges.name_id[called].astype(np.int64),
        ranges.names,
        roofline.limits(
            flops=np.nan_to_num(ranges.flops[called]),
            moved_bytes=ranges.bytes[called].astype(np.float64),
            took_ns=np.bincount(place, duration_ns[own >= 0], called.size).astype(np.float64),
            peaks=np.array([roofline.peak(each) for each in ranges.precisions])[
                ranges.precision_id[called]
            ],
        ),
    )
    module, modules = nesting.paths(RangeKind.MODULE, "/")
    tables.modules.add(_at(_with_backward(ranges, nesting, module), call), modules, columns)
    named, texts = nesting.paths(RangeKind.NAMED, " > ")
    named_call = _on_main_thread(ranges, nesting, lane_id, moments_ns, call)
    tables.ranges.add(_at(named, named_call), texts, columns)
    tables.phases.add(phase, _PHASE_NAMES, columns)


def _add_compiled(
    tables: _Tables, trace: RankTrace, roofline: "Roofline", *, differentiates: bool
) -> None:
    """Add work by where the compiler says that it comes from.

    Where anything is differentiated, what is not, an optimizer, say, has no phase that is known.
    """
    spans = trace.spans
    work = np.flatnonzero(spans.doing(*WORK))
    scope, duration_ns = spans.scope_id[work], durations_ns(trace, work).astype(np.float64)
    found = [Scope.of(text) for text in spans.scopes]
    rest = NOWHERE if differentiates else int(Phase.FORWARD)
    phases = [
        NOWHERE if not text else rest if one.phase is None else int(one.phase)
        for text, one in zip(spans.scopes, found, strict=True)
    ]
    phase = np.array(phases, np.int64)[scope]
    columns = _time_columns(duration_ns, phase)
    columns_of_operators = columns | roofline.limits(
        flops=np.nan_to_num(spans.flops[work]),
        moved_bytes=spans.bytes[work].astype(np.float64),
        took_ns=duration_ns,
        peaks=np.full(work.size, roofline.peak("bf16")),
    )
    for table, texts, own in (
        (tables.operators, [one.operator for one in found], columns_of_operators),
        (tables.modules, [one.module for one in found], columns),
    ):
        number = np.array([place if text else NOWHERE for place, text in enumerate(texts)])
        table.add(number[scope], texts, own)
    tables.phases.add(phase, _PHASE_NAMES, columns)


_WRAPPED: Final = re.compile(r"(?:(?:transpose|jvp|vmap|checkpoint|remat)\()+([^()]*)\)+")
_NUMBERED: Final = re.compile(r"_\d+\Z")
_CONTROL: Final = frozenset(
    {
        *("while", "body", "cond", "scan", "checkpoint", "remat", "rematted_computation"),
        *("closed_call", "core_call", "custom_vjp_call", "custom_jvp_call", "shard_map", "pjit"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What JAX's name of an operation says: its primitive, the modules around it, its phase."""

    operator: str
    module: str
    phase: Phase | None
    """None where it is not differentiated."""

    @classmethod
    def of(cls, text: str) -> "Scope":
        """Read `jit(step)/transpose(jvp(Net))/Block_0/dot_general`.

        Functions that are compiled, control flow and the equations of `einsum` are no modules. An
        operator of torch (`aten::mean.dim`) is not divided into the primitives that carry it out.
        """
        *around, operator = text.split("/")
        modules = []
        for part in around:
            if "::" in part:
                operator = part
                break
            wrapped = _WRAPPED.fullmatch(part)
            name = wrapped[1] if wrapped else part
            if name and name not in _CONTROL and not {*"(>,"} & {*name}:
                modules.append(_NUMBERED.sub("", name))
        phase = None
        if "rematted_computation" in around:
            phase = Phase.RECOMPUTATION
        elif "jvp(" in text:
            phase = Phase.BACKWARD if "transpose(" in text else Phase.FORWARD
        return cls(operator=operator, module="/".join(modules), phase=phase)


def _at(values: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The values of rows, -1 where there is no row."""
    return np.append(values, NOWHERE)[rows]


def _moments(
    trace: RankTrace, ranges: HostRanges, work: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Thread (of `ranges`; -1: none) and time of the launch of work, or of its start on a host."""
    spans = trace.spans
    caller = np.arange(spans.count)
    launched, calls = launch_pairs(spans)
    caller[launched] = calls
    lane_ids = {(lane.process, lane.thread): lane_id for lane_id, lane in enumerate(ranges.lanes)}
    known = [lane_ids.get((lane.process, lane.thread), NOWHERE) for lane in spans.lanes]
    return np.array(known, np.int64)[spans.lane_id[caller[work]]], spans.start_ns[caller[work]]


def _phases(ranges: HostRanges, nesting: Nesting) -> NDArray[np.int64]:
    """The phase of each range, shape (ranges,); -1: none."""
    evaluates = np.array([name.startswith(_EVALUATES) for name in ranges.names], bool)
    optimizes = np.array([name.startswith(_OPTIMIZER) for name in ranges.names], bool)
    differentiates = ranges.is_backward | evaluates[ranges.name_id]
    operates = ranges.kind == RangeKind.OPERATOR
    own = np.where(operates, int(Phase.FORWARD), NOWHERE)
    own[differentiates] = Phase.BACKWARD
    own[(ranges.kind == RangeKind.NAMED) & optimizes[ranges.name_id]] = Phase.OPTIMIZER
    # The backward pass itself is not recorded for another one, so it has no sequence numbers.
    again = operates & (ranges.sequence >= 0) & ~differentiates
    found = np.append(own, NOWHERE)
    for rows, around in nesting.levels():
        outer = found[around]
        inner = np.where(again[rows], int(Phase.RECOMPUTATION), int(Phase.BACKWARD))
        kept = np.where(outer == Phase.BACKWARD, inner, outer)
        found[rows] = np.where(outer > Phase.FORWARD, kept, np.maximum(own[rows], outer))
    return found[:-1]


def _with_backward(
    ranges: HostRanges, nesting: Nesting, module: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The module of each range, of the backward pass too; `module` is by what is around it."""
    own = module.copy()
    # The operator that autograd recorded under a number is the last to see it.
    forward = np.flatnonzero((ranges.sequence >= 0) & ~ranges.is_backward)[::-1]
    backward = np.flatnonzero(ranges.is_backward & (module < 0))
    place = first_place(ranges.sequence[forward], ranges.sequence[backward])
    own[backward[place >= 0]] = module[forward[place[place >= 0]]]
    return nesting.nearest(own)


def _on_main_thread(
    ranges: HostRanges,
    nesting: Nesting,
    lane_id: NDArray[np.int64],
    moments_ns: Nanoseconds,
    call: NDArray[np.int64],
) -> NDArray[np.int64]:
    """The innermost range of each work; of a thread that names none, that of the main thread.

    Such a thread, autograd's, works for the one that names most.
    """
    is_named = ranges.kind == RangeKind.NAMED
    counts = np.bincount(ranges.lane_id[is_named], minlength=len(ranges.lanes))
    silent = (lane_id >= 0) & (np.append(counts, 1)[lane_id] == 0)
    main = np.full(int(silent.sum()), counts.argmax())
    found = call.copy()
    found[silent] = nesting.innermost(main, moments_ns[silent])
    return found


@dataclass(frozen=True, slots=True)
class Roofline:
    """What a device can do at best; None: unknown."""

    known: Accelerator | None

    def peak(self, precision: str) -> float:
        """FLOP/s in matrices of a type, as torch names it; NaN: unknown.

        float32 counts as TF32 where the device has it, as traces do not say which of them was used.
        """
        if self.known is None:
            return math.nan
        name = precision.removeprefix("c10::").lower()
        name = "fp8" if name.startswith("float8") else name
        peak = peak_flops_per_s(self.known, name) or math.nan
        tf32 = peak_flops_per_s(self.known, "tf32") or 0.0
        return max(peak, tf32) if name in {"float", "float32"} else peak

    def limits(
        self,
        *,
        flops: NDArray[np.float64],
        moved_bytes: NDArray[np.float64],
        took_ns: NDArray[np.float64],
        peaks: NDArray[np.float64],
    ) -> _Columns:
        """What was computed and moved, 0 where unknown, and the least time for it."""
        compute_ns = np.where(flops > 0, 1e9 * flops / peaks, 0.0)
        memory_ns = 1e9 * moved_bytes / (1e12 * self.known.memory_tb_s if self.known else math.nan)
        known = np.isfinite(compute_ns) & np.isfinite(memory_ns) & (moved_bytes > 0)
        limit_ns = np.where(known, np.maximum(compute_ns, memory_ns), 0.0)
        return {
            "flops": flops,
            "flops_ns": np.where(flops > 0, took_ns, 0),
            "bytes": moved_bytes,
            "bytes_ns": np.where(moved_bytes > 0, took_ns, 0),
            "limit_ns": limit_ns,
            "limited_ns": np.where(known, took_ns, 0),
            "compute_bound_ns": np.where(compute_ns >= memory_ns, limit_ns, 0),
        }
