"""Reads the traces of all devices of one Nsight Systems export (SQLite, schemas 2.x and 3.x)."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evaluator.readers.distinct import distinct_rows
from evaluator.readers.files import STANDARD_LIMITS, ReadLimits
from evaluator.readers.nsys.collectives import collectives
from evaluator.readers.nsys.database import Database, open_database
from evaluator.readers.nsys.devices import devices
from evaluator.readers.nsys.host import host_calls, nvtx_ranges, process_of
from evaluator.readers.nsys.nccl import NcclCalls, Operation, nccl_calls
from evaluator.readers.nsys.rows import Rows, Tables
from evaluator.readers.nsys.steps import device_steps, host_steps
from evaluator.readers.nsys.work import GRAPH, device_work
from evaluator.readers.step_marks import NO_STEPS, RENUMBERED, MarkedSteps
from evaluator.traces.collectives import Collectives
from evaluator.traces.errors import TraceError
from evaluator.traces.rank import Device, RankTrace
from evaluator.traces.spans import Activity, Lane, Spans
from evaluator.traces.steps import StepWindows

_MOST_DEVICES = 1024
_LATEST_EPOCH_NS = 1 << 61
_NUMBER_BITS = (1 << 24) - 1


def read_devices(path: Path, limits: ReadLimits = STANDARD_LIMITS) -> tuple[RankTrace, ...]:
    """The trace of each device that a kernel ran on, as ranks from 0.

    The world is as large as there are devices, unless a communicator of NCCL has more ranks.
    Ranks are in order of the devices' numbers and, where several processes call their device by
    the same number, of the processes' ids. What one process did on a device without running a
    kernel there is left out. Steps are NVTX ranges that look like steps (`nsys_steps`).

    Raises TraceError when the file is no SQLite database, is damaged, passes a limit, or holds no
    work of a device.
    """
    with open_database(path, limits) as database:
        return _Export(path, database).traces()


class _Export:
    """Everything that the file holds, and which of it belongs to which rank.

    `_places` are the process and device of each rank. `_launch` has for each row of work the row
    of the call that launched it, -1: none was recorded.
    """

    def __init__(self, path: Path, database: Database) -> None:
        tables = Tables(database)
        work = device_work(tables)
        if not work.count:
            raise TraceError(path, "holds no work of a device")
        calls, ranges = host_calls(tables), nvtx_ranges(tables)
        if not work.process.any():  # an older file that does not tell processes apart
            calls = replace(calls, process=np.zeros(calls.count, np.int64))
            ranges = replace(ranges, thread=ranges.thread - process_of(ranges.thread))
        self._places, self._work_rank = _placed(path, work)
        self._work, self._calls = work, calls
        self._launch = _launches(work, calls)
        self._calls_rank = self._ranked_calls()
        self._steps = host_steps(ranges, {process for process, _ in self._places})
        self._communicating = np.flatnonzero(work.activity == Activity.COMMUNICATION)
        self._asked = self._operations(nccl_calls(tables, ranges))
        self._devices = devices(database)
        self._epoch_ns = _epoch_ns(database)
        self._names = tables.names
        strays = int((self._work_rank < 0).sum())
        told = f"{strays} copies and fills of processes that ran no kernel on the device left out"
        self._caveats = (*tables.caveats, *([told] if strays else []))

    def traces(self) -> tuple[RankTrace, ...]:
        """One trace for each rank."""
        work = _by_rank(self._work_rank, len(self._places))
        calls = _by_rank(self._calls_rank, len(self._places))
        return tuple(
            self._trace(rank, own, own_calls)
            for rank, (own, own_calls) in enumerate(zip(work, calls, strict=True))
        )

    def _world_size(self) -> int | None:
        """As many ranks as there are devices, unless a communicator has more."""
        sizes = [operation.group.size or 0 for operation in self._asked if operation]
        return len(self._places) if max(sizes, default=0) <= len(self._places) else None

    def _ranked_calls(self) -> NDArray[np.int64]:
        """The rank that each call is of, -1: none.

        A launch is of the rank of what it launched; a wait of the rank that its thread last
        launched something on, else of the first rank of its process.
        """
        calls, launched = self._calls, self._launch >= 0
        rank = np.full(calls.count, -1, np.int64)
        rank[self._launch[launched]] = self._work_rank[launched]
        order = np.lexsort((calls.start_ns, calls.thread, calls.process))
        last = np.maximum.accumulate(np.where(rank[order] >= 0, np.arange(order.size), 0))
        before = order[last]
        same = (calls.thread[before] == calls.thread[order]) & (
            calls.process[before] == calls.process[order]
        )
        waits = calls.activity[order] == Activity.SYNC
        processes, first = np.unique([place[0] for place in self._places], return_index=True)
        place = np.minimum(np.searchsorted(processes, calls.process[order]), processes.size - 1)
        fallback = np.where(processes[place] == calls.process[order], first[place], -1)
        rank[order] = np.where(
            waits, np.where(same & (rank[before] >= 0), rank[before], fallback), rank[order]
        )
        return rank

    def _trace(self, rank: int, own: NDArray[np.int64], own_calls: NDArray[np.int64]) -> RankTrace:
        process, number = self._places[rank]
        work, launch = self._work.where(own), self._launch[own]
        rows = Rows.joined((work, self._calls.where(own_calls)))
        device = self._devices.of(process, number)
        steps = self._steps.get(process, NO_STEPS)
        trace = RankTrace(
            rank=rank,
            world_size=self._world_size(),
            backend=None,
            device=device,
            source="nsys",
            spans=_spans(rows, self._names, device),
            collectives=self._collectives(own, rows),
            steps=self._device_steps(steps.windows, work, launch),
            host_steps=steps.windows,
            caveats=(*self._caveats, *self._own_caveats(work, launch, steps)),
        )
        return trace.shifted(self._epoch_ns)

    def _device_steps(
        self, steps: StepWindows, work: Rows, launch: NDArray[np.int64]
    ) -> StepWindows:
        launched = np.flatnonzero(launch >= 0)
        launched_ns = self._calls.start_ns[launch[launched]]
        order = np.argsort(launched_ns, kind="stable")
        work = work.where(launched[order])
        return device_steps(steps, launched_ns[order], work.start_ns, work.end_ns)

    def _operations(self, nccl: NcclCalls) -> list[Operation | None]:
        """What NCCL was asked for when it launched each of the communicating rows of work."""
        launch = self._launch[self._communicating]
        threads, start_ns = self._calls.thread, self._calls.start_ns
        return nccl.operations(
            [threads[row] if row >= 0 else -1 for row in launch.tolist()],
            [start_ns[row] if row >= 0 else -1 for row in launch.tolist()],
        )

    def _collectives(self, own: NDArray[np.int64], rows: Rows) -> Collectives:
        chosen = np.flatnonzero(np.isin(self._communicating, own, assume_unique=True))
        return collectives(
            self._work.where(self._communicating[chosen]),
            np.flatnonzero(rows.activity == Activity.COMMUNICATION),
            self._names,
            {place: rank for rank, place in enumerate(self._places)},
            [self._asked[index] for index in chosen.tolist()],
        )

    def _own_caveats(self, work: Rows, launch: NDArray[np.int64], steps: MarkedSteps) -> list[str]:
        graphs = {number for number, name in enumerate(self._names) if name.startswith(GRAPH)}
        graph_count = int(np.isin(work.name, list(graphs)).sum())
        orphan_count = int((launch < 0).sum())
        told = (
            (graph_count, "CUDA graphs were recorded as a whole: what ran inside is not told"),
            (orphan_count, f"of {work.count} spans on the device have no recorded launch"),
        )
        renumbered = [RENUMBERED] if steps.renumbered else []
        return [f"{count} {what}" for count, what in told if count] + renumbered


def _placed(path: Path, work: Rows) -> tuple[list[tuple[int, int]], NDArray[np.int64]]:
    """Process and device of each rank, and the rank of each row of work, -1: none."""
    places, place = distinct_rows(work.device, work.process)
    computes = np.zeros(places.shape[1], bool)
    computes[place[work.blocks >= 0]] = True
    computes[place[work.activity == Activity.COMPUTE]] = True
    if not computes.any():
        computes[:] = True
    if computes.sum() > _MOST_DEVICES:
        raise TraceError(path, f"names {computes.sum()} devices, more than {_MOST_DEVICES}")
    rank = np.where(computes, np.cumsum(computes) - 1, -1)
    device, process = places[:, computes].tolist()
    return list(zip(process, device, strict=True)), rank[place]


def _launches(work: Rows, calls: Rows) -> NDArray[np.int64]:
    """For each row of work the row of the call that launched it, -1: none was recorded."""
    numbers, wanted = calls.calls, work.calls
    if not numbers.size:
        return np.full(work.count, -1, np.int64)
    order = np.argsort(numbers, kind="stable")
    place = np.minimum(np.searchsorted(numbers[order], wanted), numbers.size - 1)
    found = (numbers[order][place] == wanted) & (wanted >= 0)
    return np.where(found, order[place], -1)


def _by_rank(rank: NDArray[np.int64], count: int) -> list[NDArray[np.int64]]:
    """The rows of each rank, in the order they stand."""
    order = np.argsort(rank, kind="stable")
    bounds = np.searchsorted(rank[order], np.arange(count + 1))
    return [order[first:behind] for first, behind in pairwise(bounds.tolist())]


def _spans(rows: Rows, names: tuple[str, ...], device: Device) -> Spans:
    on_device = rows.device >= 0
    line = np.where(on_device, rows.stream, rows.thread)
    places, lane = distinct_rows(on_device, rows.process, rows.device, line)
    own_names, name = np.unique(rows.name, return_inverse=True)
    count = device.multiprocessor_count or np.nan
    return Spans.build(
        start_ns=rows.start_ns,
        end_ns=rows.end_ns,
        name_id=name.astype(np.int32),
        lane_id=lane.astype(np.int32),
        activity=rows.activity.astype(np.int8),
        names=tuple(names[number] for number in own_names.tolist()),
        lanes=tuple(_lane(*place) for place in places.T.tolist()),
        correlation=np.maximum(rows.correlation, 0),
        bytes=np.maximum(rows.bytes, 0),
        blocks_per_sm=np.where(rows.blocks >= 0, rows.blocks / count, np.nan).astype(np.float32),
    )


def _lane(on_device: int, process: int, device: int, line: int) -> Lane:
    if on_device:
        return Lane(str(device), str(line), f"stream {line}")
    number = (process >> 24) & _NUMBER_BITS
    return Lane(str(number), str(line & _NUMBER_BITS), "")


def _epoch_ns(database: Database) -> int:
    """When the file's clock was 0, since the Unix epoch; 0 where it does not say."""
    told = database.integers("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": 0})["utcEpochNs"]
    return int(told[0]) if told.size and 0 < told[0] < _LATEST_EPOCH_NS else 0
