"""The devices of an Nsight Systems export: which process saw which, under what number and name."""

from dataclasses import dataclass

import numpy as np

from evaluator.readers.nsys.database import Database
from evaluator.traces.rank import Device

_LARGEST_BYTES = 1 << 50
_MOST_MULTIPROCESSORS = 1 << 16
_MOST_ROWS = 1 << 14


@dataclass(frozen=True, slots=True)
class Devices:
    """Devices by their number on the machine; `seen` tells a process's own numbers for them."""

    by_number: dict[int, Device]
    by_own_number: dict[int, Device]
    seen: dict[tuple[int, int], tuple[int, Device]]

    def of(self, process: int, own_number: int) -> Device:
        """The device that a process calls by this number; nameless where the file has none."""
        number, seen = self.seen.get(((process >> 24) & 0xFFFFFF, own_number), (own_number, None))
        described = self.by_number.get(number) if seen else self.by_own_number.get(own_number)
        return described or seen or Device(name="")


def devices(database: Database) -> Devices:
    """What the file tells of devices, in whichever of its two tables."""
    columns = database.integers(
        "TARGET_INFO_GPU", {"rowid": -1, "id": -1, "cuDevice": -1, "smCount": 0, "totalMemory": 0}
    )
    rows = np.stack(list(columns.values()), axis=1)[:_MOST_ROWS].tolist()
    names = database.texts("TARGET_INFO_GPU", "name", [row[0] for row in rows])
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
    return Devices(by_number, by_own_number, _seen(database))


def _seen(database: Database) -> dict[tuple[int, int], tuple[int, Device]]:
    columns = database.integers(
        "TARGET_INFO_CUDA_DEVICE", {"pid": -1, "cudaId": -1, "gpuId": -1, "numMultiprocessors": 0}
    )
    rows = np.stack(list(columns.values()), axis=1)[:_MOST_ROWS]
    return {
        (process, own_number): (
            number,
            Device(name="", multiprocessor_count=_within(count, _MOST_MULTIPROCESSORS)),
        )
        for process, own_number, number, count in rows.tolist()
    }


def _within(value: int, largest: int) -> int | None:
    return value if 0 < value <= largest else None
