"""What profilers get wrong in times, set right and counted."""

from dataclasses import replace

import numpy as np

from evaluator.intervals import Nanoseconds
from evaluator.readers.kineto.kinds import EventKind
from evaluator.readers.kineto.tables import EventColumns

NEVER = int(np.iinfo(np.int64).min)
# How far a span may reach into the next one of its stream. ROCm's profiler lets durations overflow;
# NVIDIA's kernels may overlap: one that depends on another may begin before that has ended.
_ROCM_REACH_NS = 1_000
_REACH_NS = 1_000_000_000


def mended(events: EventColumns, base_ns: int, is_rocm: bool) -> tuple[EventColumns, list[str]]:
    """The events on the clock of 1970, none lasting less than nothing or beyond its stream's next.

    Gives what was mended, in words, too.
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
    told = {
        "events last less than nothing: they count as instants": negative,
        "spans reached into the next one of their stream: they end where that begins": int(
            np.count_nonzero(cut)
        ),
    }
    mended_events = replace(
        events,
        start_ns=start_ns,
        duration_ns=duration_ns,
        memory=replace(events.memory, time_ns=events.memory.time_ns + base_ns),
    )
    return mended_events, [f"{count} {what}" for what, count in told.items() if count]


def launch_starts(events: EventColumns) -> Nanoseconds:
    """When the host launched the work of each event, int64 ns, shape (events,); NEVER: untold."""
    launched_ns = np.full(events.count, NEVER)
    kind = events.kind[events.work.row]
    has_name = events.work.correlation != 0
    calls = np.flatnonzero(has_name & (kind == EventKind.LAUNCH))
    works = np.flatnonzero(has_name & (kind <= EventKind.FILL))
    calls = calls[np.argsort(events.work.correlation[calls], kind="stable")]
    if calls.size:
        wanted, offered = events.work.correlation[works], events.work.correlation[calls]
        place = np.minimum(np.searchsorted(offered, wanted), calls.size - 1)
        found = offered[place] == wanted
        rows = events.work.row[works[found]]
        launched_ns[rows] = events.start_ns[events.work.row[calls[place[found]]]]
    return launched_ns
