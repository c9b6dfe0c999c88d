"""Requests that mean no good: what is not HTTP, too large, too deep, foreign or doubled."""

import json
import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from search.service import guard
from search.service.config import Limits, ServiceConfig

BEARER = "Authorization: Bearer submit-token-of-a-test"
SMALL = ServiceConfig(limits=Limits(body_bytes=2000))


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


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def test_a_body_that_says_it_is_too_large_is_refused_unread(serve, recorded_store):
    served = serve(recorded_store, SMALL)
    code, answer = served.say(head=post("Content-Length: 2001"))
    assert code == 413
    assert "larger than 2000 bytes" in answer


def test_a_body_that_does_not_say_how_large_it_is_is_refused_when_it_is_too_large(
    serve, recorded_store
):
    served = serve(recorded_store, SMALL)
    body = chunk(b'{"name": "') + chunk(b"a" * 1000) * 2
    code, answer = served.say(head=post("Transfer-Encoding: chunked"), body=body)
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


def test_a_body_that_never_comes_ends(served, monkeypatch):
    monkeypatch.setattr(guard, "BODY_S", 0.05)
    code, answer = served.say(head=post("Content-Length: 100"), body=b'{"na')
    assert code == 408
    assert "did not arrive within" in answer


def test_a_body_without_a_token_is_read_and_dropped(shared):
    with shared.client(None) as stranger:
        answer = stranger.post("/api/v1/studies", content=b"a" * 200_000)
    assert answer.status_code == 401


def test_nobody_without_a_token_sends_a_large_form(shared):
    with shared.client(None, headers={"origin": shared.url}) as stranger:
        answer = stranger.post("/login", data={"token": "a" * 20_000})
    assert answer.status_code == 413


def test_every_answer_tells_browsers_what_a_page_may_do(shared):
    addresses = ["/login", "/api/v1/studies", "/api/v1/none", "/static/0/pages.css", "/nowhere"]
    with shared.client("read") as reader:
        answers = [reader.get(address) for address in addresses]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "server" not in answer.headers


@pytest.mark.parametrize("name", ["../key", "..%2f..%2fservice%2fkey", "%2fetc%2fpasswd", ""])
def test_a_file_is_found_by_its_own_name_alone(shared, name):
    with shared.client("read") as reader:
        answer = reader.get(f"/api/v1/studies/20260101-000000-aaaa/trials/0/files/{name}")
    assert answer.status_code in {303, 401, 404}


@pytest.mark.parametrize(
    "study",
    ["20260101-000000-aaa", "20260101", "%2e%2e", "*", "20260101-000000-aaaa%00", "..%2fkey"],
)
def test_a_study_is_found_by_its_whole_id_alone(shared, study):
    with shared.client("admin") as reader:
        answers = [
            reader.get(f"/api/v1/studies/{study}"),
            reader.get(f"/api/v1/studies/{study}/events"),
            reader.post(f"/api/v1/studies/{study}/cancel"),
        ]
    assert [answer.status_code for answer in answers] == [404, 404, 404]
