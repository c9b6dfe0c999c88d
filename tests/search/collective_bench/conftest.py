"""Made-up results of benchmarks in folders of their own, and ways to judge and analyse them."""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from search.collective_bench.analyze import analyze
from search.collective_bench.results import LabelledFolder, read_results
from search.collective_bench.verdicts import (
    Analysis,
    AnalysisOptions,
    Limits,
    PairVerdicts,
    judge_pairs,
)

THEIRS = (
    *("Collective", "DType", "ReduceOp", "SendMsgSize(B)", "Ranks", "DispatchMode"),
    *("WarmupIters", "MeasureIters", "SyncInterval"),
    *("LatAvg(us)", "LatMin(us)", "LatMax(us)", "BusBw(GB/s)"),
    *("DeviceType", "DeviceName", "CommAdapter", "CommBackend", "CommBackendVersion"),
    *("TorchVersion", "TorchCommsVersion"),
)
SETTINGS = {
    "Collective": "all_reduce",
    "DType": "float32",
    "ReduceOp": "sum",
    "SendMsgSize(B)": 1024,
    "Ranks": 4,
    "DispatchMode": "sync",
    "WarmupIters": 5,
    "MeasureIters": 100,
    "SyncInterval": 0,
    "DeviceType": "cpu",
    "DeviceName": "n/a",
    "CommAdapter": "c10d",
    "CommBackend": "gloo",
    "CommBackendVersion": "n/a",
    "TorchVersion": "2.13.0",
    "TorchCommsVersion": "n/a",
}
STEADY = (1.0, 1.004, 0.996, 1.002, 0.998, 1.0)
Rows = Sequence[Mapping[str, object]]


@dataclass(frozen=True)
class Made:
    """Makes rows, and folders that hold them."""

    root: Path

    def row(self, latency: object, **columns: object) -> Mapping[str, object]:
        """One row; a latency that is a number has a range and a bandwidth."""
        known = isinstance(latency, int | float)
        figures = {
            "LatAvg(us)": latency,
            "LatMin(us)": latency * 0.9 if known else "n/a",
            "LatMax(us)": latency * 1.2 if known else "n/a",
            "BusBw(GB/s)": 12 / latency if known and latency else "n/a",
        }
        return SETTINGS | figures | columns

    def rounds(self, latency: float, factors: Iterable[float] = STEADY, **columns: object) -> Rows:
        """A row for each factor, in rounds that every side shares."""
        return [
            self.row(latency * factor, RunId="run", Block=number, **columns)
            for number, factor in enumerate(factors)
        ]

    def folder(self, name: str, rows: Rows, file: str = "all_reduce.csv") -> Path:
        """A folder with these rows in a file, in the order of columns that torchcomms has."""
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        columns = list(dict.fromkeys([*THEIRS, *(column for row in rows for column in row)]))
        with (folder / file).open("w", encoding="utf-8", newline="") as opened:
            table = csv.DictWriter(opened, columns, restval="")
            table.writeheader()
            table.writerows(rows)
        return folder


@pytest.fixture
def made(tmp_path) -> Made:
    return Made(tmp_path)


@pytest.fixture
def judged(made) -> Callable[..., PairVerdicts]:
    """Judges rows against those of a baseline."""

    def judge(baseline: Rows, own: Rows, **limits: object) -> PairVerdicts:
        folders = [
            LabelledFolder(label=label, path=made.folder(label, rows))
            for label, rows in (("base", baseline), ("own", own))
        ]
        base, other = read_results(folders, lambda _: None)
        (pair,) = judge_pairs([other], base, Limits(**limits))
        return pair

    return judge


@pytest.fixture
def analysed(tmp_path) -> Callable[..., Analysis]:
    """Analyses folders into `out`."""

    def run(*folders: object, **asked: object) -> Analysis:
        return analyze(
            AnalysisOptions(folders=tuple(map(str, folders)), outdir=tmp_path / "out", **asked)
        )

    return run
