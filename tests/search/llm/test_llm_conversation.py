"""What the model is told about a reply that cannot be taken, and when it is told no more."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest

from records.codec import to_json
from search.llm.client import LlmClient, NoSubmission, Submission
from search.llm.messages import MAX_CODE_BYTES, Draft, Prompt, RetryAction
from search.llm.transport import AnthropicTransport
from search.settings import LlmSettings, Secret
from tests.support.search import (
    Script,
    ScriptedMessagesServer,
    ScriptedReply,
    cut,
    dropped_connection,
    fault,
    interrupted,
    message,
    prompt_too_long,
    refusal,
    stalled,
    submission,
    text,
    tool_refused,
    tool_use,
    tool_uses,
    truncated,
)

KEY = "sk-test-0123456789"
CODE = "def generate_config(workload, environment):\n    return {'dp': 4}\n"
PROMPT = Prompt(system="You choose.", task="The study.", turn="Trial 3, at length.")
SHORTER = Prompt(system="You choose.", task="The study.", turn="Trial 3.")
VIOLATION = "ranks: dp * tp == world_size: 3 == 4 does not hold"


@contextmanager
def connected(script: Script, **fields: object) -> Iterator[tuple[list[Mapping], LlmClient]]:
    """The bodies that a scripted server was sent, and a client that talks to it."""
    with ScriptedMessagesServer(script) as server:
        settings = LlmSettings(
            api_key=Secret(KEY),
            base_url=server.url,
            **{"attempts": 1, "retry_wait_s": 0.001, **fields},
        )
        client = LlmClient(settings, AnthropicTransport(settings))
        bodies: list[Mapping] = []
        try:
            yield bodies, client
        finally:
            client.close()
            bodies.extend(request.body for request in server.requests)


def accept(draft: Draft) -> None:
    """Find nothing wrong with a draft."""


def unless_fixed(draft: Draft) -> str | None:
    """Find a fault until the draft says that it is gone."""
    return None if "fixed" in draft.code else VIOLATION


def last_content(body: Mapping) -> Sequence[Mapping]:
    return body["messages"][-1]["content"]


def test_a_violation_goes_back_as_the_error_of_the_tool_call() -> None:
    with connected([submission(CODE), submission(f"# fixed\n{CODE}")]) as (bodies, client):
        asked = client.ask(PROMPT, unless_fixed)

    assert isinstance(asked, Submission)
    assert asked.draft.code.startswith("# fixed")
    first, second = (body["messages"] for body in bodies)
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert second[0] == first[0]
    (call,) = second[1]["content"]
    assert (call["type"], call["name"], call["input"]["code"]) == (
        "tool_use",
        "submit_policy",
        CODE,
    )
    (result,) = second[2]["content"]
    assert result["type"] == "tool_result"
    assert result["tool_use_id"] == call["id"]
    assert result["is_error"] is True
    assert VIOLATION in result["content"]


def test_a_violation_of_a_policy_in_text_goes_back_as_text() -> None:
    block = "```python\n{}```"
    replies = [text(block.format(CODE)), text(block.format(f"# fixed\n{CODE}"))]
    with connected(replies) as (bodies, client):
        asked = client.ask(PROMPT, unless_fixed)

    assert isinstance(asked, Submission)
    assert bodies[1]["messages"][1]["content"] == [{"type": "text", "text": block.format(CODE)}]
    (told,) = last_content(bodies[1])
    assert told["type"] == "text"
    assert VIOLATION in told["text"]


def test_after_three_more_tries_the_turn_ends_with_the_last_violation() -> None:
    with connected(lambda _: submission(CODE)) as (bodies, client):
        asked = client.ask(PROMPT, lambda _: VIOLATION)

    assert isinstance(asked, NoSubmission)
    assert asked.problem.words == asked.exchange.result == VIOLATION
    assert len(bodies) == 4
    assert len(bodies[-1]["messages"]) == 7


@pytest.mark.parametrize(
    "reply",
    [
        text("First I would like to know more."),
        text(""),
        message(),
        tool_use({"code": CODE}, name="launch"),
        tool_uses({"code": CODE}, {"code": CODE}),
        tool_use({"code": ""}),
        tool_use({"code": 7}),
        tool_use("no object"),
        submission("#" * (1 << 20)),
        submission(f"{CODE}\0"),
        cut(submission(CODE)),
    ],
)
def test_a_reply_that_cannot_be_taken_is_asked_for_again(reply: ScriptedReply) -> None:
    checked: list[Draft] = []
    with connected([reply, submission(CODE)]) as (bodies, client):
        asked = client.ask(PROMPT, checked.append)

    assert isinstance(asked, Submission)
    assert len(bodies) == asked.exchange.request_count == 2
    assert [draft.code for draft in checked] == [CODE]
    told = json.dumps(last_content(bodies[1]))
    assert "Rejected: " in told
    calls = any(block["type"] == "tool_use" for block in reply.body.get("content", ()))
    form = "calling the tool submit_policy" if calls or cut(reply) == reply else "starts with ```py"
    assert form in told


def test_faults_of_all_kinds_share_the_three_tries() -> None:
    replies = [text("prose"), submission(CODE), cut(text("def")), tool_use({"code": 1})]
    with connected([*replies, submission(CODE)]) as (bodies, client):
        asked = client.ask(PROMPT, lambda _: VIOLATION)

    assert isinstance(asked, NoSubmission)
    assert asked.problem.words == "the submitted code is of type int, not text"
    assert len(bodies) == 4


def test_every_call_of_a_tool_gets_its_own_result() -> None:
    replies = [tool_uses({"code": CODE}, {"code": CODE}), submission(CODE)]
    with connected(replies) as (bodies, client):
        client.ask(PROMPT, accept)

    calls, results = bodies[1]["messages"][1]["content"], last_content(bodies[1])
    assert [call["id"] for call in calls] == [result["tool_use_id"] for result in results]
    assert all(result["is_error"] for result in results)


def test_thoughts_go_back_as_they_came() -> None:
    thoughts = [
        {"type": "thinking", "thinking": "", "signature": "signed"},
        {"type": "redacted_thinking", "data": "sealed"},
    ]
    call = {"type": "tool_use", "id": "t", "name": "submit_policy", "input": {"code": CODE}}
    with connected([message(*thoughts, call), submission(f"# fixed\n{CODE}")]) as (bodies, client):
        client.ask(PROMPT, unless_fixed)

    assert bodies[1]["messages"][1]["content"] == [*thoughts, call]


def test_thoughts_alone_are_not_sent_back() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "signed"}
    with connected([message(thought), submission(CODE)]) as (bodies, client):
        client.ask(PROMPT, accept)

    assert [each["role"] for each in bodies[1]["messages"]] == ["user"]


def test_what_could_not_be_sent_again_is_shortened() -> None:
    huge = submission("#" * (4 * MAX_CODE_BYTES))
    with connected([huge, submission("a\0b"), submission(CODE)]) as (bodies, client):
        asked = client.ask(PROMPT, accept)

    assert isinstance(asked, Submission)
    assert len(json.dumps(bodies[2])) < 20_000
    assert "\\u0000" not in json.dumps(bodies[2])


def test_a_cut_reply_gets_more_room_once_and_is_not_shown_again() -> None:
    fields = {"max_output_tokens": 100, "most_output_tokens": 400}
    with connected([cut(submission(CODE)), submission(CODE)], **fields) as (bodies, client):
        asked = client.ask(PROMPT, accept)

    assert isinstance(asked, Submission)
    assert [body["max_tokens"] for body in bodies] == [100, 400]
    assert [each["role"] for each in bodies[1]["messages"]] == ["user"]
    question, told = last_content(bodies[1])
    assert question["text"].startswith(PROMPT.turn)
    assert "shorter one" in told["text"]


@pytest.mark.parametrize(("most", "ceilings"), [(400, [100, 400]), (100, [100]), (50, [100])])
def test_a_reply_is_not_asked_for_again_with_the_room_that_it_filled(
    most: int, ceilings: list[int]
) -> None:
    fields = {"max_output_tokens": 100, "most_output_tokens": most}
    with connected(lambda _: cut(submission(CODE)), **fields) as (bodies, client):
        asked = client.ask(PROMPT, accept)

    assert [body["max_tokens"] for body in bodies] == ceilings
    assert isinstance(asked, NoSubmission)
    assert asked.problem.words.startswith(
        f"the reply was cut at the limit of {ceilings[-1]} output tokens"
    )
    assert "raise [llm] most_output_tokens" in asked.problem.words


@pytest.mark.parametrize(
    "reply",
    [
        refusal(),
        fault(529),
        dropped_connection(),
        interrupted(submission(CODE)),
        stalled(submission(CODE)),
        stalled(fault(500)),
        truncated(submission(CODE)),
        fault(400, "messages: something in here"),
    ],
)
def test_what_no_other_reply_cures_ends_the_turn_only(reply: ScriptedReply) -> None:
    replies = [text("prose"), reply, submission(CODE)]
    with connected(replies, timeout_s=0.2) as (bodies, client):
        asked = client.ask(PROMPT, accept)

    assert isinstance(asked, NoSubmission)
    assert asked.problem.action is RetryAction.TIME
    assert len(bodies) == 2


@pytest.mark.parametrize(
    "overflow",
    [
        fault(413, "request too large"),
        prompt_too_long(),
        fault(400, "input length and `max_tokens` exceed context limit: 1 + 2 > 2; tools count"),
        message(stop_reason="model_context_window_exceeded"),
    ],
)
def test_a_prompt_that_is_too_long_is_written_shorter_once(overflow: ScriptedReply) -> None:
    with connected([overflow, submission(CODE)]) as (bodies, client):
        asked = client.ask(PROMPT, accept, shorter=lambda: SHORTER)
    with connected([overflow, overflow]) as (twice, client):
        failed = client.ask(PROMPT, accept, shorter=lambda: SHORTER)

    assert isinstance(asked, Submission)
    assert [last_content(body)[0]["text"].splitlines()[0] for body in bodies] == [
        PROMPT.turn,
        SHORTER.turn,
    ]
    assert isinstance(failed, NoSubmission)
    assert failed.problem.action is RetryAction.PROMPT
    assert len(twice) == 2


def test_a_shorter_prompt_starts_without_what_was_said_before() -> None:
    replies = [text("prose"), prompt_too_long(), submission(CODE)]
    with connected(replies) as (bodies, client):
        client.ask(PROMPT, accept, shorter=lambda: SHORTER)

    assert [len(body["messages"]) for body in bodies] == [1, 3, 1]


def test_an_exchange_holds_every_request_and_every_answer() -> None:
    replies = [tool_refused(), fault(529), text("prose"), text(f"```python\n{CODE}```")]
    with connected(replies, attempts=2) as (bodies, client):
        exchange = client.ask(PROMPT, accept).exchange

    answers = json.loads(exchange.reply)
    assert json.loads(exchange.request) == [bodies[0], bodies[1], bodies[3]]
    assert [row["request"] for row in answers] == [0, 1, 1, 2]
    assert [row["status"] for row in answers] == [400, 529, 200, 200]
    assert [row["form"] for row in answers] == ["auto", "text", "text", "text"]
    billed = [json.loads(row["body"])["usage"] for row in answers[2:]]
    assert exchange.usage.output_tokens == sum(usage["output_tokens"] for usage in billed)
    assert exchange.usage.input_tokens == sum(usage["input_tokens"] for usage in billed)
    assert exchange.request_count == 4


def test_a_key_that_a_reply_repeats_is_not_sent_back_or_kept() -> None:
    with connected([text(f"my key is {KEY}"), submission(CODE)]) as (bodies, client):
        asked = client.ask(PROMPT, accept)

    assert KEY not in json.dumps(bodies)
    assert KEY not in to_json(asked.exchange)
