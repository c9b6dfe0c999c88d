"""Read the traces of all devices of one Nsight Systems export (SQLite, schemas 2.x and 3.x)."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from evaluator.traces.host_ranges import HostRanges, RangeKind
from evaluator.traces.intervals import first_place
from evaluator.traces.model import (
    Activity,
    CollectiveKind,
    Collectives,
    Device,
    Lane,
    RankGroup,
    RankTrace,
    Spans,
    StepWindows,
    distinct_rows,
    rows_by_number,
)
from evaluator.traces.readers.files import STANDARD_LIMITS, ReadLimits
from evaluator.traces.readers.marks import (
    NO_STEPS,
    RENUMBERED,
    MarkedSteps,
    collective_kind,
    communicates,
    counted,
    longest_steps,
)
from evaluator.traces.readers.nsys.database import (
    NUMBER_BITS,
    Labels,
    NsysDatabase,
    Ranges,
    Rows,
    host_calls,
    nvtx_ranges,
    open_database,
    process_of,
)
from evaluator.traces.readers.nsys.nccl import NcclCalls, NcclOperation, nccl_calls
from records.errors import TraceError

_LARGEST_BYTES = 1 << 50
_MOST_MULTIPROCESSORS = 1 << 16
_MOST_ROWS = 1 << 14


DeviceNames: TypeAlias = Callable[[int, int], Device]
"""The device that a process, by its global id, calls by a number; nameless where unknown."""


def devices(database: NsysDatabase) -> DeviceNames:
    """What the file says of devices, in either of its two database.

    One has them by their number on the machine, the other a process's own numbers for them.
    """
    columns = {"rowid": -1, "id": -1, "cuDevice": -1, "smCount": 0, "totalMemory": 0}
    rows = _first_rows(database, "TARGET_INFO_GPU", columns)
    names = database.values(str, "TARGET_INFO_GPU", "name", [row[0] for row in rows])
    by_number: dict[int, Device] = {}
    by_own_number: dict[int, Device] = {}
    for row, number, own_number, multiprocessors, memory_bytes in rows:
        device = Device(
            name=names.get(row, ""),
            multiprocessor_count=_within(multiprocessors, _MOST_MULTIPROCESSORS),
            memory_bytes=_within(memory_bytes, _LARGEST_BYTES),
        )
        by_number[number] = device
        by_own_number[number if own_number < 0 else own_number] = device
    columns = {"pid": -1, "cudaId": -1, "gpuId": -1, "numMultiprocessors": 0}
    by_process = {
        (process, own_number): (number, _within(count, _MOST_MULTIPROCESSORS))
        for process, own_number, number, count in _first_rows(
            database, "TARGET_INFO_CUDA_DEVICE", columns
        )
    }

    def device_of(process: int, own_number: int) -> Device:
        place = (process >> 24) & NUMBER_BITS, own_number
        if place not in by_process:
            return by_own_number.get(own_number) or Device(name="")
        number, count = by_process[place]
        return by_number.get(number) or Device(name="", multiprocessor_count=count)

    return device_of


def _first_rows(database: NsysDatabase, table: str, columns: Mapping[str, int]) -> list[list[int]]:
    values = database.integers(table, columns).values()
    rows: list[list[int]] = np.stack(list(values), axis=1)[:_MOST_ROWS].tolist()
    return rows


def _within(value: int, largest: int) -> int | None:
    return value if 0 < value <= largest else None


# `ProfilerStep#3`, `step 3`, `Step: 3`, `train_step[3]`, `iteration 3`, `iter_3`, `global step 3/9`
# or a bare `step`, `train_step`, `iteration`; torch adds `, op_id = 7` or `, seq = 7` to ranges.
_STEP = re.compile(
    r"(?P<label>(?:(?:profiler|train|training|global|model|eval)[ _-]?)?(?:step|iteration|iter))"
    r"(?:[ _#:=\[-]{1,3}(?P<number>\d{1,18})(?:/\d{1,18})?\]?)?(?:, (?:op_id|seq) = .*)?",
    re.IGNORECASE,
)
_LONGEST_LABEL = 200


def host_steps(ranges: Ranges, processes: Iterable[int]) -> Mapping[int, MarkedSteps]:
    """The steps of each of these processes that marked any, by the global id of the process.

    Of several sets of ranges, by thread and by what stands before the number, the one that covers
    most time is the steps.
    """
    labels, numbers = _steps_of(ranges.labels.texts)
    chosen = np.flatnonzero(labels[ranges.labels.index] >= 0)
    text = ranges.labels.index[chosen]
    _, source = distinct_rows(ranges.thread[chosen], labels[text])
    process = process_of(ranges.thread[chosen])
    found = {}
    for number in np.intersect1d(process, list(processes)).tolist():
        own = process == number
        rows = chosen[own]
        found[number] = longest_steps(
            source[own], numbers[text[own]], ranges.start_ns[rows], ranges.end_ns[rows]
        )
    return found


def _steps_of(texts: tuple[str, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The label of each text that names a step, as a number (-1: none), and the step's number."""
    labels: dict[str, int] = {}
    found = np.full((2, len(texts)), -1, np.int64)
    for index, text in enumerate(texts):
        match = _STEP.fullmatch(text) if len(text) <= _LONGEST_LABEL else None
        if match:
            numbered = match["number"] is not None
            label = f"{match['label'].lower()} {numbered}"
            found[0, index] = labels.setdefault(label, len(labels))
            found[1, index] = int(match["number"]) if numbered else -1
    return found[0], found[1]


GRAPH = "CUDA graph"

_PLACE = {"deviceId": 0, "streamId": 0, "correlationId": 0, "globalPid": 0}
_GRID = {"gridX": 0, "gridY": 0, "gridZ": 0}
_MOST_BLOCKS = 1 << 62
_PEER_TO_PEER = 10
_COPIES = {
    1: "Memcpy HtoD",
    2: "Memcpy DtoH",
    3: "Memcpy HtoA",
    4: "Memcpy AtoH",
    5: "Memcpy AtoA",
    6: "Memcpy AtoD",
    7: "Memcpy DtoA",
    8: "Memcpy DtoD",
    9: "Memcpy HtoH",
    _PEER_TO_PEER: "Memcpy PtoP",
    11: "Memcpy HtoD (unified)",
    12: "Memcpy DtoH (unified)",
    13: "Memcpy DtoD (unified)",
}


def device_work(database: NsysDatabase) -> Rows:
    """Everything that ran on a device.

    A copy between two devices communicates. A graph that was recorded as a whole computes:
    nothing says what ran inside.
    """
    return Rows.joined((_kernels(database), _graphs(database), _copies(database), _fills(database)))


def _kernels(database: NsysDatabase) -> Rows:
    columns = database.timed(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "kernels",
        _PLACE | _GRID | {"demangledName": -1, "shortName": -1},
    )
    full, short = columns["demangledName"], columns["shortName"]
    labels = database.labels(np.where(full >= 0, full, short), "unnamed kernel")
    communication = np.array([communicates(text) for text in labels.texts], bool)[labels.index]
    grid = np.prod([np.maximum(columns[side], 0).astype(np.float64) for side in _GRID], axis=0)
    return database.rows(
        columns,
        labels,
        np.where(communication, Activity.COMMUNICATION, Activity.COMPUTE),
        blocks=np.where((grid > 0) & (grid < _MOST_BLOCKS), grid, -1).astype(np.int64),
    )


def _graphs(database: NsysDatabase) -> Rows:
    columns = database.timed("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "graphs", _PLACE | {"graphId": -1})
    labels = Labels.of(columns["graphId"], lambda number: f"{GRAPH} {number}")
    return database.rows(columns, labels, Activity.COMPUTE)


def _copies(database: NsysDatabase) -> Rows:
    columns = database.timed(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        "copies",
        _PLACE | {"bytes": 0, "copyKind": 0, "srcDeviceId": -1, "dstDeviceId": -1},
    )
    labels = Labels.of(columns["copyKind"], lambda kind: _COPIES.get(kind, "Memcpy"))
    between = columns["copyKind"] == _PEER_TO_PEER
    return database.rows(
        columns,
        labels,
        np.where(between, Activity.COMMUNICATION, Activity.COPY),
        bytes=np.maximum(columns["bytes"], 0),
        source=np.where(between, columns["srcDeviceId"], -1),
        target=np.where(between, columns["dstDeviceId"], -1),
    )


def _fills(database: NsysDatabase) -> Rows:
    columns = database.timed("CUPTI_ACTIVITY_KIND_MEMSET", "fills", _PLACE | {"bytes": 0})
    labels = Labels(("Memset",), np.zeros_like(columns["start"]))
    return database.rows(columns, labels, Activity.FILL, bytes=columns["bytes"])


_MOST_DEVICES = 1024
_LATEST_EPOCH_NS = 1 << 61


def read_devices(path: Path, limits: ReadLimits = STANDARD_LIMITS) -> tuple[RankTrace, ...]:
    """The trace of each device that a kernel ran on, as ranks from 0.

    The world is as large as there are devices, unless a communicator of NCCL has more ranks.
    Ranks are in order of the devices' numbers and, where several processes call their device by
    the same number, of the processes' ids. What one process did on a device without running a
    kernel there is left out. Steps are NVTX ranges that look like steps (`_STEP`).

    Raises TraceError when the file is not a SQLite database, is damaged, passes a limit, or holds
    no work of a device.
    """
    with open_database(path, limits) as database:
        return _Export(path, database).traces()


def read_host_ranges(path: Path, limits: ReadLimits = STANDARD_LIMITS) -> HostRanges:
    """The NVTX ranges of all threads, on the clock of the traces; those of torch are operators.

    Marks of steps and NCCL's own ranges are left out. Raises TraceError as `read_devices`.
    """
    with open_database(path, limits) as database:
        return _Export(path, database).host_ranges()


# `emit_nvtx` of torch writes `aten::mm, op_id = 7` or `aten::mm, seq = 7, op_id = 9`.
_TORCH = re.compile(r"(?P<name>.+?), (?:seq = (?P<sequence>\d{1,18}), )?op_id = .*", re.DOTALL)
_OPERATOR = re.compile(r"[\w.]+::[\w.]+|\w+Backward\d*|autograd::engine::evaluate_function: .+")
_COLLECTIVE_MARKS = ("nccl", "gloo:")


class _Export:
    """Everything that the file holds, and which of it belongs to which rank.

    `_places` are the process and device of each rank. `_launch` has for each row of work the row
    of the call that launched it, -1: none was recorded.
    """

    def __init__(self, path: Path, database: NsysDatabase) -> None:
        work = device_work(database)
        if not work.count:
            raise TraceError(path, "holds no work of a device")
        calls, ranges = host_calls(database), nvtx_ranges(database)
        self._names = database.names
        if not work.process.any():  # an older file that does not distinguish processes
            calls = replace(calls, process=np.zeros(calls.count, np.int64))
            ranges = replace(ranges, thread=ranges.thread - process_of(ranges.thread))
        self._places, self._work_rank = _placed(path, work)
        self._work, self._calls = work, calls
        self._launch = np.where(work.calls >= 0, first_place(calls.calls, work.calls), -1)
        self._calls_rank = self._ranked_calls()
        self._ranges = ranges
        self._steps = host_steps(ranges, {process for process, _ in self._places})
        self._communicating = np.flatnonzero(work.activity == Activity.COMMUNICATION)
        self._operations = self._operations_of(nccl_calls(database, ranges))
        self._device_of = devices(database)
        self._epoch_ns = _epoch_ns(database)
        strays = "copies and fills of processes that ran no kernel on the device left out"
        self._caveats = database.caveats + counted({strays: np.sum(self._work_rank < 0)})

    def traces(self) -> tuple[RankTrace, ...]:
        """One trace for each rank."""
        work = rows_by_number(self._work_rank, len(self._places))
        calls = rows_by_number(self._calls_rank, len(self._places))
        return tuple(
            self._trace(rank, own, own_calls)
            for rank, (own, own_calls) in enumerate(zip(work, calls, strict=True))
        )

    def host_ranges(self) -> HostRanges:
        """What the host named, for all ranks."""
        ranges, texts = self._ranges, self._ranges.labels.texts
        by_torch = [_TORCH.fullmatch(text) for text in texts]
        names = [match["name"] if match else t for match, t in zip(by_torch, texts, strict=True)]
        sequence = [int(match["sequence"] or -1) if match else -1 for match in by_torch]
        kind = [
            RangeKind.OPERATOR if _OPERATOR.fullmatch(name) else RangeKind.NAMED for name in names
        ]
        is_mark = _steps_of(texts)[0] >= 0
        is_mark |= np.array([not t or t.startswith(_COLLECTIVE_MARKS) for t in names], bool)
        text = ranges.labels.index
        threads, lane_id = np.unique(ranges.thread, return_inverse=True)
        kept = np.flatnonzero(~is_mark[text])
        found = HostRanges.build(
            start_ns=ranges.start_ns[kept],
            end_ns=ranges.end_ns[kept],
            kind=np.array(kind, np.int8)[text[kept]],
            name_id=text[kept],
            lane_id=lane_id[kept],
            sequence=np.array(sequence, np.int64)[text[kept]],
            names=names,
            lanes=[
                _lane(0, process, -1, thread)
                for process, thread in zip(
                    process_of(threads).tolist(), threads.tolist(), strict=True
                )
            ],
        )
        return found.shifted(self._epoch_ns)

    def _world_size(self) -> int | None:
        """As many ranks as there are devices, unless a communicator has more."""
        sizes = [operation.group.size or 0 for operation in self._operations]
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
        processes = np.array([process for process, _ in self._places])
        fallback = first_place(processes, calls.process[order])
        rank[order] = np.where(
            waits, np.where(same & (rank[before] >= 0), rank[before], fallback), rank[order]
        )
        return rank

    def _trace(self, rank: int, own: NDArray[np.int64], own_calls: NDArray[np.int64]) -> RankTrace:
        process, number = self._places[rank]
        work, launch = self._work.select(own), self._launch[own]
        rows = Rows.joined((work, self._calls.select(own_calls)))
        device = self._device_of(process, number)
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
        """The same steps on a device: from the first work launched in each to the end of the last.

        A step that launched nothing stays as the host saw it.
        """
        launched = np.flatnonzero(launch >= 0)
        launched_ns = self._calls.start_ns[launch[launched]]
        order = np.argsort(launched_ns, kind="stable")
        work, launched_ns = work.select(launched[order]), launched_ns[order]
        first = np.searchsorted(launched_ns, steps.start_ns)
        behind = np.searchsorted(launched_ns, steps.end_ns)
        start_ns, end_ns = steps.start_ns.copy(), steps.end_ns.copy()
        for step in np.flatnonzero(first < behind):
            own = slice(first[step], behind[step])
            start_ns[step], end_ns[step] = work.start_ns[own].min(), work.end_ns[own].max()
        return replace(steps, start_ns=start_ns, end_ns=end_ns)

    def _operations_of(self, nccl: NcclCalls) -> list[NcclOperation]:
        """What each of the communicating rows of work did.

        NCCL's own ranges give kind, group and size where they were recorded; else a kernel's name
        gives the kind and nothing the size. A copy goes from one device of a process to another.
        """
        work, launch = self._work.select(self._communicating), self._launch[self._communicating]
        asked = nccl.operations(
            np.append(self._calls.thread, -1)[launch].tolist(),
            np.append(self._calls.start_ns, -1)[launch].tolist(),
        )
        ranks = {place: rank for rank, place in enumerate(self._places)}
        kinds = {name: collective_kind(self._names[name]) for name in np.unique(work.name).tolist()}
        columns = (work.process, work.source, work.target, work.bytes, work.name)
        done = []
        for operation, process, source, target, moved, name in zip(
            asked, *(column.tolist() for column in columns), strict=True
        ):
            ends = {ranks.get((process, device)) for device in (source, target)}
            known = tuple(sorted(rank for rank in ends if rank is not None))
            group = RankGroup("", known, 2) if len(known) == 2 else RankGroup("")
            if moved >= 0:
                done.append(NcclOperation(CollectiveKind.PUT, group, moved))
            else:
                done.append(operation or NcclOperation(kinds[name], RankGroup(""), 0))
        return done

    def _collectives(self, own: NDArray[np.int64], rows: Rows) -> Collectives:
        chosen = np.flatnonzero(np.isin(self._communicating, own, assume_unique=True))
        done = [self._operations[index] for index in chosen.tolist()]
        return Collectives.build(
            span=np.flatnonzero(rows.activity == Activity.COMMUNICATION),
            kind=[operation.kind for operation in done],
            groups=[operation.group for operation in done],
            bytes=[operation.bytes for operation in done],
        )

    def _own_caveats(self, work: Rows, launch: NDArray[np.int64], steps: MarkedSteps) -> list[str]:
        graphs = [number for number, name in enumerate(self._names) if name.startswith(GRAPH)]
        whole = "CUDA graphs were recorded as a whole: what ran inside is unknown"
        orphans = f"of {work.count} spans on the device have no recorded launch"
        counts = {whole: np.isin(work.name, graphs).sum(), orphans: np.sum(launch < 0)}
        return counted(counts) + ([RENUMBERED] if steps.renumbered else [])


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


def _spans(rows: Rows, names: tuple[str, ...], device: Device) -> Spans:
    on_device = rows.device >= 0
    line = np.where(on_device, rows.stream, rows.thread)
    places, lane = distinct_rows(on_device, rows.process, rows.device, line)
    count = device.multiprocessor_count or np.nan
    return Spans.build(
        start_ns=rows.start_ns,
        end_ns=rows.end_ns,
        name_id=rows.name,
        lane_id=lane,
        activity=rows.activity,
        names=names,
        lanes=[_lane(*place) for place in places.T.tolist()],
        correlation=np.maximum(rows.correlation, 0),
        bytes=np.maximum(rows.bytes, 0),
        blocks_per_sm=np.where(rows.blocks >= 0, rows.blocks / count, np.nan),
    )


def _lane(on_device: int, process: int, device: int, line: int) -> Lane:
    if on_device:
        return Lane(str(device), str(line), f"stream {line}")
    number = (process >> 24) & NUMBER_BITS
    return Lane(str(number), str(line & NUMBER_BITS), "")


def _epoch_ns(database: NsysDatabase) -> int:
    """When the file's clock was 0, since the Unix epoch; 0 where it does not say."""
    epochs = database.integers("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": 0})["utcEpochNs"]
    return int(epochs[0]) if epochs.size and 0 < epochs[0] < _LATEST_EPOCH_NS else 0
