"""The command `import`: once and only once, or nothing at all, and what can be done afterwards."""

import json

import pytest

ID = "20260101_120000"
"""What the id of the imported study begins with."""
TABLE = """\
iteration,version,config,metrics,score,status,error_msg,best_score
0,0,"{""tp"": 1}",{},inf,error,No CUDA GPUs are available,inf
1,1,"{""tp"": 2}","{""avg_step_time"": 2.5}",2.5,success,,2.5
2,2,"{""tp"": 4}","{""avg_step_time"": 3.5}",3.5,success,,2.5
"""


@pytest.fixture
def run_folder(tmp_path):
    """A run folder whose seed failed by its surroundings, and whose second trial is the best."""
    path = tmp_path / ID
    path.mkdir()
    (path / "results.csv").write_text(TABLE, encoding="utf-8")
    return path


@pytest.fixture
def imported(cclsearch, run_folder):
    return cclsearch("import", run_folder)


def test_an_imported_study_can_be_shown(cclsearch, imported):
    shown = cclsearch("show", ID)
    assert imported.code == shown.code == 0
    assert "imported: 3 trials, 2 measured; best 2.5 s" in imported.out
    assert "imported: 20260101_120000/results.csv (ccl-search)" in shown.out
    assert "resume" not in shown.out
    assert cclsearch("best", ID, "--format", "args").out == "--tp=2\n"


@pytest.mark.usefixtures("imported")
def test_a_history_is_recorded_once(cclsearch, run_folder):
    again = cclsearch("import", run_folder, "--as", "x")
    assert "already recorded; skipped" in again.out
    assert len(json.loads(cclsearch("list", "--json").out)) == 1


def test_a_dry_run_writes_nothing(cclsearch, run_folder, tmp_path):
    told = cclsearch("import", run_folder, "--dry-run")
    assert (told.code, "would be imported: 3 trials" in told.out) == (0, True)
    assert list((tmp_path / "here").iterdir()) == []


def test_one_study_takes_the_name_it_is_given_and_several_do_not(cclsearch, run_folder):
    cclsearch("import", run_folder, "--as", "baseline")
    assert json.loads(cclsearch("list", "--json").out)[0]["name"] == "baseline"
    other = run_folder.parent / "other"
    other.mkdir()
    (other / "results.csv").write_text(TABLE, encoding="utf-8")
    several = cclsearch("import", run_folder.parent, "--as", "x")
    assert (several.code, "contains several studies" in several.err) == (2, True)


def test_programs_are_told_what_was_found(cclsearch, run_folder):
    (study,) = json.loads(cclsearch("import", run_folder, "--json").out)["studies"]
    assert (study["new"], study["trials"], study["measured"], study["best"]) == (True, 3, 2, 2.5)


@pytest.mark.usefixtures("imported")
@pytest.mark.parametrize(
    "command", [("resume", ID), ("run", "--strategy", "replay", "--from", "20260101")]
)
def test_an_imported_study_cannot_go_on(cclsearch, command):
    refused = cclsearch(*command)
    assert refused.code == 2
    assert "was imported from 20260101_120000/results.csv and cannot be resumed" in refused.err


@pytest.mark.usefixtures("imported")
def test_scored_by_something_else_an_imported_study_is_not_wrong_for_it(cclsearch):
    shown = cclsearch("show", ID, "--objective", "rank_seconds")
    assert "best: trial 1" in shown.out
    assert "recorded scores" not in shown.out.lower()


def test_home_folders_and_secrets_of_others_are_not_recorded(cclsearch, run_folder, tmp_path):
    leak = "RuntimeError: /home/somebody/x Bearer abcdefghijklmnop"
    text = TABLE.replace("No CUDA GPUs are available", leak)
    (run_folder / "results.csv").write_text(text, encoding="utf-8")
    cclsearch("import", run_folder)
    stored = b"".join(p.read_bytes() for p in (tmp_path / "here").rglob("*") if p.is_file())
    assert b"RuntimeError" in stored
    assert b"somebody" not in stored
    assert b"abcdefghijklmnop" not in stored


def test_a_bad_row_ends_with_what_to_do(cclsearch, run_folder):
    path = run_folder / "results.csv"
    path.write_text(f"{TABLE}3,3,{{,{{}},1,success,,\n", encoding="utf-8")
    refused, imported = cclsearch("import", run_folder), cclsearch("import", path, "--skip-bad")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "results.csv:5: " in refused.err
    assert "--skip-bad" in refused.err
    assert "results.csv:5: " in imported.out
