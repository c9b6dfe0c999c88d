"""What a client makes of a service that is away, comes back, or is none."""

import threading
from collections import deque
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from search.client.client import (
    Client,
    RemoteStudy,
    ServiceAway,
    ServiceRefused,
    address_of,
    events_in,
    lines_in,
)

AWAY = (503, {}, b'{"error": "the disk is full"}')
EMPTY = (200, {}, b"[]")
BROKEN = None
"""A connection that is closed without an answer."""


@dataclass
class Scripted:
    """A service that answers what it is told to, and remembers what it was asked."""

    answers: deque = field(default_factory=deque)
    asked: list = field(default_factory=list)
    naps: list = field(default_factory=list)
    url: str = ""

    def client(self, patience_s=60.0):
        return Client(self.url, "token", patience_s=patience_s, sleep=self.naps.append)


@pytest.fixture
def scripted():
    script = Scripted()

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            script.asked.append((self.command, self.path, dict(self.headers), body))
            answer = script.answers.popleft()
            if answer is BROKEN:
                return
            status, headers, content = answer
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = answer

        def log_message(self, *_arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    script.url = f"http://127.0.0.1:{server.server_port}"
    yield script
    server.shutdown()
    thread.join()
    server.server_close()


def stream(*events):
    text = "".join(f"id: {id_}\nevent: {name}\ndata: {data}\n\n" for id_, name, data in events)
    return (200, {"content-type": "text/event-stream"}, text.encode())


@pytest.mark.parametrize("trouble", [AWAY, BROKEN, (502, {}, b""), (504, {}, b"<html>")])
def test_reading_waits_for_a_service_that_comes_back(scripted, trouble):
    scripted.answers.extend([trouble, trouble, EMPTY])

    with scripted.client() as client:
        assert client.environments() == []

    assert scripted.naps == [0.5, 1.0]


def test_a_download_waits_for_a_service_that_comes_back(scripted, tmp_path):
    tag = {"etag": f'"{sha256(b"text").hexdigest()}"'}
    scripted.answers.extend([AWAY, BROKEN, (200, tag, b"text")])

    with scripted.client() as client:
        study = RemoteStudy(client, "one")
        path = study.download(0, "a.log", tmp_path / "a.log")

    assert (path.read_bytes(), scripted.naps) == (b"text", [0.5, 1.0])


def test_a_client_without_patience_tells_at_once_what_the_service_says(scripted):
    scripted.answers.append(AWAY)

    with scripted.client(patience_s=0) as client, pytest.raises(ServiceAway, match="disk is full"):
        client.environments()


def test_too_many_requests_are_sent_more_slowly(scripted):
    scripted.answers.extend([(429, {"retry-after": "1"}, b"{}"), EMPTY])

    with scripted.client() as client:
        assert client.environments() == []


def test_a_queue_that_is_full_is_no_reason_to_wait(scripted):
    scripted.answers.append((429, {}, b'{"error": "the queue is full"}'))

    with scripted.client() as client, pytest.raises(ServiceRefused, match="queue is full"):
        client.submit()


def test_a_submission_whose_answer_was_lost_is_sent_again_under_the_same_key(scripted):
    scripted.answers.extend([BROKEN, (201, {}, b'{"id": "a", "status": "queued"}')])

    with scripted.client() as client:
        study = client.submit(trials=3)

    keys = [headers["idempotency-key"] for _, _, headers, _ in scripted.asked]
    assert study.id == "a"
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_cancelling_is_never_sent_twice(scripted):
    scripted.answers.extend([(201, {}, b'{"id": "a", "status": "queued"}'), BROKEN])

    with scripted.client() as client, pytest.raises(ServiceAway):
        client.submit().cancel()

    assert len(scripted.asked) == 2


def test_nobody_there_is_an_error_that_says_what_to_do():
    with (
        Client("http://127.0.0.1:9", patience_s=0) as client,
        pytest.raises(ServiceAway, match="is `cclsearch serve` running there"),
    ):
        client.environments()


@pytest.mark.parametrize("content", [b"<html>", b"{}", b'[{"name": 3}]', b"\xff\xfe", b"[" * 10**5])
def test_an_answer_of_something_else_is_told_as_such(scripted, content):
    scripted.answers.append((200, {}, content))

    with scripted.client() as client, pytest.raises(ServiceAway, match="does not answer as"):
        client.environments()


def test_a_token_does_not_follow_a_redirect(scripted):
    scripted.answers.append((302, {"location": f"{scripted.url}/elsewhere"}, b""))

    with scripted.client() as client, pytest.raises(ServiceAway, match="redirects"):
        client.environments()

    assert len(scripted.asked) == 1


def test_events_go_on_where_a_lost_connection_ended(scripted):
    cut = stream(("10", "trial_started", '{"ordinal": 0}'))
    cut = (*cut[:2], cut[2] + b"id: 20\nevent: trial_fin")
    rest = stream(("20", "trial_finished", '{"ordinal": 0}'), ("20", "end", "{}"))
    scripted.answers.extend([cut, BROKEN, AWAY, rest])

    with scripted.client() as client:
        found = list(events_of(client))

    assert [(event.id, event.name) for event in found] == [
        ("10", "trial_started"),
        ("20", "trial_finished"),
    ]
    assert [headers.get("last-event-id") for _, _, headers, _ in scripted.asked] == [
        None,
        *["10"] * 3,
    ]


def test_events_of_a_service_that_stays_away_end_with_an_error(scripted):
    scripted.answers.append(BROKEN)

    with scripted.client(patience_s=0) as client, pytest.raises(ServiceAway, match="reached"):
        list(events_of(client))


def test_an_event_that_is_no_object_is_kept_as_its_text():
    lines = lines_in([b"data: [1,", b" 2]\r\n\n: alive\n\nda", b"ta: {}\n\ndata: lost"])

    assert [dict(event.facts) for event in events_in(lines)] == [{"text": "[1, 2]"}, {}]


def test_separators_of_other_alphabets_do_not_end_a_line():
    assert list(lines_in(["a\u2028b\x85c\n".encode()])) == ["a\u2028b\x85c"]


def test_a_line_without_an_end_does_not_fill_the_memory():
    with pytest.raises(ServiceAway, match="does not end"):
        list(lines_in(b"x" * (1 << 20) for _ in range(100)))


def test_an_address_keeps_the_folder_that_a_proxy_serves_it_under():
    assert address_of("https://h.example/search/?token=a%2Bb") == (
        "https://h.example/search",
        "a+b",
    )


def events_of(client):
    return RemoteStudy(client, "a").events()
