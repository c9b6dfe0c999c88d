"""The files of an analysis: which there are, and what they say."""

import csv
import io
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from search.collective_bench.analyze import analyze
from search.collective_bench.results import size_words
from search.collective_bench.verdicts import AnalysisOptions, Standing


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """The files of three labels: the second regresses at one size and improves at another."""
    root = tmp_path_factory.mktemp("analysis")
    levels = {"v1": (1.0, 1.0), "v2": (1.25, 0.8), "v3": (1.01, 1.0)}
    for label, (small, large) in levels.items():
        _write(root / label, label, small, large)
    analyze(
        AnalysisOptions(
            folders=tuple(f"{label}:{root / label}" for label in levels),
            outdir=root / "out",
            baseline="v1",
        )
    )
    return root / "out"


def _write(folder: Path, label: str, small: float, large: float) -> None:
    """Four rounds of two sizes of an all_reduce and one of a barrier, which v3 lacks."""
    head = (
        "Collective,DType,ReduceOp,SendMsgSize(B),Ranks,DispatchMode,WarmupIters,MeasureIters,"
        "SyncInterval,LatAvg(us),LatMin(us),LatMax(us),BusBw(GB/s),DeviceType,DeviceName,"
        "CommAdapter,CommBackend,CommBackendVersion,TorchVersion,TorchCommsVersion,RunId,Block"
    )
    tail = f"cpu,n/a,c10d,gloo,n/a,2.1{label[1:]}.0,n/a,run"
    folder.mkdir()
    lines = [head]
    for block in range(4):
        for size, latency in ((1024, 20.0 * small), (1 << 20, 1000.0 * large)):
            figures = f"{latency},{latency * 0.75},{latency * 1.5},{1.5 * size / latency / 1000}"
            lines.append(f"all_reduce,float32,sum,{size},4,sync,5,100,0,{figures},{tail},{block}")
        if label != "v3":
            figures = f"{16 * small},{16 * small},{16 * small},n/a"
            lines.append(f"barrier,float32,n/a,0,4,sync,5,100,0,{figures},{tail},{block}")
    (folder / "all.csv").write_text("\n".join([*lines, ""]))


def test_a_table_charts_and_verdicts_are_written(tree):
    files = sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file())

    assert files == [
        "all_reduce_busbw.svg",
        "all_reduce_latency.svg",
        "barrier_latency.svg",
        "points.csv",
        "verdict.json",
    ]
    roots = {ElementTree.parse(path).getroot().tag for path in tree.rglob("*.svg")}
    assert roots == {"{http://www.w3.org/2000/svg}svg"}


def test_the_table_has_every_point_of_every_label_with_every_digit(tree):
    rows = list(csv.DictReader(io.StringIO((tree / "points.csv").read_text())))

    assert [(row["Collective"], row["SendMsgSize(B)"], row["Adapter"]) for row in rows] == [
        *(("all_reduce", "1024", label) for label in ("v1", "v2", "v3")),
        *(("all_reduce", "1048576", label) for label in ("v1", "v2", "v3")),
        *(("barrier", "0", label) for label in ("v1", "v2")),
    ]
    assert [row["Verdict"] for row in rows] == [
        *("baseline", "regression", "neutral", "baseline", "improvement", "neutral"),
        *("baseline", "regression"),
    ]
    assert (rows[1]["TorchVersion"], rows[1]["Rounds"]) == ("2.12.0", "4")
    assert float(rows[1]["LatAvg(us)"]) == pytest.approx(25.0, rel=1e-12)
    assert (rows[0]["LatChange(%)"], rows[6]["BusBw(GB/s)"]) == ("n/a", "n/a")


def test_programs_find_every_point_with_its_verdict(tree):
    facts = json.loads((tree / "verdict.json").read_text())

    told = {
        (point["label"], point["collective"], point["size_bytes"]): point["verdict"]
        for point in facts["points"]
    }
    assert told == {
        ("v2", "all_reduce", 1024): "regression",
        ("v2", "all_reduce", 1 << 20): "improvement",
        ("v2", "barrier", 0): "regression",
        ("v3", "all_reduce", 1024): "neutral",
        ("v3", "all_reduce", 1 << 20): "neutral",
    }
    assert facts["counts"]["v2"] == {"regression": 2, "improvement": 1, "neutral": 0, "n/a": 0}
    assert (facts["regression_count"], facts["exit"]) == (2, 0)
    assert [point["collective"] for point in facts["baseline_only"]["v3"]] == ["barrier"]
    slow = facts["points"][0]
    assert slow["reason"] == "paired_interval_clears_band"
    assert slow["latency_change"] == pytest.approx(-25)
    assert slow["latency_change_low"] <= slow["latency_change_high"] < -5


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [
        *((0, "0B"), (4, "4B"), (1023, "1023B"), (1024, "1KB"), (1536, "1.5KB")),
        *((1 << 20, "1MB"), (3 << 30, "3GB"), (1 << 40, "1TB"), (1 << 50, "1024TB")),
    ],
)
def test_sizes_are_told_in_powers_of_1024(size_bytes, words):
    assert size_words(size_bytes) == words


def test_figures_beyond_measure_leave_plots_of_the_rest(made, analysed):
    odd = (1e300, 5e-324, 0.0, -1.0, 2.0)
    rows = {
        label: [
            made.row(
                latency,
                **{"SendMsgSize(B)": size, "BusBw(GB/s)": speed, "DeviceName": "$\\frac{"},
            )
            for size, (latency, speed) in enumerate(zip(latencies, speeds, strict=True))
        ]
        for label, latencies, speeds in (("a", odd, odd[::-1]), ("b", [5.0] * 5, odd))
    }
    folders = [f"{label}:{made.folder(label, each)}" for label, each in rows.items()]

    found = analysed(*folders, baseline="a")

    (pair,) = found.pairs
    assert pair.counts[Standing.ABSENT] == 4
    drawn = {path.name for path in (made.root / "out").rglob("*.svg")}
    assert drawn == {"all_reduce_latency.svg", "all_reduce_busbw.svg"}
