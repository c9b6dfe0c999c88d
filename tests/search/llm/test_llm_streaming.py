"""A reply in pieces is the message that it would have been in one."""

import json
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.llm.client import LlmClient, NoSubmission, Submission
from search.llm.messages import Prompt, streamed_answer
from search.llm.transport import AnthropicTransport
from search.settings import LlmSettings, Secret
from tests.support.search import (
    Script,
    ScriptedMessagesServer,
    ScriptedReply,
    event_lines,
    message,
    submission,
    text,
)

CODE = "def generate_config(workload, environment):\n    return {'dp': 4}\n"
PROMPT = Prompt(system="You choose.", task="The study.", turn="Trial 3.")
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}

INPUTS = st.dictionaries(st.text(), st.text() | st.integers() | st.none(), max_size=3)
BLOCKS = st.one_of(
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
        "content": st.lists(BLOCKS, max_size=4),
        "stop_reason": st.sampled_from(["end_turn", "max_tokens", None]),
        "usage": st.just({"input_tokens": 3, "output_tokens": 7}),
    }
)


def asked(script: Script, *, attempts: int = 1, streams: bool = True):
    """What comes of one turn, and the requests that it took."""
    with ScriptedMessagesServer(script, streams=streams) as server:
        settings = LlmSettings(
            api_key=Secret("sk-test"), base_url=server.url, attempts=attempts, retry_wait_s=0.001
        )
        client = LlmClient(settings, AnthropicTransport(settings))
        came = client.ask(PROMPT, lambda _: None)
        client.close()
        return came, list(server.requests)


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
    whole = {
        "content": [{"type": "tool_use", "id": "t", "name": "n", "input": {"code": "x" * 90}}],
        "stop_reason": "max_tokens",
    }
    lines = [line for line in event_lines(whole) if '"partial_json": "xx' not in line]

    content = json.loads(streamed_answer("".join(lines)).text)["content"]

    assert content[0]["input"].startswith('{"code": "')


def test_a_stream_is_asked_for_and_the_whole_message_recorded():
    came, (request,) = asked([submission(CODE)])

    assert isinstance(came, Submission)
    assert request.stream
    (row,) = json.loads(came.exchange.reply)
    assert json.loads(row["body"])["content"][0]["input"]["code"] == CODE
    assert came.exchange.usage.output_tokens > 1
    assert "stream" not in came.exchange.request


def test_a_provider_that_sends_no_stream_is_read_too():
    came, _ = asked([submission(CODE)], streams=False)

    assert isinstance(came, Submission)


def test_an_error_within_a_stream_is_the_error_that_it_names():
    lines = "".join(list(event_lines(submission(CODE).body))[:3])
    stream = f"{lines}event: error\ndata: {json.dumps(OVERLOADED)}\n\n"
    came, requests = asked([ScriptedReply(page=stream)] * 2, attempts=2)

    assert isinstance(came, NoSubmission)
    assert "is overloaded or unavailable (529): Overloaded" in came.problem.words
    assert len(requests) == 2


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_the_standard_lets_them(end):
    stream = "".join(event_lines(text("a\u2028b").body)).replace("\n", end)
    content = json.loads(streamed_answer(stream.replace("\\u2028", "\u2028")).text)["content"]

    assert content == [{"type": "text", "text": "a\u2028b"}]


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
        Thread(target=server.serve_forever, daemon=True).start()
        settings = LlmSettings(
            api_key=Secret("sk-test"),
            base_url=f"http://127.0.0.1:{server.server_port}",
            attempts=1,
            timeout_s=0.3,
        )
        client = LlmClient(settings, AnthropicTransport(settings))
        came = client.ask(PROMPT, lambda _: None)
        client.close()
        server.shutdown()

    assert isinstance(came, NoSubmission)
    assert "sent a reply that does not end" in came.problem.words
