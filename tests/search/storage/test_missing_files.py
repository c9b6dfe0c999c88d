"""A file of a trial that is missing, changed or removed is one line that says what to do."""

import json
from contextlib import closing
from dataclasses import replace

import pytest
import zstandard

from records.store.store import Store
from tests.support import records as testing

STUDY = "20260101-000000-aaaa"


@pytest.fixture
def removed(kept_store, cclsearch):
    """A store whose trial 0 has no trace any more."""
    kept = kept_store()
    assert cclsearch("gc", "--keep-best", "3", "--yes", "--store", kept.root).code == 0
    return kept


def assert_one_line(ended, code, *parts):
    assert ended.code == code
    assert len(ended.err.splitlines()) == 1
    assert all(part in ended.err for part in parts)


def test_a_shown_trial_tells_why_a_trace_is_gone(removed, cclsearch):
    out = cclsearch("trial", "show", "0", "--store", removed.root).out
    told = json.loads(cclsearch("trial", "show", "0", "--json", "--store", removed.root).out)
    (line,) = (line for line in out.splitlines() if line.startswith("  rank0_trace.json"))
    assert " was removed by gc on 20" in line
    assert line.endswith(" (traces of all but the best 3 trials)")
    assert list(told["absent_files"]) == ["rank0_trace.json"]


@pytest.mark.parametrize("view", ["breakdown", "kernels"])
def test_looking_into_a_removed_trace_says_who_removed_it(removed, cclsearch, view):
    ended = cclsearch("trace", view, "trial:0", "--store", removed.root)
    assert_one_line(ended, 2, f"trial 0 of study {STUDY}: rank0_trace.json was removed by gc on 20")


def test_looking_into_a_lost_or_changed_trace_says_what_to_do(kept_store, cclsearch):
    kept = kept_store()
    kept.trace_of(1).unlink()
    ended = cclsearch("trace", "breakdown", "trial:1", "--store", kept.root)
    assert_one_line(
        ended, 4, f"trial 1 of study {STUDY}: rank0_trace.json is missing from", "restore it from"
    )
    shown = cclsearch("trial", "show", "1", "--store", kept.root)
    assert shown.code == 0
    assert "  is missing from " in shown.out
    kept.trace_of(1).write_bytes(zstandard.compress(b"{}"))
    changed = cclsearch("trace", "breakdown", "trial:1", "--store", kept.root)
    assert_one_line(changed, 4, "rank0_trace.json: ", "was changed since it was recorded")


def test_a_trace_that_is_none_is_refused_by_its_own_name(kept_store, cclsearch):
    ended = cclsearch("trace", "breakdown", "trial:1", "--store", kept_store().root)
    assert_one_line(ended, 2, f"trial 1 of study {STUDY}: rank0_trace.json: is text, but no JSON")


def test_a_log_that_is_lost_or_changed_is_one_line(kept_store, cclsearch):
    kept = kept_store()
    path = kept.path_of(1, "rank0.log")
    path.write_bytes(zstandard.compress(b"another"))
    changed = cclsearch("trial", "logs", "1", "--store", kept.root)
    assert_one_line(changed, 4, "rank0.log: ", "was changed since it was recorded")
    path.unlink()
    lost = cclsearch("trial", "logs", "1", "--json", "--store", kept.root)
    assert_one_line(lost, 4, f"trial 1 of study {STUDY}: rank0.log is missing from")


def test_what_is_there_is_copied_and_what_is_not_is_said(removed, cclsearch, tmp_path):
    ended = cclsearch("trial", "files", "0", "--to", tmp_path / "out", "--store", removed.root)
    assert_one_line(ended, 0, "rank0_trace.json was removed by gc")
    assert (tmp_path / "out" / "rank0.log").read_text() == "rank0.log of trial 0\n" * 1000
    assert ended.out.splitlines() == [str(tmp_path / "out" / n) for n in ("policy.py", "rank0.log")]

    removed.trace_of(1).write_bytes(b"damaged")
    ended = cclsearch("trial", "files", "1", "--to", tmp_path / "more", "--store", removed.root)
    assert_one_line(ended, 4, "rank0_trace.json: ", "was changed")
    assert sorted(path.name for path in (tmp_path / "more").iterdir()) == ["policy.py", "rank0.log"]


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/../../outside", ""])
def test_a_name_from_elsewhere_leads_nowhere_else(cclsearch, tmp_path, name):
    with closing(Store(tmp_path / "store")) as store:
        files = (replace(store.artifacts.keep_text("x", "x"), name=name),)
        outcome = replace(testing.measured(), artifacts=files)
        store.add_study(STUDY, testing.study(), "1", [testing.trial(0, outcome)])
    before = sorted(tmp_path.iterdir())
    to = tmp_path / "here" / "out"
    ended = cclsearch("trial", "files", "0", "--to", to, "--store", tmp_path / "store")
    assert_one_line(ended, 4, "is not the name of a file in a folder")
    assert sorted(tmp_path.iterdir()) == before
    assert [path.name for path in to.iterdir()] == ["policy.py"]


def test_files_that_are_all_as_recorded_are_said_to_be(kept_store, cclsearch):
    ended = cclsearch("doctor", "--verify", "--store", kept_store().root)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("8 files read, ")
    assert ended.out.endswith("all files match their digests\n")


def test_every_changed_or_missing_file_is_found_and_named(removed, cclsearch):
    removed.trace_of(1).write_bytes(b"damaged")
    removed.path_of(2, "rank0.log").unlink()

    ended = cclsearch("doctor", "--verify", "--store", removed.root)

    assert_one_line(ended, 4, "2 files of ", "restore them from a backup of the store")
    lines = ended.out.splitlines()
    assert lines[1] == "1 were removed by gc, as recorded"
    assert sum(f"study {STUDY}, trial 1, rank0_trace.json: " in line for line in lines) == 1
    assert sum(f"study {STUDY}, trial 2, rank0.log: artifact " in line for line in lines) == 1
    told = json.loads(cclsearch("doctor", "--verify", "--json", "--store", removed.root).out)
    assert len(told["faults"]) == 2
