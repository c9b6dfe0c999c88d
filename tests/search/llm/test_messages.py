"""What each kind of reply becomes, and a reply in pieces is the message that it would be in one."""

import json
from collections.abc import Mapping, Sequence
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.codec import from_json
from search.llm.client import LlmClient
from search.llm.messages import (
    Answer,
    Form,
    Reply,
    draft_of,
    estimated_tokens,
    message_request,
    streamed_answer,
)
from search.llm.tools import MAX_CODE_BYTES, Draft, Problem
from search.settings import LlmSettings, Secret
from tests.support.search import (
    CODE,
    LLM_KEY,
    PROMPT,
    ScriptedReply,
    event_lines,
    message,
    refusal,
    submission,
    text,
    tool_use,
    tool_uses,
)


def draft(reply: ScriptedReply) -> Draft | Problem:
    return draft_of(from_json(Reply, json.dumps(reply.body)))


@pytest.mark.parametrize("fence", ["```", "~~~", "````"])
@pytest.mark.parametrize("language", ["python", "py", "Python ", ""])
def test_a_fenced_policy_in_plain_text_counts(fence, language):
    reply = text(f"More data parallelism.\n\n{fence}{language}\n{CODE}{fence}\nDone.")

    assert draft(reply) == Draft(code=CODE, rationale="More data parallelism.")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        *((0, "0"), (-1.5, "-1.5"), (1e9, "1000000000.0"), (10**400, "1000"), (True, "True")),
        *(("a lot", "'a lot'"), ("inf", "'inf'"), ([1.2], "[1.2]")),
    ],
)
def test_an_expectation_that_is_no_ratio_is_objected_to(given, shown):
    words = draft(submission(CODE, expected_speedup=given)).words

    assert words.startswith(f"expected_speedup is {shown}")
    assert "give the speedup over the best so far, from 0.01 to 100" in words


@pytest.mark.parametrize(("given", "meant"), [(0.85, 0.85), (2, 2.0), ("1.25", 1.25)])
def test_an_expectation_may_be_written_as_text(given, meant):
    assert draft(submission(CODE, expected_speedup=given)).expected_speedup == meant


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("expected_speedup: 1.25", 1.25),
        ("**expected_speedup**: 0.9x", 0.9),
        ("`expected_speedup: 2`", 2.0),
        ("It should be a bit faster.", None),
    ],
)
def test_plain_text_says_what_is_expected_on_a_line_or_not_at_all(line, expected):
    found = draft(text(f"Fewer stages.\n{line}\n```python\n{CODE}```\n"))

    assert found.expected_speedup == expected
    assert found.rationale.startswith("Fewer stages.")
    assert "expected_speedup" not in found.rationale


def test_reason_and_expectation_are_asked_for_before_the_code():
    settings = LlmSettings(api_key=Secret(LLM_KEY))
    body = message_request(PROMPT, Form.AUTO, settings=settings, max_tokens=1)
    schema = body["tools"][0]["input_schema"]

    assert list(schema["properties"])[:3] == schema["required"]
    assert schema["required"] == ["rationale", "expected_speedup", "code"]
    assert schema["properties"]["expected_speedup"]["type"] == "number"


CALL = {"rationale": "fewer stages", "expected_speedup": 1.5, "code": CODE}


@pytest.mark.parametrize(
    "call",
    [
        {"name": "submit_policy", "arguments": CALL},
        {"name": "submit_policy", "input": CALL},
        {"name": "submit_policy", "parameters": CALL},
        {"name": "submit_policy", "arguments": json.dumps(CALL)},
        {"type": "function", "function": {"name": "submit_policy", "arguments": CALL}},
        CALL,
    ],
)
@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "I call it now.\n\n```json\n{}\n```\nDone.",
        "  ```\n  {}\n  ```",
        "<think>{{a plan}}</think>\n<tool_call>\n{}\n</tool_call>",
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_call_of_the_tool_written_as_text_counts(call, around, indent):
    found = draft(text(around.format(json.dumps(call, indent=indent))))

    assert found == Draft(code=CODE, rationale="fewer stages", expected_speedup=1.5)


@pytest.mark.parametrize(
    "words",
    [
        json.dumps({"name": "launch", "arguments": CALL}),
        json.dumps({"name": "submit_policy", "arguments": 7}),
        json.dumps({"name": "submit_policy", "arguments": "{"}),
        '{"name": "submit_policy", "arguments": {',
        '{"a":' * 100_000,
        '{"a":\n' * 100_000,
    ],
)
def test_json_that_is_no_call_is_no_policy(words):
    assert "holds no policy" in draft(text(words)).words


def test_an_indented_fence_loses_its_indentation():
    inside = "".join(f"   {line}\n" for line in CODE.splitlines())

    found = draft(text(f"1. Plain data parallelism:\n\n   ```python\n{inside}   ```\n"))
    assert found.code == CODE


@pytest.mark.parametrize(
    ("words", "code", "rationale"),
    [
        (f"So:\n```python\n{CODE}```\nagain:\n```python\n{CODE}```\n", CODE, "So:"),
        (
            f"First\n```python\n{CODE}```\nbetter:\n```python\n# two\n{CODE}```\n",
            f"# two\n{CODE}",
            "(the last of 2 policies in one reply) First",
        ),
    ],
    ids=["twice", "two"],
)
def test_of_several_fenced_policies_the_last_counts_and_the_rationale_says_so(
    words, code, rationale
):
    assert draft(text(words)) == Draft(code=code, rationale=rationale)


NO_POLICY = "the reply (stop reason {}) holds no policy"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (text("I would rather not."), NO_POLICY.format("end_turn")),
        (text("```python\nprint(1)\n```"), NO_POLICY.format("end_turn")),
        (text("", stop_reason="pause_turn"), NO_POLICY.format("pause_turn")),
        (ScriptedReply(body={"content": None}), NO_POLICY.format(None)),
        (tool_use({"code": CODE}, name="launch"), "the model called 'launch' instead of"),
        (tool_use({"code": "  \n", "expected_speedup": 1}), "the submitted code is empty"),
        (
            tool_use({"code": CODE}),
            "expected_speedup is missing; give the speedup over the best so far, from 0.01 to 100",
        ),
        (tool_use({"code": ["a"]}), "the submitted code is of type list, not text"),
        (tool_use({"rationale": "none"}), "the submission has no code"),
        (tool_use(CODE), "the submission is of type str, not an object"),
        (refusal(), "the model refused to answer (frontier_llm)"),
        (message(stop_reason="refusal"), "the model refused to answer"),
        (
            message(stop_reason="model_context_window_exceeded"),
            "the conversation is longer than the model can hold",
        ),
        (text("```python\ndef gen", stop_reason="max_tokens"), "the reply was cut at the limit"),
        (
            message(*submission(CODE).body["content"], stop_reason="max_tokens"),
            "the reply was cut at the limit",
        ),
        (submission(CODE + "\0"), "the submitted code holds a null byte in line 3"),
        (submission("x" * (1 << 20)), f"is 1048576 bytes long; the limit is {MAX_CODE_BYTES}"),
        (tool_uses({"code": CODE}, {"code": CODE}), "the reply calls tools 2 times; call"),
    ],
)
def test_a_reply_without_a_policy_says_why(reply, reason):
    found = draft(reply)

    assert isinstance(found, Problem)
    assert reason in found.words


def test_the_estimate_of_tokens_is_on_the_high_side():
    assert [estimated_tokens(text) for text in ("", "abcd", "量子計算")] == [0, 2, 6]


INPUTS = st.dictionaries(st.text(), st.text() | st.integers() | st.none(), max_size=3)
STREAMED = st.one_of(
    st.builds(lambda words: {"type": "text", "text": words}, st.text()),
    st.builds(lambda made: {"type": "thinking", "thinking": made, "signature": made}, st.text()),
    st.builds(lambda data: {"type": "redacted_thinking", "data": data}, st.text()),
    st.builds(
        lambda given: {"type": "tool_use", "id": "t", "name": "submit_policy", "input": given},
        INPUTS,
    ),
)
MESSAGES = st.fixed_dictionaries(
    {
        "id": st.text(),
        "content": st.lists(STREAMED, max_size=4),
        "stop_reason": st.sampled_from(["end_turn", "max_tokens", None]),
        "usage": st.just({"input_tokens": 3, "output_tokens": 7}),
    }
)


@given(MESSAGES, st.integers(1, 9))
def test_a_message_in_pieces_is_the_message(whole, piece_chars):
    answer = streamed_answer("".join(event_lines(whole, piece_chars)))

    assert answer.status == 200
    assert json.loads(answer.text) == whole


@given(MESSAGES, st.data())
def test_a_stream_that_ends_early_is_no_message(whole, data):
    lines = list(event_lines(whole))
    left = data.draw(st.integers(0, len(lines) - 1))

    answer = streamed_answer("".join(lines[:left]))

    assert answer.status is None
    assert answer.worth_retrying


@given(st.lists(st.text() | st.sampled_from(list(event_lines(message().body)))))
def test_no_stream_raises(lines):
    assert streamed_answer("\n".join(f"data: {line}" for line in lines)) is not None


def test_a_call_that_was_cut_stays_as_it_came():
    whole = message(
        {"type": "tool_use", "id": "t", "name": "n", "input": {"code": "x" * 90}},
        stop_reason="max_tokens",
    )
    lines = [line for line in event_lines(whole.body) if '"partial_json": "xx' not in line]

    content = json.loads(streamed_answer("".join(lines)).text)["content"]

    assert content[0]["input"].startswith('{"code": "')


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_the_standard_lets_them(end):
    stream = "".join(event_lines(text("a\u2028b").body)).replace("\n", end)
    content = json.loads(streamed_answer(stream.replace("\\u2028", "\u2028")).text)["content"]

    assert content == [{"type": "text", "text": "a\u2028b"}]


class Saying:
    """A transport that answers with these statuses and texts, over and over."""

    def __init__(self, answers: Sequence[tuple[int | None, str]]) -> None:
        self._answers = cycle(answers)

    def send(self, body: Mapping[str, object]) -> tuple[Answer, ...]:
        json.dumps(body, allow_nan=False).encode()
        status, words = next(self._answers)
        return (Answer(status=status, text=words),)


WORDS = st.sampled_from(["", "\0", "tool", f"```python\n{CODE}```", "prompt is too long"])
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "thinking", "redacted_thinking", "new"])},
    optional={
        **{key: WORDS | st.none() for key in ("text", "id", "thinking", "signature", "data")},
        "name": st.sampled_from(["submit_policy", "other"]),
        "input": st.fixed_dictionaries({"code": WORDS | st.integers()}) | WORDS | st.none(),
    },
)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "content": st.lists(BLOCKS, max_size=3) | st.none(),
        "stop_reason": st.sampled_from(["max_tokens", "end_turn", "refusal", None]),
        "usage": st.fixed_dictionaries({}, optional={"output_tokens": st.integers(0, 9)}),
        "error": st.fixed_dictionaries({"message": WORDS}),
    },
).map(json.dumps)
STATUSES = st.sampled_from([None, 200, 204, 302, 400, 401, 413, 422, 429, 500])


@given(st.lists(st.tuples(STATUSES, BODIES | WORDS), min_size=1, max_size=4), st.booleans())
def test_whatever_a_provider_answers_ends_in_a_recorded_exchange(answers, accepts):
    client = LlmClient(LlmSettings(api_key=Secret(LLM_KEY)), Saying(answers))

    found, exchange = client.ask(
        PROMPT, lambda draft: draft if accepts else Problem(words="no"), shorter=lambda: PROMPT
    )

    rows = json.loads(exchange.reply)
    assert len(rows) == len(json.loads(exchange.request)) == exchange.request_count <= 7
    assert isinstance(found, Draft) == (exchange.result == "submitted")
    assert exchange.result
