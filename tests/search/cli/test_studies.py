"""`list`, `show`, `best` and `trial`: studies and trials of stores, also of large ones."""

import json
import shlex
import shutil
from contextlib import closing
from dataclasses import replace

import pytest

from records.store.store import Store
from records.study import Origin
from records.trial import FailureKind, Prediction
from search.cli import studies
from tests.support import records as testing
from tests.support.evaluator import Fails, InTurn, Takes
from tests.support.records import failed, study, trial

BACK = "\x1b[2J"
OWN, FOREIGN = "20260101-000000-mine", "20260401-000000-them"
LARGE = 40


@pytest.fixture
def finished(tabular):
    """A finished study: seed, a better one, a failure."""
    study = tabular(
        {
            0: Takes(step_time_s=0.5),
            1: Takes(step_time_s=0.25),
            2: Fails(kind=FailureKind.OUT_OF_MEMORY, message=f"too big{BACK}"),
        }
    )
    study.run()
    return study


@pytest.fixture
def on_record(cclsearch, finished):
    """Runs a command on the store of the finished study."""
    return lambda *arguments: cclsearch(*arguments, "--store", finished.root)


def test_a_study_is_labelled_and_archived_and_lists_leave_it_out(on_record):
    study_id = "20260101-000000-aaaa"
    added = on_record("label", "--tag", "b", "--tag", "a", "--notes", "before the update")
    listed = on_record("list", "--tag", "a")
    changed = on_record("label", study_id[:8], "--untag", "a", "--archive", "--json")

    assert added.out == "tags: a, b\nnotes: before the update\n"
    assert "#a #b" in listed.out
    labels = {"tags": ["b"], "notes": "before the update", "archived": True}
    assert json.loads(changed.out) == {"study_id": study_id, **labels}
    assert study_id not in on_record("list").out
    (archived,) = json.loads(on_record("list", "--archived", "--json").out)
    assert archived.items() >= labels.items()
    assert "tags: b\nnotes: before the update\narchived" in on_record("show", study_id).out
    assert on_record("label", study_id, "--restore", "--untag", "b", "--notes", "").out == (
        "no tags and no notes\n"
    )


def test_what_is_no_tag_is_refused(on_record):
    ended = on_record("label", "--tag", "two words")

    assert (ended.code, ended.out) == (2, "")
    assert "'two words' is not a tag" in ended.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("show 9999", "no study '9999'"),
        ("best 9999", "no study '9999'"),
        ("resume 9999", "no study '9999'"),
        ("trial show 9999 0", "no study '9999'"),
        ("trial show 7", "has no trial 7; it has 3, see `cclsearch show 20260101-000000-aaaa"),
        ("trial logs 0 --rank 5", "trial 0 has no log of rank 5"),
    ],
)
def test_what_is_not_on_record_ends_with_2_and_says_where_to_look(on_record, arguments, words):
    ended = on_record(*arguments.split())

    assert (ended.code, ended.out) == (2, "")
    assert words in ended.err


def test_a_suggested_command_works_as_it_is_printed(cclsearch, on_record):
    shown = on_record("show").out.splitlines()
    suggested = next(line.removeprefix("next: ") for line in shown if line.startswith("next: "))

    ended = cclsearch(*shlex.split(suggested)[1:])

    assert (ended.code, ended.out) == (0, "--n=1\n")


@pytest.mark.parametrize("command", ["show", "trial show 1"])
def test_a_suggested_command_finds_a_store_whose_name_has_spaces(
    finished, cclsearch, tmp_path, command
):
    store = tmp_path / "a b" / "c"
    shutil.copytree(finished.root, store)

    ended = cclsearch(*command.split(), "--store", store)

    suggested = [line for line in ended.out.splitlines() if line.startswith("next: ")]
    assert suggested
    for line in suggested:
        assert shlex.split(line)[-2:] == ["--store", str(store)]


def test_a_trial_of_the_newest_study_needs_only_its_number(on_record):
    assert on_record("trial", "show", "1").out == on_record("trial", "show", "2026", "1").out


def test_the_logs_of_a_trial_are_printed(on_record):
    whole, of_rank = on_record("trial", "logs", 1), on_record("trial", "logs", 1, "--rank", 0)

    assert whole.out == of_rank.out == "== rank0.log\nlaunch 0 of n=1\n"


def test_the_files_of_a_trial_are_copied_under_their_own_names(on_record, tmp_path):
    ended = on_record("trial", "files", "1", "--to", tmp_path / "one", "--json")

    paths = [tmp_path / "one" / name for name in ("policy.py", "rank0.log")]
    assert json.loads(ended.out) == [str(path) for path in paths]
    assert paths[1].read_text(encoding="utf-8") == "launch 0 of n=1\n"


def test_files_that_cannot_be_copied_end_with_4(on_record, tmp_path):
    (tmp_path / "file").touch()

    ended = on_record("trial", "files", "1", "--to", tmp_path / "file")

    assert (ended.code, ended.out) == (4, "")
    assert "cannot copy trial 1 to" in ended.err


def test_what_a_policy_or_a_rank_wrote_does_not_steer_the_terminal(tabular, cclsearch):
    study = tabular({0: Takes(step_time_s=0.5)}, seed=f"# {BACK}\ndef generate_config(w, e):\n 1/0")
    study.run()

    for command in ("show", "trial show 0"):
        assert "\x1b" not in cclsearch(*command.split(), "--store", study.root).out


def test_a_study_that_was_killed_is_interrupted_and_one_that_runs_is_not(tabular, cclsearch):
    study = tabular({0: Takes(step_time_s=0.5)})

    killed = cclsearch("show", "--store", study.root).out
    with study.store.lock(study.study_id):
        running = cclsearch("show", "--store", study.root).out

    assert "\nstatus: interrupted\nnext: cclsearch resume 20260101-000000-aaaa" in killed
    assert running.endswith("\nstatus: running\n")


def test_the_best_of_a_study_is_told_with_the_interval_of_what_confirmed_it(tabular, cclsearch):
    varying = InTurn(tuple(Takes(step_time_s=s) for s in (0.1, 0.2, 0.3, 0.2, 0.3)))
    study = tabular({0: Takes(step_time_s=0.5), 1: varying})
    result = study.run().result

    (facts,) = json.loads(cclsearch("list", "--json", "--store", study.root).out)
    line = cclsearch("list", "--store", study.root).out.splitlines()[1]

    assert (facts["best"], facts["launches"]) == (result.centre, 4)
    assert (facts["low"], facts["high"]) == (result.low, result.high)
    assert f"{result.centre:.4g} s ({result.low:.4g} to {result.high:.4g}, 4 launches)" in line


def test_a_list_is_a_page_of_the_newest_and_tells_how_many_there_are(tmp_path, cclsearch):
    with closing(Store(tmp_path)) as store:
        for number in range(4):
            store.create(f"s{number}", study(), "1")
    ended = cclsearch("list", "--limit", 2, "--store", tmp_path)
    told = json.loads(cclsearch("list", "--limit", 3, "--json", "--store", tmp_path).out)

    assert f"the newest 2 of 4 studies; for more: cclsearch list --limit 4 --store {tmp_path}" in (
        ended.err
    )
    assert [line.split()[0] for line in ended.out.splitlines()] == ["study", "s3", "s2"]
    assert [one["id"] for one in told] == ["s3", "s2", "s1"]
    assert cclsearch("list", "--store", tmp_path).err == ""


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A store whose study is too large to be read whole; trial 3 is the best."""
    monkeypatch.setattr(studies, "READ_WHOLE", LARGE - 1)
    trials = (
        trial(n, failed() if n % 10 == 9 else 0.5 + abs(n - 3), {"n": n}) for n in range(LARGE)
    )
    with closing(Store(tmp_path)) as store:
        store.add_study("large", study(), "1", trials)

    def refuse(_store, study_id):
        raise AssertionError(f"all trials of {study_id} were read")

    monkeypatch.setattr(Store, "history", refuse)
    return tmp_path


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


def test_a_large_study_is_told_to_programs_by_its_end(large, cclsearch):
    told = json.loads(cclsearch("show", "large", "--last", 2, "--json", "--store", large).out)
    (listed,) = json.loads(cclsearch("list", "--json", "--store", large).out)

    assert [one["ordinal"] for one in told["trials"]] == [38, 39]
    assert (told["trial_count"], told["best"], told["unit"]) == (LARGE, 0.5, "s")
    assert told["scored_again"] is False
    assert (listed["trials"], listed["best"]) == (LARGE, 0.5)
    assert json.loads(cclsearch("best", "large", "--store", large).out) == {"n": 3}


def test_of_a_small_study_the_last_trials_are_shown_and_all_are_judged(tmp_path, cclsearch):
    with closing(Store(tmp_path)) as store:
        store.add_study("small", study(), "1", (trial(n, 1.0 + n, {"n": n}) for n in range(6)))
    ended = cclsearch("show", "small", "--last", 2, "--store", tmp_path)
    assert [line.split()[1] for line in ended.out.splitlines()[1:3]] == ["4", "5"]
    assert "the last 2 of 6 trials" in ended.err
    told = json.loads(cclsearch("show", "--last", 2, "--json", "--store", tmp_path).out)
    assert (told["trial_count"], len(told["trials"]), told["best"]) == (6, 2, 1.0)


def test_a_trial_is_shown_with_what_its_author_expected_of_it(tmp_path, cclsearch):
    one = trial(1, 0.5, {"n": 1})
    expecting = replace(one.policy, prediction=Prediction(speedup=1.2, over=0))
    with closing(Store(tmp_path)) as store:
        store.add_study("s", study(), "1", [trial(0, 0.6), replace(one, policy=expecting)])
    first, second = (cclsearch("trial", "show", n, "--store", tmp_path).out for n in (0, 1))
    facts = json.loads(cclsearch("trial", "show", 1, "--json", "--store", tmp_path).out)

    assert "expected:" not in first
    assert "expected: 1.20 times as good as trial 0" in second
    assert (facts["expected_speedup"], facts["expected_over"]) == (1.2, 0)


@pytest.fixture
def imported(tmp_path):
    """Makes a store with an imported study, and by default an older and worse one of ours."""

    def make(*, own=True):
        ours = replace(testing.study(), strategy="offline")
        theirs = replace(ours, name="theirs", origin=Origin(kind="optuna", source="theirs.db"))
        with closing(Store(tmp_path / "store")) as records:
            if own:
                records.add_study(OWN, ours, "test", testing.history(0.5, 0.25).trials)
            records.add_study(FOREIGN, theirs, "test", testing.history(0.1).trials)
        return tmp_path / "store"

    return make


@pytest.mark.parametrize("command", ["show", "best", "compare trial:0 trial:1", "trial show 0"])
def test_the_newest_study_is_never_an_imported_one(cclsearch, imported, command):
    ended = cclsearch(*command.split(), "--store", imported())

    assert ended.code == 0
    assert OWN in ended.out + ended.err
    assert FOREIGN not in ended.out + ended.err


def test_show_and_best_name_their_study_beside_what_programs_read(cclsearch, imported):
    store = ("--store", imported())
    newest, named = cclsearch("best", *store), cclsearch("best", FOREIGN, *store)

    assert newest.out == '{\n "n": 1\n}\n'
    assert newest.err.startswith(f"study {OWN}: ")
    assert named.err.startswith(f"study {FOREIGN}: theirs, objective step_time, imported (optuna)")
    assert cclsearch("show", *store).out.startswith(f"study {OWN}: ")


def test_where_all_studies_were_imported_one_must_be_named(cclsearch, imported):
    ended = cclsearch("best", "--store", imported(own=False))

    assert (ended.code, ended.out) == (2, "")
    assert "was imported" in ended.err
    assert "cclsearch list" in ended.err
