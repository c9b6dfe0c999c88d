"""Retries, refused tools, dead providers and the secrecy of the key, over a real socket."""

import json
import pickle
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from records.codec import to_json
from records.study import Budget, Llm
from search.llm.client import Allowance, LlmClient, NoSubmission, Submission
from search.llm.messages import Draft, Prompt, RetryAction
from search.llm.transport import AnthropicTransport
from search.settings import LlmSettings, ProviderError, Secret, llm_settings
from tests.support.search import (
    Script,
    ScriptedMessagesServer,
    ScriptedReply,
    dropped_connection,
    fault,
    message,
    slow,
    submission,
    text,
    tool_use,
)

KEY = "sk-test-0123456789"
CODE = "def generate_config(workload, environment):\n    return {'dp': 4}\n"
PROMPT = Prompt(system="You choose.", task="The study.", turn="Trial 3.")


def accept(draft: Draft) -> None:
    """Find nothing wrong with a draft."""


@contextmanager
def connected(
    script: Script, *, attempts: int = 4, timeout_s: float = 20.0
) -> Iterator[tuple[ScriptedMessagesServer, LlmClient]]:
    with ScriptedMessagesServer(script) as server:
        settings = LlmSettings(
            api_key=Secret(KEY),
            base_url=server.url,
            attempts=attempts,
            timeout_s=timeout_s,
            retry_wait_s=0.001,
        )
        client = LlmClient(settings, AnthropicTransport(settings))
        try:
            yield server, client
        finally:
            client.close()


@pytest.mark.parametrize(
    "passing",
    [
        fault(429, retry_after_s=0.01),
        fault(429, headers={"retry-after-ms": "5"}),
        fault(429, headers={"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        fault(429, headers={"retry-after": "soon"}),
        fault(529),
        fault(500),
        fault(503),
        fault(408),
        fault(409),
        dropped_connection(),
    ],
)
def test_a_passing_fault_is_retried(passing: ScriptedReply) -> None:
    with connected([passing, passing, submission(CODE)]) as (server, client):
        asked = client.ask(PROMPT, accept)

    assert isinstance(asked, Submission)
    assert asked.exchange.request_count == 3
    assert len(server.requests) == 3
    assert [row["status"] for row in json.loads(asked.exchange.reply)][-1] == 200


@pytest.mark.parametrize(
    ("passing", "reason"),
    [
        (fault(529, "Overloaded"), "127.0.0.1 is overloaded or unavailable (529): Overloaded"),
        (fault(429, retry_after_s=0.0), "127.0.0.1 is overloaded or unavailable (429)"),
        (dropped_connection(), "127.0.0.1 broke off: RemoteProtocolError"),
    ],
)
def test_a_fault_that_lasts_is_no_submission(passing: ScriptedReply, reason: str) -> None:
    with connected([passing] * 9, attempts=3) as (server, client):
        asked = client.ask(PROMPT, accept)

    assert isinstance(asked, NoSubmission)
    assert reason in asked.problem.words
    assert asked.problem.action is RetryAction.TIME
    assert asked.exchange.request_count == 3
    assert len(server.requests) == 3


def test_a_request_that_is_sent_again_is_noticed_once() -> None:
    notices: list[str] = []
    script = [fault(529, "Overloaded"), dropped_connection(), submission(CODE)]
    with ScriptedMessagesServer(script) as server:
        settings = LlmSettings(api_key=Secret(KEY), base_url=server.url, retry_wait_s=0.001)
        client = LlmClient(settings, AnthropicTransport(settings, notices.append))
        client.ask(PROMPT, accept)
        client.close()

    (notice,) = notices
    assert notice == ("127.0.0.1 is overloaded or unavailable (529): Overloaded; retry in 0 s")


def test_a_wait_longer_than_a_turn_may_take_ends_the_turn() -> None:
    with connected([fault(429, retry_after_s=61), submission(CODE)]) as (server, client):
        asked = client.ask(PROMPT, accept)

    assert isinstance(asked, NoSubmission)
    assert asked.problem.wait_s == 61
    assert len(server.requests) == 1
    assert json.loads(asked.exchange.reply)[0]["retry_after_s"] == 61


def test_a_provider_that_says_not_to_retry_is_not_asked_again() -> None:
    hopeless = fault(529, headers={"x-should-retry": "false"})
    with connected([hopeless, submission(CODE)]) as (server, client):
        asked = client.ask(PROMPT, accept)

    assert isinstance(asked, NoSubmission)
    assert len(server.requests) == 1


def test_a_refused_connection_is_no_submission() -> None:
    with ScriptedMessagesServer([]) as server:
        url = server.url
    settings = LlmSettings(api_key=Secret(KEY), base_url=url, attempts=2, retry_wait_s=0.001)
    client = LlmClient(settings, AnthropicTransport(settings))
    asked = client.ask(PROMPT, accept)
    client.close()

    assert isinstance(asked, NoSubmission)
    assert asked.problem.words.startswith("127.0.0.1 could not be reached: ConnectError")


def test_a_provider_that_never_answers_does_not_hold_the_search() -> None:
    with connected(lambda _: slow(submission(CODE), 30.0), attempts=9, timeout_s=0.1) as (
        server,
        client,
    ):
        asked = client.ask(PROMPT, accept)

    assert isinstance(asked, NoSubmission)
    assert len(server.requests) < 9


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (fault(401), "the key in ANTHROPIC_API_KEY was rejected (401) by 127.0.0.1: set a valid"),
        (fault(403), "may not use 'claude-opus-5-5' (403) at 127.0.0.1: set another key or model"),
        (fault(404), "127.0.0.1 has no model 'claude-opus-5-5' or no Messages API there (404)"),
        (fault(400, "max_tokens: too large"), "(400: max_tokens: too large): correct [llm]"),
        (fault(402, "no credit"), "has no credit left (402: no credit): add credit"),
        (
            fault(400, "Your credit balance is too low to access the Anthropic API."),
            "the account at 127.0.0.1 has no credit left (400: Your credit balance is too low",
        ),
    ],
)
def test_a_lasting_fault_says_what_to_do_in_one_line(reply: ScriptedReply, words: str) -> None:
    with connected([reply]) as (server, client):
        asked = client.ask(PROMPT, accept)

    assert isinstance(asked, NoSubmission)
    assert asked.problem.action is RetryAction.USER
    assert words in asked.problem.words
    assert asked.problem.words.endswith("or use --strategy offline")
    assert "\n" not in asked.problem.words
    assert asked.exchange.result == asked.problem.words
    assert asked.exchange.request_count == len(server.requests) == 1


def test_a_tool_is_offered_and_never_forced() -> None:
    with connected([submission(CODE)]) as (server, client):
        client.ask(PROMPT, accept)

    assert server.requests[0].path == "/v1/messages"
    assert server.requests[0].key == KEY
    assert server.requests[0].body["tool_choice"] == {
        "type": "auto",
        "disable_parallel_tool_use": True,
    }


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/"])
def test_a_base_url_may_end_in_the_version_of_the_api(path: str) -> None:
    with ScriptedMessagesServer([submission(CODE)]) as server:
        settings = LlmSettings(api_key=Secret(KEY), base_url=server.url + path)
        client = LlmClient(settings, AnthropicTransport(settings))
        asked = client.ask(PROMPT, accept)
        client.close()

    assert isinstance(asked, Submission)
    assert server.requests[0].path == "/v1/messages"


def test_after_one_reply_without_a_call_text_is_asked_for() -> None:
    block = f"expected_speedup: 1\n```python\n{CODE}```"
    replies = [tool_use({}), text("prose"), text(block), text(block)]
    with connected(replies) as (server, client):
        first, second = client.ask(PROMPT, accept), client.ask(PROMPT, accept)

    assert isinstance(first, Submission)
    assert isinstance(second, Submission)
    assert [_choice(r.body) for r in server.requests] == ["auto", "auto", None, None]
    spoken = json.dumps(server.requests[2].body["messages"])
    assert "```python" in spoken
    assert "tool_use" not in spoken
    assert "tool_result" not in spoken


def test_a_model_without_tools_is_asked_for_text_and_this_is_remembered() -> None:
    toolless = fault(400, "this endpoint does not support tools")
    block = f"```python\n{CODE}```"
    with connected([toolless, text(block), text(block)]) as (server, client):
        first, second = client.ask(PROMPT, accept), client.ask(PROMPT, accept)

    assert isinstance(first, Submission)
    assert isinstance(second, Submission)
    assert [_choice(r.body) for r in server.requests] == ["auto", None, None]
    assert "tools" not in server.requests[-1].body
    assert "```python" in json.dumps(server.requests[-1].body["messages"])


def test_a_tool_that_is_refused_where_none_is_offered_ends_the_asking() -> None:
    with connected(lambda _: fault(400, "tools are not understood")) as (server, client):
        asked = client.ask(PROMPT, accept)

    assert isinstance(asked, NoSubmission)
    assert asked.problem.action is RetryAction.USER
    assert "tools are not understood" in asked.problem.words
    assert len(server.requests) == 2


def test_the_unchanging_part_comes_first_and_is_marked_for_caching() -> None:
    with connected([submission(CODE), submission(CODE)]) as (server, client):
        client.ask(PROMPT, accept)
        later = client.ask(replace(PROMPT, turn="Trial 4."), accept)

    first, second = (request.body for request in server.requests)
    assert first["system"] == second["system"]
    assert first["system"] == [
        {"type": "text", "text": "You choose."},
        {
            "type": "text",
            "text": "The study.",
            "cache_control": {"type": "ephemeral", "ttl": "1h"},
        },
    ]
    assert "cache_control" not in json.dumps([first["messages"], second["messages"]])
    assert later.exchange.usage.cache_read_tokens > 0
    assert later.exchange.usage.cache_write_tokens == 0


def test_an_auth_token_is_sent_as_bearer_and_scrubbed_as_a_key() -> None:
    with ScriptedMessagesServer([text(f"your token is {KEY}"), fault(401, KEY)]) as server:
        token = Secret(KEY, "ANTHROPIC_AUTH_TOKEN")
        settings = LlmSettings(api_key=token, base_url=server.url, attempts=1)
        client = LlmClient(settings, AnthropicTransport(settings))
        asked = client.ask(PROMPT, accept)
        client.close()

    assert isinstance(asked, NoSubmission)
    assert asked.problem.words.startswith("the key in ANTHROPIC_AUTH_TOKEN was rejected (401)")
    assert [r.headers.get("authorization") for r in server.requests] == [f"Bearer {KEY}"] * 2
    assert all("x-api-key" not in r.headers for r in server.requests)
    assert KEY not in to_json(asked.exchange)


def test_a_local_model_is_asked_as_the_page_about_studies_says(monkeypatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "study.md").read_text(encoding="utf-8")
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
        client = LlmClient(settings, AnthropicTransport(settings))
        allowance = Allowance(Budget(max_tokens=100_000), "qwen3-coder", None, list)
        asked = client.ask(PROMPT, accept, allowance=allowance)
        client.close()

    assert isinstance(asked, Submission)
    assert asked.draft.code == CODE
    assert [r.body["model"] for r in server.requests] == ["qwen3-coder"] * 3
    assert {r.headers["authorization"] for r in server.requests} == {"Bearer ollama"}


def test_effort_and_thinking_are_sent_where_they_are_set() -> None:
    with ScriptedMessagesServer([submission(CODE)]) as server:
        settings = LlmSettings(
            api_key=Secret(KEY), base_url=server.url, effort="high", thinking_tokens=2048
        )
        client = LlmClient(settings, AnthropicTransport(settings))
        client.ask(PROMPT, accept)
        client.close()

    assert server.requests[0].body["output_config"] == {"effort": "high"}
    assert server.requests[0].body["thinking"] == {"type": "enabled", "budget_tokens": 2048}


def test_a_request_holds_no_sampling_parameter() -> None:
    with connected([submission(CODE)]) as (server, client):
        client.ask(PROMPT, accept)

    fields = {"model", "max_tokens", "system", "messages", "tools", "tool_choice"}
    assert server.requests[0].body.keys() == fields


@pytest.mark.parametrize(
    "reply",
    [
        submission(f"# {KEY}\n{CODE}", rationale=KEY, expected_speedup=1.1),
        text(f"your key is {KEY}"),
        message({"type": "tool_use", "id": "t", "name": KEY, "input": {}}),
        fault(429, f"slow down, {KEY}"),
        fault(529, KEY, headers={"x-echo": KEY}),
    ],
)
def test_an_echoed_key_is_scrubbed_from_what_comes_back(reply: ScriptedReply) -> None:
    with connected([reply], attempts=1) as (_, client):
        asked = client.ask(PROMPT, accept)

    assert KEY not in to_json(asked.exchange)
    assert KEY not in repr(asked)
    assert "[key]" in repr(asked)


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_an_echoed_key_is_scrubbed_from_errors(status: int) -> None:
    with connected([fault(status, f"bad key {KEY}")]) as (_, client):
        asked = client.ask(PROMPT, accept)

    assert KEY not in repr(asked)
    assert KEY not in to_json(asked.exchange)


def test_a_key_is_never_shown_or_stored() -> None:
    settings = LlmSettings(api_key=Secret(KEY))

    assert KEY not in f"{settings!r} {settings} {settings.api_key} {settings.api_key!r}"
    with pytest.raises(TypeError, match="not stored"):
        pickle.dumps(settings.api_key)


@pytest.mark.parametrize("word", ["none", "EMPTY", "test"])
def test_a_word_in_the_place_of_a_key_is_not_taken_out_of_replies(word: str) -> None:
    assert Secret(word).scrub(f"{{'offload': '{word}'}}") == f"{{'offload': '{word}'}}"


@pytest.mark.parametrize("text", ["", "sk test", "sk-test\n", "sk-t\u00e9st", "sk\x00"])
def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(ProviderError, match="ANTHROPIC_API_KEY is empty or holds") as raised:
        Secret(text)

    assert text == "" or text not in str(raised.value)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "https://", "http://u:p@host"])
def test_a_base_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ProviderError, match="base URL of the model must read"):
        LlmSettings(api_key=Secret(KEY), base_url=url)


def test_a_script_may_answer_by_what_it_is_asked() -> None:
    def script(request: Mapping[str, object]) -> ScriptedReply:
        return submission(f"{CODE}# {'Trial 3' in json.dumps(request['messages'])}")

    with connected(script) as (_, client):
        asked = client.ask(PROMPT, accept)

    assert isinstance(asked, Submission)
    assert asked.draft.code.endswith("# True")


def test_a_script_that_raises_fails_its_test() -> None:
    def script(request: Mapping[str, object]) -> ScriptedReply:
        raise KeyError(request["model"])

    with (
        pytest.raises(KeyError, match="claude-opus-5-5"),
        connected(script, attempts=1) as (_, client),
    ):
        client.ask(PROMPT, accept)


def _choice(body: Mapping[str, object]) -> str | None:
    match body.get("tool_choice"):
        case {"type": str(kind)}:
            return kind
    return None
