"""Reads the trace of one rank that the PyTorch profiler wrote (Kineto JSON, plain or gzip)."""

import re
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evaluator.intervals import Nanoseconds
from evaluator.readers.files import STANDARD_LIMITS, ReadLimits, read_bytes
from evaluator.readers.kernels import communicates
from evaluator.readers.kineto_events import Batch, Document, Event, batches, decode_document
from evaluator.traces import Activity, RankTrace, StepWindows, TraceError

_RANK_IN_NAME = re.compile(r"(?:rank|kineto_trace)[-_]?(\d{1,7})(?!\d)")
_STEP = re.compile(r"ProfilerStep#(\d{1,18})")
_GLOO_THREAD = "pt_gloo_runloop"
_LARGEST_WORLD = 10_000_000
_LARGEST_BASE_NS = 1 << 62


class _Kind(IntEnum):
    """What an event is, before the whole file has told on which side the work was done."""

    KERNEL = 0
    COLLECTIVE_KERNEL = 1
    COPY = 2
    FILL = 3
    DEVICE_STEP = 4
    HOST_OP = 5
    HOST_WAIT = 6
    HOST_COLLECTIVE = 7
    HOST_STEP = 8


_DEVICE_ACTIVITY = {
    _Kind.KERNEL: Activity.COMPUTE,
    _Kind.COLLECTIVE_KERNEL: Activity.COMMUNICATION,
    _Kind.COPY: Activity.COPY,
    _Kind.FILL: Activity.FILL,
}
_HOST_ACTIVITY = {
    _Kind.HOST_OP: Activity.COMPUTE,
    _Kind.HOST_WAIT: Activity.WAIT,
    _Kind.HOST_COLLECTIVE: Activity.COMMUNICATION,
}


def _kernel_kind(name: str) -> _Kind:
    return _Kind.COLLECTIVE_KERNEL if communicates(name) else _Kind.KERNEL


def _copy_kind(_name: str) -> _Kind:
    return _Kind.COPY


def _fill_kind(_name: str) -> _Kind:
    return _Kind.FILL


def _device_span_kind(name: str) -> _Kind | None:
    return _Kind.DEVICE_STEP if _STEP.fullmatch(name) else None


def _host_span_kind(name: str) -> _Kind | None:
    if name.startswith("gloo:"):
        return _Kind.HOST_COLLECTIVE
    return _Kind.HOST_STEP if _STEP.fullmatch(name) else None


def _host_op_kind(name: str) -> _Kind | None:
    """Only ATen operators compute; what they enclose may still wait for a collective."""
    if name.startswith("aten::"):
        return _Kind.HOST_OP
    return (
        _Kind.HOST_WAIT
        if name.startswith(("c10d::", "c10d_functional", "_c10d_functional"))
        else None
    )


_KIND_OF_NAME = {
    "kernel": _kernel_kind,
    "gpu_memcpy": _copy_kind,
    "gpu_memset": _fill_kind,
    "gpu_user_annotation": _device_span_kind,
    "user_annotation": _host_span_kind,
    "cpu_op": _host_op_kind,
}


def read_rank(
    path: Path, limits: ReadLimits = STANDARD_LIMITS, only_rank: int | None = None
) -> RankTrace:
    """The spans and step windows of one rank.

    Device work counts where the trace holds any; else the host's: ATen operators compute, `gloo:`
    spans communicate. Steps are `ProfilerStep#k`, on the device from the first stream's start to
    the last one's end where the profiler recorded that, else on the host.
    The rank is taken from the trace, else from `rank<r>` in the file's name, else it is
    `only_rank`: the one rank of a job of one.

    Raises TraceError when the file is damaged, passes a limit, names no rank, or lacks the device
    work of a job that ran on devices.
    """
    try:
        return _read(path, limits, only_rank)
    except RecursionError as error:
        raise TraceError(path, "is nested too deeply") from error


def _read(path: Path, limits: ReadLimits, only_rank: int | None) -> RankTrace:
    document = decode_document(path, read_bytes(path, limits))
    if not 0 <= document.base_ns < _LARGEST_BASE_NS:
        raise TraceError(path, f"has an absurd base time: {document.base_ns}")
    rank, world_size = _place(path, document, only_rank)
    table = _Table()
    for batch in batches(path, document, limits.event_count):
        table.add(batch)
    return table.trace(path, document, rank, world_size)


def _place(path: Path, document: Document, only_rank: int | None) -> tuple[int, int | None]:
    """Rank and world size."""
    distributed = document.distributed
    rank = distributed.rank if distributed else None
    world_size = distributed.world_size if distributed else None
    if rank is None:
        named = _RANK_IN_NAME.search(path.name)
        rank = int(named[1]) if named else only_rank
    if rank is None:
        raise TraceError(path, "names no rank, neither inside nor in the file name")
    if not 0 <= rank < (_LARGEST_WORLD if world_size is None else world_size) <= _LARGEST_WORLD:
        raise TraceError(path, f"is of rank {rank} in a world of {world_size}")
    return rank, world_size


class _Table:
    """Collects the events that matter, batch by batch, as columns of shape (spans,)."""

    def __init__(self) -> None:
        self._name_ids: dict[str, int] = {}
        self._thread_ids: dict[tuple[int | str | None, int | str | None], int] = {}
        self._gloo_threads: set[int] = set()
        self._kinds: dict[tuple[str, str, str], int | None] = {}
        self._start_ns: list[Nanoseconds] = []
        self._duration_ns: list[Nanoseconds] = []
        self._columns: list[NDArray[np.int32]] = []

    def add(self, batch: Batch) -> None:
        """Keep what matters of a batch."""
        chosen: list[int] = []
        columns: tuple[list[int], list[int], list[int]] = [], [], []
        kinds, name_ids, thread_ids = columns
        names, threads = self._name_ids, self._thread_ids
        for index, event in enumerate(batch.events):
            kind = self._kind(event)
            if kind is not None:
                chosen.append(index)
                kinds.append(kind)
                name_ids.append(names.setdefault(event.name, len(names)))
                thread_ids.append(threads.setdefault((event.pid, event.tid), len(threads)))
            elif event.ph == "M" and event.name == "thread_name":
                self._note_thread(event)
        start_ns, duration_ns = batch.times_ns(chosen)
        self._start_ns.append(start_ns)
        self._duration_ns.append(duration_ns)
        self._columns.append(np.array(columns, np.int32).T)

    def _kind(self, event: Event[float]) -> int | None:
        """What the event is, a `_Kind`; None when it does not matter."""
        if event.cat == "kernel" and event.args is not None and event.args.collective:
            return int(_Kind.COLLECTIVE_KERNEL) if event.ph == "X" else None
        key = (event.ph, event.cat, event.name)
        try:
            return self._kinds[key]
        except KeyError:
            kind_of = _KIND_OF_NAME.get(event.cat) if event.ph == "X" else None
            kind = kind_of(event.name) if kind_of else None
            # A plain number: making an array of enumeration members takes ten times as long.
            self._kinds[key] = None if kind is None else int(kind)
            return self._kinds[key]

    def _note_thread(self, event: Event[float]) -> None:
        """Threads are named more than once; one name that says gloo is enough."""
        if event.args is not None and _GLOO_THREAD in (event.args.name or ""):
            thread = (event.pid, event.tid)
            self._gloo_threads.add(self._thread_ids.setdefault(thread, len(self._thread_ids)))

    def trace(self, path: Path, document: Document, rank: int, world_size: int | None) -> RankTrace:
        """All that was added, as the trace of one rank."""
        kind, name_id, thread_id = np.concatenate([np.empty((0, 3), np.int32), *self._columns]).T
        start_ns = np.concatenate([np.empty(0, np.int64), *self._start_ns]) + document.base_ns
        end_ns = start_ns + np.concatenate([np.empty(0, np.int64), *self._duration_ns])
        on_device = bool(np.any(kind <= _Kind.FILL))
        if not on_device and _ran_on_devices(document):
            raise TraceError(path, "holds no device work, though the job ran on devices")
        activity_of_kind = _activities(on_device, _backend(document))
        activity = np.zeros(len(_Kind), np.int8)
        activity[list(activity_of_kind)] = list(activity_of_kind.values())
        kept = np.isin(kind, list(activity_of_kind))
        # What gloo's own threads copy is part of the collective, not compute.
        kept &= (kind != _Kind.HOST_OP) | ~np.isin(thread_id, list(self._gloo_threads))
        order = np.flatnonzero(kept)
        order = order[np.argsort(start_ns[order], kind="stable")]
        names = tuple(self._name_ids)
        return RankTrace(
            rank=rank,
            world_size=world_size,
            backend=_backend(document),
            start_ns=start_ns[order],
            end_ns=end_ns[order],
            name_id=name_id[order],
            thread_id=thread_id[order],
            activity=activity[kind[order]],
            names=names,
            steps=_step_windows(kind, name_id, names, start_ns, end_ns),
        )


def _backend(document: Document) -> str | None:
    return document.distributed.backend if document.distributed else None


def _ran_on_devices(document: Document) -> bool:
    backend = _backend(document) or ""
    return "gloo" not in backend and ("nccl" in backend or document.has_devices)


def _activities(on_device: bool, backend: str | None) -> dict[_Kind, Activity]:
    """Which kinds of events count, and as what."""
    if not on_device:
        return _HOST_ACTIVITY
    if backend == "gloo":
        # Such a job computes on devices and communicates on the host.
        return _DEVICE_ACTIVITY | {_Kind.HOST_COLLECTIVE: Activity.COMMUNICATION}
    return _DEVICE_ACTIVITY


def _step_windows(
    kind: NDArray[np.int32],
    name_id: NDArray[np.int32],
    names: tuple[str, ...],
    start_ns: Nanoseconds,
    end_ns: Nanoseconds,
) -> StepWindows:
    """One window per step number, over all streams that recorded the step."""
    chosen = kind == _Kind.DEVICE_STEP
    if not chosen.any():
        chosen = kind == _Kind.HOST_STEP
    numbers = np.array([int(names[i].partition("#")[2]) for i in name_id[chosen]], np.int64)
    steps, step_of_row = np.unique(numbers, return_inverse=True)
    first = np.full(steps.size, np.iinfo(np.int64).max)
    last = np.full(steps.size, np.iinfo(np.int64).min)
    np.minimum.at(first, step_of_row, start_ns[chosen])
    np.maximum.at(last, step_of_row, end_ns[chosen])
    return StepWindows(number=steps, start_ns=first, end_ns=last)
