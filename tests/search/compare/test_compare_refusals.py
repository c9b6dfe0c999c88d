"""Sides that cannot be compared, or are none, end with 2 and one line that says what to do."""

import pytest

from records.codec import to_json
from records.store.rows import PendingTrial
from records.store.store import Store
from tests.support import records as testing
from tests.support.nvbench import benchmark, state, times, write_result

STUDY = "20260101-000000-aaaa"
CSV = (
    "Collective,ReduceOp,DType,SendMsgSize(B),Ranks,DispatchMode,SyncInterval,LatAvg(us)\n"
    "all_reduce,sum,float32,1024,8,sync,0,10.0\n"
)


@pytest.fixture
def refused(cclsearch, tmp_path):
    """Runs compare where one side of each kind lies; gives its error."""
    store = Store(tmp_path / "store")
    store.create(STUDY, testing.study(), "test")
    for trial in testing.history(testing.failed()):
        intent = PendingTrial(
            ordinal=trial.ordinal, policy=trial.policy, started_at=trial.started_at, exchange=None
        )
        store.begin(STUDY, intent, None)
        store.finish(STUDY, trial)
    store.close()
    here = tmp_path / "here"
    (here / "rows.csv").write_text(CSV)
    (here / "launch.json").write_text(to_json(testing.measured()))
    result = [benchmark("copy", [state(times(1.0, 1.1, 1.2, 1.3))])]
    write_result(here / "nvbench.json", result)
    (here / "odd.json").write_text('{"x": 1}')
    (here / "none.json").write_text("[]")
    (here / "cut.json").write_text('{"benchmarks": [')
    (here / "broken.json").write_text('{"benchmarks": 1}')
    for folder in ("both", "empty"):
        (here / folder).mkdir()
    (here / "both" / "a.csv").write_text(CSV)
    (here / "both" / "a.json").write_text("{}")

    def run(words):
        ended = cclsearch("compare", *words.split(), "--store", store.root)
        assert ended.out == ""
        assert "Traceback" not in ended.err
        return ended

    return run


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "compare needs A and B"),
        ("rows.csv", "compare needs A and B"),
        ("rows.csv nowhere", "nowhere: there is no such file or folder; a side is a trial"),
        ("rows.csv trial:9", f"study {STUDY} has no trial 9; it has 1"),
        ("rows.csv trial:x", "'x' names no trial; write trial:3 or trial:STUDY:3"),
        ("rows.csv trial:zzz:0", "no study 'zzz'"),
        ("rows.csv trial:", "names no trial"),
        ("trial:0 trial:0", "A and B are both trial:"),
        (
            "trial:0 rows.csv",
            "is a trial and B, rows.csv, is benchmark CSV; give two sides of the same kind",
        ),
        ("rows.csv launch.json", "is benchmark CSV and B, launch.json, is a stored measurement"),
        ("nvbench.json launch.json", "is nvbench results and B, launch.json, is a stored meas"),
        ("odd.json launch.json", "odd.json: holds no stored measurement"),
        ("none.json launch.json", "none.json: holds no timings"),
        ("cut.json nvbench.json", "cut.json: holds no stored measurement"),
        ("broken.json nvbench.json", "broken.json"),
        ("both rows.csv", "both: holds both CSV and JSON files"),
        ("empty rows.csv", "empty: holds no CSV or JSON file"),
        ("rows.csv rows.csv --margin=-0.1", "--margin -0.1: give 0 or more"),
        ("rows.csv rows.csv --alpha 0.5", "give 0.001 or more and less than 0.5"),
        ("rows.csv rows.csv --alpha nan", "give 0.001 or more and less than 0.5"),
        ("rows.csv rows.csv --threshold-diff -1", "--threshold-diff"),
        ("rows.csv rows.csv -b copy", "are only for nvbench files"),
        ("launch.json launch.json --bulk-script x.py", "are only for nvbench files"),
        ("nvbench.json nvbench.json --margin 0.1", "for nvbench files use --preset or --config"),
        ("nvbench.json nvbench.json -b none", "there is no such benchmark"),
        ("rows.csv rows.csv --preset lax", "--preset"),
        ("rows.csv rows.csv --config nowhere.toml", "nowhere.toml"),
        ("rows.csv rows.csv --fail-on fast", "--fail-on"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(refused, words, told):
    ended = refused(words)

    assert ended.code == 2
    assert told in ended.err


def test_a_study_without_a_measured_trial_has_no_best(refused):
    ended = refused("trial:0 best")

    assert ended.code == 4
    assert f"study {STUDY} has no measured trial; see `cclsearch show {STUDY}`" in ended.err
