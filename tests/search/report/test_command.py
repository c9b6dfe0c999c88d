"""`cclsearch report`: where the page goes, in which form, and what is refused."""

import json
import stat
import webbrowser
from dataclasses import replace

import pytest

from records.machine import LaunchRecord, Machine, RankEnd
from records.store.store import Store
from tests.support import records as testing
from tests.support.report import read_page

STUDY = "20260101-000000-aaaa"


@pytest.fixture
def on_record(cclsearch, tmp_path):
    """Runs a command on a store with one study of three trials."""
    store = Store(tmp_path / "store")
    trials = testing.history(0.5, 0.25, testing.failed()).trials
    store.add_study(STUDY, testing.study(), "test", trials)
    store.close()

    def run(*arguments):
        return cclsearch("report", *arguments, "--store", tmp_path / "store")

    return run


def test_a_report_lies_here_under_the_id_of_its_study(on_record, tmp_path):
    ended = on_record()

    assert (ended.code, ended.out) == (0, f"written: {STUDY}.html\n")
    page = read_page((tmp_path / "here" / f"{STUDY}.html").read_text(encoding="utf-8"))
    assert "Trial 1 is the best: step_time 0.25 s" in page.text
    assert [path.name for path in (tmp_path / "here").iterdir()] == [f"{STUDY}.html"]


@pytest.mark.parametrize(
    ("arguments", "name", "first"),
    [
        (("-o", "a.html"), "a.html", "<!doctype html>"),
        (("-o", "a.md"), "a.md", "# example"),
        (("--format", "markdown"), f"{STUDY}.md", "# example"),
        (("--format", "markdown", "-o", "a.txt"), "a.txt", "# example"),
        (("-o", "a.md", "--format", "html"), "a.md", "<!doctype html>"),
    ],
)
def test_the_form_is_as_asked_or_as_the_name_ends(on_record, tmp_path, arguments, name, first):
    assert on_record(*arguments).code == 0
    assert (tmp_path / "here" / name).read_text(encoding="utf-8").startswith(first)


def test_a_folder_gets_the_page_under_its_own_name(on_record, tmp_path):
    ended = on_record(STUDY[:8], "-o", tmp_path)

    assert ended.out == f"written: {tmp_path / STUDY}.html\n"
    assert (tmp_path / f"{STUDY}.html").is_file()


def test_json_tells_what_was_written(on_record):
    facts = json.loads(on_record("--json", "-o", "r.html").out)

    assert facts["study_id"] == STUDY
    assert (facts["path"], facts["format"]) == ("r.html", "html")
    assert facts["sections"][:3] == ["study", "best", "history"]


def test_the_browser_is_shown_the_file_if_that_is_asked(on_record, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(webbrowser, "open", lambda address: shown.append(address) is None)

    on_record("-o", "quiet.html")
    on_record("-o", "r.html", "--open")

    assert shown == [(tmp_path / "here" / "r.html").as_uri()]


def test_without_a_browser_it_says_which_file_to_open(on_record, monkeypatch):
    monkeypatch.setattr(webbrowser, "open", lambda _: False)

    ended = on_record("--open", "-o", "r.html")

    assert ended.code == 0
    assert "open r.html" in ended.err


def test_what_cannot_be_written_ends_with_4_and_leaves_nothing(on_record, tmp_path):
    ended = on_record("-o", tmp_path / "no" / "r.html")

    assert ended.code == 4
    assert ended.err.startswith(f"error: cannot write {tmp_path / 'no' / 'r.html'}: ")
    assert len(ended.err.splitlines()) == 1


def test_a_report_that_is_there_is_replaced_whole(on_record, tmp_path):
    path = tmp_path / "here" / "r.html"
    path.write_text("old", encoding="utf-8")

    on_record("-o", "r.html", "--force")

    assert path.read_text(encoding="utf-8").endswith("</html>\n")
    assert stat.S_IMODE(path.stat().st_mode) & stat.S_IRUSR
    assert [each.name for each in path.parent.iterdir()] == ["r.html"]


@pytest.mark.parametrize(("arguments", "code"), [(("nothing",), 2), (("--format", "pdf"), 2)])
def test_what_is_not_there_ends_with_2(on_record, arguments, code):
    assert on_record(*arguments).code == code


def test_a_report_needs_records(cclsearch, tmp_path):
    ended = cclsearch("report", "--store", tmp_path / "nowhere")

    assert (ended.code, ended.out) == (4, "")
    assert "start with `cclsearch run" in ended.err


def test_a_lost_file_of_a_trial_does_not_keep_its_study_from_a_report(cclsearch, traced_store):
    root = traced_store()
    for path in (root / "artifacts").rglob("*"):
        if path.is_file():
            path.unlink()

    ended = cclsearch("report", "-o", "r.md", "--store", root)

    assert (ended.code, ended.out) == (0, "written: r.md\n")


MACHINE = Machine(
    host="node1",
    system="Linux",
    kernel="6.1",
    libc=None,
    python="3.12",
    version="0.1.0",
    cclsearch=None,
    script=None,
    cpu_model="CPU <b>",
    core_count=8,
    usable_core_count=8,
    numa_node_count=None,
    memory_bytes=None,
    governor=None,
)


def test_launches_tell_command_and_machine_as_long_as_they_are_on_record(cclsearch, tmp_path):
    root = tmp_path / "store"
    store = Store(root)
    kept = store.keep_machine(MACHINE)
    launched = LaunchRecord(
        argv=("python", "-m", "train it"),
        environment={"FLAG": "a b"},
        machine=kept,
        reason="ended",
        wall_s=7200.0,
        ranks=(RankEnd(rank=0, status=1, signal=None), RankEnd(rank=1, status=1, signal=None)),
    )
    outcomes = (
        replace(testing.measured(0.5), launched=launched),
        replace(testing.failed(), launched=launched),
    )
    store.add_study(STUDY, testing.study(), "test", testing.history(*outcomes).trials)
    path = store.artifacts.path(kept)
    store.close()

    def report():
        cclsearch("report", "-o", "r.html", "--force", "--store", root)
        return read_page((tmp_path / "here" / "r.html").read_text(encoding="utf-8"))

    page = report()
    path.unlink()
    again = report()

    assert "python -m 'train it'" in page.find("reproduce").text
    assert "FLAG='a b'" in page.find("reproduce").text
    assert "node1: CPU <b>, 8 cores; Linux" in page.find("reproduce").text
    assert f"its description {kept} is no longer stored" in again.find("reproduce").text
    # 12.5 s of two ranks, and two hours of two ranks that failed
    assert "2 h 12 s" in page.find("cost").text
    assert "rank-hours4.007" in page.find("cost").text
