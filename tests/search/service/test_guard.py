"""Requests that mean no good: not HTTP, too large, too deep, foreign or doubled; and HEAD."""

import json
import logging
import re
import socket
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.service import guard
from search.service.config import Limits, ServiceConfig
from search.service.server import PlainLines

BEARER = "Authorization: Bearer submit-token-of-a-test"
SMALL = ServiceConfig(limits=Limits(body_bytes=2000))
STUDIES = [f"/studies/20260101-00000{number}-aaaa" for number in range(3)]
FINISHED = STUDIES[0]


def post(*more, path="/api/v1/studies", kind="application/json"):
    return "\r\n".join([f"POST {path} HTTP/1.1", BEARER, f"Content-Type: {kind}", *more])


def chunk(content):
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


def test_a_foreign_name_gets_nothing_but_a_refusal(shared):
    code, answer = shared.say(head="GET /studies HTTP/1.1", host="evil.example")
    assert code == 421
    assert "content-security-policy" in answer
    assert "set-cookie" not in answer


@pytest.mark.parametrize(
    ("head", "code"),
    [
        ("GET /api/v1/studies HTTP/1.1\r\nHost: localhost", 400),
        (f"GET /api/v1/studies HTTP/1.1\r\n{BEARER}\r\n{BEARER}", 400),
        (f"GET /api/v1/studies HTTP/1.1\r\n{BEARER}\r\nOrigin: a\r\nOrigin: b", 400),
        (f"GET /api/v1/studies HTTP/1.1\r\n{BEARER}\r\nOrigin: http://[", 403),
        (f"GET /api/v1/studies HTTP/1.1\r\n{BEARER}\r\nOrigin: null", 403),
        ("GET /api/v1/studies HTTP/1.1\r\nAuthorization: Bearer \xff", 401),
        ("GET /api/v1/studies HTTP/1.1\r\nAuthorization: Basic YTpi", 401),
        ("GET /api/v1/studies HTTP/1.1\r\nCookie: =;;==; \xff=\xfe", 401),
        (f"GET /api/v1/{'a' * 8200} HTTP/1.1\r\n{BEARER}", 414),
        (f"GET /api/v1/studies HTTP/1.1\r\n{BEARER}\r\n" + "\r\n".join(["X: y"] * 120), 431),
        (f"GET /api/v1/studies HTTP/1.1\r\n{BEARER}\r\nX: {'y' * 20000}", 431),
        (f"GET http://evil.example/ HTTP/1.1\r\n{BEARER}", 404),
        (f"GET /api/v1/../../etc/passwd HTTP/1.1\r\n{BEARER}", 404),
        (f"GET /static/0/..%2f..%2frendering.py HTTP/1.1\r\n{BEARER}", 404),
        (f"GET /api/v1/studies/%00%ff HTTP/1.1\r\n{BEARER}", 404),
        (f"TRACE /studies HTTP/1.1\r\n{BEARER}\r\nSec-Fetch-Site: same-origin", 405),
        ("\x00\x01\x02", 400),
    ],
)
def test_a_head_that_makes_no_sense_is_refused(shared, head, code):
    assert shared.say(head=head)[0] == code


@settings(max_examples=40)
@given(
    st.binary(max_size=80)
    | st.tuples(
        st.sampled_from(
            [b"GET /", b"POST /login", b"GET /api/v1/studies", b"PUT /api/v1/studies/"]
        ),
        st.binary(max_size=30),
        st.sampled_from([b" HTTP/1.1\r\nHost: localhost\r\n", b" HTTP/1.1\r\n", b"\r\n"]),
        st.binary(max_size=60),
        st.sampled_from([b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", b""]),
    ).map(b"".join)
)
def test_no_bytes_whatever_break_the_service(shared, sent):
    with shared.connected() as at:
        at.sendall(sent)
        at.shutdown(socket.SHUT_WR)
        answer = at.recv(100)
    assert answer == b"" or answer.split(b" ", 2)[1] < b"500"


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("Content-Length: 2001", b""),
        ("Transfer-Encoding: chunked", chunk(b'{"name": "') + chunk(b"a" * 1000) * 2),
    ],
)
def test_a_body_that_is_too_large_is_refused_whether_it_says_so_or_not(
    serve, made_once, header, body
):
    code, answer = serve(made_once, SMALL).say(head=post(header), body=body)
    assert code == 413
    assert "larger than 2000 bytes" in answer


def test_a_length_and_chunks_at_once_smuggle_nothing(shared):
    body = b"0\r\n\r\nGET /api/v1/studies HTTP/1.1\r\n\r\n"
    head = post("Content-Length: 4", "Transfer-Encoding: chunked")
    assert shared.say(head=head, body=body)[1].count("HTTP/1.1 ") == 1


def test_what_is_left_of_a_refused_body_is_never_taken_for_a_request(shared):
    inside = f"GET /api/v1/studies HTTP/1.1\r\nHost: localhost\r\n{BEARER}\r\n\r\n".encode()
    head = f"POST /api/v1/studies HTTP/1.1\r\nContent-Length: {len(inside)}"
    code, answer = shared.say(head=head, body=inside)
    assert code == 401
    assert answer.count("HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "body",
    [b"[" * 100_000, b'{"choices":' * 50_000, b'"\xff"', b"", b"null", b"[]", b"NaN", b'{"a"',
     b'{"trials": 1e400}', b'{"trials": ' + b"9" * 5000 + b"}", b'"\\ud800"'],
)  # fmt: skip
def test_a_body_that_makes_no_sense_is_refused(shared, body):
    with shared.client("submit") as program:
        answer = program.post(
            "/api/v1/studies", content=body, headers={"content-type": "application/json"}
        )
    assert answer.status_code in {400, 422}
    assert json.loads(answer.text)


def test_a_body_that_never_comes_ends(shared, monkeypatch):
    monkeypatch.setattr(guard, "BODY_S", 0.05)
    code, answer = shared.say(head=post("Content-Length: 100"), body=b'{"na')
    assert code == 408
    assert "did not arrive within" in answer


def test_a_stranger_sends_no_large_body(shared):
    with shared.client(None, headers={"origin": shared.url}) as stranger:
        assert stranger.post("/api/v1/studies", content=b"a" * 200_000).status_code == 401
        assert stranger.post("/login", data={"token": "a" * 20_000}).status_code == 413


def test_every_answer_tells_browsers_what_a_page_may_do(client):
    for address in ("/login", "/api/v1/studies", "/api/v1/none", "/static/0/pages.css", "/nowhere"):
        headers = client.get(address).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "server" not in headers


@pytest.mark.parametrize(
    "study",
    ["20260101-000000-aaa", "20260101", "%2e%2e", "*", "20260101-000000-aaaa%00", "..%2fkey"],
)
def test_a_study_is_found_by_its_whole_id_alone(shared, study):
    with shared.client("admin") as admin:
        answers = [
            admin.get(f"/api/v1/studies/{study}"),
            admin.get(f"/api/v1/studies/{study}/events"),
            admin.post(f"/api/v1/studies/{study}/cancel"),
        ]
    assert [answer.status_code for answer in answers] == [404, 404, 404]


@pytest.mark.parametrize(
    "path",
    [
        *("/studies", FINISHED, "/static/0/nothing.js", "/api/v1/health", "/api/v1/studies/none"),
        *("/api/v1/studies", f"/api/v1{FINISHED}", f"/api/v1{FINISHED}/trials"),
    ],
)
def test_the_head_is_that_of_the_whole_answer(client, path):
    whole, head = client.get(path), client.head(path)
    for answer in (whole, head):
        del answer.headers["date"]
    assert (head.status_code, head.content) == (whole.status_code, b"")
    assert head.headers == whole.headers


def test_a_head_needs_a_token_and_something_that_is_read(shared):
    with shared.client(None) as stranger, shared.client("admin") as admin:
        assert stranger.head(f"/api/v1{FINISHED}").status_code == 401
        answer = admin.head(f"/api/v1{FINISHED}/cancel")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


PAGES = [
    "/studies",
    *STUDIES,
    *(f"{study}/{about}" for study in STUDIES for about in ("trials", "policies", "explore")),
    *(f"{study}/trials/{ordinal}" for study in STUDIES for ordinal in (0, 1)),
    f"{FINISHED}/trials/1/transcript",
    f"{FINISHED}/trials/0/log?name=logs/rank0.log",
    "/compare?side=20260101-000000-aaaa:0&side=20260101-000000-aaaa:3",
    "/compare?side=20260101-000000-aaaa&side=20260101-000001-aaaa",
    "/leaderboard",
    "/studies?none=<img src=x>",
    f"{FINISHED}/trials?text=<img src=x onerror=alert(1)>&sort=<img src=x>",
    f"{FINISHED}/trials/0/log?name=<img src=x>",
    "/login?next=/<img src=x>",
    "/<img src=x>",
    "/studies/<img src=x>",
]
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
PLACES = ("href", "src", "action", "formaction")
OURS = re.compile(r"[/?#][^/\\]|[/#?]$|data:image/svg")
FORBIDDEN = {"img", "iframe", "object", "embed", "base", "style", "foreignobject"}


class Tags(HTMLParser):
    """Everything in a page that a browser would do something for."""

    def __init__(self, page):
        super().__init__()
        self.names, self.places, self.attributes, self.scripts = set(), set(), set(), set()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.places |= {value for name, value in attrs if name in PLACES}
        self.scripts |= {dict(attrs).get("src", "none")} if tag == "script" else set()


@pytest.mark.parametrize("page", PAGES)
def test_no_page_shows_what_runs_or_steers(shared, page):
    with shared.client("admin") as browser:
        answer = browser.get(page)
    assert answer.status_code in {200, 404, 422}
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    tags = Tags(answer.text)
    assert not tags.names & FORBIDDEN
    assert [name for name in tags.attributes if name.startswith("on") or name == "style"] == []
    assert [place for place in tags.places if not OURS.match(place)] == []
    assert [place for place in tags.scripts if not place.startswith("/static/")] == []
    assert not STEERING.search(answer.text)
    assert page not in STUDIES[:2] or "&lt;img src=x onerror=alert(1)&gt;" in answer.text


@pytest.mark.parametrize(
    "path",
    ["", "/trials", "/trials/3", "/trials/1/transcript", "/policies", "/history", "/front"],
)
def test_the_api_answers_in_json_that_no_browser_takes_for_a_page(client, path):
    answer = client.get(f"/api/v1{FINISHED}{path}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert not re.search("[\x00-\x1f]", answer.text)


def test_the_log_of_the_service_steers_no_terminal():
    record = logging.makeLogRecord(
        {"msg": "failed: %s", "args": ("\x1b]0;title\x07\u202eabc\x9b",)}
    )
    assert not STEERING.search(PlainLines("%(message)s").format(record))


def test_an_error_that_nobody_foresaw_tells_nothing(shared, client, monkeypatch):
    monkeypatch.setattr(type(shared.service), "study", lambda *_: 1 / 0)
    for path in (f"/api/v1{FINISHED}", FINISHED):
        answer = client.get(path)
        assert answer.status_code == 500
        assert "something went wrong in the service; see its log" in answer.text
        assert "division" not in answer.text and "Traceback" not in answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"]
