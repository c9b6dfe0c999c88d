"""Searches with a model, replayed when nobody can be asked any more."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
import zstandard

from records.codec import to_json
from records.store.store import Store
from search.llm.prompt import PromptWriter
from tests.support.evaluator import Takes
from tests.support.search import (
    ScriptedMessagesServer,
    dropped_connection,
    fault,
    refusal,
    submission,
    text,
    tool_refused,
)

TABLE = {n: Takes(step_time_s=1.0 - n / 50, noise=0.01) for n in range(20)}


def policy(n):
    return f"def generate_config(workload, environment):\n    return {{'n': {n}}}\n"


@pytest.fixture
def searched(record):
    """A search with a model, and the server gone."""

    def search(script, trials):
        study = record(TABLE, strategy="llm", budget={"trials": trials})
        with ScriptedMessagesServer(script) as server:
            study.run(server)
        return study

    return search


@pytest.fixture(scope="module")
def original(record_once):
    study = record_once(TABLE, strategy="llm", budget={"trials": 4})
    with ScriptedMessagesServer([submission(policy(n)) for n in (7, 3, 11)]) as server:
        study.run(server)
    return study


@pytest.fixture
def study(original, tmp_path):
    """A copy of a search with a model that proposed 7, 3 and 11, and nobody to ask."""
    return original.copied(tmp_path / "copy")


def differences(study):
    return {trial.ordinal: trial.differs for trial in study.checks().trials if trial.differs}


def test_a_search_is_the_same_again_without_key_network_and_launches(study):
    checks = study.checks()

    assert [trial.author for trial in checks.trials] == ["seed", "llm", "llm", "llm"]
    assert checks.first is None


@pytest.mark.parametrize(
    "script",
    [
        [text("prose"), submission(policy(0)), submission("x = "), submission(policy(5))],
        [refusal(), submission(policy(9)), fault(401, "bad key")],
        [fault(429, retry_after_s=3600)],
        [dropped_connection(), fault(529), submission(policy(4)), *[dropped_connection()] * 8],
    ],
    ids=["asked again", "key rejected", "left alone", "network gone"],
)
def test_what_went_wrong_with_the_model_goes_wrong_again(searched, script):
    study = searched(script, trials=3)

    assert differences(study) == {}


def test_a_study_that_was_resumed_asks_in_the_same_forms_again(searched):
    study = searched([tool_refused(), submission(policy(7)), submission(policy(8))], trials=3)

    study.extend(1)
    with ScriptedMessagesServer([tool_refused(), submission(policy(9))]) as server:
        study.run(server)

    assert differences(study) == {}


def test_a_changed_prompt_is_named_with_its_trial_and_its_place(study, monkeypatch, cclsearch):
    class Polite(PromptWriter):
        def write(self, *args, **kwargs):
            prompt = super().write(*args, **kwargs)
            return replace(prompt, turn=f"{prompt.turn} please")

    monkeypatch.setattr("search.compose.PromptWriter", Polite)

    ended = cclsearch("replay", "--strict", "--store", study.root)

    assert ended.code == 7
    assert "diverged at trial 1: not proposed again\n" in ended.out
    why = ended.out.splitlines()[-1]
    assert why.startswith("why: a request to the model is not recorded; nearest is the request of")
    assert "trial 1: messages[0].content[0].text differs from character" in why
    assert " please" in why


def test_a_missing_conversation_is_one_clear_line(study, cclsearch):
    conversation(study, 2).unlink()

    ended = cclsearch("replay", "--store", study.root)

    assert (ended.code, ended.out) == (4, "")
    assert ended.err.startswith("error: what the model said for trial 2 cannot be replayed: ")
    assert len(ended.err.splitlines()) == 1


def test_a_conversation_that_was_edited_is_refused(study, cclsearch):
    path = conversation(study, 1)
    with zstandard.open(path) as file:
        said = file.read()
    with zstandard.open(path, "wb") as file:
        file.write(said.replace(b"'n': 7", b"'n': 6"))

    ended = cclsearch("replay", "--store", study.root)

    assert ended.code == 4
    assert "was changed since it was recorded" in ended.err


def test_an_answer_that_was_exchanged_for_another_is_named(study):
    with closing(Store(study.root)) as store:
        digest = store.history(study.study_id).trials[3].exchange
        said = store.exchange(digest)
        other = replace(said, reply=said.reply.replace("'n': 11", "'n': 11.0"))
        kept = store.artifacts.keep_text(to_json(other), "exchange.json")
    with closing(sqlite3.connect(study.root / "cclsearch.db")) as database:
        database.execute(
            "update trials set trial = json_set(trial, '$.exchange', ?) where ordinal = 3",
            [kept.digest],
        )
        database.commit()

    assert differences(study) == {3: ("policy, from line 2",)}


def test_the_verdict_of_a_replay_is_the_last_line(study, cclsearch):

    ended = cclsearch("replay", "--strict", "--store", study.root)

    lines = ended.out.splitlines()
    assert (ended.code, ended.err) == (0, "")
    assert lines[0] == f"study {study.study_id}: example, strategy llm"
    assert lines[1:3] == ["trial 0  seed  n=0  same", "trial 1  llm  n=7  same"]
    assert lines[-2] == "finding  same"
    assert lines[-1].startswith("same: 4 trials, ")


def conversation(study, ordinal):
    with closing(Store(study.root)) as store:
        digest = store.history(study.study_id).trials[ordinal].exchange
        return store.artifacts.path(digest)
