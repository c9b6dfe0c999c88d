"""Read what the host called, from the trace that the PyTorch profiler wrote of one rank.

That is most of such a file, and only needed to say which operator or module work belongs to.
"""

import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from evaluator.traces.host_ranges import HostRanges, RangeKind
from evaluator.traces.model import Lane
from evaluator.traces.readers.chrome import ChromeFile
from evaluator.traces.readers.files import ReadLimits
from evaluator.traces.readers.kineto.columns import Numbered, is_time, rounded_ns, starts_ns
from evaluator.traces.readers.kineto.events import (
    ENGINE_STEP,
    ITERATION,
    PROFILER_STEP,
    Category,
    EventPhase,
    KinetoEvent,
    Number,
    Whole,
    header_of,
    lane_text,
    operand_shapes,
    operand_sizes,
    sane_bytes,
    sound_arguments,
    type_bytes,
)

_MODULE = "nn.Module: "
_COLLECTIVE_MARKS = ("nccl:", "gloo:")
_NO_RANGE = -1


class RangeArguments(msgspec.Struct, gc=False):
    """Arguments of an operator."""

    sequence: Whole = msgspec.field(name="Sequence number", default=-1)
    forward_thread: Whole = msgspec.field(name="Fwd thread id", default=0)
    types: list[str] = msgspec.field(name="Input type", default_factory=list)
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b"[]"))


def read_host_ranges(path: Path, limits: ReadLimits) -> HostRanges:
    """Operators, modules and named ranges of the host, on the clock of the rank's trace.

    Marks of steps and of collectives are left out, and damaged events. Modules are there where the
    profiler recorded stacks. Raises TraceError where the file cannot be read.
    """
    file = ChromeFile(path, limits, KinetoEvent, repairs=True)
    found = _Rows()
    starts, durations = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    with closing(file.batches()) as batches:
        for events in batches:
            chosen = [place for place, event in enumerate(events) if found.add(event)]
            times = [events[place] for place in chosen]
            places = np.array(chosen, np.int64)
            starts.append(starts_ns(path, [event.ts for event in times], file.text, places))
            durations.append(rounded_ns(path, [event.dur for event in times], "duration"))
    start_ns = np.concatenate(starts) + header_of(path, file.header).base_ns
    return HostRanges.build(
        start_ns=start_ns,
        end_ns=start_ns + np.concatenate(durations),
        names=tuple(found.names),
        lanes=[Lane(lane_text(pid), lane_text(tid)) for pid, tid in found.lanes],
        precisions=tuple(found.precisions),
        **found.columns(),
    )


_COLUMNS: Final = (
    *("kind", "name_id", "lane_id", "sequence"),
    *("is_backward", "flops", "bytes", "precision_id"),
)


class _Rows:
    """Rows of ranges in file order, without their times."""

    def __init__(self) -> None:
        self.names = Numbered[str]()
        self.lanes = Numbered[tuple[Number | None, Number | None]]()
        self.precisions = Numbered[str]({"": 0})
        self.rows: list[tuple[float, ...]] = []
        self._kinds: dict[tuple[Category, str], tuple[int, str]] = {}

    def columns(self) -> dict[str, tuple[float, ...]]:
        """What `HostRanges` has besides times, by the names of columns."""
        return dict(zip(_COLUMNS, zip(*self.rows, strict=True), strict=True)) if self.rows else {}

    def add(self, event: KinetoEvent) -> bool:
        """Add the row of an event; whether it is one."""
        key = event.cat, event.name
        known = self._kinds.get(key)
        if known is None:
            known = self._kinds[key] = _kind(*key)
        kind, name = known
        if kind == _NO_RANGE or event.ph is not EventPhase.COMPLETE:
            return False
        if not (is_time(event.ts) and is_time(event.dur)):
            return False
        given = _arguments(event.args) if kind == RangeKind.OPERATOR else _NONE
        flops, moved_bytes, precision = work_of(name, given.types, given.shapes)
        self.rows.append(
            (
                *(kind, self.names[name], self.lanes[event.pid, event.tid], given.sequence),
                *(given.forward_thread > 0, flops, moved_bytes, self.precisions[precision]),
            )
        )
        return True


def _kind(category: Category, name: str) -> tuple[int, str]:
    """What a range of a category and a name is, and how to call it."""
    if category in {Category.FRAME, Category.OLD_FRAME}:
        is_module = name.startswith(_MODULE)
        # Modules of a class are numbered as they are first called.
        return RangeKind.MODULE if is_module else _NO_RANGE, _class_of(name)
    marks = (PROFILER_STEP, ENGINE_STEP, ITERATION)
    if name.startswith(_COLLECTIVE_MARKS) or any(mark.fullmatch(name) for mark in marks):
        return _NO_RANGE, name
    if category in {Category.HOST_OP, Category.OLD_HOST_OP}:
        return RangeKind.OPERATOR, name
    return RangeKind.NAMED if category is Category.HOST_ANNOTATION else _NO_RANGE, name


def _class_of(name: str) -> str:
    head, _, number = name.removeprefix(_MODULE).rpartition("_")
    return head if head and number.isdecimal() else name.removeprefix(_MODULE)


_NONE: Final = RangeArguments()
_ARGUMENTS = msgspec.json.Decoder(RangeArguments)


def _arguments(text: msgspec.Raw) -> RangeArguments:
    try:
        return _ARGUMENTS.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _ARGUMENTS.decode(sound_arguments(text, RangeArguments) or b"{}")


_LARGEST_SIDE = 1 << 40
_FIRST_FACTOR: Final = {
    "aten::mm": 0,
    "aten::bmm": 0,
    "aten::_scaled_mm": 0,
    "aten::addmm": 1,
    "aten::addmm_": 1,
    "aten::baddbmm": 1,
    "aten::baddbmm_": 1,
}
"""Matrix products, and which operand is the first matrix."""
_COVERING: Final = (
    "add sub mul div neg pow exp sqrt rsqrt clamp where relu sigmoid tanh gelu silu "
    "gelu_backward silu_backward threshold_backward sigmoid_backward tanh_backward "
    "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data "
    "native_layer_norm add_ sub_ mul_ div_ neg_ sqrt_ clamp_ relu_ addcmul_ addcdiv_ lerp_"
)
"""What reads all of its operands, and writes a tensor of the size of the largest."""
_COVERS: Final = frozenset(f"aten::{name}" for name in _COVERING.split())
_WRITES_ONE_OPERAND: Final = frozenset({"aten::copy_", "aten::fill_", "aten::zero_"})
_STATES_BYTES: Final = _COVERS | _WRITES_ONE_OPERAND


def work_of(name: str, types: Sequence[str], text: msgspec.Raw) -> tuple[float, int, str]:
    """FLOP of an operator (NaN: unknown), bytes that it moves at least (0), and its precision ("").

    A product of matrices (batch, m, k) and (batch, k, n) has 2 batch m k n. Other operators state
    bytes where they read all of each operand: not those that gather, or take views.
    """
    first = _FIRST_FACTOR.get(name)
    if first is None and name not in _STATES_BYTES:
        return math.nan, 0, ""
    shapes = operand_shapes(text)
    sizes = operand_sizes(types, shapes)
    if first is None:
        written = 0 if name in _WRITES_ONE_OPERAND else max(sizes, default=0)
        return math.nan, sane_bytes(sum(sizes) + written), next(iter(types), "")
    match [list(shape) for shape in shapes[first : first + 2]]:
        case [[int(rows), int(depth)], [int(), int(columns)]]:
            batch = 1
        case [[int(batch), int(rows), int(depth)], [int(), int(), int(columns)]]:
            pass
        case _:
            return math.nan, 0, ""
    if not all(0 <= size < _LARGEST_SIDE for size in (batch, rows, depth, columns)):
        return math.nan, 0, ""
    product = batch * rows * columns
    precision = types[first] if first < len(types) else ""
    moved_bytes = sum(sizes) + product * type_bytes(precision)
    return 2.0 * product * depth, sane_bytes(moved_bytes), precision
