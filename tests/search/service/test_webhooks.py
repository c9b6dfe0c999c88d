"""Webhooks: what a receiver gets, and what happens when it does not take it."""

import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from records.errors import StudyError
from records.store.store import Store
from search.service import webhooks as module
from search.service.config import Webhook
from search.service.queue import RunTable, State
from search.service.webhooks import WebhookSender, secret_in, wait_s
from tests.search.service.queueing import submission
from tests.support import records as testing

SECRET = b"a long random text"


class Receiver:
    """A real receiver on loopback, which answers with `status` and keeps what came."""

    def __init__(self) -> None:
        self.status, self.got = 204, []
        self.sends_on_to: str | None = None
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.got.append((self.path, dict(self.headers.items()), body))
                self.send_response(receiver.status)
                if receiver.sends_on_to is not None:
                    self.send_header("location", receiver.sends_on_to)
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *_: object) -> None:
                """Stay quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class RawServer:
    """A server on loopback that answers one request with bytes, whatever they are."""

    def __init__(self, answer: bytes, stays: bool = False) -> None:
        self._at = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._at.getsockname()[1]}/"
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, args=(answer, stays))
        self._thread.start()

    def _serve(self, answer: bytes, stays: bool) -> None:
        try:
            connection, _ = self._at.accept()
        except OSError:
            return
        self._open.append(connection)
        connection.recv(1 << 16)
        connection.sendall(answer)
        if not stays:
            connection.close()

    def close(self) -> None:
        self._at.shutdown(socket.SHUT_RDWR)
        self._at.close()
        self._thread.join()
        for connection in self._open:
            connection.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with closing(Receiver()) as receiver:
        yield receiver


class Office:
    """A queue with one study that ended, and a sender whose clock the test sets."""

    def __init__(self, folder, url: str) -> None:
        (folder / "secret").write_bytes(SECRET + b"\n")
        self.folder, self.now_s = folder, time.time()
        self.webhooks = [Webhook(url=url, secret_file="secret")]
        self.table = RunTable(folder / "queue.db")
        self.restart()
        with closing(Store(folder / "store")) as store:
            store.create("one", testing.study(), "test")
            self.table.add(submission())
            self.table.change_from("one", State.PENDING, State.FAILED, message="it <broke>")
            self.table.enqueue("one", self.sender.deliveries_for(self.table.find("one"), store))

    def restart(self) -> None:
        path = self.folder / "queue.db"
        self.sender = WebhookSender(path, self.webhooks, self.folder, lambda: self.now_s)

    def tell_instead(self, url: str) -> None:
        """Have the end told to another address."""
        (before,) = self.table.deliveries()
        self.table.drop(before)
        self.table.enqueue("one", [replace(before, url=url)])
        self.webhooks = [Webhook(url=url, secret_file="secret")]
        self.restart()

    def look(self) -> None:
        self.sender.deliver_due(self.table)

    def close(self) -> None:
        self.table.close()


@pytest.fixture
def office(tmp_path, receiver) -> Iterator[Office]:
    with closing(Office(tmp_path, f"{receiver.url}/hook?to=me")) as office:
        yield office


def test_the_end_of_a_study_is_told_once_and_signed(office, receiver):
    office.look()
    office.look()

    ((path, headers, body),) = receiver.got
    assert path == "/hook?to=me"
    told = json.loads(body)
    assert told["event"] == "study_ended"
    assert told["study"]["id"] == "one"
    assert (told["study"]["status"], told["study"]["message"]) == ("failed", "it <broke>")
    signed = headers["X-Cclsearch-Timestamp"].encode() + b"." + body
    expected = hmac.new(SECRET, signed, hashlib.sha256).hexdigest()
    assert headers["X-Cclsearch-Signature"] == f"sha256={expected}"
    assert SECRET.decode() not in str(headers)
    assert office.table.deliveries() == ()


def test_what_is_not_taken_is_tried_later_also_by_the_next_service(office, receiver):
    receiver.status = 500
    office.look()
    office.look()
    assert len(receiver.got) == 1
    assert office.sender.fault.endswith("it answered 500")
    first = receiver.got[0][1]["X-Cclsearch-Delivery"]

    receiver.status = 200
    office.now_s += wait_s(0) + 1
    office.restart()
    office.look()

    assert [got[1]["X-Cclsearch-Delivery"] for got in receiver.got] == [first, first]
    assert office.table.deliveries() == ()
    office.look()
    assert office.sender.fault is None


def test_who_does_not_take_one_message_does_not_hold_up_the_others(office, receiver):
    with closing(Receiver()) as broken:
        broken.status = 503
        office.tell_instead(f"{broken.url}/broken")
        (first,) = office.table.deliveries()
        more = [replace(first, id=f"{n}", url=first.url) for n in range(3)]
        office.table.enqueue("one", [*more, replace(first, id="9", url=receiver.url)])
        office.webhooks.append(Webhook(url=receiver.url, secret_file="secret"))
        office.restart()
        office.look()

        assert (len(broken.got), len(receiver.got)) == (1, 1)
        office.look()
        assert len(broken.got) == 2


def test_a_redirect_is_not_followed(office, receiver):
    receiver.status, receiver.sends_on_to = 302, f"{receiver.url}/elsewhere"
    office.look()

    assert [path for path, _, _ in receiver.got] == ["/hook?to=me"]
    assert office.sender.fault.endswith("it answered 302")


def test_it_waits_longer_each_time_and_gives_up_at_last(office, receiver, caplog, monkeypatch):
    monkeypatch.setattr(module, "MOST_ATTEMPTS", 3)
    receiver.status = 404
    due = []
    while office.table.deliveries():
        office.look()
        due += [each.due_s - office.now_s for each in office.table.deliveries()]
        office.now_s += 10_000

    assert due == [wait_s(0), wait_s(1)]
    assert wait_s(0) < wait_s(1) < wait_s(100) == wait_s(10_000)
    assert len(receiver.got) == 3
    assert "gave up" in caplog.text


@pytest.mark.parametrize(
    "answer",
    [b"", b"no HTTP at all\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000],
)
def test_an_answer_that_is_none_is_a_problem_in_words(answer, office):
    with closing(RawServer(answer)) as raw:
        office.tell_instead(raw.url)
        office.look()

        assert office.sender.fault is not None
        assert len(office.table.deliveries()) == 1


def test_an_answer_that_never_ends_is_cut_off(office, monkeypatch):
    with closing(RawServer(b"HTTP/1.1 200 OK\r\nx: y", stays=True)) as raw:
        monkeypatch.setattr(module, "TAKES_S", 0.1)
        office.tell_instead(raw.url)
        office.look()

        assert office.sender.fault is not None


def test_nobody_there_is_a_problem_in_words(office):
    with closing(RawServer(b"")) as raw:
        url = raw.url
    office.tell_instead(url)
    office.look()

    assert "cannot be reached" in office.sender.fault


def test_an_address_that_is_configured_no_more_is_not_told(office, receiver):
    office.webhooks = []
    office.restart()
    office.look()

    assert receiver.got == []
    assert office.table.deliveries() == ()


@pytest.mark.parametrize("content", [None, b"", b" \n"])
def test_a_secret_that_is_none_is_refused_at_the_start(content, tmp_path):
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(StudyError, match="secret_file"):
        secret_in(path)


def test_the_thread_delivers_and_stops(office, receiver):
    office.sender.start()
    while office.table.deliveries():
        time.sleep(0.01)
    office.sender.close()

    assert len(receiver.got) == 1
