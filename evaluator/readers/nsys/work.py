"""What ran on the devices of an Nsight Systems export: kernels, whole graphs, copies and fills."""

import numpy as np
from numpy.typing import NDArray

from evaluator.readers.kernels import communicates
from evaluator.readers.nsys.database import Integers
from evaluator.readers.nsys.rows import Labels, Rows, Tables
from evaluator.traces.spans import Activity

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


def device_work(tables: Tables) -> Rows:
    """Everything that ran on a device.

    A copy between two devices communicates. A graph that was recorded as a whole computes:
    nothing tells what ran inside.
    """
    return Rows.joined((_kernels(tables), _graphs(tables), _copies(tables), _fills(tables)))


def _kernels(tables: Tables) -> Rows:
    columns = tables.timed(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "kernels",
        _PLACE | _GRID | {"demangledName": -1, "shortName": -1},
    )
    full, short = columns["demangledName"], columns["shortName"]
    labels = tables.labels(np.where(full >= 0, full, short), "unnamed kernel")
    communication = np.array([communicates(text) for text in labels.texts], bool)[labels.index]
    grid = np.prod([np.maximum(columns[side], 0).astype(np.float64) for side in _GRID], axis=0)
    return _rows(
        tables,
        columns,
        labels,
        np.where(communication, Activity.COMMUNICATION, Activity.COMPUTE),
        blocks=np.where((grid > 0) & (grid < _MOST_BLOCKS), grid, -1).astype(np.int64),
    )


def _graphs(tables: Tables) -> Rows:
    columns = tables.timed("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "graphs", _PLACE | {"graphId": -1})
    ids, index = np.unique(columns["graphId"], return_inverse=True)
    labels = Labels(tuple(f"{GRAPH} {number}" for number in ids.tolist()), index)
    return _rows(tables, columns, labels, np.full(index.size, Activity.COMPUTE))


def _copies(tables: Tables) -> Rows:
    columns = tables.timed(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        "copies",
        _PLACE | {"bytes": 0, "copyKind": 0, "srcDeviceId": -1, "dstDeviceId": -1},
    )
    kinds, index = np.unique(columns["copyKind"], return_inverse=True)
    labels = Labels(tuple(_COPIES.get(kind, "Memcpy") for kind in kinds.tolist()), index)
    between = columns["copyKind"] == _PEER_TO_PEER
    return _rows(
        tables,
        columns,
        labels,
        np.where(between, Activity.COMMUNICATION, Activity.COPY),
        bytes=np.maximum(columns["bytes"], 0),
        source=np.where(between, columns["srcDeviceId"], -1),
        target=np.where(between, columns["dstDeviceId"], -1),
    )


def _fills(tables: Tables) -> Rows:
    columns = tables.timed("CUPTI_ACTIVITY_KIND_MEMSET", "fills", _PLACE | {"bytes": 0})
    count = columns["start"].size
    labels = Labels(("Memset",), np.zeros(count, np.int64))
    sizes = np.maximum(columns["bytes"], 0)
    return _rows(tables, columns, labels, np.full(count, Activity.FILL), bytes=sizes)


def _rows(
    tables: Tables,
    columns: Integers,
    labels: Labels,
    activity: NDArray[np.integer],
    **more: NDArray[np.int64],
) -> Rows:
    return Rows.of(
        {
            "start_ns": columns["start"],
            "end_ns": columns["end"],
            "process": columns["globalPid"],
            "device": columns["deviceId"],
            "stream": columns["streamId"],
            "correlation": columns["correlationId"],
            "name": tables.named(labels),
            "activity": activity.astype(np.int64),
            **more,
        }
    )
