"""What each kind of reply becomes, over a real socket and through the real SDK."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.llm.client import LlmClient, NoSubmission, Submission, TurnResult
from search.llm.messages import (
    MAX_CODE_BYTES,
    Answer,
    Block,
    Draft,
    Form,
    Problem,
    Prompt,
    Reply,
    draft_of,
    message_request,
)
from search.llm.transport import AnthropicTransport
from search.settings import LlmSettings, Secret
from tests.support.search import (
    ScriptedMessagesServer,
    ScriptedReply,
    message,
    refusal,
    submission,
    text,
    tool_use,
    tool_uses,
    truncated,
)

KEY = "sk-test-0123456789"
CODE = "def generate_config(workload, environment):\n    return {'dp': 4}\n"
PROMPT = Prompt(system="You choose.", task="The study.", turn="Trial 3.")

Ask = Callable[[ScriptedReply], TurnResult]


@pytest.fixture
def ask() -> Ask:
    def ask_once(reply: ScriptedReply) -> TurnResult:
        with ScriptedMessagesServer(lambda _: reply) as server:
            settings = LlmSettings(
                api_key=Secret(KEY), base_url=server.url, attempts=1, retry_wait_s=0.0
            )
            client = LlmClient(settings, AnthropicTransport(settings))
            try:
                return client.ask(PROMPT, lambda _: None)
            finally:
                client.close()

    return ask_once


def test_a_submitted_policy_arrives_whole(ask: Ask) -> None:
    asked = ask(submission(CODE, rationale="less traffic", expected_speedup=1.1))

    assert isinstance(asked, Submission)
    assert asked.draft.code == CODE
    assert asked.draft.rationale == "less traffic"
    assert asked.draft.expected_speedup == 1.1


def test_a_submission_records_the_exchange(ask: Ask) -> None:
    exchange = ask(submission(CODE)).exchange

    assert exchange.model == "claude-opus-5-5"
    assert exchange.result == "submitted"
    assert exchange.request_count == 1
    assert exchange.latency_s > 0
    assert exchange.usage.input_tokens > 0
    assert exchange.usage.output_tokens > 0
    assert exchange.usage.cache_write_tokens > 0
    assert exchange.usage.cache_read_tokens == 0
    (request,) = json.loads(exchange.request)
    assert [block["text"] for block in request["system"]] == ["You choose.", "The study."]
    assert request["messages"][0]["content"][0]["text"].startswith("Trial 3.")
    assert request["tools"][0]["name"] == "submit_policy"
    answer = json.loads(exchange.reply)[0]
    assert answer["request"] == 0
    assert answer["form"] == "auto"
    assert answer["status"] == 200
    assert json.loads(answer["body"])["content"][0]["input"]["code"] == CODE


def test_thinking_before_the_submission_is_no_obstacle(ask: Ask) -> None:
    given = {"code": CODE, "expected_speedup": 1}
    call = {"type": "tool_use", "id": "t", "name": "submit_policy", "input": given}
    asked = ask(
        message(
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "Here it is."},
            call,
            stop_reason="tool_use",
        )
    )

    assert isinstance(asked, Submission)
    assert asked.draft.rationale == ""


@pytest.mark.parametrize("fence", ["```", "~~~", "````"])
@pytest.mark.parametrize("language", ["python", "py", "Python ", ""])
def test_a_fenced_policy_in_plain_text_counts(ask: Ask, fence: str, language: str) -> None:
    asked = ask(text(f"More data parallelism.\n\n{fence}{language}\n{CODE}{fence}\nDone."))

    assert isinstance(asked, Submission)
    assert asked.draft.code == CODE
    assert asked.draft.rationale == "More data parallelism."


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        *((0, "0"), (-1.5, "-1.5"), (1e9, "1000000000.0"), (10**400, "1000"), (True, "True")),
        *(("a lot", "'a lot'"), ("inf", "'inf'"), ([1.2], "[1.2]")),
    ],
)
def test_an_expectation_that_is_no_ratio_is_objected_to(
    ask: Ask, given: object, shown: str
) -> None:
    asked = ask(submission(CODE, expected_speedup=given))

    assert isinstance(asked, NoSubmission)
    assert asked.problem.words.startswith(f"expected_speedup is {shown}")
    assert "give the speedup over the best so far, from 0.01 to 100" in asked.problem.words


@pytest.mark.parametrize(("given", "meant"), [(0.85, 0.85), (2, 2.0), ("1.25", 1.25)])
def test_an_expectation_may_be_written_as_text(ask: Ask, given: object, meant: float) -> None:
    asked = ask(submission(CODE, expected_speedup=given))

    assert isinstance(asked, Submission)
    assert asked.draft.expected_speedup == meant


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("expected_speedup: 1.25", 1.25),
        ("**expected_speedup**: 0.9x", 0.9),
        ("`expected_speedup: 2`", 2.0),
        ("It should be a bit faster.", None),
    ],
)
def test_plain_text_says_what_is_expected_on_a_line_or_not_at_all(
    ask: Ask, line: str, expected: float | None
) -> None:
    asked = ask(text(f"Fewer stages.\n{line}\n```python\n{CODE}```\n"))

    assert isinstance(asked, Submission)
    assert asked.draft.expected_speedup == expected
    assert asked.draft.rationale.startswith("Fewer stages.")
    assert "expected_speedup" not in asked.draft.rationale


def test_reason_and_expectation_are_asked_for_before_the_code() -> None:
    settings = LlmSettings(api_key=Secret(KEY))
    body = message_request(PROMPT, Form.AUTO, settings=settings, max_tokens=1)
    schema = body["tools"][0]["input_schema"]

    assert list(schema["properties"]) == ["rationale", "expected_speedup", "code"]
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
def test_a_call_of_the_tool_written_as_text_counts(
    call: Mapping[str, object], around: str, indent: int | None
) -> None:
    reply = Reply(
        content=(Block(type="text", text=around.format(json.dumps(call, indent=indent))),)
    )

    draft = draft_of(reply)

    assert draft == Draft(code=CODE, rationale="fewer stages", expected_speedup=1.5)


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
def test_json_that_is_no_call_is_no_policy(words: str) -> None:
    problem = draft_of(Reply(content=(Block(type="text", text=words),)))

    assert isinstance(problem, Problem)
    assert "holds no policy" in problem.words


def test_an_indented_fence_loses_its_indentation(ask: Ask) -> None:
    inside = "".join(f"   {line}\n" for line in CODE.splitlines())
    asked = ask(text(f"1. Plain data parallelism:\n\n   ```python\n{inside}   ```\n"))

    assert isinstance(asked, Submission)
    assert asked.draft.code == CODE


def test_a_page_of_a_web_server_is_named_with_its_address(ask: Ask) -> None:
    asked = ask(ScriptedReply(page="<!doctype html>\n<title>Sign in</title>"))

    assert isinstance(asked, NoSubmission)
    assert asked.problem.words.startswith("http://127.0.0.1:")
    assert ": '<!doctype html> <title>Sign in</title>'..., a web page" in (asked.problem.words)


def test_one_policy_given_twice_is_one(ask: Ask) -> None:
    asked = ask(text(f"So:\n```python\n{CODE}```\nagain:\n```python\n{CODE}```\n"))

    assert isinstance(asked, Submission)
    assert asked.draft.rationale == "So:"


def test_of_several_fenced_policies_the_last_counts_and_the_rationale_says_so(ask: Ask) -> None:
    asked = ask(text(f"First\n```python\n{CODE}```\nbetter:\n```python\n# two\n{CODE}```\n"))

    assert isinstance(asked, Submission)
    assert asked.draft.code == f"# two\n{CODE}"
    assert asked.draft.rationale == "(the last of 2 policies in one reply) First"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (text("I would rather not."), "the reply (stop reason end_turn) holds no policy"),
        (text("```python\nprint(1)\n```"), "the reply (stop reason end_turn) holds no policy"),
        (text("", stop_reason="pause_turn"), "the reply (stop reason pause_turn) holds no policy"),
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
        (
            text("```python\ndef gen", stop_reason="max_tokens"),
            "the reply was cut at the limit of 16384",
        ),
        (truncated(submission(CODE)), "broke off: the stream of the reply ended before the reply"),
        (ScriptedReply(body={"content": 7}), "answered 200 without a message of the Messages API"),
        (ScriptedReply(body={"content": None}), "the reply (stop reason None) holds no policy"),
        (tool_use({"code": "x = '\ud800'"}), "answered 200 without a message of the Messages API"),
        (submission(CODE + "\0"), "the submitted code holds a null byte in line 3"),
        (submission("x" * (1 << 20)), f"is 1048576 bytes long; the limit is {MAX_CODE_BYTES}"),
        (tool_uses({"code": CODE}, {"code": CODE}), "the reply calls tools 2 times; call"),
    ],
)
def test_a_reply_without_a_policy_says_why(ask: Ask, reply: ScriptedReply, reason: str) -> None:
    asked = ask(reply)

    assert isinstance(asked, NoSubmission)
    assert reason in asked.problem.words
    assert asked.exchange.result == asked.problem.words


def test_a_submission_cut_at_the_token_limit_is_not_run(ask: Ask) -> None:
    block = {"type": "tool_use", "id": "t", "name": "submit_policy", "input": {"code": CODE}}
    asked = ask(message(block, stop_reason="max_tokens"))

    assert isinstance(asked, NoSubmission)


def test_a_reply_without_token_counts_is_still_read(ask: Ask) -> None:
    given = {"code": CODE, "expected_speedup": 1}
    block = {"type": "tool_use", "id": "t", "name": "submit_policy", "input": given}
    asked = ask(message(block, usage=None))

    assert isinstance(asked, Submission)
    assert asked.exchange.usage.input_tokens == 0


class Saying:
    """A transport that answers with these statuses and texts, over and over."""

    def __init__(self, answers: Sequence[tuple[int | None, str]]) -> None:
        self._answers = cycle(answers)

    def send(self, body: Mapping[str, object]) -> tuple[Answer, ...]:
        json.dumps(body, allow_nan=False).encode()
        status, words = next(self._answers)
        return (Answer(status=status, text=words),)

    def count_tokens(self, body: Mapping[str, object]) -> None:
        """Have no count."""

    def close(self) -> None:
        """Hold nothing."""


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
def test_whatever_a_provider_answers_ends_in_a_recorded_exchange(answers, accepts) -> None:
    settings = LlmSettings(api_key=Secret(KEY))
    client = LlmClient(settings, Saying(answers))
    asked = client.ask(PROMPT, lambda _: None if accepts else "no", shorter=lambda: PROMPT)

    exchange = asked.exchange
    rows = json.loads(exchange.reply)
    assert len(rows) == len(json.loads(exchange.request)) == exchange.request_count <= 7
    assert isinstance(asked, Submission) == (exchange.result == "submitted")
    assert exchange.result
