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

import pytest

from records.errors import StudyError
from records.store.store import Store
from search.service import webhooks as module
from search.service.config import Webhook
from search.service.queue import RunTable, State
from search.service.webhooks import WebhookSender, secret_in, wait_s
from tests.search.service.queueing import submission
from tests.support import records as testing
from tests.support.search import deaf_port

SECRET = b"a long random text"


class Receiver:
    """A server on loopback that answers with bytes, whatever they are, and keeps what came."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.answers(204)
        self.stays = False
        self._at = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self._at.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def answers(self, status: int, *headers: str) -> None:
        """Answer with this status from now on."""
        self.answer = "\r\n".join([f"HTTP/1.1 {status} x", "content-length: 0", *headers, "", ""])

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._at.accept()
            except OSError:
                return
            self._open.append(connection)
            with connection.makefile("rb") as sent:
                request = sent.readline()
                if not request:  # who asked has gone
                    continue
                path = request.decode().split()[1]
                lines = iter(lambda: sent.readline().decode().strip(), "")
                headers = dict(line.split(": ", 1) for line in lines)
                body = sent.read(int(headers["Content-Length"]))
            self.got.append((path, headers, body))
            connection.sendall(self.answer.encode())
            if not self.stays:
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
        self.table = RunTable(folder / "queue.db")
        self.restart(url)
        with closing(Store(folder / "store")) as store:
            store.create("one", testing.study(), "test")
            self.table.add(submission())
            self.table.change_from("one", State.PENDING, State.FAILED, message="it <broke>")
            self.table.enqueue("one", self.sender.deliveries_for(self.table.find("one"), store))

    def restart(self, *urls: str) -> None:
        """Another service, which tells these addresses."""
        webhooks = [Webhook(url=url, secret_file="secret") for url in urls]
        path = self.folder / "queue.db"
        self.sender = WebhookSender(path, webhooks, self.folder, lambda: self.now_s)

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
    receiver.answers(500)
    office.look()
    office.look()
    assert len(receiver.got) == 1
    assert office.sender.fault.endswith("it answered 500")
    first = receiver.got[0][1]["X-Cclsearch-Delivery"]

    receiver.answers(200)
    office.now_s += wait_s(0) + 1
    office.restart(f"{receiver.url}/hook?to=me")
    office.look()

    assert [got[1]["X-Cclsearch-Delivery"] for got in receiver.got] == [first, first]
    assert office.table.deliveries() == ()
    office.look()
    assert office.sender.fault is None


def test_who_does_not_take_one_message_does_not_hold_up_the_others(office, receiver):
    (first,) = office.table.deliveries()
    with closing(Receiver()) as other:
        receiver.answers(503)
        more = [replace(first, id=f"{n}") for n in range(3)]
        office.table.enqueue("one", [*more, replace(first, id="9", url=other.url)])
        office.restart(first.url, other.url)
        office.look()

        assert (len(receiver.got), len(other.got)) == (1, 1)
        office.look()
        assert len(receiver.got) == 2


def test_it_waits_longer_each_time_and_gives_up_at_last(office, receiver, caplog, monkeypatch):
    monkeypatch.setattr(module, "MOST_ATTEMPTS", 3)
    receiver.answers(404)
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
    ("answer", "words"),
    [
        ("", ""),
        ("no HTTP at all\r\n\r\n", ""),
        (f"HTTP/1.1 200 OK\r\nx: {'y' * 100_000}", ""),
        ("HTTP/1.1 302 x\r\nlocation: /elsewhere\r\n\r\n", "it answered 302"),
        ("HTTP/1.1 200 OK\r\nx: y", "no response within 3 s"),
    ],
)
def test_an_answer_that_is_none_is_a_problem_in_words(answer, words, office, receiver, monkeypatch):
    receiver.answer, receiver.stays = answer, "no response" in words
    if receiver.stays:
        monkeypatch.setattr(module, "TAKES_S", 3.0)
    office.look()

    assert office.sender.fault.endswith(words)
    assert len(office.table.deliveries()) == len(receiver.got) == 1


def test_nobody_there_is_a_problem_in_words(office):
    (first,) = office.table.deliveries()
    office.table.drop(first)
    with deaf_port() as port:
        url = f"http://127.0.0.1:{port}"
        office.table.enqueue("one", [replace(first, url=url)])
        office.restart(url)
        office.look()

    assert "cannot be reached" in office.sender.fault


def test_an_address_that_is_configured_no_more_is_not_told(office, receiver):
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
