"""Reads the traces of all devices of one XLA trace: its own profile, or the export to JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evaluator.readers.files import STANDARD_LIMITS, ReadLimits
from evaluator.readers.step_marks import RENUMBERED
from evaluator.readers.xla.collectives import Meetings, collectives_of
from evaluator.readers.xla.events import Events, read_events
from evaluator.readers.xla.lines import Chip, Lines, Role, lines_of
from evaluator.readers.xla.operations import Operations, operations_of
from evaluator.readers.xla.steps import device_steps, host_steps
from evaluator.readers.xla.xplane import holds_xspace, read_xspace
from evaluator.traces.collectives import Group
from evaluator.traces.errors import TraceError
from evaluator.traces.rank import Device, RankTrace
from evaluator.traces.spans import Activity, Lane, Spans

_OPERATIONS = (Role.OPERATIONS, Role.ASYNC_OPERATIONS, Role.KERNELS)
_WORK = (Activity.COMPUTE, Activity.COMMUNICATION)


def read_devices(path: Path, limits: ReadLimits = STANDARD_LIMITS) -> tuple[RankTrace, ...]:
    """The trace of each device that computed, as ranks from 0 in order of their numbers.

    Devices that neither compute nor communicate are left out where others do: a host moves data to
    each GPU that it sees, even if another process works on it.
    The world is as large as there are devices, unless a collective names others. Steps are those
    that a device shows, else runs of its step function, else what the program marked as steps,
    else Python functions that are steps.

    Raises TraceError when the file is damaged, passes a limit, or holds no operation of a device.
    """
    read = read_xspace if holds_xspace(path, limits) else read_events
    events = read(path, limits)
    lines = lines_of(events)
    if not lines.chips:
        raise TraceError(path, "holds no operation of a device")
    trace = _Trace(events, lines)
    traces = tuple(trace.of(rank) for rank in range(trace.rank_count))
    known = all(group.ranks is not None or not group.name for group in _groups(traces))
    return traces if known else tuple(replace(one, world_size=None) for one in traces)


def _groups(traces: Sequence[RankTrace]) -> Iterator[Group]:
    return chain.from_iterable(trace.collectives.groups for trace in traces)


class _Trace:
    """All events of a file, and what its devices share."""

    def __init__(self, events: Events, lines: Lines) -> None:
        self._events, self._lines = events, lines
        self._host_steps = host_steps(events, lines.role)
        self._meetings = Meetings(events, lines.role)
        self._rows = lines.rows()
        self._operations = [self._operations_among(rows) for rows in self._rows]
        self._caveats = events.caveats
        self._leave_out_movers()
        called = np.flatnonzero((lines.role == Role.HOST) & (events.correlation > 0))
        numbers, first = np.unique(events.correlation[called], return_index=True)
        self._called, self._calls = numbers, called[first]

    @property
    def rank_count(self) -> int:
        """How many devices there are."""
        return len(self._lines.chips)

    def _operations_among(self, rows: NDArray[np.int64]) -> Operations:
        role = self._lines.role[rows]
        working = np.isin(role, _OPERATIONS)
        return operations_of(self._events, rows[working], role[working])

    def _leave_out_movers(self) -> None:
        """Leave out the devices that only copy and fill, unless all do."""
        kept = np.array([np.isin(each.activity, _WORK).any() for each in self._operations], bool)
        if kept.all() or not kept.any():
            return
        self._lines = self._lines.only(kept)
        self._rows = [rows for rows, stays in zip(self._rows, kept, strict=True) if stays]
        self._operations = [
            each for each, stays in zip(self._operations, kept, strict=True) if stays
        ]
        left_out = f"{np.sum(~kept)} of {kept.size} devices, which only copied, were left out"
        self._caveats = (*self._caveats, left_out)

    def of(self, rank: int) -> RankTrace:
        """The trace of one device."""
        events, chip = self._events, self._lines.chips[rank]
        rows = self._rows[rank]
        operations, role = self._operations[rank], self._lines.role[rows]
        spans, communicating = self._spans(operations)
        shown = device_steps(events, rows, role)
        steps = shown if shown.windows.count else self._host_steps
        same = np.array_equal(steps.windows.number, self._host_steps.windows.number)
        marked = self._host_steps if same else shown
        return RankTrace(
            rank=rank,
            world_size=self.rank_count,
            backend=None,
            device=None if chip.is_host else Device(name=chip.kind),
            source="xla",
            spans=spans,
            collectives=collectives_of(
                events,
                operations.where(operations.activity == Activity.COMMUNICATION),
                communicating,
                self._meetings,
                self._ranks(chip),
                chip.number,
            ),
            steps=steps.windows,
            host_steps=marked.windows,
            caveats=self._caveats + ((RENUMBERED,) if steps.renumbered else ()),
        )

    def _ranks(self, chip: Chip) -> dict[int, int]:
        chips = enumerate(self._lines.chips)
        return {other.number: rank for rank, other in chips if other.host == chip.host}

    def _launches(self, operations: Operations) -> NDArray[np.int64]:
        """The rows of the host's calls that launched any of these."""
        launched = np.isin(self._called, self._events.correlation[operations.event])
        return self._calls[launched]

    def _spans(self, operations: Operations) -> tuple[Spans, NDArray[np.int64]]:
        """All spans of a device, and the rows among them that communicate."""
        events, calls = self._events, self._launches(operations)
        event = np.concatenate((operations.event, calls))
        start_ns = np.concatenate((operations.start_ns, events.start_ns[calls]))
        end_ns = np.concatenate((operations.end_ns, events.end_ns[calls]))
        launching = np.full(calls.size, Activity.LAUNCH)
        activity = np.concatenate((operations.activity, launching)).astype(np.int8)
        size = np.concatenate((operations.bytes, np.zeros(calls.size, np.int64)))
        order = np.argsort(start_ns, kind="stable")
        event = event[order]
        names, name = np.unique(events.name[event], return_inverse=True)
        lines, lane = np.unique(events.line[event], return_inverse=True)
        spans = Spans.build(
            start_ns=start_ns[order],
            end_ns=end_ns[order],
            name_id=name.astype(np.int32),
            lane_id=lane.astype(np.int32),
            activity=activity[order],
            names=tuple(events.names[number] for number in names.tolist()),
            lanes=tuple(self._lane(number) for number in lines.tolist()),
            correlation=np.maximum(events.correlation[event], 0),
            bytes=size[order],
            flops=events.flops[event],
        )
        return spans, np.flatnonzero(spans.activity == Activity.COMMUNICATION)

    def _lane(self, line: int) -> Lane:
        process, thread = self._events.line_ids[line]
        return Lane(process, thread, self._events.lines[line][1])
