"""What the host did in an Nsight Systems export: calls into the runtime, and NVTX ranges."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluator.readers.nsys.rows import Labels, Rows, Tables
from evaluator.traces.spans import Activity

_THREAD_BITS = (1 << 24) - 1
# Waits for a stream or a context; the other kinds are also recorded where nobody waits.
_WAITS = {3: "Stream sync", 4: "Context sync"}
_RANGES = (59, 60, 70, 71)  # pushed and popped, or started and ended


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranges:
    """NVTX ranges in order of start, columns of shape (ranges,), and the text of each.

    `row` is the number of the row in the file, `payload` that of the string with the payload, -1
    where the payload stands in the row.
    """

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    thread: NDArray[np.int64]
    row: NDArray[np.int64]
    payload: NDArray[np.int64]
    labels: Labels


def process_of(thread: NDArray[np.int64]) -> NDArray[np.int64]:
    """The global ids of the processes of threads, by the threads' global ids."""
    return thread & ~_THREAD_BITS


def host_calls(tables: Tables) -> Rows:
    """Calls into the runtime and the driver, and waits that no call was recorded for.

    A call whose name says so is SYNC, any other is LAUNCH for now: it is one if it turns out that
    something was launched. Older files hold calls twice: of one number, the first is kept.
    """
    columns = tables.timed(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "host calls",
        {"globalTid": 0, "correlationId": 0, "nameId": -1},
    )
    labels = tables.labels(columns["nameId"], "unnamed call")
    waits = np.array(["Synchronize" in text for text in labels.texts], bool)[labels.index]
    calls = Rows.of(
        {
            "start_ns": columns["start"],
            "end_ns": columns["end"],
            "process": process_of(columns["globalTid"]),
            "thread": columns["globalTid"],
            "correlation": columns["correlationId"],
            "name": tables.named(labels),
            "activity": np.where(waits, Activity.SYNC, Activity.LAUNCH).astype(np.int64),
        }
    )
    calls = calls.where(np.argsort(calls.start_ns, kind="stable"))
    numbers = calls.calls
    kept = numbers < 0
    kept[np.unique(numbers, return_index=True)[1]] = True
    return Rows.joined((calls.where(kept), _other_waits(tables, numbers)))


def _other_waits(tables: Tables, called: NDArray[np.int64]) -> Rows:
    columns = tables.timed(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        "waits",
        {"globalPid": 0, "correlationId": 0, "syncType": 0},
    )
    kinds, index = np.unique(columns["syncType"], return_inverse=True)
    labels = Labels(tuple(_WAITS.get(kind, "") for kind in kinds.tolist()), index)
    waits = Rows.of(
        {
            "start_ns": columns["start"],
            "end_ns": columns["end"],
            "process": columns["globalPid"],
            "correlation": columns["correlationId"],
            "name": tables.named(labels),
            "activity": np.full(index.size, Activity.SYNC, np.int64),
        }
    )
    blocking = np.isin(columns["syncType"], list(_WAITS))
    return waits.where(blocking & ~np.isin(waits.calls, called))


def nvtx_ranges(tables: Tables) -> Ranges:
    """Every NVTX range that ends; its text stands in its row or among the strings of the file."""
    columns = tables.timed(
        "NVTX_EVENTS",
        "ranges",
        {"eventType": -1, "globalTid": 0, "textId": -1, "jsonTextId": -1, "rowid": -1},
        only=("eventType", _RANGES),
    )
    chosen = np.argsort(columns["start"], kind="stable")
    row = columns["rowid"][chosen]
    inline = tables.database.texts(
        "NVTX_EVENTS", "text", row[columns["textId"][chosen] < 0].tolist()
    )
    shared = tables.labels(columns["textId"][chosen], "")
    texts: dict[str, int] = {}
    index = [
        texts.setdefault(inline.get(number) or shared.texts[label], len(texts))
        for number, label in zip(row.tolist(), shared.index.tolist(), strict=True)
    ]
    return Ranges(
        start_ns=columns["start"][chosen],
        end_ns=columns["end"][chosen],
        thread=columns["globalTid"][chosen],
        row=row,
        payload=columns["jsonTextId"][chosen],
        labels=Labels(tuple(texts), np.array(index, np.int64)),
    )
