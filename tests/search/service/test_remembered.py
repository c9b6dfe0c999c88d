"""Answers for many readers: made once, never old."""

import asyncio
import json
import sqlite3

import pytest

from search.service.auth import Caller, Role
from search.service.cache import Remembered

READER = Caller(name="r", role=Role.READ)
PATH = "/api/v1/studies/a"


class Counting:
    """An application that answers how often it was asked."""

    def __init__(self, status=200, kind="application/json", padding=""):
        self.count, self.status, self.kind, self.padding = 0, status, kind, padding

    async def __call__(self, scope, _receive, send):
        self.count += 1
        self.scope = scope
        body = json.dumps({"count": self.count, "padding": self.padding}).encode()
        await asyncio.sleep(0)
        headers = [
            (b"content-type", self.kind.encode()),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body[:5], "more_body": True})
        await send({"type": "http.response.body", "body": body[5:]})


@pytest.fixture
def databases(tmp_path):
    paths = (tmp_path / "one.db", tmp_path / "two.db")
    for path in paths:
        write(path)
    return paths


def write(path):
    db = sqlite3.connect(path)
    with db:
        db.execute("create table if not exists t (x)")
        db.execute("insert into t values (1)")
    db.close()


def ask(app, path=PATH, *, method="GET", caller=READER, query=b"", seen=None, at_once=1):
    """What readers are answered: status, headers, body of each."""

    async def one():
        sent = []
        headers = [] if seen is None else [(b"if-none-match", seen.encode())]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query,
            "headers": headers,
            "state": {"caller": caller},
        }

        async def send(message):
            sent.append(message)

        await app(scope, None, send)
        body = b"".join(message.get("body", b"") for message in sent[1:])
        told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], told, body

    async def all_of_them():
        return await asyncio.gather(*(one() for _ in range(at_once)))

    return asyncio.run(all_of_them())


def counts(app, **more):
    return [json.loads(body)["count"] for _, _, body in ask(app, **more)]


def test_readers_who_ask_at_once_get_one_answer(databases):
    inner = Counting()

    assert counts(Remembered(inner, databases=databases), at_once=50) == [1] * 50


@pytest.mark.parametrize("place", [0, 1])
def test_whatever_is_written_to_either_database_shows_at_once(databases, place):
    app = Remembered(Counting(), databases=databases)
    before = counts(app)

    write(databases[place])

    assert (before, counts(app), counts(app)) == ([1], [2], [2])


def test_an_answer_is_made_anew_after_a_while_whatever_is_written(databases, monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr("search.service.cache.monotonic", lambda: now_s[0])
    app = Remembered(Counting(), databases=databases)
    before = counts(app)

    now_s[0] += 1.0

    assert (before, counts(app)) == ([1], [2])


def test_who_has_the_answer_already_gets_none(databases):
    app = Remembered(Counting(), databases=databases)
    ((_, first, body),) = ask(app)

    ((status, headers, rest),) = ask(app, seen=first["etag"])

    assert (status, rest, headers["etag"]) == (304, b"", first["etag"])
    assert "content-length" not in headers
    assert ask(app, seen='"another"')[0][2] == body


def test_the_application_is_never_asked_what_a_reader_has(databases):
    inner = Counting()

    ask(Remembered(inner, databases=databases), seen='"x"')

    assert inner.scope["headers"] == []


@pytest.mark.parametrize(
    "other",
    [
        {"path": "/api/v1/studies/b"},
        {"query": b"limit=1"},
        {"caller": Caller(name="a", role=Role.ADMIN)},
        {"caller": None},
    ],
)
def test_another_question_has_another_answer(databases, other):
    app = Remembered(Counting(), databases=databases)

    assert (counts(app), counts(app, **other)) == ([1], [2])


@pytest.mark.parametrize(
    "other",
    [
        {"method": "POST"},
        {"method": "HEAD"},
        {"path": "/api/v1/studies/a/events"},
        {"path": "/api/v1/studies/a/trials/1/files/x"},
        {"path": "/api/v1/status"},
        {"path": "/studies"},
    ],
)
def test_what_is_not_asked_by_many_is_passed_on(databases, other):
    app = Remembered(Counting(), databases=databases)

    assert (counts(app, **other), counts(app, **other)) == ([1], [2])


@pytest.mark.parametrize(
    "inner",
    [Counting(status=404), Counting(kind="text/html"), Counting(padding="x" * (1 << 18))],
    ids=["a refusal", "a page", "a large answer"],
)
def test_what_is_not_for_others_is_sent_and_forgotten(databases, inner):
    app = Remembered(inner, databases=databases)

    assert (counts(app), counts(app)) == ([1], [2])
    assert [place.answer for place in app._places.values()] == [None]


def test_without_a_database_nothing_is_remembered(tmp_path):
    app = Remembered(Counting(), databases=[tmp_path / "none.db"])

    assert (counts(app), counts(app)) == ([1], [2])


def test_many_questions_do_not_fill_the_memory(databases):
    app = Remembered(Counting(), databases=databases)

    for number in range(300):
        ask(app, query=f"offset={number}".encode())

    assert len(app._places) == 256
