"""`cclsearch.Client` against the real service, and one that is away, comes back, or is none."""

import threading
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pandas.testing import assert_frame_equal

import cclsearch
from records.errors import EnvironmentFault, StudyError
from search.client.client import (
    Client,
    NotAllowed,
    NotThere,
    RemoteStudy,
    ServiceAway,
    ServiceRefused,
    StillRunning,
    address_of,
    events_in,
    lines_in,
)
from tests.search.service.conftest import FAILED, FINISHED, IMPORTED


@pytest.fixture
def connect(served):
    """Makes clients with the token of a role."""
    with ExitStack() as opened:

        def make(role="admin", **more):
            client = Client(served.url, served.tokens[role], patience_s=0, **more)
            return opened.enter_context(client)

        yield make


def test_the_client_is_a_public_name():
    assert cclsearch.Client is Client


def test_what_is_read_is_what_the_service_has(connect):
    client = connect("read")
    studies, study = list(client.studies()), client.study(FINISHED)
    trial, (first, second, *_) = study.trial(2), study.policies()
    policy, compared = study.policy(second.digest), client.compare(f"{FINISHED}:0", FINISHED)

    assert [one.id for one in studies] == [IMPORTED, FAILED, FINISHED]
    assert (studies[2].best.value, study.wait().best.value) == (0.25, 0.25)
    assert (trial.ordinal, trial.score.value, trial.score.unit) == (2, 0.25, "s")
    assert trial.rationale.startswith("try <img")
    assert policy.parent == first.digest
    assert "+print(1)" in policy.diff
    assert compared.comparison.rows[0].words.startswith("undecided")
    assert compared.comparison.unit == "s"
    assert client.leaderboard({"by": "step_time"}).items[0].ranked_by == "step_time"
    assert [one.name for one in client.environments()] == ["builtin"]


def test_the_trials_of_a_study_are_the_table_that_its_records_give_here(connect, served):
    frame = connect().study(FINISHED).trials()

    assert_frame_equal(frame, cclsearch.trials(FINISHED, served.service.store))


def test_trials_beyond_a_page_are_fetched_too(connect, monkeypatch):
    monkeypatch.setattr("search.client.client.PAGE", 1)

    frame = connect().study(FINISHED).trials()

    assert list(frame["ordinal"]) == [0, 1, 2, 3]


def test_a_file_of_a_trial_is_saved_whole(connect, tmp_path):
    study = connect().study(FINISHED)
    (file,) = study.files(0)

    path = study.download(0, file.name, tmp_path / "rank0.log")

    assert path.read_text(encoding="utf-8").startswith("step 1 <img")
    assert path.stat().st_size == file.size_bytes
    assert [other.name for other in tmp_path.glob("*.part")] == []


def test_a_file_that_cannot_be_written_is_an_error_of_this_machine(connect, tmp_path):
    study = connect().study(FINISHED)
    (tmp_path / "file").touch()

    for folder in ("nowhere", "file"):
        with pytest.raises(EnvironmentFault, match="cannot write"):
            study.download(0, "logs/rank0.log", tmp_path / folder / "rank0.log")


def test_a_study_is_submitted_watched_and_cancelled(connect):
    client = connect("submit", sleep=lambda _s: None)
    study = client.submit(objectives=["step_time"], trials=3, strategy="offline", key="nightly")
    again = client.submit(objectives=["step_time"], trials=3, strategy="offline", key="nightly")
    other = client.submit(objectives=["step_time"], trials=3, strategy="offline")

    assert (again.id == study.id, other.id == study.id) == (True, False)
    with pytest.raises(StillRunning, match=f"study {study.id} is queued after 0 s"):
        study.wait(timeout_s=0)
    assert (study.cancel(), study.wait().status) == ("cancelled", "cancelled")
    assert study.resume() == "queued"


@pytest.mark.parametrize(
    ("role", "asked", "error", "words"),
    [
        ("read", lambda client: client.study("2027"), NotThere, "no study '2027'"),
        ("read", lambda client: client.submit(trials=3), NotAllowed, "role submit"),
        ("submit", lambda client: client.submit("moon"), ServiceRefused, "'moon' is not offered"),
    ],
)
def test_a_refusal_is_an_error_in_the_words_of_the_service(connect, role, asked, error, words):
    with pytest.raises(error, match=words):
        asked(connect(role))


@pytest.mark.parametrize("study_id", ["../admin", "x?limit=1", "", ".."])
def test_an_id_cannot_lead_elsewhere(connect, study_id):
    with pytest.raises(NotThere):
        connect().study(study_id)


def test_an_unknown_token_is_refused(served):
    with Client(served.url, "of nobody") as client, pytest.raises(NotAllowed, match="token"):
        client.environments()


def test_the_link_that_is_printed_is_address_and_token(served):
    with Client(f"{served.url}/?token={served.tokens['read']}") as client:
        assert len(list(client.studies())) == 3


def test_address_and_token_may_come_from_the_environment(served, monkeypatch):
    monkeypatch.setenv("CCLSEARCH_URL", served.url)
    monkeypatch.setenv("CCLSEARCH_TOKEN", served.tokens["read"])

    with Client() as client:
        assert len(list(client.studies())) == 3


@pytest.mark.parametrize(
    "url", ["", "ftp://here", "127.0.0.1:8765", "http://", "http://me:pw@here", "http://h:x"]
)
def test_what_is_no_address_is_an_error_of_whoever_gave_it(url):
    with pytest.raises(StudyError, match="URL"):
        Client(url or " ")


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
def test_reading_waits_for_a_service_that_comes_back(scripted, tmp_path, trouble):
    tag = {"etag": f'"{sha256(b"text").hexdigest()}"'}
    scripted.answers.extend([trouble, trouble, EMPTY, trouble, BROKEN, (200, tag, b"text")])

    with scripted.client() as client:
        assert client.environments() == []
        study = RemoteStudy(client, "one")
        path = study.download(0, "a.log", tmp_path / "a.log")

    assert (path.read_bytes(), scripted.naps) == (b"text", [0.5, 1.0] * 2)


def test_too_many_requests_are_sent_more_slowly(scripted):
    scripted.answers.extend([(429, {"retry-after": "1"}, b"{}"), EMPTY])

    with scripted.client() as client:
        assert client.environments() == []


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


FULL = (429, {}, b'{"error": "the queue is full"}')
LED_AWAY = (302, {"location": "http://127.0.0.1:9/elsewhere"}, b"")


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (AWAY, ServiceAway, "disk is full"),
        (BROKEN, ServiceAway, "is `cclsearch serve` running there"),
        (FULL, ServiceRefused, "queue is full"),
        (LED_AWAY, ServiceAway, "redirects"),
        *(
            ((200, {}, content), ServiceAway, "does not answer as")
            for content in (b"<html>", b"{}", b'[{"name": 3}]', b"\xff\xfe", b"[" * 10**5)
        ),
    ],
)
def test_an_answer_that_is_no_use_is_an_error_in_words(scripted, answer, error, words):
    scripted.answers.append(answer)

    with scripted.client(patience_s=0) as client, pytest.raises(error, match=words):
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
