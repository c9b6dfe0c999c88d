"""`cclsearch replay` and `run --strategy replay`: what they print, and how they end."""

import json
from contextlib import closing
from dataclasses import replace

import pytest

from records.store.store import Store
from records.study import Budget
from records.trial import FailureKind
from search.strategies.proposers import study_again
from tests.support import records as testing
from tests.support.evaluator import Fails, Takes

ENDINGS = {0: Takes(step_time_s=0.5), 1: Takes(step_time_s=0.4), 2: Takes(step_time_s=0.3)}


pytestmark = pytest.mark.usefixtures("unjailed")


@pytest.fixture(scope="module")
def original(record_once):
    study = record_once(ENDINGS)
    study.run()
    return study


@pytest.fixture
def searched(original, tmp_path):
    return original.copied(tmp_path / "copy")


def test_a_program_is_told_trial_by_trial(searched, cclsearch):
    ended = cclsearch("replay", searched.study_id[:4], "--json", "--store", searched.root)

    told = json.loads(ended.out)
    assert ended.code == 0
    assert (told["study_id"], told["mode"], told["same"]) == (searched.study_id, "llm", True)
    assert told["trials"][1] == {
        "ordinal": 1,
        "author": "grid",
        "config": {"n": 1},
        "same": True,
        "differs": [],
    }


def test_a_replay_writes_nothing_into_the_store(searched, cclsearch):
    before = dump(searched.root)

    cclsearch("replay", "--store", searched.root)

    assert dump(searched.root) == before


def test_a_study_without_a_trial_cannot_be_replayed(tmp_path, cclsearch):
    with closing(Store(tmp_path / "store")) as store:
        store.create("20260101-000000-aaaa", testing.study(), "test")

    ended = cclsearch("replay", "--store", tmp_path / "store")

    assert (ended.code, ended.out) == (2, "")
    assert "has no recorded trial, so there is nothing to replay" in ended.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("replay", "nope"), 2, "no study 'nope'"),
        (("replay", "--mode", "dance"), 2, "dance"),
        (("replay", "--store", "elsewhere"), 4, "no records in"),
        (("run", "--from", "nope"), 2, "no study 'nope'"),
        (("run", "--strategy", "replay"), 2, "name it with --from STUDY"),
        (("run", "--strategy", "grid", "--from", "2026"), 2, "leave one out"),
    ],
)
def test_what_cannot_be_replayed_is_said_in_the_words_of_the_user(
    searched, cclsearch, monkeypatch, arguments, code, words
):
    monkeypatch.setenv("CCLSEARCH_STORE", str(searched.root))

    ended = cclsearch(*arguments)

    assert (ended.code, ended.out) == (code, "")
    assert words in ended.err


def test_policies_are_launched_again_in_order_by_who_wrote_them(searched):
    again = launched_again(searched)

    finding = again.run()

    with closing(Store(again.root)) as store:
        ours, theirs = store.history(again.study_id), store.history(searched.study_id)
    assert [trial.policy for trial in ours] == [trial.policy for trial in theirs]
    assert [trial.config for trial in ours] == [trial.config for trial in theirs]
    assert finding.stop_reason == "all 3 trials are used"


def test_a_search_over_recorded_policies_ends_with_the_last_of_them(searched):
    again = launched_again(searched, budget=Budget(trials=9, patience=9))

    finding = again.run()

    assert finding.stop_reason == f"every policy of study {searched.study_id} was repeated"
    assert again.checks().first is None


def test_a_recorded_policy_that_fits_no_more_is_a_failed_trial(searched):
    space = testing.study(replace(searched.study.space.dimensions[0], choices=(0, 2))).space
    again = launched_again(searched, space=space)

    again.run()

    with closing(Store(again.root)) as store:
        outcomes = [trial.outcome for trial in store.history(again.study_id)]
    assert outcomes[1].kind is FailureKind.INVALID_CONFIG
    assert [outcome.status for outcome in outcomes] == ["measured", "failed", "measured"]


def test_a_budget_lasts_for_all_policies_of_a_study_that_mostly_failed(record):
    broken = Fails(kind=FailureKind.CRASH)
    study = record({0: Takes(step_time_s=0.5), **dict.fromkeys((1, 2, 3), broken)})
    study.run()

    again = launched_again(study)

    assert again.study.budget.max_failures == 4
    assert (again.study.replay_of, again.study.strategy) == (study.study_id, "replay")


def launched_again(study, **changes):
    """A new study in the same store over the policies of this one."""
    with closing(Store(study.root)) as store:
        new = replace(study_again(store.find(study.study_id), store), **changes)
    return type(study)(study.root, study.endings, new, study_id="20260102-000000-bbbb")


def dump(root):
    with closing(Store(root)) as store:
        rows = store.studies()
        return [
            (row, store.history(row.id), store.repeats(row.id), store.runs(row.id)) for row in rows
        ]
