"""A script that starts a recorded job again: its files, environment and command, and no other."""

import subprocess
from contextlib import closing
from dataclasses import replace

import pytest

from records.errors import StudyError
from records.store.store import Store
from records.trial import ContextOutcome
from search.transfer.script import launch_script
from tests.search.views.test_machine import LAUNCHED, MACHINE
from tests.support import records as testing

STUDY_ID = "20260101-000000-aaaa"
FILE = "{\nEND_OF_FILE\n$(touch evil) `touch evil` ~ 'x'\n}"


@pytest.fixture
def store(tmp_path):
    with closing(Store(tmp_path / "store")) as opened:
        opened.create(STUDY_ID, testing.study(), "test")
        yield opened


@pytest.fixture
def script(store):
    """Gives the script of a trial that was launched like this, and left these files."""

    def make(launched=LAUNCHED, context=None, contexts=(), **files):
        kept = [
            store.artifacts.keep_text(text, name.replace("__", "/").replace("_json", ".json"))
            for name, text in (files or {"job_json": FILE}).items()
        ]
        if launched is not None:
            launched = replace(launched, machine=store.keep_machine(MACHINE))
        outcome = replace(testing.measured(), artifacts=tuple(kept), launched=launched)
        others = (ContextOutcome(name=name, outcome=outcome) for name in contexts)
        trial = testing.trial(0, replace(outcome, contexts=tuple(others)), {"tp": 2})
        return launch_script(trial, store.find(STUDY_ID), store, context)

    return make


def test_a_script_is_suggested_under_its_quoted_name(cclsearch, store, tmp_path):
    launched = replace(testing.measured(), launched=replace(LAUNCHED, files=()))
    store.add_study("one", testing.study(), "test", testing.history(launched))

    script = tmp_path / "a b.sh"
    ended = cclsearch("trial", "script", "one", "0", "-o", script, "--store", store.root)

    assert (ended.out, ended.err) == (f"next: sh '{script}'\n", "")


def run(text, folder):
    (folder / "again.sh").write_text(text, encoding="utf-8")
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/homes/me"}
    command = ["sh", "again.sh", "here"]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    return (folder / "here" / "told").read_text(encoding="utf-8")


def test_the_script_gives_the_job_its_files_environment_and_command(script, tmp_path):
    told = run(script(), tmp_path)

    here = tmp_path / "here"
    assert told == f"two words; $(touch evil)|INFO|{here}/trace|/homes/me/it's here|{FILE}|"
    assert (here / "trace").is_dir()
    assert list(tmp_path.rglob("evil")) == []


def test_the_script_tells_what_it_is_of_and_what_came_out(script):
    lines = script().splitlines()

    assert "# Trial 0 of study 20260101-000000-aaaa (example), recorded by cclsearch." in lines
    assert any(line.startswith("# Configuration ") and "tp=2" in line for line in lines)
    assert "# What came of it: step_time 0.5 s." in lines
    assert any(line.startswith("# It ran on node7: Fast CPU") for line in lines)
    assert "# There, LD_LIBRARY_PATH was ~/lib" in lines


def test_each_context_has_a_script_of_its_own(script):
    files = {"job_json": "own", "contexts__long__job_json": "of the other"}

    assert "\nown\n" in script(contexts=("own", "long"), **files)
    assert "\nof the other\n" in script(contexts=("own", "long"), context="long", **files)
    with pytest.raises(StudyError, match="in context 'short' has no recorded launch"):
        script(contexts=("own", "long"), context="short", **files)


@pytest.mark.parametrize(
    ("launched", "message"),
    [
        (None, "has no recorded launch: an older version, or another tool, recorded it"),
        (replace(LAUNCHED, files=("other.json",)), "kept no other.json"),
        (replace(LAUNCHED, files=("../job.json",)), "names files outside of its folder"),
        (replace(LAUNCHED, folders={"X": "/tmp"}), "names files outside of its folder"),
        (
            replace(LAUNCHED, environment={"A;evil": "1"}),
            "names a variable or command that is none",
        ),
        (replace(LAUNCHED, argv=()), "names a variable or command that is none"),
    ],
)
def test_what_is_not_on_record_or_not_sound_gives_no_script(launched, message, script):
    with pytest.raises(StudyError, match=message):
        script(launched)


def test_a_name_with_line_ends_stays_in_its_comment(store, script):
    store.replace_study(STUDY_ID, replace(testing.study(), name="x\ntouch evil\r\n"))

    assert not any(line.startswith("touch") for line in script().splitlines())
