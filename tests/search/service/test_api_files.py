"""Files of trials over real HTTP: whole, in part, missing, and names that lead elsewhere."""

from types import SimpleNamespace

import pytest
from fastapi import HTTPException
from hypothesis import given
from hypothesis import strategies as st

from search.service.api.trials import part_of
from tests.search.service.conftest import FINISHED

FILES = f"/api/v1/studies/{FINISHED}/trials/0/files"
LOG = f"{FILES}/logs/rank0.log"
SIZES = st.integers(0, 200)
CONTENT = bytes(range(200))


@given(size=SIZES, first=SIZES, last=SIZES)
def test_any_part_is_the_slice_of_the_whole(size, first, last):
    found = _slice(f"bytes={first}-{last}", size)
    asked = CONTENT[first : min(last + 1, size)]
    assert found == (CONTENT[:size] if last < first else asked if first < size else None)


@given(size=SIZES, first=SIZES)
def test_a_part_without_an_end_goes_to_the_end(size, first):
    assert _slice(f"bytes={first}-", size) == (CONTENT[first:size] if first < size else None)


@given(size=SIZES, count=SIZES)
def test_a_part_without_a_start_is_so_many_bytes_before_the_end(size, count):
    asked = CONTENT[max(0, size - count) : size]
    assert _slice(f"bytes=-{count}", size) == (asked or None)


@given(text=st.text(max_size=30), size=SIZES)
def test_what_is_no_part_is_the_whole_or_is_refused(text, size):
    assert _slice(text, size) in (CONTENT[:size], None)


def _slice(asked, size):
    try:
        part = part_of(asked, size)
    except HTTPException as error:
        assert error.status_code == 416
        return None
    return CONTENT[slice(*part)] if part else CONTENT[:size]


@pytest.fixture
def whole(shared):
    """A client, and the whole log."""
    with shared.client("read") as client:
        yield SimpleNamespace(client=client, content=client.get(LOG).content)


def test_files_are_listed_with_where_they_are(shared):
    with shared.client("read") as client:
        page = client.get(FILES).json()
        (file,) = page["items"]
        answer = client.get(file["url"])
    assert page["total"] == 1
    assert (file["name"], file["size_bytes"]) == ("logs/rank0.log", len(answer.content))


def test_a_file_is_a_download_that_no_browser_runs(whole):
    answer = whole.client.get(LOG)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="rank0.log"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert b"onerror" in answer.content


def test_a_part_of_a_file_is_sent_as_one(whole):
    answer = whole.client.get(LOG, headers={"range": "bytes=5-9"})
    assert (answer.status_code, answer.content) == (206, whole.content[5:10])
    assert answer.headers["content-range"] == f"bytes 5-9/{len(whole.content)}"


def test_a_part_beyond_the_end_is_refused(whole):
    answer = whole.client.get(LOG, headers={"range": "bytes=100000-"})
    assert answer.status_code == 416
    assert answer.headers["content-range"] == f"bytes */{len(whole.content)}"
    assert answer.json() == {"error": "that part is not in the file"}


def test_a_part_of_a_file_that_has_changed_is_the_whole(whole):
    headers = {"range": "bytes=5-9", "if-range": '"another"'}
    answer = whole.client.get(LOG, headers=headers)
    assert (answer.status_code, answer.content) == (200, whole.content)


def test_a_file_is_not_sent_again_to_who_has_it(whole):
    etag = whole.client.get(LOG).headers["etag"]
    answer = whole.client.get(LOG, headers={"if-none-match": etag})
    assert (answer.status_code, answer.content) == (304, b"")


@pytest.mark.parametrize(
    "name",
    [
        "..%2f..%2f..%2fcclsearch.db",
        "%2e%2e/%2e%2e/cclsearch.db",
        "%2fetc%2fpasswd",
        "logs%2f..%2f..%2fcclsearch.db",
        "logs\\rank0.log",
        "logs/rank0.log%00.txt",
        "logs//rank0.log",
        "%ff%fe",
        "a" * 3000,
    ],
)
def test_a_name_that_leads_elsewhere_is_a_file_that_is_missing(whole, name):
    answer = whole.client.get(f"{FILES}/{name}")
    assert answer.status_code == 404
    assert answer.json().keys() == {"error"}


def test_a_file_of_another_trial_or_study_is_missing(whole):
    assert whole.client.get(LOG.replace("/0/", "/9/")).status_code == 404
    assert whole.client.get(LOG.replace(FINISHED, "nobody")).status_code == 404


def test_a_file_that_was_lost_is_missing_in_words(served):
    records = served.service.records
    (artifact,) = records.trial(FINISHED, 0).outcome.artifacts
    records.artifacts.path(artifact.digest).unlink()
    with served.client("read") as client:
        answer = client.get(LOG)
    assert answer.status_code == 404
    assert "is missing from" in answer.json()["error"]
