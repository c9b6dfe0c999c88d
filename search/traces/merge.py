"""One Chrome trace of all ranks of a job, for Perfetto and chrome://tracing.

Events of PyTorch's profiler are copied with all their fields; of other profilers the spans are
written that the readers found. Files are read a few megabytes at a time.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from itertools import chain, count
from pathlib import Path
from typing import IO, Final, TypeAlias

import msgspec
import numpy as np
from isal import igzip

from evaluator.traces.model import Activity, Lane, RankTrace, TraceSet
from evaluator.traces.readers.chrome import ChromeFile
from evaluator.traces.readers.files import ReadLimits
from evaluator.traces.readers.formats import MERGED
from evaluator.traces.readers.kineto.events import header_of
from records.errors import TraceError
from search.views.format import format_count, format_duration, one_line

Event: TypeAlias = dict[str, object]
Track: TypeAlias = tuple[bytes, bytes]
"""The process and the thread of an event, as its file has them."""
OnRank: TypeAlias = Callable[[int, int], None]
"""Called after each rank: how many are written, of how many."""

MOST_TRACKS: Final = 100_000
NAME_CHARS: Final = 100
LARGEST_US: Final = 10**16
SPANS_OF_A_BATCH: Final = 20_000
COMPRESSION: Final = 2
OVERLAY: Final = "critical path"
FLOW_PHASES: Final = frozenset({b'"s"', b'"t"', b'"f"', b'"b"', b'"n"', b'"e"'})
DEVICE_CATEGORIES: Final = frozenset(
    {b'"kernel"', b'"gpu_memcpy"', b'"gpu_memset"', b'"gpu_user_annotation"', b'"cuda_sync"'}
)
_CONTROLS_AS_SPACES = bytes(max(32, byte) for byte in range(256))
_NAMES = msgspec.json.Decoder(dict[str, object])


class _Start(msgspec.Struct):
    """When an event began, if it says so."""

    ph: str = ""
    ts: float | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedTrace:
    """What was written; `left_out` counts events without a time or that are damaged."""

    rank_count: int
    event_count: int
    left_out: int
    clocks: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlaySpan:
    """A span to show above all ranks, on a track of its own; ns on the common clock."""

    name: str
    track: str
    start_ns: int
    end_ns: int


def clock_words(traces: TraceSet) -> str:
    """Return how far the clocks of ranks agree, as one sentence."""
    alignment = traces.alignment
    if alignment is not None:
        left = format_duration(alignment.residual_ns / 1e9)
        over = format_count(alignment.matched_count, "matched collective")
        return f"clocks are aligned on {over}, whose ends still differ by {left} at the median"
    if len(set(traces.files)) < 2:
        return "all ranks are in one file, so they share its clock"
    if not all(trace.on_device for trace in traces.ranks):
        return (
            "clocks are as recorded, not aligned: collectives on the host do not end on all ranks "
            "at the same moment; ranks on one machine share its clock"
        )
    return "clocks are as recorded, not aligned: too few collectives were matched between ranks"


def write_merged(
    traces: TraceSet,
    to: Path,
    limits: ReadLimits,
    *,
    packed: bool,
    on_rank: OnRank | None = None,
    overlay: Sequence[OverlaySpan] = (),
) -> MergedTrace:
    """Write all ranks into one file as processes of one Chrome trace, gzip where it is `packed`.

    The spans of the `overlay` are one more process, the critical path.
    Raises TraceError where a trace can no longer be read, OSError where nothing can be written.
    """
    opened: IO[bytes] = (
        igzip.open(to, "wb", COMPRESSION)  # type: ignore[no-untyped-call]  # has no annotations
        if packed
        else to.open("wb")
    )
    with opened as file:
        return _Merger(traces, limits, overlay).write(file, on_rank)


class _Merger:
    """Numbers processes, threads and flows so that those of different ranks do not collide."""

    def __init__(
        self, traces: TraceSet, limits: ReadLimits, overlay: Sequence[OverlaySpan]
    ) -> None:
        self._traces = traces
        self._limits = limits
        self._overlay = overlay
        self._shifts_ns: dict[int, int] = {}
        self._zero_ns = 0
        self.numbers = count(1)
        self.left_out = 0
        self.rank_count = len(traces.ranks)

    def _find_zero(self) -> None:
        """Note what each file's times count from, and the earliest moment of all."""
        firsts_ns = []
        alignment, times = self._traces.alignment, Counter(self._traces.files)
        for place, trace in enumerate(self._traces.ranks):
            path = self._traces.files[place]
            if trace.source == "kineto" and times[path] == 1:
                offset_ns = alignment.offsets_ns[place] if alignment is not None else 0
                base_ns, first_ns = _begin(path, self._limits)
                self._shifts_ns[place] = base_ns + offset_ns
                firsts_ns.append(base_ns + offset_ns + first_ns)
            elif trace.spans.count:
                firsts_ns.append(int(trace.spans.start_ns[0]))
        self._zero_ns = min(firsts_ns, default=0)

    def write(self, file: IO[bytes], on_rank: OnRank | None) -> MergedTrace:
        """Write the whole document."""
        self._find_zero()
        clocks = clock_words(self._traces)
        facts = {"clocks": clocks, "caveats": [*self._traces.caveats]}
        head = msgspec.json.encode(facts)[1:]
        file.write(MERGED + b'",' + head + b',"displayTimeUnit":"ms","traceEvents":[')
        written = 0
        for place, trace in enumerate(self._traces.ranks):
            last = place + 1 == self.rank_count
            above = self._overlaid() if last and self._overlay else ()
            for events in chain(self._rank(place, trace), above):
                if events:
                    file.write((b",\n" if written else b"\n") + _encoded(events))
                    written += len(events)
            if on_rank is not None:
                on_rank(place + 1, self.rank_count)
        file.write(b"\n]}\n")
        return MergedTrace(
            rank_count=self.rank_count,
            event_count=written,
            left_out=self.left_out,
            clocks=clocks,
        )

    def _rank(self, place: int, trace: RankTrace) -> Iterator[Sequence[Event]]:
        if place in self._shifts_ns:
            yield from self._copied(place, trace.rank)
        else:
            yield from self._spans(trace)

    def _copied(self, place: int, rank: int) -> Iterator[Sequence[Event]]:
        path = self._traces.files[place]
        shift_ns = self._shifts_ns[place] - self._zero_ns
        tracks = _Tracks(rank, self.numbers, path)
        source = ChromeFile(path, self._limits, dict[str, msgspec.Raw], repairs=True)
        with closing(source.batches()) as batches:
            for events in batches:
                copied = (self._copy(each, place, shift_ns, tracks) for each in events)
                yield [each for each in copied if each is not None]
        self.left_out += len(source.damages)
        yield tracks.described()

    def _copy(
        self, of: dict[str, msgspec.Raw], place: int, shift_ns: int, tracks: "_Tracks"
    ) -> Event | None:
        """Return an event on the common clock, in the process and thread of its rank."""
        track = bytes(of.get("pid", b"0")), bytes(of.get("tid", b"0"))
        phase = bytes(of.get("ph", b""))
        if phase == b'"M"':
            tracks.note(track, of)
            return None
        start_ns = _nanoseconds(bytes(of.get("ts", b"")).decode(errors="replace"))
        if start_ns is None:
            self.left_out += 1
            return None
        is_device = bytes(of.get("cat", b"")) in DEVICE_CATEGORIES
        number = tracks.number(track, is_device=is_device)
        ts = msgspec.Raw(_microseconds(start_ns + shift_ns))
        copied: Event = {**of, "pid": tracks.rank, "tid": number, "ts": ts}
        if phase in FLOW_PHASES and "id" in of:
            copied["id"] = self._own_id(of["id"], place)
        return copied

    def _own_id(self, of: msgspec.Raw, place: int) -> object:
        """Return the number of a flow, different in every rank."""
        text = bytes(of)
        is_number = text.isdigit() and len(text) < 15
        return int(text) * self.rank_count + place if is_number else f"{place}:{text.decode()}"

    def _overlaid(self) -> Iterator[Sequence[Event]]:
        """Return the overlay as a process above those of the ranks."""
        process = max(trace.rank for trace in self._traces.ranks) + 1
        tracks = {span.track: 0 for span in self._overlay}
        tracks = {track: next(self.numbers) for track in tracks}
        for first in range(0, len(self._overlay), SPANS_OF_A_BATCH):
            yield [
                {
                    "ph": "X",
                    "cat": "critical_path",
                    "name": span.name,
                    "pid": process,
                    "tid": tracks[span.track],
                    "ts": msgspec.Raw(_microseconds(span.start_ns - self._zero_ns)),
                    "dur": msgspec.Raw(_microseconds(span.end_ns - span.start_ns)),
                }
                for span in self._overlay[first : first + SPANS_OF_A_BATCH]
            ]
        yield _described(process, {number: track for track, number in tracks.items()}, set())
        yield [
            {"ph": "M", "name": "process_name", "pid": process, "args": {"name": OVERLAY}},
            {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": -1}},
        ]

    def _spans(self, trace: RankTrace) -> Iterator[Sequence[Event]]:
        spans, rank = trace.spans, trace.rank
        lanes = [next(self.numbers) for _ in spans.lanes]
        for first in range(0, spans.count, SPANS_OF_A_BATCH):
            rows = slice(first, first + SPANS_OF_A_BATCH)
            columns = (
                (spans.start_ns[rows] - self._zero_ns).tolist(),
                spans.duration_ns[rows].tolist(),
                spans.name_id[rows].tolist(),
                spans.lane_id[rows].tolist(),
                spans.activity[rows].tolist(),
            )
            yield [
                {
                    "ph": "X",
                    "cat": Activity(activity).name.lower(),
                    "name": spans.names[name],
                    "pid": rank,
                    "tid": lanes[lane],
                    "ts": msgspec.Raw(_microseconds(start_ns)),
                    "dur": msgspec.Raw(_microseconds(took_ns)),
                }
                for start_ns, took_ns, name, lane, activity in zip(*columns, strict=True)
            ]
        names = {number: _lane_name(lane) for number, lane in zip(lanes, spans.lanes, strict=True)}
        works = np.bincount(spans.lane_id[spans.activity <= Activity.FILL], None, len(lanes)) > 0
        yield _described(rank, names, {lanes[n] for n in np.flatnonzero(works).tolist()})


@dataclass(slots=True)
class _Tracks:
    """The threads of a rank's file: their numbers in the merged trace, and their names."""

    rank: int
    numbers: Iterator[int]
    path: Path
    known: dict[Track, int] = field(default_factory=dict)
    devices: set[int] = field(default_factory=set)
    threads: dict[Track, str] = field(default_factory=dict)
    processes: dict[bytes, str] = field(default_factory=dict)

    def number(self, track: Track, *, is_device: bool) -> int:
        """Return the number of a track; raise TraceError where there are too many."""
        number = self.known.get(track)
        if number is None:
            if len(self.known) >= MOST_TRACKS:
                raise TraceError(self.path, f"holds more than {MOST_TRACKS} threads")
            number = self.known[track] = next(self.numbers)
        if is_device:
            self.devices.add(number)
        return number

    def note(self, track: Track, of: dict[str, msgspec.Raw]) -> None:
        """Keep the name of a thread, or the label of a process such as `GPU 0`."""
        try:
            args = _NAMES.decode(of.get("args", b"{}"))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        match bytes(of.get("name", b"")):
            case b'"thread_name"' if len(self.threads) < MOST_TRACKS:
                self.threads[track] = one_line(str(args.get("name", "")), NAME_CHARS)
            case b'"process_labels"' if len(self.processes) < MOST_TRACKS:
                self.processes[track[0]] = one_line(str(args.get("labels", "")), NAME_CHARS)

    def described(self) -> Sequence[Event]:
        """Return what names and sorts the process and its threads: device streams first."""
        names = {number: self._name(track) for track, number in self.known.items()}
        return _described(self.rank, names, self.devices)

    def _name(self, track: Track) -> str:
        process, thread = (part.decode(errors="replace").strip('"') for part in track)
        unnamed = f"thread {thread}" if thread.isdigit() else thread or "no thread"
        own = self.threads.get(track) or one_line(unnamed, NAME_CHARS)
        label = self.processes.get(track[0], "")
        if self.known[track] in self.devices:
            return f"{label or f'device {process}'}, {own}"
        return own


def _described(rank: int, names: Mapping[int, str], first: Set[int]) -> list[Event]:
    """Return the events that name and sort a process and its threads; these come `first`."""

    def fact(of: str, tid: int, **args: object) -> Event:
        return {"ph": "M", "name": of, "pid": rank, "tid": tid, "args": args}

    found = [
        fact("process_name", 0, name=f"rank {rank}"),
        fact("process_sort_index", 0, sort_index=rank),
    ]
    order = sorted(names, key=lambda n: (n not in first, len(names[n]), names[n]))
    for place, number in enumerate(order):
        found.append(fact("thread_name", number, name=names[number]))
        found.append(fact("thread_sort_index", number, sort_index=place))
    return found


def _lane_name(lane: Lane) -> str:
    return one_line(lane.name or f"thread {lane.thread}", NAME_CHARS)


def _encoded(events: Sequence[Event]) -> bytes:
    """Return events without the brackets around them, as valid UTF-8 without control characters."""
    text = msgspec.json.encode(events)[1:-1].translate(_CONTROLS_AS_SPACES)
    return text.decode(errors="replace").encode()


def _begin(path: Path, limits: ReadLimits) -> tuple[int, int]:
    """Return the moment that times of a file count from, and when its first event began."""
    source = ChromeFile(path, limits, _Start, repairs=True)
    first_us = math.inf
    with closing(source.batches()) as batches:
        for events in batches:
            starts = (_start_us(each.ts) for each in events if each.ph != "M")
            first_us = min(first_us, min(starts, default=math.inf))
    first_us = 0.0 if math.isinf(first_us) else first_us
    return header_of(path, source.header).base_ns, math.floor(first_us) * 1000


def _start_us(of: float | str | None) -> float:
    """Return when an event began; infinity where it does not say."""
    if isinstance(of, str):
        start_ns = _nanoseconds(of)
        return math.inf if start_ns is None else start_ns / 1000
    return math.inf if of is None or abs(of) >= LARGEST_US else of


def _nanoseconds(text: str) -> int | None:
    """Return a time in microseconds exactly; None where it is none."""
    try:
        exact_us = Decimal(text.strip('"'))
    except InvalidOperation:
        return None
    is_sane = exact_us.is_finite() and abs(exact_us) < LARGEST_US
    return int((exact_us * 1000).to_integral_value()) if is_sane else None


def _microseconds(moment_ns: int) -> bytes:
    whole, rest = divmod(abs(moment_ns), 1000)
    return f"{'-' if moment_ns < 0 else ''}{whole}.{rest:03d}".encode()
