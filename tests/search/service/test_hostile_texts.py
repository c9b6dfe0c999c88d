"""Names, messages, policies and logs that carry HTML or steer a terminal, wherever shown."""

import logging
import re
from html.parser import HTMLParser

import pytest

from search.service.server import PlainLines

STUDIES = [f"/studies/20260101-00000{number}-aaaa" for number in range(3)]
FINISHED = STUDIES[0]
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
    assert not tags.names & {"img", "iframe", "object", "embed", "base", "style", "foreignobject"}
    assert [name for name in tags.attributes if name.startswith("on") or name == "style"] == []
    assert [place for place in tags.places if not OURS.match(place)] == []
    assert [place for place in tags.scripts if not place.startswith("/static/")] == []
    assert not STEERING.search(answer.text)


def test_what_is_hostile_is_shown_all_the_same_as_text(shared):
    with shared.client("read") as browser:
        text = browser.get(FINISHED).text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text


@pytest.mark.parametrize(
    "path",
    ["", "/trials", "/trials/3", "/trials/1/transcript", "/policies", "/history", "/front"],
)
def test_the_api_answers_in_json_that_no_browser_takes_for_a_page(shared, path):
    with shared.client("read") as program:
        answer = program.get(f"/api/v1{FINISHED}{path}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert not re.search("[\x00-\x1f]", answer.text)


def test_a_log_is_downloaded_and_never_shown_as_it_is(shared):
    with shared.client("read") as browser:
        answer = browser.get(f"/api/v1{FINISHED}/trials/0/files/logs/rank0.log")
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert b"\x1b[31m" in answer.content


def test_the_log_of_the_service_steers_no_terminal():
    record = logging.makeLogRecord(
        {"msg": "failed: %s", "args": ("\x1b]0;title\x07\u202eabc\x9b",)}
    )
    assert not STEERING.search(PlainLines("%(message)s").format(record))


def test_an_error_that_nobody_foresaw_tells_nothing(serve, recorded_store, monkeypatch):
    served = serve(recorded_store)
    monkeypatch.setattr(type(served.service), "study", lambda *_: 1 / 0)
    with served.client("read") as program:
        answers = [program.get(path) for path in (f"/api/v1{FINISHED}", FINISHED)]
    for answer in answers:
        assert answer.status_code == 500
        assert "division" not in answer.text and "Traceback" not in answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"]
