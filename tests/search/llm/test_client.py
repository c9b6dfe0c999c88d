"""A turn of a model: how it is asked, what it is told of a reply, and what is recorded."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from records.codec import to_json
from records.study import Budget, Llm
from search.llm.client import Allowance
from search.llm.messages import Prompt
from search.llm.tools import MAX_CODE_BYTES, Draft, Problem, RetryAction
from search.settings import llm_settings
from tests.support.search import (
    CODE,
    LLM_KEY,
    PROMPT,
    ScriptedMessagesServer,
    ask,
    client_of,
    connected,
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

SHORTER = Prompt(system="You choose.", task="The study.", turn="Trial 3.")
VIOLATION = "ranks: dp * tp == world_size: 3 == 4 does not hold"
FIXED = f"# fixed\n{CODE}"
BLOCK = f"```python\n{CODE}```"


def unless_fixed(draft):
    return draft if "fixed" in draft.code else Problem(words=VIOLATION)


def refuse(_draft):
    return Problem(words=VIOLATION)


def last_content(body):
    return body["messages"][-1]["content"]


def roles(body):
    return [each["role"] for each in body["messages"]]


def choices(asked):
    return [body.get("tool_choice", {}).get("type") for body in asked]


def test_a_submission_is_recorded_with_its_request_and_what_it_used():
    asked = ask([submission(CODE, rationale="less traffic", expected_speedup=1.1)])

    assert asked.found == Draft(code=CODE, rationale="less traffic", expected_speedup=1.1)
    exchange = asked.exchange
    assert (exchange.model, exchange.result) == ("claude-opus-5-5", "submitted")
    assert exchange.request_count == 1
    assert exchange.latency_s > 0
    assert min(exchange.usage.input_tokens, exchange.usage.cache_write_tokens) > 0
    assert exchange.usage.cache_read_tokens == 0
    (request,) = json.loads(exchange.request)
    assert [block["text"] for block in request["system"]] == ["You choose.", "The study."]
    assert request["messages"][0]["content"][0]["text"].startswith("Trial 3")
    assert request["tools"][0]["name"] == "submit_policy"
    (answer,) = json.loads(exchange.reply)
    assert (answer["request"], answer["form"], answer["status"]) == (0, "auto", 200)
    assert json.loads(answer["body"])["content"][0]["input"]["code"] == CODE


def test_a_tool_is_offered_and_never_forced():
    (request,) = ask([submission(CODE)]).requests

    assert (request.path, request.key) == ("/v1/messages", LLM_KEY)
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert request.body["tool_choice"] == choice
    fields = {"model", "max_tokens", "system", "messages", "tools", "tool_choice"}
    assert request.body.keys() == fields  # no sampling parameter


def test_effort_and_thinking_are_sent_where_they_are_set():
    (body,) = ask([submission(CODE)], effort="high", thinking_tokens=2048).bodies

    assert body["output_config"] == {"effort": "high"}
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 2048}


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/"])
def test_a_base_url_may_end_in_the_version_of_the_api(path):
    assert ask([submission(CODE)], path=path).requests[0].path == "/v1/messages"


def test_the_unchanging_part_comes_first_and_is_marked_for_caching():
    with connected([submission(CODE)] * 2) as (server, client):
        client.ask(PROMPT, lambda draft: draft)
        _, later = client.ask(replace(PROMPT, turn="Trial 4."), lambda draft: draft)

    first, second = (request.body for request in server.requests)
    marked = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    assert first["system"] == second["system"]
    assert first["system"] == [
        {"type": "text", "text": "You choose."},
        {"type": "text", "text": "The study.", **marked},
    ]
    assert "cache_control" not in json.dumps([first["messages"], second["messages"]])
    assert later.usage.cache_read_tokens > 0
    assert later.usage.cache_write_tokens == 0


def test_thinking_before_the_submission_is_no_obstacle():
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    (call,) = submission(CODE).body["content"]
    reply = message(thought, {"type": "text", "text": "Here it is."}, call, usage=None)
    asked = ask([reply])

    assert asked.found.code == CODE
    assert asked.exchange.usage.input_tokens == 0  # the provider told no counts


@pytest.mark.parametrize(
    ("replies", "forms"),
    [
        ([tool_use({}), text("prose"), text(BLOCK), text(BLOCK)], ["auto", "auto", None, None]),
        (
            [fault(400, "this endpoint does not support tools"), text(BLOCK), text(BLOCK)],
            ["auto", None, None],
        ),
    ],
    ids=["no call", "refused"],
)
def test_after_one_reply_without_a_call_text_is_asked_for(replies, forms):
    with connected(replies) as (server, client):
        found = [client.ask(PROMPT, lambda draft: draft)[0] for _ in range(2)]

    bodies = [request.body for request in server.requests]
    assert [each.code for each in found] == [CODE] * 2
    assert choices(bodies) == forms
    assert "tools" not in bodies[-1]
    spoken = json.dumps([body["messages"] for body in bodies if "tools" not in body])
    assert "```python" in spoken
    assert "tool_use" not in spoken
    assert "tool_result" not in spoken


def test_a_tool_that_is_refused_where_none_is_offered_ends_the_asking():
    asked = ask(lambda _: fault(400, "tools are not understood"))

    assert asked.found.action is RetryAction.USER
    assert "tools are not understood" in asked.found.words
    assert len(asked.requests) == 2


def test_a_local_model_is_asked_as_the_page_about_studies_says(monkeypatch):
    page = (Path(__file__).parents[3] / "docs" / "local_models.md").read_text(encoding="utf-8")
    variables = dict(re.findall(r"^export (\w+)=(\S+)$", page, re.MULTILINE))
    assert variables.keys() == {"ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN"}
    call = {"name": "submit_policy", "arguments": {"expected_speedup": 1, "code": CODE}}
    toolless = fault(400, "qwen3-coder does not support tools")
    script = [toolless, text("Sure!"), text(f"```json\n{json.dumps(call)}\n```")]
    with ScriptedMessagesServer(script, streams=False) as server:
        monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
        monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", variables["ANTHROPIC_AUTH_TOKEN"])
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"{server.url}/v1")
        settings = llm_settings(Llm(model="qwen3-coder"))
        client = client_of(settings)
        allowance = Allowance(Budget(max_tokens=100_000), "qwen3-coder", None, list)
        found, _ = client.ask(PROMPT, lambda draft: draft, allowance=allowance)
        client.close()

    assert found.code == CODE
    assert [r.body["model"] for r in server.requests] == ["qwen3-coder"] * 3
    assert {r.headers["authorization"] for r in server.requests} == {"Bearer ollama"}


def test_a_violation_goes_back_as_the_error_of_the_tool_call():
    asked = ask([submission(CODE), submission(FIXED)], unless_fixed)

    assert asked.found.code == FIXED
    first, second = (body["messages"] for body in asked.bodies)
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert second[0] == first[0]
    ((call,), (result,)) = (second[n]["content"] for n in (1, 2))
    assert (call["type"], call["name"]) == ("tool_use", "submit_policy")
    assert call["input"]["code"] == CODE
    assert (result["type"], result["is_error"]) == ("tool_result", True)
    assert result["tool_use_id"] == call["id"]
    assert VIOLATION in result["content"]


def test_a_violation_of_a_policy_in_text_goes_back_as_text():
    asked = ask([text(BLOCK), text(BLOCK.replace(CODE, FIXED))], unless_fixed)

    assert isinstance(asked.found, Draft)
    assert asked.bodies[1]["messages"][1]["content"] == [{"type": "text", "text": BLOCK}]
    (told,) = last_content(asked.bodies[1])
    assert told["type"] == "text"
    assert VIOLATION in told["text"]


def test_after_three_more_tries_the_turn_ends_with_the_last_violation():
    asked = ask(lambda _: submission(CODE), refuse)

    assert asked.found.words == asked.exchange.result == VIOLATION
    assert len(asked.bodies) == 4
    assert len(asked.bodies[-1]["messages"]) == 7


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
def test_a_reply_that_cannot_be_taken_is_asked_for_again(reply):
    asked = ask([reply, submission(CODE)])

    assert asked.found.code == CODE
    assert len(asked.bodies) == asked.exchange.request_count == 2
    told = json.dumps(last_content(asked.bodies[1]))
    assert "Rejected: " in told
    calls = any(block["type"] == "tool_use" for block in reply.body.get("content", ()))
    form = "calling the tool submit_policy" if calls or cut(reply) == reply else "starts with ```py"
    assert form in told


def test_faults_of_all_kinds_share_the_three_tries():
    replies = [text("prose"), submission(CODE), cut(text("def")), tool_use({"code": 1})]
    asked = ask([*replies, submission(CODE)], refuse)

    assert asked.found.words == "the submitted code is of type int, not text"
    assert len(asked.bodies) == 4


def test_every_call_of_a_tool_gets_its_own_result():
    bodies = ask([tool_uses({"code": CODE}, {"code": CODE}), submission(CODE)]).bodies

    calls, results = bodies[1]["messages"][1]["content"], last_content(bodies[1])
    assert [call["id"] for call in calls] == [result["tool_use_id"] for result in results]
    assert all(result["is_error"] for result in results)


def test_thoughts_go_back_as_they_came():
    thoughts = [
        {"type": "thinking", "thinking": "", "signature": "signed"},
        {"type": "redacted_thinking", "data": "sealed"},
    ]
    call = {"type": "tool_use", "id": "t", "name": "submit_policy", "input": {"code": CODE}}
    together = ask([message(*thoughts, call), submission(CODE)]).bodies
    alone = ask([message(thoughts[0]), submission(CODE)]).bodies

    assert together[1]["messages"][1]["content"] == [*thoughts, call]
    assert roles(alone[1]) == ["user"]


def test_what_could_not_be_sent_again_is_shortened():
    huge = submission("#" * (4 * MAX_CODE_BYTES))
    asked = ask([huge, submission("a\0b"), submission(CODE)])

    assert asked.found.code == CODE
    assert len(json.dumps(asked.bodies[2])) < 20_000
    assert "\\u0000" not in json.dumps(asked.bodies[2])


def test_a_cut_reply_gets_more_room_once_and_is_not_shown_again():
    fields = {"max_output_tokens": 100, "most_output_tokens": 400}
    asked = ask([cut(submission(CODE)), submission(CODE)], **fields)

    assert asked.found.code == CODE
    assert [body["max_tokens"] for body in asked.bodies] == [100, 400]
    assert roles(asked.bodies[1]) == ["user"]
    question, told = last_content(asked.bodies[1])
    assert question["text"].startswith(PROMPT.turn)
    assert "shorter one" in told["text"]


@pytest.mark.parametrize(("most", "ceilings"), [(400, [100, 400]), (100, [100]), (50, [100])])
def test_a_reply_is_not_asked_for_again_with_the_room_that_it_filled(most, ceilings):
    fields = {"max_output_tokens": 100, "most_output_tokens": most}
    asked = ask(lambda _: cut(submission(CODE)), **fields)

    assert [body["max_tokens"] for body in asked.bodies] == ceilings
    assert f"cut at the limit of {ceilings[-1]} output tokens" in asked.found.words
    assert "raise [llm] most_output_tokens" in asked.found.words


@pytest.mark.parametrize(
    ("reply", "timeout_s"),
    [
        (refusal(), 60),
        (fault(529), 60),
        (dropped_connection(), 60),
        (interrupted(submission(CODE)), 60),
        (stalled(submission(CODE)), 2),
        (stalled(fault(500)), 2),
        (truncated(submission(CODE)), 60),
        (fault(400, "messages: something in here"), 60),
    ],
)
def test_what_no_other_reply_cures_ends_the_turn_only(reply, timeout_s):
    asked = ask([text("prose"), reply, submission(CODE)], timeout_s=timeout_s)

    assert asked.found.action is RetryAction.TIME
    assert len(asked.bodies) == 2


@pytest.mark.parametrize(
    "overflow",
    [
        fault(413, "request too large"),
        prompt_too_long(),
        fault(400, "input length and `max_tokens` exceed context limit: 1 + 2 > 2; tools count"),
        message(stop_reason="model_context_window_exceeded"),
    ],
)
def test_a_prompt_that_is_too_long_is_written_shorter_once(overflow):
    asked = ask([overflow, submission(CODE)], shorter=lambda: SHORTER)
    twice = ask([overflow, overflow], shorter=lambda: SHORTER)

    assert asked.found.code == CODE
    turns = [last_content(body)[0]["text"].splitlines()[0] for body in asked.bodies]
    assert turns == [PROMPT.turn, SHORTER.turn]
    assert twice.found.action is RetryAction.PROMPT
    assert len(twice.bodies) == 2


def test_a_shorter_prompt_starts_without_what_was_said_before():
    replies = [text("prose"), prompt_too_long(), submission(CODE)]
    bodies = ask(replies, shorter=lambda: SHORTER).bodies

    assert [len(body["messages"]) for body in bodies] == [1, 3, 1]


def test_an_exchange_holds_every_request_and_every_answer():
    asked = ask([tool_refused(), fault(529), text("prose"), text(BLOCK)], attempts=2)

    exchange, bodies = asked.exchange, asked.bodies
    answers = json.loads(exchange.reply)
    assert json.loads(exchange.request) == [bodies[0], bodies[1], bodies[3]]
    assert [row["request"] for row in answers] == [0, 1, 1, 2]
    assert [row["status"] for row in answers] == [400, 529, 200, 200]
    assert [row["form"] for row in answers] == ["auto", "text", "text", "text"]
    billed = [json.loads(row["body"])["usage"] for row in answers[2:]]
    assert exchange.usage.output_tokens == sum(usage["output_tokens"] for usage in billed)
    assert exchange.usage.input_tokens == sum(usage["input_tokens"] for usage in billed)
    assert exchange.request_count == 4


def test_a_key_that_a_reply_repeats_is_not_sent_back_or_kept():
    asked = ask([text(f"my key is {LLM_KEY}"), submission(CODE)])

    assert LLM_KEY not in json.dumps(asked.bodies)
    assert LLM_KEY not in to_json(asked.exchange)
