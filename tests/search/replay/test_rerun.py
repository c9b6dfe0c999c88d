"""Searches replayed from their records, with a model or without, and policies launched again."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from itertools import chain, repeat

import pytest
import zstandard

from records.codec import to_json
from records.store.store import Store
from records.study import Budget, Context
from records.trial import FailureKind
from search.llm.prompt import PromptWriter
from search.replay.rerun import recorded_study, replay_study
from search.replay.scores import compare_replay
from search.strategies.catalog import CHOOSERS
from search.strategies.proposers import study_again
from tests.support import records as testing
from tests.support.evaluator import Fails, InTurn, Takes
from tests.support.search import (
    ScriptedMessagesServer,
    dropped_connection,
    fault,
    refusal,
    submission,
    text,
    tool_refused,
    tool_use,
)

LOST = Fails(kind=FailureKind.INFRASTRUCTURE, message="node lost")
FULL = Fails(kind=FailureKind.OUT_OF_MEMORY)
SAME = ([], ())
THOROUGH = {"self_test_rounds": 1, "race_rounds": 2, "confirm_top": 3, "max_confirm_rounds": 2}
ALONE = {"together": "never"}
TALKED = {n: Takes(step_time_s=1.0 - n / 50, noise=0.01) for n in range(20)}


class Interrupted:
    """Ctrl-C is pressed during the launch."""

    def outcome(self, *_):
        raise KeyboardInterrupt


def takes(step_time_s):
    return Takes(step_time_s=step_time_s, noise=0.02)


def table(*endings):
    return {n: takes(e) if isinstance(e, float) else e for n, e in enumerate(endings)}


def policy(n):
    return f"def generate_config(workload, environment):\n    return {{'n': {n}}}\n"


def differences(study):
    checks = study.checks()
    return [trial.differs for trial in checks.trials if trial.differs], checks.finding


def history(study):
    with closing(Store(study.root)) as store:
        return store.history(study.study_id)


def changed(study, *statement):
    with closing(sqlite3.connect(study.root / "cclsearch.db")) as database:
        database.execute(*statement)
        database.commit()


@pytest.fixture(scope="module")
def finished(record_once):
    study = record_once(table(0.5, 0.4, 0.3))
    study.run()
    return study


@pytest.fixture
def searched(finished, tmp_path):
    """A copy of a search without a model."""
    return finished.copied(tmp_path / "searched")


# Searches without a model.


@pytest.mark.parametrize(
    ("endings", "changes"),
    [
        *(
            (table(0.5, 0.3, FULL, 0.2), {"strategy": name, "measure": THOROUGH})
            for name in CHOOSERS
        ),
        (table(0.5, 0.4), {"measure": {**THOROUGH, **ALONE}}),
        (table(0.5, 0.4, FULL, 0.3, 0.2), {"parallel": 2, "measure": ALONE}),
    ],
    ids=[*CHOOSERS, "one after the other", "in parallel"],
)
def test_a_search_takes_the_same_course_again(record, endings, changes):
    study = record(endings, **changes)
    study.run()
    assert differences(study) == SAME


def test_failures_of_the_infrastructure_are_retried_as_they_were(record):
    study = record(table(0.5, InTurn((LOST, takes(0.4))), InTurn((LOST,) * 2 + (takes(0.3),))))
    study.run()
    assert differences(study) == SAME
    assert [trial.attempts for trial in history(study)][:3] == [1, 2, 2]


@pytest.mark.parametrize(
    ("endings", "changes"),
    [
        (table(0.5, InTurn((Interrupted(), takes(0.4))), 0.3), {}),
        (
            table(0.5, InTurn((Interrupted(), takes(0.4))), 0.45, 0.3, 0.2),
            {"parallel": 2, "measure": ALONE},
        ),
        (
            table(0.5, InTurn((*[takes(0.4)] * 2, Interrupted(), takes(0.4)))),
            {"measure": {**ALONE, "confirm_rounds": 2}},
        ),
    ],
    ids=["in a trial", "in a batch", "while it confirmed"],
)
def test_a_study_that_was_interrupted_is_the_same_up_to_there_and_after_it_was_resumed(
    record, endings, changes
):
    study = record(endings, **changes)
    with pytest.raises(KeyboardInterrupt):
        study.run()
    assert differences(study) == SAME
    study.extend(2)
    study.run()
    assert differences(study) == SAME


def test_a_study_that_was_extended_twice_takes_the_same_course(record):
    study = record(table(0.5, 0.4, 0.3, 0.2, 0.1), budget={"trials": 2})
    study.run()
    for _ in range(2):
        study.extend(1)
        study.run()
    assert differences(study) == SAME


def test_a_time_limit_is_reached_where_it_was(record):
    times = chain([0, 1, 2], repeat(61)).__next__
    study = record(table(0.5, 0.4, 0.3), budget={"max_wall_s": 60.0}, clock=times)
    reason = "the time limit of 60 s leaves no time for another trial"
    assert study.run().stop_reason == reason
    assert differences(study) == SAME


def test_launches_that_were_left_out_for_want_of_time_are_left_out_again(record):
    count = [0]

    class Counted:
        def outcome(self, *given):
            count[0] += 1
            return takes(5.0).outcome(*given)

    changes = {"budget": {"max_wall_s": 35.0, "trials": 2}, "clock": lambda: 10.0 * count[0]}
    study = record({0: Counted(), 1: Counted()}, **changes)
    study.run()
    assert count[0] == 2
    assert differences(study) == SAME


def test_launches_in_several_contexts_come_in_their_order(record):
    longer = replace(testing.WORKLOAD, sequence_length=256)
    unseen = Context(name="unseen", workload=longer, environment=testing.ENVIRONMENT, held_out=True)
    contexts = replace(unseen, name="longer", held_out=False), unseen
    study = record(table(0.5, 0.3, 0.4), contexts=contexts)
    finding = study.run()
    assert differences(study) == SAME
    assert [each.name for each in finding.contexts] == ["example", "longer", "unseen"]


def test_a_strategy_that_chooses_otherwise_is_named_with_its_trial(record):
    study = record(table(0.5, 0.4, 0.3, 0.2))
    study.run()
    for name, column in (("studies", "study"), ("runs", "run")):
        other = f"replace({column}, '\"grid\"', '\"random\"')"
        changed(study, f"update {name} set {column} = {other}")
    with closing(Store(study.root)) as store:
        replay = replay_study(recorded_study(study.study_id, store), store)
        checks = compare_replay(recorded_study(study.study_id, store), replay.again)
    assert replay.stopped == "trial 1 launches what it did not launch before: n=3"
    assert checks.first.startswith("trial 1: policy, from line 1")
    assert checks.trials[2].differs == ("not proposed again",)


def test_a_changed_measurement_is_named(record):
    study = record(table(0.5, 0.4), measure={"confirm_rounds": 0})
    study.run()
    score = "json_set(trial, '$.score.value', 0.3, '$.score.cost', 0.3)"
    changed(study, f"update trials set trial = {score} where ordinal = 1")
    assert differences(study)[0] == [("score",)]


# Searches with a model, replayed when nobody can be asked any more.


@pytest.fixture
def talked(record):
    """Makes a search with a model whose server is gone afterwards."""

    def search(script, trials):
        study = record(TALKED, strategy="llm", budget={"trials": trials})
        with ScriptedMessagesServer(script) as server:
            study.run(server)
        return study

    return search


@pytest.fixture(scope="module")
def original(record_once):
    study = record_once(TALKED, strategy="llm", budget={"trials": 4}, study_id="llm")
    with ScriptedMessagesServer([submission(policy(n)) for n in (7, 3, 11)]) as server:
        study.run(server)
    return study


@pytest.fixture
def study(original, tmp_path):
    """A copy of a search with a model that proposed 7, 3 and 11, and nobody to ask."""
    return original.copied(tmp_path / "talked")


@pytest.fixture
def replay(study, cclsearch):
    return lambda: cclsearch("replay", study.study_id, "--strict", "--store", study.root)


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
def test_what_went_wrong_with_the_model_goes_wrong_again(talked, script):
    assert differences(talked(script, trials=3)) == SAME


def test_a_study_that_was_resumed_asks_in_the_same_forms_again(talked):
    study = talked([tool_refused(), submission(policy(7)), submission(policy(8))], trials=3)
    study.extend(1)
    with ScriptedMessagesServer([tool_refused(), submission(policy(9))]) as server:
        study.run(server)
    assert differences(study) == SAME


def alternative(n, expected_speedup):
    return {"rationale": "why", "expected_speedup": expected_speedup, "code": policy(n)}


RANKED = submission(policy(5), alternatives=[alternative(10, 1.25), alternative(15, 1.4)])
"""Three policies in one reply, each about as fast as it expects."""


@pytest.mark.parametrize("parallel", [1, 2])
def test_alternatives_are_launched_again_as_they_were(record, parallel):
    changes = {"strategy": "llm", "parallel": parallel, "measure": ALONE}
    study = record(TALKED, budget={"trials": 4}, **changes)
    with ScriptedMessagesServer([RANKED]) as server:
        study.run(server)

    assert [trial.config["n"] for trial in history(study)] == [0, 5, 10, 15]
    assert len(server.requests) == 1
    assert differences(study) == SAME


def test_a_study_that_was_interrupted_in_an_alternative_goes_on_with_the_next(record):
    endings = {**TALKED, 10: InTurn((Interrupted(), TALKED[10]))}
    study = record(endings, strategy="llm", budget={"trials": 4}, measure=ALONE)
    with ScriptedMessagesServer([RANKED]) as server, pytest.raises(KeyboardInterrupt):
        study.run(server)
    with ScriptedMessagesServer([]) as resumed:
        study.run(resumed)

    assert [trial.config["n"] for trial in history(study)] == [0, 5, 10, 15]
    assert not resumed.requests
    assert differences(study) == SAME


def test_the_memo_of_a_reply_is_shown_in_the_next_turn_also_after_a_restart(record):
    study = record(TALKED, strategy="llm", budget={"trials": 2}, measure=ALONE)
    with ScriptedMessagesServer([submission(policy(7), memo="n helps")]) as server:
        study.run(server)
    study.extend(2)
    script = [submission(policy(8), memo="n helps a little"), submission(policy(9))]
    with ScriptedMessagesServer(script) as server:
        study.run(server)

    assert ["n helps" in str(request.body["messages"]) for request in server.requests] == [True] * 2
    assert "n helps a little" in str(server.requests[-1].body["messages"])
    assert differences(study) == SAME


def test_answers_about_traces_are_read_from_the_record(record):
    study = record(
        TALKED, strategy="llm", budget={"trials": 3}, measure={**ALONE, "profiled_steps": 1}
    )
    study.trace_answer = lambda question, history: f"{question.question} at {len(history)}"
    asked = tool_use({"question": "kernels"}, name="trace")
    with ScriptedMessagesServer([asked, submission(policy(7)), asked, submission(policy(8))]) as s:
        study.run(s)

    assert "kernels at 2" in json.dumps(s.requests[-1].body)
    assert differences(study) == SAME


def test_a_changed_prompt_is_named_with_its_trial_and_its_place(replay, monkeypatch):
    class Polite(PromptWriter):
        def write(self, *args, **kwargs):
            prompt = super().write(*args, **kwargs)
            return replace(prompt, turn=f"{prompt.turn} please")

    monkeypatch.setattr("search.llm.proposer.PromptWriter", Polite)
    ended = replay()
    assert ended.code == 7
    assert "diverged at trial 1: not proposed again\n" in ended.out
    why = ended.out.splitlines()[-1]
    assert why.startswith("why: a request to the model is not recorded; nearest is the request of")
    assert "trial 1: messages[0].content[0].text differs from character" in why
    assert " please" in why


def conversation(study, ordinal):
    with closing(Store(study.root)) as store:
        return store.artifacts.path(store.history(study.study_id).trials[ordinal].exchange)


def test_a_missing_conversation_is_one_clear_line(study, replay):
    conversation(study, 2).unlink()
    ended = replay()
    assert (ended.code, ended.out, len(ended.err.splitlines())) == (4, "", 1)
    assert ended.err.startswith("error: what the model said for trial 2 cannot be replayed: ")


def test_a_conversation_that_was_edited_is_refused(study, replay):
    path = conversation(study, 1)
    with zstandard.open(path) as file:
        said = file.read()
    with zstandard.open(path, "wb") as file:
        file.write(said.replace(b"'n': 7", b"'n': 6"))
    ended = replay()
    assert (ended.code, "was changed since it was recorded" in ended.err) == (4, True)


def test_an_answer_that_was_exchanged_for_another_is_named(study):
    with closing(Store(study.root)) as store:
        said = store.exchange(store.history(study.study_id).trials[3].exchange)
        other = replace(said, reply=said.reply.replace("'n': 11", "'n': 11.0"))
        kept = store.artifacts.keep_text(to_json(other), "exchange.json")
    exchange = "json_set(trial, '$.exchange', ?)"
    changed(study, f"update trials set trial = {exchange} where ordinal = 3", [kept.digest])
    assert differences(study) == ([("policy, from line 2",)], ())


# As it is typed.


def test_the_verdict_of_a_replay_is_the_last_line(study, replay):
    ended = replay()
    lines = ended.out.splitlines()
    assert (ended.code, ended.err) == (0, "")
    assert lines[0] == f"study {study.study_id}: example, strategy llm"
    assert lines[1:3] == ["trial 0  seed  n=0  same", "trial 1  llm  n=7  same"]
    assert lines[-2] == "finding  same"
    assert lines[-1].startswith("same: 4 trials, ")


def test_a_program_is_told_trial_by_trial_and_the_store_stays_as_it_was(searched, cclsearch):
    before = dump(searched.root)
    ended = cclsearch("replay", searched.study_id[:4], "--json", "--store", searched.root)
    told = json.loads(ended.out)
    assert ended.code == 0
    assert (told["study_id"], told["mode"], told["same"]) == (searched.study_id, "llm", True)
    same = {"ordinal": 1, "author": "grid", "config": {"n": 1}, "same": True, "differs": []}
    assert told["trials"][1] == same
    assert dump(searched.root) == before


def dump(root):
    with closing(Store(root)) as store:
        return [
            (row, store.history(row.id), store.repeats(row.id), store.runs(row.id))
            for row in store.studies()
        ]


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
    assert (ended.code, ended.out, words in ended.err) == (code, "", True)


# Policies launched again, as a new study in the same store.


def launched_again(study, **changes):
    with closing(Store(study.root)) as store:
        new = replace(study_again(store.find(study.study_id), store), **changes)
    return type(study)(study.root, study.endings, new, study_id="20260102-000000-bbbb")


def test_policies_are_launched_again_in_order_by_who_wrote_them(searched):
    again = launched_again(searched)
    assert again.run().stop_reason == "all 3 trials are used"
    ours, theirs = ([(t.policy, t.config) for t in history(each)] for each in (again, searched))
    assert ours == theirs


def test_a_search_over_recorded_policies_ends_with_the_last_of_them(searched):
    again = launched_again(searched, budget=Budget(trials=9, patience=9))
    reason = again.run().stop_reason
    assert reason == f"every policy of study {searched.study_id} was repeated"
    assert again.checks().first is None


def test_a_recorded_policy_that_fits_no_more_is_a_failed_trial(searched):
    space = testing.study(replace(searched.study.space.dimensions[0], choices=(0, 2))).space
    again = launched_again(searched, space=space)
    again.run()
    outcomes = [trial.outcome for trial in history(again)]
    assert outcomes[1].kind is FailureKind.INVALID_CONFIG
    assert [outcome.status for outcome in outcomes] == ["measured", "failed", "measured"]


def test_a_budget_lasts_for_all_policies_of_a_study_that_mostly_failed(record):
    study = record(table(0.5, *[Fails(kind=FailureKind.CRASH)] * 3))
    study.run()
    again = launched_again(study)
    assert again.study.budget.max_failures == 4
    assert (again.study.replay_of, again.study.strategy) == (study.study_id, "replay")
