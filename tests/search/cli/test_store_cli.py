"""`list`, `show`, `best` and `doctor --rebuild` on stores that are large, damaged or gone."""

import json
from contextlib import closing
from dataclasses import replace

import pytest

from records.store.store import Store
from records.trial import Prediction
from search.cli import studies as large_studies
from search.cli import studies as study_records
from tests.support.evaluator import InTurn, Takes
from tests.support.records import failed, study, trial

LARGE = 40


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A store whose study is too large to be read whole; trial 3 is the best."""
    for module in (large_studies, study_records):
        monkeypatch.setattr(module, "READ_WHOLE", LARGE - 1)
    trials = (
        trial(n, failed() if n % 10 == 9 else 0.5 + abs(n - 3), {"n": n}) for n in range(LARGE)
    )
    with closing(Store(tmp_path)) as store:
        store.add_study("large", study(), "1", trials)
    return tmp_path


@pytest.fixture
def never_read_whole(monkeypatch):
    """Any reading of a whole history is an error."""

    def refuse(_store, study_id):
        raise AssertionError(f"all trials of {study_id} were read")

    monkeypatch.setattr(Store, "history", refuse)


def test_a_list_is_a_page_of_the_newest_and_tells_how_many_there_are(tmp_path, cclsearch):
    with closing(Store(tmp_path)) as store:
        for number in range(4):
            store.create(f"s{number}", study(), "1")
    ended = cclsearch("list", "--limit", 2, "--store", tmp_path)
    assert "s3" in ended.out
    assert "s1" not in ended.out
    assert f"the newest 2 of 4 studies; for more: cclsearch list --limit 4 --store {tmp_path}" in (
        ended.err
    )
    told = json.loads(cclsearch("list", "--limit", 3, "--json", "--store", tmp_path).out)
    assert [one["id"] for one in told] == ["s3", "s2", "s1"]
    assert cclsearch("list", "--store", tmp_path).err == ""


def test_the_best_of_a_study_is_told_with_the_interval_of_what_confirmed_it(tabular, cclsearch):
    varying = InTurn(tuple(Takes(step_time_s=s) for s in (0.1, 0.2, 0.3, 0.2, 0.3)))
    study = tabular({0: Takes(step_time_s=0.5), 1: varying})
    result = study.run().result

    (facts,) = json.loads(cclsearch("list", "--json", "--store", study.root).out)
    line = cclsearch("list", "--store", study.root).out.splitlines()[1]

    assert (facts["best"], facts["launches"]) == (result.centre, 4)
    assert (facts["low"], facts["high"]) == (result.low, result.high)
    assert f"{result.centre:.4g} s ({result.low:.4g} to {result.high:.4g}, 4 launches)" in line


@pytest.mark.usefixtures("never_read_whole")
def test_a_large_study_is_shown_without_reading_it_whole(large, cclsearch):
    ended = cclsearch("show", "large", "--last", 3, "--store", large)
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert [line.split()[1] for line in lines[1:4]] == ["37", "38", "39"]
    assert "the last 3 of 40 trials; --last shows more" in ended.err
    assert "trials: 36 measured, 4 failed; 40 launches, 0 of them repeats" in lines
    assert "failed: 4 crash" in lines
    assert "best: trial 3: --n=3" in lines
    assert lines[-1] == f"next: cclsearch best large --format args --store {large}"


@pytest.mark.usefixtures("never_read_whole")
def test_a_large_study_is_told_to_programs_by_its_end(large, cclsearch):
    told = json.loads(cclsearch("show", "large", "--last", 2, "--json", "--store", large).out)
    assert told["trial_count"] == LARGE
    assert [one["ordinal"] for one in told["trials"]] == [38, 39]
    assert (told["best"], told["unit"], told["scored_again"]) == (0.5, "s", False)
    (listed,) = json.loads(cclsearch("list", "--json", "--store", large).out)
    assert (listed["trials"], listed["best"]) == (LARGE, 0.5)


@pytest.mark.usefixtures("never_read_whole")
def test_the_best_of_a_large_study_is_found_without_reading_it_whole(large, cclsearch):
    assert json.loads(cclsearch("best", "large", "--store", large).out) == {"n": 3}


def test_of_a_small_study_the_last_trials_are_shown_and_all_are_judged(tmp_path, cclsearch):
    with closing(Store(tmp_path)) as store:
        store.add_study("small", study(), "1", (trial(n, 1.0 + n, {"n": n}) for n in range(6)))
    ended = cclsearch("show", "small", "--last", 2, "--store", tmp_path)
    assert [line.split()[1] for line in ended.out.splitlines()[1:3]] == ["4", "5"]
    assert "the last 2 of 6 trials" in ended.err
    told = json.loads(cclsearch("show", "--last", 2, "--json", "--store", tmp_path).out)
    assert (told["trial_count"], len(told["trials"]), told["best"]) == (6, 2, 1.0)


def test_a_rebuild_prints_each_study_and_keeps_the_old_database(large, cclsearch):
    (large / "cclsearch.db").write_bytes(b"not a database, but text\n" * 100)
    rebuilt = cclsearch("doctor", "--rebuild", "--store", large)
    assert rebuilt.code == 0
    assert rebuilt.out.splitlines() == [
        "study large: 42 entries, 40 trials",
        f"kept: the old database is {large / 'cclsearch.db.old'}",
        f"rebuilt: 1 studies, 40 trials in {large}",
        f"next: cclsearch list --store {large}",
    ]
    assert "large" in cclsearch("list", "--store", large).out


def test_a_rebuild_tells_every_line_that_it_could_not_read(large, cclsearch):
    journal = large / "journal" / "large.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:5], b"noise\n", *lines[6:]]))
    (large / "cclsearch.db").unlink()
    assert (
        "  not read: line 6: its checksum does not fit\n"
        in cclsearch("doctor", "--rebuild", "--store", large).out
    )
    told = json.loads(cclsearch("doctor", "--rebuild", "--json", "--store", large).out)
    assert told["studies"][0]["unread"] == ["line 6: its checksum does not fit"]
    assert told["studies"][0]["trials"] == LARGE - 1


def test_where_nothing_is_on_record_a_rebuild_is_one_line(tmp_path, cclsearch):
    ended = cclsearch("doctor", "--rebuild", "--store", tmp_path / "none")
    assert ended.code == 4
    assert ended.err.count("\n") == 1
    assert "no journals in" in ended.err


def test_a_store_without_its_database_is_still_a_store(large, cclsearch):
    (large / "cclsearch.db").unlink()
    assert "large" in cclsearch("list", "--store", large).out


def test_a_trial_is_shown_with_what_its_author_expected_of_it(tmp_path, cclsearch):
    one = trial(1, 0.5, {"n": 1})
    expecting = replace(one.policy, prediction=Prediction(speedup=1.2, over=0))
    with closing(Store(tmp_path)) as store:
        store.add_study("s", study(), "1", [trial(0, 0.6), replace(one, policy=expecting)])

    assert "expected: 1.20 times as good as trial 0" in (
        cclsearch("trial", "show", 1, "--store", tmp_path).out
    )
    assert "expected:" not in cclsearch("trial", "show", 0, "--store", tmp_path).out
    facts = json.loads(cclsearch("trial", "show", 1, "--json", "--store", tmp_path).out)
    assert (facts["expected_speedup"], facts["expected_over"]) == (1.2, 0)
