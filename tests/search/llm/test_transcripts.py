"""Answers of a model by their requests, from exchanges on record."""

import json
from contextlib import closing
from dataclasses import replace

import pytest

from records.llm_exchange import LlmExchange, TokenUsage
from records.store.rows import PendingTrial
from records.store.store import Store
from records.trial import Policy
from search.llm.messages import Answer
from search.llm.transcripts import (
    Diverged,
    RecordedTurn,
    TranscriptTransport,
    canonical,
    difference,
    last_submission,
    recorded_turns,
)
from tests.support import records as testing

GOOD, LATER = Answer(text="{}", status=200), Answer(text="[]", status=200)
BUSY = Answer(text="busy", status=529)


def body(text, **more):
    return {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": text}]}],
        **more,
    }


def exchange(request, *rows):
    return LlmExchange(
        model="m",
        request=json.dumps(request),
        reply=json.dumps(rows),
        result="submitted",
        usage=TokenUsage(),
        latency_s=0.1,
        request_count=len(rows),
    )


def row(answer, **more):
    return {"form": "forced", "status": answer.status, "body": answer.text, **more}


def test_equal_requests_are_one_whatever_the_order_of_their_keys():
    assert canonical({"a": 1, "b": "ü"}) == canonical({"b": "ü", "a": 1}) == '{"a":1,"b":"ü"}'


def test_every_request_of_a_conversation_has_all_of_its_answers():
    rows = (row(BUSY, request=0), row(GOOD, request=0), row(LATER, request=1))
    transport = TranscriptTransport(recorded_turns(exchange([body("a"), body("b")], *rows), 3))

    assert transport.send(body("b")) == (LATER,)
    assert transport.send(body("a")) == (BUSY, GOOD)


def test_equal_requests_are_answered_in_order_and_then_with_the_last_answer():
    said = [RecordedTurn(body=body("a"), answers=(answer,)) for answer in (GOOD, LATER)]
    transport = TranscriptTransport(said)

    assert [transport.send(body("a"))[0] for _ in range(3)] == [GOOD, LATER, LATER]


def test_a_request_that_is_not_recorded_is_compared_with_the_nearest_one():
    said = [
        RecordedTurn(body=body("best 0.41 s\nso far"), answers=(GOOD,), trial=1),
        RecordedTurn(body=body("quite another"), answers=(GOOD,), trial=2),
    ]

    with pytest.raises(Diverged) as raised:
        TranscriptTransport(said).send(body("best 0.40 s\nso far"))

    assert raised.value.trial == 1
    assert str(raised.value) == (
        "a request to the model is not recorded; nearest is the request of trial 1: "
        'messages[0].content[0].text differs from character 8: requested "best 0.40 s\\nso far", '
        'recorded "best 0.41 s\\nso far"'
    )


def test_a_record_without_any_request_says_so():
    with pytest.raises(Diverged, match="not recorded, and no other is"):
        TranscriptTransport([]).send(body("a"))


STUDY_ID = "20260101-000000-aaaa"
CALL = {"rationale": "why", "expected_speedup": 1.1, "code": "pass", "memo": "keep dp"}


def replied(call):
    block = {"type": "tool_use", "id": "t", "name": "submit_policy", "input": call}
    return Answer(text=json.dumps({"content": [block]}), status=200)


@pytest.fixture
def store(tmp_path):
    with closing(Store(tmp_path)) as made:
        made.create(STUDY_ID, testing.study(), "test")
        yield made


def begin(store, ordinal, talk):
    policy = Policy(source="pass", author="llm")
    pending = PendingTrial(ordinal=ordinal, policy=policy, started_at=testing.START)
    store.begin(STUDY_ID, pending, talk)


def test_the_last_reply_with_policies_is_read_from_the_record(store):
    begin(store, 1, exchange([body("a")], row(replied({**CALL, "memo": "drop tp"}))))
    begin(store, 2, exchange([body("b"), body("c")], row(BUSY), row(replied(CALL))))
    begin(store, 3, replace(exchange([body("d")], row(BUSY)), result="refused"))

    found = last_submission(STUDY_ID, store)
    assert found is not None
    assert (found.trial, found.draft.memo) == (2, "keep dp")


@pytest.mark.parametrize(
    "talk",
    [exchange([]), exchange([body("a")], row(LATER)), replace(exchange([]), reply="no JSON")],
    ids=["no reply", "a reply without a policy", "no exchange"],
)
def test_a_record_without_a_readable_reply_has_no_last_one(store, talk):
    assert last_submission(STUDY_ID, store) is None
    begin(store, 1, talk)
    assert last_submission(STUDY_ID, store) is None


@pytest.mark.parametrize(
    ("asked", "recorded", "words"),
    [
        ({"a": 1}, {"a": 2}, 'a differs from character 0: requested "1", recorded "2"'),
        ({"a": 1, "b": "x"}, {"a": 1}, 'b is requested, "x", and not recorded'),
        ({}, {"tools": [{"name": "t"}]}, 'tools[0].name is recorded, "t", and not requested'),
        ({"a": True}, {"a": True}, "nothing differs"),
    ],
)
def test_the_first_difference_is_one_line(asked, recorded, words):
    assert difference(asked, recorded).words == words


def test_the_excerpt_of_a_long_text_is_around_the_difference():
    told = difference(*({"a": "x" * 500 + at + "y" * 500} for at in "12")).words

    assert told.startswith('a differs from character 500: requested "...xxx')
    assert len(told) < 300
