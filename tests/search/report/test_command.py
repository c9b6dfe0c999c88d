"""`cclsearch report`: where the page goes, in which form, and what is refused."""

import json
import webbrowser
from dataclasses import replace

import pytest

from records.machine import LaunchRecord, RankEnd
from records.store.store import Store
from tests.search.views.test_machine import MACHINE
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


@pytest.mark.parametrize(
    ("arguments", "name", "first"),
    [
        ((), f"{STUDY}.html", "<!doctype html>"),
        ((STUDY[:8], "-o", "."), f"{STUDY}.html", "<!doctype html>"),
        (("-o", "a.html"), "a.html", "<!doctype html>"),
        (("-o", "a.md"), "a.md", "# example"),
        (("--format", "markdown"), f"{STUDY}.md", "# example"),
        (("--format", "markdown", "-o", "a.txt"), "a.txt", "# example"),
        (("-o", "a.md", "--format", "html"), "a.md", "<!doctype html>"),
    ],
)
def test_name_and_form_are_as_asked_or_follow_from_each_other(
    on_record, tmp_path, arguments, name, first
):
    ended, facts = on_record(*arguments), on_record(*arguments, "--force", "--json")

    assert (ended.code, ended.out) == (0, f"written: {name}\n")
    form = "html" if first.startswith("<") else "markdown"
    assert (
        json.loads(facts.out).items() >= {"study_id": STUDY, "path": name, "format": form}.items()
    )
    text = (tmp_path / "here" / name).read_text(encoding="utf-8")
    assert text.startswith(first)
    assert "0.25 s" in text
    assert [path.name for path in (tmp_path / "here").iterdir()] == [name]


def test_the_browser_is_shown_the_file_if_that_is_asked(on_record, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(webbrowser, "open", lambda address: shown.append(address) is None)

    on_record("-o", "quiet.html")
    assert on_record("-o", "r.html", "--open").err == ""
    assert shown == [(tmp_path / "here" / "r.html").as_uri()]

    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    assert "open s.html" in on_record("--open", "-o", "s.html").err


def test_what_is_not_there_ends_with_2_and_what_cannot_be_written_with_4(on_record, tmp_path):
    assert [on_record(*each).code for each in (("nothing",), ("--format", "pdf"))] == [2, 2]
    ended = on_record("-o", tmp_path / "no" / "r.html")

    assert ended.code == 4
    assert ended.err.startswith(f"error: cannot write {tmp_path / 'no' / 'r.html'}: ")
    assert len(ended.err.splitlines()) == 1


def test_a_report_that_is_there_is_replaced_whole(on_record, tmp_path):
    path = tmp_path / "here" / "r.html"
    path.write_text("old", encoding="utf-8")

    on_record("-o", "r.html", "--force")

    assert path.read_text(encoding="utf-8").endswith("</html>\n")
    assert [each.name for each in path.parent.iterdir()] == ["r.html"]


def test_a_lost_file_of_a_trial_does_not_keep_its_study_from_a_report(cclsearch, traced_store):
    root = traced_store()
    for path in (root / "artifacts").rglob("*"):
        if path.is_file():
            path.unlink()

    ended = cclsearch("report", "-o", "r.md", "--store", root)

    assert (ended.code, ended.out) == (0, "written: r.md\n")


def test_launches_tell_command_and_machine_as_long_as_they_are_on_record(cclsearch, tmp_path):
    root = tmp_path / "store"
    store = Store(root)
    kept = store.keep_machine(replace(MACHINE, cpu_model="CPU <b>"))
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
        page = read_page((tmp_path / "here" / "r.html").read_text(encoding="utf-8"))
        return page.find("reproduce").text, page.find("cost").text

    reproduce, cost = report()
    path.unlink()
    again, _ = report()

    assert "python -m 'train it'" in reproduce
    assert "FLAG='a b'" in reproduce
    assert "node7: CPU <b>, 4 of 8 cores" in reproduce
    assert f"its description {kept} is no longer stored" in again
    # 12.5 s of two ranks, and two hours of two ranks that failed
    assert "2 h 12 s" in cost
    assert "rank-hours4.007" in cost
