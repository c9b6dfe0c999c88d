"""Writes the files of profilers, small enough to check by eye."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest

from evaluator.traces.model import RankTrace
from evaluator.traces.readers.nsys import reader as nsys_reader
from evaluator.traces.readers.xla import reader as xla
from tests.support.xla import named, xspace


class NsysExport:
    """Writes exports of Nsight Systems, table by table as lists of rows."""

    PROCESS, OTHER_PROCESS = 111 << 24, 112 << 24
    THREAD = PROCESS + 5
    GEMM, ALL_REDUCE, SEND_RECV, LAUNCH, WAIT = range(1, 6)
    PUSHED = 59
    STRINGS: ClassVar = {
        GEMM: "gemm",
        ALL_REDUCE: "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        SEND_RECV: "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        LAUNCH: "cudaLaunchKernel_v7000",
        WAIT: "cudaStreamSynchronize_v3020",
    }

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, *, kernels=(), copies=(), calls=(), ranges=(), strings=STRINGS, **more) -> Path:
        tables = {
            "CUPTI_ACTIVITY_KIND_KERNEL": kernels,
            "CUPTI_ACTIVITY_KIND_MEMCPY": copies,
            "CUPTI_ACTIVITY_KIND_RUNTIME": calls,
            "NVTX_EVENTS": ranges,
            "StringIds": [{"id": number, "value": text} for number, text in strings.items()],
            **more,
        }
        with closing(sqlite3.connect(self.path)) as database, database:
            for table, rows in tables.items():
                if rows:
                    columns = ", ".join(f'"{name}"' for name in rows[0])
                    marks = ", ".join(f":{name}" for name in rows[0])
                    database.execute(f"CREATE TABLE {table} ({columns})")
                    database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        return self.path

    def read(self, **tables) -> tuple[RankTrace, ...]:
        return nsys_reader.read_devices(self.write(**tables))

    def kernel(self, start, end, name=GEMM, *, call=0, device=0, process=PROCESS, grid=(1, 1, 1)):
        sides = dict(zip(("gridX", "gridY", "gridZ"), grid, strict=True))
        return self._work(start, end, device, process, call) | {"demangledName": name, **sides}

    def copy(self, start, end, kind, size, *, source=-1, target=-1, process=PROCESS):
        moved = {"bytes": size, "copyKind": kind, "srcDeviceId": source, "dstDeviceId": target}
        return self._work(start, end, 0, process, 0) | moved

    def call(self, start, end, number, name=LAUNCH):
        named = {"correlationId": number, "nameId": name, "globalTid": self.THREAD}
        return {"start": start, "end": end, **named}

    def marked(self, start, end, text, *, payload=None):
        named = {"text": text, "jsonText": payload, "globalTid": self.THREAD}
        return {"start": start, "end": end, "eventType": self.PUSHED, **named}

    @staticmethod
    def _work(start, end, device, process, call):
        place = {"deviceId": device, "globalPid": process, "streamId": 7, "correlationId": call}
        return {"start": start, "end": end, **place}


@pytest.fixture
def nsys(tmp_path: Path) -> NsysExport:
    return NsysExport(tmp_path / "report.sqlite")


@pytest.fixture(params=["trace.json", "xplane.pb"])
def xla_form(request) -> str:
    """How an XLA profile is written: what holds of one form holds of the other."""
    return request.param


@pytest.fixture
def read_xla(tmp_path: Path, xla_form: str) -> Callable[..., tuple[RankTrace, ...]]:
    """Reads a trace of these events."""

    def read(*events: object) -> tuple[RankTrace, ...]:
        path = tmp_path / f"host.{xla_form}"
        if xla_form == "xplane.pb":
            path.write_bytes(xspace(events))
        else:
            document = {"displayTimeUnit": "ns", "traceEvents": [*events, {}]}
            path.write_text(json.dumps(document), encoding="utf-8")
        return xla.read_devices(path)

    return read


@pytest.fixture
def read_tpus(read_xla) -> Callable[..., tuple[RankTrace, ...]]:
    """Reads events of so many TPUs, processes 1, 2, ..., and of their host, process 701."""

    def read(*events: object, count: int = 1, last: bool = False) -> tuple[RankTrace, ...]:
        threads = ("", "Steps", "XLA Modules", "XLA Ops", "Async XLA Ops", "Framework Ops")
        names = [named("process", "/host:CPU", 701), named("thread", "python", 701, 3)]
        for pid in range(1, count + 1):
            names.append(named("process", f"/device:TPU:{pid - 1}", pid))
            names += [named("thread", thread, pid, tid) for tid, thread in enumerate(threads)]
        return read_xla(*events, *names) if last else read_xla(*names, *events)

    return read
