"""The collectives and transfers of one device of an Nsight Systems export."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from evaluator.readers.kernels import collective_kind
from evaluator.readers.nsys.nccl import Operation
from evaluator.readers.nsys.rows import Rows
from evaluator.traces.collectives import CollectiveKind, Collectives, Group

_UNKNOWN = Group("")


def collectives(
    rows: Rows,
    spans: NDArray[np.int64],
    names: tuple[str, ...],
    ranks: Mapping[tuple[int, int], int],
    asked: list[Operation | None],
) -> Collectives:
    """What the communicating rows do; `spans` are their numbers among all spans, rising.

    NCCL's own ranges tell kind, group and size where they were recorded; else a kernel's name tells
    the kind and nothing the size. `ranks` are the ranks of devices, by process and device.
    """
    kinds = {number: collective_kind(names[number]) for number in np.unique(rows.name).tolist()}
    done = [
        _between(process, source, target, moved, ranks)
        if moved >= 0
        else operation or Operation(kinds[name], _UNKNOWN, 0)
        for process, source, target, moved, name, operation in zip(
            rows.process.tolist(),
            rows.source.tolist(),
            rows.target.tolist(),
            rows.bytes.tolist(),
            rows.name.tolist(),
            asked,
            strict=True,
        )
    ]
    groups = {operation.group: None for operation in done}
    numbers = {group: number for number, group in enumerate(groups)}
    return Collectives(
        span=spans,
        kind=np.array([operation.kind for operation in done], np.int8),
        group_id=np.array([numbers[operation.group] for operation in done], np.int32),
        bytes=np.array([operation.bytes for operation in done], np.int64),
        sequence=np.full(len(done), -1, np.int64),
        groups=tuple(groups),
    )


def _between(
    process: int, source: int, target: int, moved: int, ranks: Mapping[tuple[int, int], int]
) -> Operation:
    """A copy from one device to another of the same process."""
    ends = [ranks.get((process, device)) for device in (source, target)]
    known = tuple(sorted({rank for rank in ends if rank is not None}))
    group = Group("", known, 2) if len(known) == 2 else _UNKNOWN
    return Operation(CollectiveKind.PUT, group, moved)
