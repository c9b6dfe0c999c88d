"""The events of a Kineto trace as columns, before it is known on which side work counts.

Events come in batches, and every name is classified a single time. Microseconds become whole
nanoseconds without loss. Faulty times are repaired and counted.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from evaluator.traces.intervals import Nanoseconds, first_place
from evaluator.traces.model import Table
from evaluator.traces.readers.chrome import ChromeFile, DamagedEvent
from evaluator.traces.readers.kineto.events import (
    Category,
    EventKind,
    EventPhase,
    GroupKey,
    KindOfName,
    KinetoEvent,
    MemoryArguments,
    Number,
    OperatorArguments,
    ThreadArguments,
    WorkArguments,
    header_of,
    message,
    operand_bytes,
    sound_arguments,
)
from evaluator.traces.readers.marks import counted
from records.errors import TraceError, shown

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkColumns(Table):
    """What device work and calls to the driver state, shape (events,); 0 or NaN: unknown."""

    correlation: NDArray[np.int64]
    bytes: NDArray[np.int64]
    blocks_per_sm: NDArray[np.float32]
    occupancy: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MessageColumns(Table):
    """What spans that communicate state of their collectives, shape (messages,).

    `kind` holds `CollectiveKind` values, `group` numbers of group keys; bytes of 0 and a sequence
    of -1 are unknown.
    """

    row: NDArray[np.int64]
    kind: NDArray[np.int8]
    group: NDArray[np.int32]
    bytes: NDArray[np.int64]
    sequence: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CallColumns(Table):
    """What collectives that the host carries out or calls state, shape (calls,).

    `function` numbers calls as they are made; all are equal where the recorder did not count.
    `bytes` are those of all tensors handed over, `largest_bytes` of the largest one; 0: unknown.
    """

    row: NDArray[np.int64]
    function: NDArray[np.int64]
    bytes: NDArray[np.int64]
    largest_bytes: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryColumns(Table):
    """What allocators report, shape (reports,); `device` is torch's type of it, 0 is the host."""

    time_ns: Nanoseconds
    allocated_bytes: NDArray[np.int64]
    device: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EventColumns(Table):
    """The events that matter in file order, shape (events,); what only some state has its own rows.

    Times are ns, without the base time of the file until that is added.
    """

    kind: NDArray[np.int8]
    name_id: NDArray[np.int32]
    lane_id: NDArray[np.int32]
    start_ns: Nanoseconds
    duration_ns: Nanoseconds
    work: WorkColumns
    messages: MessageColumns
    calls: CallColumns
    memory: MemoryColumns

    @property
    def end_ns(self) -> Nanoseconds:
        """When each ends."""
        return self.start_ns + self.duration_ns


# Below 2^43 us a float64 is at most 0.49 ns from the decimal text, so rounding restores it.
_FLOAT_EXACT_BELOW_US = float(1 << 43)
# In nanoseconds a quarter of what int64 holds: base + start + duration cannot overflow.
_LARGEST_US = float(1 << 51)
_EPOCH_DIGITS, _FRACTION_DIGITS = 16, 3
_SPACE, _POINT, _ZERO = b" .0"


class _Start(msgspec.Struct, gc=False):
    """The start of an event, digit by digit."""

    ts: msgspec.Raw = msgspec.Raw(b"0")


_STARTS = msgspec.json.Decoder(list[_Start])
_Numbers: TypeAlias = Sequence[Number | None]


def rounded_ns(path: Path, values_us: _Numbers, what: str) -> Nanoseconds:
    """Durations and the like, int64 ns, shape (events,).

    Raises TraceError when one is absent or absurd, calling it what it is.
    """
    return _rounded(_numbers(path, values_us, what))


def is_time(value: Number | None) -> bool:
    """Whether the two functions of this module take it for a time."""
    try:
        return value is not None and abs(float(value)) < _LARGEST_US
    except (ValueError, OverflowError):
        return False


def starts_ns(
    path: Path, starts_us: _Numbers, text: bytes, chosen: NDArray[np.int64]
) -> Nanoseconds:
    """Starts, int64 ns, shape (events,): those of the `chosen` events of the list `text`.

    Fractions of a microsecond since 1970 do not fit a float64: they are read from the text again.
    Raises TraceError when one is absent or absurd.
    """
    values = _numbers(path, starts_us, "start")
    far = np.abs(values) >= _FLOAT_EXACT_BELOW_US
    if not far.any() or not {type(value) for value in starts_us} - {int}:
        return _rounded(values)
    texts = [bytes(start.ts).strip(b'"') for start in _STARTS.decode(text)]
    return _exact(path, [texts[i] for i in chosen.tolist()])


def _numbers(path: Path, values: _Numbers, what: str) -> NDArray[np.float64]:
    try:
        numbers = np.array(values, np.float64)
    except (ValueError, OverflowError) as error:
        raise TraceError(path, f"an event has an absurd {what}: {error}") from error
    if not np.all(np.abs(numbers) < _LARGEST_US):
        raise TraceError(path, f"an event has no {what} or an absurd one")
    return numbers


def _rounded(microseconds: NDArray[np.float64]) -> Nanoseconds:
    whole = np.floor(microseconds)
    fraction_ns = np.rint((microseconds - whole) * 1000)
    return whole.astype(np.int64) * 1000 + fraction_ns.astype(np.int64)


def _exact(path: Path, texts: Sequence[bytes]) -> Nanoseconds:
    """By the columns of digits where all look like 1712195495505583.017, else one by one."""
    digits = np.array(texts, "S").view(np.uint8).reshape(len(texts), -1)
    width = _EPOCH_DIGITS + 1 + _FRACTION_DIGITS
    if digits.shape[1] == width and np.all(digits[:, _EPOCH_DIGITS] == _POINT):
        values = np.delete(digits, _EPOCH_DIGITS, axis=1).astype(np.int64) - _ZERO
        if np.all((values >= 0) & (values <= 9)):
            return values @ 10 ** np.arange(width - 2, -1, -1, dtype=np.int64)
    try:
        exact_us = [Decimal(text.decode("ascii")) for text in texts]
        return np.array([int((us * 1000).to_integral_value()) for us in exact_us], np.int64)
    except (InvalidOperation, ValueError) as error:
        raise TraceError(path, "an event has an absurd start") from error


K = TypeVar("K")
A = TypeVar("A", bound=msgspec.Struct)
S = TypeVar("S", bound=np.generic)

_MEMORY, _THREAD_NAME, _GLOO_THREAD = "[memory]", "thread_name", "pt_gloo_runloop"
_MOST_NAMES = 2_000_000
_LONGEST_NAMED, _MOST_NAMED = 60, 5


class Numbered(dict[K, int], Generic[K]):
    """Gives each new key the next number."""

    def __missing__(self, key: K) -> int:
        self[key] = number = len(self)
        return number


class Columns:
    """Makes columns of events; numbers their names, lanes and groups on the way."""

    def __init__(self, path: Path) -> None:
        self.names = Numbered[str]()
        self.lanes = Numbered[tuple[Number | None, Number | None]]()
        self.groups = Numbered[GroupKey]()
        self.gloo_lanes = set[int]()
        self.repaired_argument_count = 0
        self.damages: list[DamagedEvent] = []
        self._host_counts = True
        self._event_count = 0
        self._path = path
        self._kinds = {category: KindOfName(category) for category in Category}

    def read(self, file: ChromeFile[KinetoEvent]) -> EventColumns:
        """Everything that matters of a file, to its end.

        Operators of the host do not where the fields before the events say that the job ran on
        devices, nor after the first work of a device. Raises TraceError as `file.batches()` does.
        """
        read: list[EventColumns] = []
        with closing(file.batches()) as batches:
            for events in batches:
                if not read and header_of(self._path, file.header).ran_on_devices:
                    self._host_counts = False
                read.append(self._batch(events, file.text))
                if np.any(read[-1].kind <= EventKind.FILL):
                    self._host_counts = False
                self._event_count += read[-1].count
        self._refuse_ruins(file)
        return EventColumns.concatenate(read or [self._batch([], b"[]")])

    def caveats(self, file: ChromeFile[KinetoEvent]) -> Iterator[str]:
        """What was mended and left out of a file that has been read."""
        lost = self._lost(file)
        rest = len(file.damages) + len(self.damages) - len(lost)
        replaced = (
            "events were not valid JSON (bytes that are not UTF-8, stray backslashes, nan or inf) "
            "and were read with those replaced"
        )
        unread = "events have arguments that cannot be read; these count as not given"
        counts = {
            "control characters in strings were read as spaces": file.control_count,
            replaced: file.repaired_count,
            unread: self.repaired_argument_count,
            "damaged events of kinds that nothing is computed from are left out": rest,
        }
        yield from counted(counts)
        if lost:
            named = Counter(map(_named, lost))
            words = ", ".join(f"{n} x {what}" for what, n in named.most_common(_MOST_NAMED))
            more = f", and {len(named) - _MOST_NAMED} other names" * (len(named) > _MOST_NAMED)
            yield f"{len(lost)} damaged events are left out: {words}{more}"

    def _refuse_ruins(self, file: ChromeFile[KinetoEvent]) -> None:
        """One event in a hundred may be missing; a file with fewer shows little."""
        lost = self._lost(file)
        total = file.event_count + len(file.damages)
        if lost and (len(lost) == total or 100 * len(lost) > max(100, total)):
            raise TraceError(
                self._path,
                f"{len(lost)} of its {total} events are damaged, too many to leave out; the first, "
                f"{_named(lost[0])}, {lost[0].fault}",
            )

    def _lost(self, file: ChromeFile[KinetoEvent]) -> list[DamagedEvent]:
        """The damaged events that anything would be computed from."""
        ignored = {EventKind.IGNORED, EventKind.INSTANT, EventKind.METADATA}
        ignored |= set() if self._host_counts else {EventKind.HOST_OP}
        return [
            damage
            for damage in (*file.damages, *self.damages)
            if self._kinds[Category(damage.category)][damage.name] not in ignored
        ]

    def _batch(self, events: list[KinetoEvent], text: bytes) -> EventColumns:
        try:
            return self._columns(events, text)
        except TraceError:
            self._repair(events)
            return self._columns(events, text)

    def _repair(self, events: list[KinetoEvent]) -> None:
        """Drop arguments that cannot be read, and events that have no sound time.

        Events stay in their places, as others of the kind that counts for nothing.
        """
        for event, kind in zip(events, self._kinds_of(events).tolist(), strict=True):
            shape = _shape_of(event, kind)
            timed = kind < EventKind.IGNORED or shape is MemoryArguments
            if timed and (fault := _fault_of_times(event, kind)):
                self.damages.append(DamagedEvent(event.cat.value, event.name, fault))
                event.ph = EventPhase.OTHER
                continue
            arguments = sound_arguments(event.args, shape) if shape else None
            if arguments is not None:
                event.args = arguments
                self.repaired_argument_count += 1

    def _columns(self, events: list[KinetoEvent], text: bytes) -> EventColumns:
        kind = self._kinds_of(events)
        kept = kind < EventKind.IGNORED
        if not self._host_counts:
            kept &= kind != EventKind.HOST_OP
        chosen = np.flatnonzero(kept)
        for i in np.flatnonzero(kind == EventKind.METADATA).tolist():
            self._note_thread(events[i])
        memory = [events[i] for i in np.flatnonzero(kind == EventKind.INSTANT).tolist()]
        rows = [events[i] for i in chosen.tolist()]
        kind = kind[chosen]
        work, messages = self._work(rows, kind)
        return EventColumns(
            kind=kind,
            name_id=np.array([self.names[event.name] for event in rows], np.int32),
            lane_id=np.array([self.lanes[event.pid, event.tid] for event in rows], np.int32),
            start_ns=starts_ns(self._path, [event.ts for event in rows], text, chosen),
            duration_ns=rounded_ns(self._path, [event.dur for event in rows], "duration"),
            work=work,
            messages=messages,
            calls=self._calls(rows, kind),
            memory=self._memory(memory),
        )

    def _kinds_of(self, events: list[KinetoEvent]) -> NDArray[np.int8]:
        kinds, complete = self._kinds, EventPhase.COMPLETE
        others = {phase: int(EventKind.IGNORED) for phase in EventPhase}
        others[EventPhase.INSTANT] = int(EventKind.INSTANT)
        others[EventPhase.METADATA] = int(EventKind.METADATA)
        kind = np.array(
            [
                kinds[event.cat][event.name] if event.ph is complete else others[event.ph]
                for event in events
            ],
            np.int8,
        )
        if sum(map(len, kinds.values())) + len(self.lanes) + len(self.groups) > _MOST_NAMES:
            raise TraceError(self._path, f"holds more than {_MOST_NAMES} different names")
        return kind

    def _work(
        self, rows: list[KinetoEvent], kind: NDArray[np.int8]
    ) -> tuple[WorkColumns, MessageColumns]:
        """What device work and calls to the driver state, and which kernels communicate.

        `kind` is set right: a kernel whose arguments describe a collective is one.
        """
        row = np.flatnonzero(kind <= EventKind.SYNC)
        arguments = self._arguments(rows, row, _WORK)
        kernels = kind[row] <= EventKind.COLLECTIVE_KERNEL
        describes = np.array([one.collective is not None for one in arguments], bool)
        kind[row[kernels & describes]] = EventKind.COLLECTIVE_KERNEL
        communicates = np.flatnonzero(kind[row] == EventKind.COLLECTIVE_KERNEL)
        blocks = self._numbers([one.blocks_per_sm for one in arguments], np.float64)
        percent = self._numbers([one.occupancy_percent for one in arguments], np.float64)
        known = {
            "correlation": self._numbers([one.correlation for one in arguments], np.int64),
            "bytes": np.maximum(self._numbers([one.bytes for one in arguments], np.int64), 0),
            "blocks_per_sm": np.where(_sane(blocks, 1e9), blocks, np.nan),
            "occupancy": np.where(_sane(percent, 100), percent / 100, np.nan),
        }
        columns = {name: np.full(kind.size, unknown) for name, unknown in _UNKNOWN.items()}
        for name, column in columns.items():
            column[row] = known[name]
        return WorkColumns(**columns), self._messages(
            rows, row[communicates], [arguments[i] for i in communicates.tolist()]
        )

    def _messages(
        self, rows: list[KinetoEvent], row: NDArray[np.int64], arguments: Sequence[WorkArguments]
    ) -> MessageColumns:
        names = [rows[i].name for i in row.tolist()]
        messages = [message(name, one) for name, one in zip(names, arguments, strict=True)]
        groups = [self.groups[one.group_name, one.group_ranks, one.group_size] for one in arguments]
        return MessageColumns(
            row=row + self._event_count,
            kind=np.array([kind for kind, _ in messages], np.int8),
            group=np.array(groups, np.int32),
            bytes=np.array([size for _, size in messages], np.int64),
            sequence=np.array([max(one.sequence, -1) for one in arguments], np.int64),
        )

    def _calls(self, rows: list[KinetoEvent], kind: NDArray[np.int8]) -> CallColumns:
        row = np.flatnonzero(np.isin(kind, _CALLS))
        arguments = self._arguments(rows, row, _OPERATORS)
        operands = [operand_bytes(one) for one in arguments]
        return CallColumns(
            row=row + self._event_count,
            function=np.array([one.function_id for one in arguments], np.int64),
            bytes=np.array([every for every, _ in operands], np.int64),
            largest_bytes=np.array([largest for _, largest in operands], np.int64),
        )

    def _memory(self, instants: list[KinetoEvent]) -> MemoryColumns:
        reports = [event for event in instants if event.name == _MEMORY]
        arguments = self._arguments(reports, np.arange(len(reports)), _MEMORY_REPORTS)
        total = self._numbers([one.allocated_bytes for one in arguments], np.int64)
        kept = np.flatnonzero(total >= 0)
        start_us = [reports[i].ts for i in kept.tolist()]
        return MemoryColumns(
            time_ns=rounded_ns(self._path, start_us, "start"),
            allocated_bytes=total[kept],
            device=self._numbers([one.device_type for one in arguments], np.int64)[kept],
        )

    def _arguments(
        self,
        rows: list[KinetoEvent],
        chosen: NDArray[np.int64],
        decoder: msgspec.json.Decoder[list[A]],
    ) -> list[A]:
        """The arguments of the chosen rows, decoded all together."""
        text = b",".join([rows[i].args for i in chosen.tolist()])
        with self._arguments_refused():
            return decoder.decode(b"[%b]" % text)

    def _numbers(self, values: Sequence[Number], dtype: type[S]) -> NDArray[S]:
        """Numbers, some of which may be written as strings."""
        with self._arguments_refused():
            return np.array(values, dtype)

    @contextmanager
    def _arguments_refused(self) -> Iterator[None]:
        try:
            yield
        except (msgspec.DecodeError, ValueError, OverflowError) as error:  # of UTF-8 as well
            raise TraceError(
                self._path, f"holds an event with arguments of another shape: {error}"
            ) from error

    def _note_thread(self, event: KinetoEvent) -> None:
        """Threads are named more than once; one name that says gloo is enough."""
        if event.name != _THREAD_NAME:
            return
        (arguments,) = self._arguments([event], np.array([0]), _THREADS)
        if _GLOO_THREAD in (arguments.name or ""):
            self.gloo_lanes.add(self.lanes[event.pid, event.tid])


_UNKNOWN: Mapping[str, np.generic] = {
    "correlation": np.int64(0),
    "bytes": np.int64(0),
    "blocks_per_sm": np.float32(np.nan),
    "occupancy": np.float32(np.nan),
}
_WORK = msgspec.json.Decoder(list[WorkArguments])
_OPERATORS = msgspec.json.Decoder(list[OperatorArguments])
_MEMORY_REPORTS = msgspec.json.Decoder(list[MemoryArguments])
_THREADS = msgspec.json.Decoder(list[ThreadArguments])
_CALLS = (EventKind.HOST_WAIT, EventKind.HOST_COLLECTIVE, EventKind.DEVICE_COLLECTIVE_CALL)


def _shape_of(event: KinetoEvent, kind: int) -> type[msgspec.Struct] | None:
    """The type of the arguments that an event of a kind needs; None for one that needs none."""
    if kind <= EventKind.SYNC:
        return WorkArguments
    if kind in _CALLS:
        return OperatorArguments
    if kind == EventKind.INSTANT and event.name == _MEMORY:
        return MemoryArguments
    if kind == EventKind.METADATA and event.name == _THREAD_NAME:
        return ThreadArguments
    return None


def _fault_of_times(event: KinetoEvent, kind: int) -> str:
    """What is wrong with the times of an event; empty where nothing is."""
    if not is_time(event.ts):
        return f"has no start or an absurd one: {shown(event.ts)}"
    if kind < EventKind.IGNORED and not is_time(event.dur):
        return f"has no duration or an absurd one: {shown(event.dur)}"
    return ""


def _named(damage: DamagedEvent) -> str:
    name = "".join(letter if letter.isprintable() else "?" for letter in damage.name)
    return f"{damage.category or 'an event'} {name[:_LONGEST_NAMED]}".strip()


def _sane(values: NDArray[np.float64], largest: float) -> NDArray[np.bool_]:
    return (values >= 0) & (values <= largest)


NEVER = int(np.iinfo(np.int64).min)
# How far a span may reach into the next one of its stream. ROCm's profiler lets durations overflow;
# NVIDIA's kernels may overlap: one that depends on another may begin before that has ended.
_ROCM_REACH_NS = 1_000
_REACH_NS = 1_000_000_000


def repair_times(
    events: EventColumns, base_ns: int, is_rocm: bool
) -> tuple[EventColumns, list[str]]:
    """The events on the clock of 1970, none lasting less than nothing or beyond its stream's next.

    Also returns what was repaired, as text.
    """
    start_ns = events.start_ns + base_ns
    duration_ns = np.maximum(events.duration_ns, 0)
    negative = int(np.count_nonzero(events.duration_ns < 0))
    work = np.flatnonzero(events.kind <= EventKind.FILL)
    work = work[np.lexsort((start_ns[work], events.lane_id[work]))]
    room_ns = start_ns[work[1:]] - start_ns[work[:-1]]
    followed = events.lane_id[work[1:]] == events.lane_id[work[:-1]]
    reach_ns = duration_ns[work[:-1]] - room_ns
    cut = followed & (reach_ns > (_ROCM_REACH_NS if is_rocm else _REACH_NS))
    duration_ns[work[:-1][cut]] = room_ns[cut]
    repaired = {
        "events have a negative duration: they count as instants": negative,
        "spans reached into the next one of their stream: they end where that begins": cut.sum(),
    }
    memory = events.memory.shifted(base_ns)
    return (
        replace(events, start_ns=start_ns, duration_ns=duration_ns, memory=memory),
        counted(repaired),
    )


def launch_starts(events: EventColumns) -> Nanoseconds:
    """When the host launched the work of each event, int64 ns, shape (events,); NEVER: unknown."""
    correlation = events.work.correlation
    has_number = correlation != 0
    calls = np.flatnonzero(has_number & (events.kind == EventKind.LAUNCH))
    works = np.flatnonzero(has_number & (events.kind <= EventKind.FILL))
    call = first_place(correlation[calls], correlation[works])
    launched_ns = np.full(events.count, NEVER)
    launched_ns[works[call >= 0]] = events.start_ns[calls[call[call >= 0]]]
    return launched_ns
