"""Folders of results: their labels, what is read from them, and what is left out by name."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.timing.bench_csv import bench_files, read_bench
from records.errors import StudyError
from search.collective_bench.results import NAME, labelled_folders, read_results

THEIRS = """\
Collective,DType,ReduceOp,SendMsgSize(B),Ranks,DispatchMode,WarmupIters,MeasureIters,SyncInterval,\
LatAvg(us),LatMin(us),LatMax(us),BusBw(GB/s),DeviceType,DeviceName,CommAdapter,CommBackend,\
CommBackendVersion,TorchVersion,TorchCommsVersion
broadcast,float32,n/a,4,8,sync,5,1000,0,21.37,21.37,21.37,0.00,cuda,NVIDIA H100,torchcomms,ncclx,\
2.29,2.11.0.dev20260101+cu128,0.2.0
broadcast,float32,n/a,1048576,8,async,5,1000,1,33.02,29.80,71.44,27.79,cuda,NVIDIA H100,torchcomms,\
ncclx,2.29,2.11.0.dev20260101+cu128,0.2.0
"""
"""As torchcomms writes them: two decimals, and no columns for rounds."""


@pytest.fixture
def read():
    """Reads folders; gives the results of each and what was said about them."""

    def results(*texts):
        said = []
        return read_results(labelled_folders([str(text) for text in texts]), said.append), said

    return results


def test_a_label_stands_before_a_colon_or_is_the_name_of_the_folder(tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path / "runs")

    folders = labelled_folders(["new:/data/a:b", str(tmp_path / "old"), "."])

    assert [(each.label, str(each.path)) for each in folders] == [
        ("new", "/data/a:b"),
        ("old", str(tmp_path / "old")),
        ("runs", "."),
    ]


@pytest.mark.parametrize(
    ("text", "label", "path"),
    [
        ("./12:30/c10d", "c10d", "12:30/c10d"),
        ("a/b:c/d", "d", "a/b:c/d"),
        ("a:b:c", "a", "b:c"),
    ],
)
def test_a_colon_in_a_path_does_not_confuse(text, label, path):
    (folder,) = labelled_folders([text])

    assert (folder.label, str(folder.path)) == (label, path)


def test_a_folder_that_is_there_keeps_its_colon(tmp_path, monkeypatch):
    (tmp_path / "a:b").mkdir()
    monkeypatch.chdir(tmp_path)

    with pytest.raises(StudyError, match="cannot be a label"):
        labelled_folders(["a:b"])
    (tmp_path / "b").mkdir()
    assert labelled_folders(["a:b"])[0].label == "a"


@pytest.mark.parametrize("text", ["", ":x", "x:", "..", "a b", "\x1b:y"])
def test_what_cannot_name_a_file_is_no_label(text):
    with pytest.raises(StudyError):
        labelled_folders([text] if text else [])


@given(text=st.text(max_size=12))
def test_any_text_is_a_label_with_a_path_or_a_refusal(text):
    try:
        (folder,) = labelled_folders([text])
    except StudyError:
        return
    assert NAME.fullmatch(folder.label)


def test_two_folders_of_one_label_are_refused():
    with pytest.raises(StudyError, match="several folders are labelled a; give each"):
        labelled_folders(["a:x", "y/a", "b:z"])


def test_rows_of_one_point_are_merged_and_none_is_lost(made, read):
    folder = made.folder("a", [made.row(8.0), made.row(12.5)])
    made.folder("a", [made.row(10.0)], file="again.csv")

    ((results,), said) = read(folder)

    (figures,) = results.figures.values()
    assert figures.latency_us == pytest.approx(10.0)
    assert figures.bus_gb_per_s == pytest.approx(1.2)
    assert (figures.least_us, figures.most_us) == (pytest.approx(7.2), pytest.approx(15.0))
    assert (figures.row_count, said) == (3, [])
    assert [path.name for path in bench_files(folder)] == ["again.csv", "all_reduce.csv"]


def test_files_of_torchcomms_are_read_as_they_are(tmp_path, read):
    (tmp_path / "broadcast.csv").write_text(THEIRS)

    ((results,), said) = read(f"theirs:{tmp_path}")

    assert said == []
    small, large = results.figures.values()
    assert (small.latency_us, small.bus_gb_per_s) == (21.37, 0.0)
    assert (large.least_us, large.most_us, large.bus_gb_per_s) == (29.8, 71.44, 27.79)
    assert small.convention == "torchcomms"
    modes = [(each.dispatch_mode, each.device_name) for each in results.rows]
    assert modes == [("sync", "NVIDIA H100"), ("async", "NVIDIA H100")]
    assert results.text("CommBackendVersion") == "2.29"


def test_what_does_not_exist_stays_absent(made, read):
    folder = made.folder("a", [made.row(10.0, Collective="barrier", **{"BusBw(GB/s)": "n/a"})])

    ((results,), _) = read(folder)

    ((point, figures),) = results.figures.items()
    assert figures.bus_gb_per_s is None
    assert (point.device_name, results.text("CommBackendVersion")) == ("n/a", "n/a")


@pytest.mark.parametrize("latency", ["n/a", "", 999.0])
def test_rows_that_were_not_measured_are_told_and_left_out(made, read, latency):
    timeout = made.row(latency, Ranks=8, Status="timeout", Reason="no end within 10 s")
    folder = made.folder("a", [made.row(10.0, Status="measured"), timeout])

    ((results,), said) = read(folder)

    assert [point.rank_count for point in results.rows] == [4]
    assert [row.point.rank_count for row in results.left_out] == [8]
    assert said == ["a: 1 row not measured: timeout (no end within 10 s)"]


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (r"(?s).*", "", "has no column Collective"),
        (r"(?s).*", "\x00\n", "has no column"),
        (r"(?s)\n.*", "\n", "holds no results"),
        ("LatMin|BusBw", "X", "has no column LatMin(us), BusBw(GB/s);"),
        ("ReduceOp|DType", "X", "has no column ReduceOp, DType;"),
        ("all_reduce", "../../etc", "is not a name of a collective"),
        ("all_reduce", "a b", "is not a name of a collective"),
        ("sum", "/tmp/x", "is not a name of a collective or operation"),
    ],
)
def test_a_file_that_is_no_result_or_leads_elsewhere_is_named_and_left_out(
    made, read, old, new, fault
):
    bad = made.folder("a", [made.row(10.0)], file="bad.csv") / "bad.csv"
    bad.write_text(re.sub(old, new, bad.read_text(), count=2))
    made.folder("a", [made.row(10.0)])

    ((results,), (words,)) = read(bad.parent)

    assert sum(map(len, results.rows.values())) == 1
    assert words.startswith(f"a: left out {bad}: ")
    assert fault in words


def test_a_file_of_two_versions_is_left_out_by_name(made, read):
    mixed = [made.row(10.0, SchemaVersion=1), made.row(11.0, SchemaVersion=2)]
    folder = made.folder("a", mixed, file="mixed.csv")
    made.folder("a", [made.row(10.0, SchemaVersion=2)])

    ((results,), said) = read(folder)

    assert sum(map(len, results.rows.values())) == 1
    assert "mixed.csv: line 3: SchemaVersion is '2', but '1' above" in said[0]
    with pytest.raises(StudyError, match="one version has written"):
        read_bench(folder / "mixed.csv")


def test_rows_of_several_torches_are_noticed_and_of_several_adapters_refused(made, read):
    torches = [made.row(10.0), made.row(10.0, TorchVersion="2.14.0")]
    adapters = [made.row(10.0), made.row(10.0, CommAdapter="mpi")]

    _, said = read(made.folder("a", torches))

    assert said == ["a: its rows differ in TorchVersion (2.13.0, 2.14.0)"]
    with pytest.raises(StudyError, match=r"several adapters \(c10d, mpi\)"):
        read(made.folder("b", adapters))


def test_a_folder_that_is_missing_is_left_out_and_none_at_all_is_an_error(made, read, tmp_path):
    here = made.folder("a", [made.row(10.0)])

    (found, said) = read(here, tmp_path / "none")

    assert [each.label for each in found] == ["a"]
    assert said == [f"none: there is no folder {tmp_path / 'none'}; it is left out"]
    with pytest.raises(StudyError, match="none of the folders is there"):
        read(tmp_path / "none", tmp_path / "neither")


def test_folders_without_results_are_an_error_that_tells_where_some_are(made, tmp_path):
    made.folder("all/mpi", [made.row(10.0)])
    said = []

    with pytest.raises(StudyError, match="no CSV file with results"):
        read_results(labelled_folders([str(tmp_path / "all")]), said.append)

    assert said[0].endswith(
        "holds no CSV file with results, but its folders mpi do; it is left out"
    )
