"""Connections that wait: thousands that ask nothing, heads that never end, readers that stall."""

import resource
import socket
import time

import pytest

from search.service import server as connections
from search.service.server import allow_many_files

ASKED = "GET /api/v1/studies HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n"


@pytest.fixture
def many(served):
    """Opens bare connections, all closed at the end."""
    opened: list[socket.socket] = []

    def connect(count):
        opened.extend(served.connected() for _ in range(count))
        return opened[-count:]

    yield connect
    for one in opened:
        one.close()


def rest(connection):
    """What still comes before the end, for which there are 20 seconds."""
    try:
        return b"".join(iter(lambda: connection.recv(65536), b""))
    except ConnectionResetError:
        return b""


def test_a_thousand_idle_connections_leave_a_reader_its_answers(request, served, many):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    request.addfinalizer(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, before))
    allow_many_files()  # as the service does for itself
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2500:
        pytest.skip(f"needs 2,500 open files; this machine allows a process {soft}")
    idle = many(1000)
    with served.client("read") as reader:
        assert {reader.get("/api/v1/studies").status_code for _ in range(3)} == {200}
    idle[-1].sendall(ASKED.format(served.tokens["read"]).encode() + b"\r\n")
    assert idle[-1].recv(100).startswith(b"HTTP/1.1 200")


def test_beyond_the_limit_the_longest_idle_ones_give_way(served, many, monkeypatch):
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 5)
    opened = many(8)
    assert [rest(one) for one in opened[:4]] == [b""] * 4
    with served.client("read") as reader:
        assert reader.get("/api/v1/studies").status_code == 200
    opened[-1].sendall(ASKED.format(served.tokens["read"]).encode() + b"\r\n")
    assert opened[-1].recv(100).startswith(b"HTTP/1.1 200")


def test_a_connection_that_asks_nothing_ends(many, monkeypatch):
    monkeypatch.setattr(connections, "IDLE_S", 0.05)
    assert rest(*many(1)) == b""


@pytest.mark.parametrize("sent", ["", "GET / HT", ASKED])
def test_a_head_that_is_never_whole_ends(many, monkeypatch, sent):
    monkeypatch.setattr(connections, "IDLE_S", 0.05)
    (slow,) = many(1)
    slow.sendall(sent.encode())
    assert b" 200 " not in rest(slow)


def test_a_connection_that_was_answered_and_asks_no_more_ends(served, many, monkeypatch):
    (kept,) = many(1)
    asked = ASKED.format(served.tokens["read"]).encode() + b"\r\n"
    kept.sendall(asked)
    assert kept.recv(100).startswith(b"HTTP/1.1 200")
    monkeypatch.setattr(connections, "IDLE_S", 0.05)
    kept.sendall(asked + asked)  # the second before the first is answered
    answers = b"".join(iter(lambda: kept.recv(65536), b""))
    assert answers.count(b"HTTP/1.1 200") == 2


def test_a_reader_of_events_that_takes_nothing_is_let_go(served, monkeypatch):
    monkeypatch.setattr(connections, "STALLED_S", 0.1)
    events = served.service.store / "service" / "runs" / "20260101-000000-aaaa" / "events.jsonl"
    events.parent.mkdir(parents=True)
    events.write_text(('{"event": "x", "text": "' + "a" * 60_000 + '"}\n') * 200)
    with socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(("127.0.0.1", served.service.config.listen.port))
        asked = ASKED.replace("studies ", "studies/20260101-000000-aaaa/events ")
        stalled.sendall(asked.format(served.tokens["read"]).encode() + b"\r\n")
        while not served.service.streams.total():
            time.sleep(0.01)
        while served.service.streams.total():  # until it was given up, though we never went away
            time.sleep(0.01)
        assert len(rest(stalled)) < 10_000_000
