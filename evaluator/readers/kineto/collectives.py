"""The collectives of a Kineto trace: what kernels tell of theirs, and what the host's calls add."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evaluator.intervals import Nanoseconds
from evaluator.readers.kernels import collective_kind
from evaluator.readers.kineto.kinds import EventKind
from evaluator.readers.kineto.payloads import WHOLE_IS_PUT_IN
from evaluator.readers.kineto.tables import EventColumns, MessageColumns
from evaluator.traces.collectives import CollectiveKind

_NOTHING, _UNTOLD = -1, -1
_VAGUE = (CollectiveKind.OTHER, CollectiveKind.SEND_RECV)
_CARRIED_OUT_AS = {
    CollectiveKind.ALL_REDUCE: (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER),
    CollectiveKind.ALL_GATHER: (CollectiveKind.ALL_GATHER,),
}


def kernel_messages(
    events: EventColumns, names: Sequence[str], launched_ns: Nanoseconds
) -> MessageColumns:
    """What communication kernels do; `launched_ns` is when each row was launched, shape (events,).

    Their arguments say it, else their names. Kernels of older profilers have no such arguments, and
    of some the names say only that something is sent: those do what the `nccl:` call around their
    launch does. Where that call launched no other kernel, they move the bytes that it was given.
    """
    found = events.messages
    kind, size = found.kind.copy(), found.bytes.copy()
    call = _around(events, EventKind.DEVICE_COLLECTIVE_CALL, launched_ns[found.row])
    silent = np.flatnonzero((size == 0) & (call != _NOTHING))
    launched_count = np.bincount(call[call != _NOTHING], minlength=events.calls.row.size)
    for i in silent.tolist():
        does = collective_kind(names[events.name_id[events.calls.row[call[i]]]])
        if kind[i] in _VAGUE:
            kind[i] = does
        if kind[i] == does and does in WHOLE_IS_PUT_IN and launched_count[call[i]] == 1:
            size[i] = events.calls.bytes[call[i]]
    return replace(found, kind=kind, bytes=size)


def host_messages(
    events: EventColumns, names: Sequence[str], group: int, group_size: int | None
) -> MessageColumns:
    """What gloo's spans do, all in the one group that there is, as far as that is known.

    gloo carries a reduce-scatter out as an all-reduce, and tells only what a rank puts into an
    all-gather. The `c10d::` call tells both: spans belong to calls in the order of either, which is
    that of their numbers where the recorder gave them any, else of their starts.
    """
    called = _Called.of(events, names)
    is_span = events.kind[events.calls.row] == EventKind.HOST_COLLECTIVE
    kind, size = called.kind.copy(), events.calls.bytes.copy()
    gathers = is_span & (kind == CollectiveKind.ALL_GATHER)
    size[gathers] *= group_size or 0
    for carried_out_as, calls_do in _CARRIED_OUT_AS.items():
        spans = _in_order(events, is_span & (called.kind == carried_out_as))
        calls = _in_order(events, called.by_torch & np.isin(called.kind, calls_do))
        # The first spans may be of calls before the profile, the last calls of spans after it.
        spans = spans[max(0, spans.size - calls.size) :]
        calls = calls[: spans.size]
        kind[spans] = called.kind[calls]
        if carried_out_as is CollectiveKind.ALL_GATHER:
            size[spans] = np.maximum(size[spans], events.calls.largest_bytes[calls])
    whole = ~gathers | (size > events.calls.bytes)
    row = events.calls.row[is_span]
    return MessageColumns(
        row=row,
        kind=kind[is_span],
        group=np.full(row.size, group, np.int32),
        bytes=np.where(whole, size, 0)[is_span],
        sequence=np.full(row.size, _UNTOLD, np.int64),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Called:
    """What the names of calls say, arrays of shape (calls,)."""

    kind: NDArray[np.int8]
    by_torch: NDArray[np.bool_]

    @classmethod
    def of(cls, events: EventColumns, names: Sequence[str]) -> "_Called":
        name_ids, of_call = np.unique(events.name_id[events.calls.row], return_inverse=True)
        different = [names[name_id] for name_id in name_ids]
        return cls(
            kind=np.array([collective_kind(name) for name in different], np.int8)[of_call],
            by_torch=np.array([name.startswith("c10d::") for name in different], bool)[of_call],
        )


def _in_order(events: EventColumns, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    calls = np.flatnonzero(chosen)
    start_ns = events.start_ns[events.calls.row[calls]]
    return calls[np.lexsort((start_ns, events.calls.function[calls]))]


def _around(events: EventColumns, kind: EventKind, moments_ns: Nanoseconds) -> NDArray[np.int64]:
    """Which call of a kind was under way at each moment, the latest begun; -1: none."""
    calls = np.flatnonzero(events.kind[events.calls.row] == kind)
    calls = calls[np.argsort(events.start_ns[events.calls.row[calls]], kind="stable")]
    if not calls.size:
        return np.full(moments_ns.size, _NOTHING)
    start_ns = events.start_ns[events.calls.row[calls]]
    end_ns = start_ns + events.duration_ns[events.calls.row[calls]]
    latest = np.searchsorted(start_ns, moments_ns, side="right") - 1
    inside = (latest >= 0) & (moments_ns < end_ns[latest])
    return np.where(inside, calls[latest], _NOTHING)
