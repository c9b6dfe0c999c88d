"""HEAD: what GET would be answered with, without the body."""

import pytest

from tests.search.service.conftest import FINISHED

STUDY = f"/api/v1/studies/{FINISHED}"


@pytest.mark.parametrize(
    "path",
    [
        *("/studies", f"/studies/{FINISHED}", "/static/0/nothing.js"),
        *("/api/v1/studies", STUDY, f"{STUDY}/trials", "/api/v1/health", "/api/v1/studies/none"),
    ],
)
def test_the_head_is_that_of_the_whole_answer(shared, path):
    with shared.client("read") as client:
        whole, head = client.get(path), client.head(path)
    assert (head.status_code, head.content) == (whole.status_code, b"")
    assert told(head) == told(whole)


def test_only_who_may_read_is_told_a_head(shared):
    with shared.client(None) as client:
        assert client.head(STUDY).status_code == 401


def test_what_only_takes_something_has_no_head(shared):
    with shared.client("admin") as client:
        answer = client.head(f"{STUDY}/cancel")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def told(answer):
    return {name: value for name, value in answer.headers.items() if name != "date"}
