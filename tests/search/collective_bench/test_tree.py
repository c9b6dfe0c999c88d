"""An analysis is a tree of files: which there are, and what their tables say."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from search.collective_bench.analyze import Sheet, analyze
from search.collective_bench.results import size_words
from search.collective_bench.verdicts import AnalysisOptions, Standing

GOLDEN = Path(__file__).with_name("golden")
TEXTS = sorted(path.relative_to(GOLDEN).as_posix() for path in GOLDEN.rglob("*.*"))


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """The tree of three labels: the second regresses at one size and improves at another."""
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


def test_the_tree_has_these_files_and_its_plots_are_drawings(tree):
    files = sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file())

    assert files == (GOLDEN / "files.txt").read_text().splitlines()
    roots = {ElementTree.parse(path).getroot().tag for path in tree.rglob("*.svg")}
    assert roots == {"{http://www.w3.org/2000/svg}svg"}
    assert len((tree / "v3_vs_v1" / "perf_regress.csv").read_text().splitlines()) == 1


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "files.txt"])
def test_a_table_says_this(tree, name):
    assert (tree / name).read_text() == (GOLDEN / name).read_text()


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        (
            "perf_summary_v1",
            "Collective,NumRanks,MsgSize,SendMsgSize(B),LatAvg(us),LatMin(us),LatMax(us),"
            "BusBw(GB/s),DeviceName,Rows,ReduceOp,DType,DispatchMode,SyncInterval",
        ),
        *(
            (
                name,
                "Collective,Adapter,NumRanks,MsgSize,SendMsgSize(B),LatAvg(us),LatMin(us),"
                "LatMax(us),BusBw(GB/s),LatChange(%),BwChange(%),DeviceName,Verdict,Reason,"
                "Evidence,LatChangeLow(%),LatChangeHigh(%),Rounds,ReduceOp,DType,DispatchMode,"
                "SyncInterval",
            )
            for name in ("perf_comparison", "v2_vs_v1/perf_regress", "v2_vs_v1/perf_improve")
        ),
        (
            "v2_vs_v1/perf_highlights",
            "Collective,Adapter,Baseline,ImprovedPoints,RegressedPoints,NeutralPoints,TotalPoints,"
            "Improved(%),Regressed(%),Neutral(%),AvgLatImp(%),AvgLatReg(%),AvgLatNeu(%),"
            "MedLatImp(%),MedLatReg(%),MedLatNeu(%)",
        ),
    ],
)
def test_a_csv_has_these_columns(tree, name, columns):
    assert (tree / f"{name}.csv").read_text().splitlines()[0] == columns


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
    assert (slow["reason"], slow["evidence"]) == ("paired_interval_clears_band", "rounds")
    assert slow["latency_change"] == pytest.approx(-25)
    assert slow["latency_change_low"] <= slow["latency_change_high"] < -5


def test_a_table_is_unrounded_for_programs_and_short_for_people():
    columns = ("DType", "LatAvg(us)", "BusBw(GB/s)", "LatChange(%)", "SendMsgSize(B)")
    rows = (("float32", 1 / 3, 0.012345, None, 4), ("float32", 20000.06, 250.0, 0.5, 8))
    first, second = (dict(zip(columns, row, strict=True)) for row in rows)
    del second["LatChange(%)"]

    sheet = Sheet(columns=columns, rows=(first, second))

    assert sheet.csv == (
        "DType,LatAvg(us),BusBw(GB/s),LatChange(%),SendMsgSize(B)\n"
        "float32,0.3333333333333333,0.012345,n/a,4\n"
        "float32,20000.06,250.0,,8\n"
    )
    assert sheet.lines == [
        "DType float32",
        "",
        "LatAvg(us)  BusBw(GB/s)  LatChange(%)",
        "       0.3       0.0123           n/a",
        "   20000.1        250.0      baseline",
    ]


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
    assert drawn == {
        f"all_reduce_b_vs_a_{kind}.svg"
        for kind in ("latency", "busbw", "relative_latency", "relative_busbw")
    }
