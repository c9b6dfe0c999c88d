"""Retries, dead providers, streams and the secrecy of the key, over a real socket."""

import json
import pickle
import time
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from records.codec import to_json
from search.llm.tools import Draft, RetryAction
from search.settings import LlmSettings, ProviderError, Secret
from tests.support.search import (
    CODE,
    LLM_KEY,
    PROMPT,
    ScriptedReply,
    ask,
    client_of,
    deaf_port,
    dropped_connection,
    event_lines,
    fault,
    message,
    slow,
    submission,
    text,
    truncated,
)


@pytest.mark.parametrize(
    "passing",
    [
        fault(429, retry_after_s=0.01),
        fault(429, headers={"retry-after-ms": "5"}),
        fault(429, headers={"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        fault(429, headers={"retry-after": "soon"}),
        *(fault(status) for status in (529, 500, 503, 408, 409)),
        dropped_connection(),
    ],
)
def test_a_passing_fault_is_retried(passing):
    asked = ask([passing, passing, submission(CODE)], attempts=4)

    assert asked.found.code == CODE
    assert asked.exchange.request_count == len(asked.requests) == 3
    assert json.loads(asked.exchange.reply)[-1]["status"] == 200


@pytest.mark.parametrize(
    ("passing", "reason"),
    [
        (fault(529, "Overloaded"), "127.0.0.1 is overloaded or unavailable (529): Overloaded"),
        (fault(429, retry_after_s=0.0), "127.0.0.1 is overloaded or unavailable (429)"),
        (dropped_connection(), "127.0.0.1 broke off: RemoteProtocolError"),
    ],
)
def test_a_fault_that_lasts_is_no_submission(passing, reason):
    asked = ask([passing] * 9, attempts=3)

    assert reason in asked.found.words
    assert asked.found.action is RetryAction.TIME
    assert asked.exchange.request_count == len(asked.requests) == 3


def test_a_request_that_is_sent_again_is_noticed_once():
    notices = []
    replies = [fault(529, "Overloaded"), dropped_connection(), submission(CODE)]
    ask(replies, attempts=4, notice=notices.append)

    assert notices == ["127.0.0.1 is overloaded or unavailable (529): Overloaded; retry in 0 s"]


def test_a_wait_longer_than_a_turn_may_take_ends_the_turn():
    asked = ask([fault(429, retry_after_s=61), submission(CODE)], attempts=4)

    assert asked.found.wait_s == 61
    assert len(asked.requests) == 1
    assert json.loads(asked.exchange.reply)[0]["retry_after_s"] == 61


def test_a_provider_that_says_not_to_retry_is_not_asked_again():
    hopeless = fault(529, headers={"x-should-retry": "false"})

    assert len(ask([hopeless, submission(CODE)], attempts=4).requests) == 1


def test_a_refused_connection_is_no_submission():
    with deaf_port() as port:
        url = f"http://127.0.0.1:{port}"
        settings = LlmSettings(
            api_key=Secret(LLM_KEY), base_url=url, attempts=2, retry_wait_s=0.001
        )
        with closing(client_of(settings)) as client:
            found, _ = client.ask(PROMPT, lambda draft: draft)

    assert found.words.startswith("127.0.0.1 could not be reached: ConnectError")


def test_a_provider_that_never_answers_does_not_hold_the_search():
    asked = ask(lambda _: slow(submission(CODE), 30.0), attempts=9, timeout_s=0.1)

    assert not isinstance(asked.found, Draft)
    assert len(asked.requests) < 9


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
def test_a_lasting_fault_says_what_to_do_in_one_line(reply, words):
    asked = ask([reply], attempts=4)

    assert asked.found.action is RetryAction.USER
    assert words in asked.found.words
    assert asked.found.words.endswith("or use --strategy offline")
    assert "\n" not in asked.found.words
    assert asked.exchange.result == asked.found.words
    assert asked.exchange.request_count == len(asked.requests) == 1


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (ScriptedReply(body={"content": 7}), "answered 200 without a message of the Messages API"),
        (submission("x = '\ud800'"), "answered 200 without a message of the Messages API"),
        (truncated(submission(CODE)), "broke off: the stream of the reply ended before the reply"),
    ],
)
def test_what_is_no_message_is_named(reply, words):
    assert words in ask([reply]).found.words


def test_a_page_of_a_web_server_is_named_with_its_address():
    words = ask([ScriptedReply(page="<!doctype html>\n<title>Sign in</title>")]).found.words

    assert words.startswith("http://127.0.0.1:")
    assert ": '<!doctype html> <title>Sign in</title>'..., a web page" in words


def test_a_stream_is_asked_for_and_the_whole_message_recorded():
    asked = ask([submission(CODE)])

    assert asked.requests[0].stream
    (row,) = json.loads(asked.exchange.reply)
    assert json.loads(row["body"])["content"][0]["input"]["code"] == CODE
    assert asked.exchange.usage.output_tokens > 1
    assert "stream" not in asked.exchange.request


def test_a_provider_that_sends_no_stream_is_read_too():
    assert ask([submission(CODE)], server={"streams": False}).found.code == CODE


def test_an_error_within_a_stream_is_the_error_that_it_names():
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    lines = "".join(list(event_lines(submission(CODE).body))[:3])
    stream = f"{lines}event: error\ndata: {json.dumps(error)}\n\n"
    asked = ask([ScriptedReply(page=stream)] * 2, attempts=2)

    assert "is overloaded or unavailable (529): Overloaded" in asked.found.words
    assert len(asked.requests) == 2


class PingsForEver(BaseHTTPRequestHandler):
    """Never silent for long, and never done."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        with suppress(OSError):
            while True:
                self.wfile.write(b'event: ping\ndata: {"type": "ping"}\n\n')
                time.sleep(0.02)

    def log_message(self, *_: object) -> None:
        pass


def test_a_reply_that_only_pings_is_given_up():
    with ThreadingHTTPServer(("127.0.0.1", 0), PingsForEver) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        key = Secret(LLM_KEY)
        settings = LlmSettings(api_key=key, base_url=url, attempts=1, timeout_s=1)
        with closing(client_of(settings)) as client:
            found, _ = client.ask(PROMPT, lambda draft: draft)
        server.shutdown()

    assert "sent a reply that does not end" in found.words


def test_an_auth_token_is_sent_as_bearer_and_scrubbed_as_a_key():
    token = Secret(LLM_KEY, "ANTHROPIC_AUTH_TOKEN")
    asked = ask([text(f"your token is {LLM_KEY}"), fault(401, LLM_KEY)], key=token)

    assert asked.found.words.startswith("the key in ANTHROPIC_AUTH_TOKEN was rejected (401)")
    headers = [request.headers for request in asked.requests]
    assert [each.get("authorization") for each in headers] == [f"Bearer {LLM_KEY}"] * 2
    assert all("x-api-key" not in each for each in headers)
    assert LLM_KEY not in to_json(asked.exchange)


@pytest.mark.parametrize(
    "reply",
    [
        submission(f"# {LLM_KEY}\n{CODE}", rationale=LLM_KEY, expected_speedup=1.1),
        text(f"your key is {LLM_KEY}"),
        message({"type": "tool_use", "id": "t", "name": LLM_KEY, "input": {}}),
        fault(429, f"slow down, {LLM_KEY}"),
        fault(529, LLM_KEY, headers={"x-echo": LLM_KEY}),
        *(fault(status, f"bad key {LLM_KEY}") for status in (400, 401, 403, 404)),
    ],
)
def test_an_echoed_key_is_scrubbed_from_what_comes_back(reply):
    asked = ask([reply])

    assert LLM_KEY not in to_json(asked.exchange) + repr(asked.found)
    assert "[key]" in repr(asked)


def test_a_key_is_never_shown_or_stored():
    settings = LlmSettings(api_key=Secret(LLM_KEY))

    assert LLM_KEY not in f"{settings!r} {settings} {settings.api_key} {settings.api_key!r}"
    with pytest.raises(TypeError, match="not stored"):
        pickle.dumps(settings.api_key)


@pytest.mark.parametrize("word", ["none", "EMPTY", "test"])
def test_a_word_in_the_place_of_a_key_is_not_taken_out_of_replies(word):
    assert Secret(word).scrub(f"{{'offload': '{word}'}}") == f"{{'offload': '{word}'}}"


@pytest.mark.parametrize("text", ["", "sk test", "sk-test\n", "sk-t\u00e9st", "sk\x00"])
def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(text):
    with pytest.raises(ProviderError, match="ANTHROPIC_API_KEY is empty or holds") as raised:
        Secret(text)

    assert text == "" or text not in str(raised.value)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "https://", "http://u:p@host"])
def test_a_base_url_that_cannot_be_used_is_refused(url):
    with pytest.raises(ProviderError, match="base URL of the model must read"):
        LlmSettings(api_key=Secret(LLM_KEY), base_url=url)
