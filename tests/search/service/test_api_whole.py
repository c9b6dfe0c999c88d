"""Comparisons, leaderboard, exports and reports over real HTTP."""

import csv
import io
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import quote

import pytest
from typer.testing import CliRunner

from records.store.store import Store
from search.cli.main import app
from search.service import data as written
from search.service.api.trials import attachment
from tests.search.service.conftest import FAILED, FINISHED, IMPORTED
from tests.support import records as testing

API = "/api/v1"


@pytest.fixture
def client(shared):
    """A client that may read."""
    with shared.client("read") as found:
        yield found


def test_trials_are_compared_as_the_command_line_does(client, made_once):
    answer = client.get(f"{API}/compare/trials", params={"a": f"{FINISHED}:0", "b": FINISHED})
    found = answer.json()["comparison"]
    args = ["compare", f"trial:{FINISHED}:0", f"best:{FINISHED}", "--json"]
    printed = CliRunner().invoke(app, [*args, "--store", str(made_once)])
    told = json.loads(printed.stdout)
    assert found["rows"][0]["words"] == told["rows"][0]["words"]
    assert found["counts"] == told["counts"]
    assert {"knob": "tp", "a": 1, "b": 2, "differs": True} in answer.json()["settings"]


def test_studies_are_compared_with_how_both_searches_went(client):
    answer = client.get(f"{API}/compare/studies", params={"a": FINISHED, "b": IMPORTED}).json()
    assert answer["comparison"]["rows"][0]["verdict"] == "unknown"
    assert [step["ordinal"] for step in answer["a"]["history"]["best_so_far"]] == [0, 1, 2]
    assert answer["b"]["best"] == 0


def test_a_study_without_a_best_is_told_so(client):
    answer = client.get(f"{API}/compare/studies", params={"a": FINISHED, "b": FAILED}).json()
    assert answer["comparison"] is None
    assert answer["why"] == f"study {FAILED} has no trial that may lead"


@pytest.mark.parametrize(
    ("a", "b", "status"),
    [
        (f"{FINISHED}:0", f"{FINISHED}:0", 422),
        (f"{FINISHED}:0", f"{FINISHED}:9", 404),
        (f"{FINISHED}:0", FAILED, 404),
        ("nobody:0", FINISHED, 404),
        (f"{FINISHED}:-1", FINISHED, 422),
        ("/etc/passwd", FINISHED, 404),
        ("a:b:1", FINISHED, 422),
    ],
)
def test_sides_that_are_none_are_refused(client, a, b, status):
    answer = client.get(f"{API}/compare/trials", params={"a": a, "b": b})
    assert answer.status_code == status
    assert answer.json().keys() == {"error"}


def test_the_leaderboard_is_that_of_the_command_line(client, made_once):
    board = client.get(f"{API}/leaderboard").json()
    args = ["leaderboard", "--json", "--store", str(made_once)]
    told = json.loads(CliRunner().invoke(app, args).stdout)
    assert board["total"] == len(told["groups"])
    names = [[each["name"] for each in group["submissions"]] for group in board["items"]]
    assert names == [[each["name"] for each in group["submissions"]] for group in told["groups"]]
    assert board["items"][0]["submissions"][0]["metrics"]["step_time"]["unit"] == "s"


def test_a_leaderboard_has_pages_and_a_top(client):
    page = client.get(f"{API}/leaderboard", params={"top": 1}).json()
    assert [len(group["submissions"]) for group in page["items"]] == [1]
    assert page["items"][0]["total"] == 2
    assert client.get(f"{API}/leaderboard", params={"offset": 5}).json()["items"] == []
    refused = client.get(f"{API}/leaderboard", params={"by": "beauty"})
    assert refused.status_code == 422
    assert "no submission has metric 'beauty'" in refused.json()["error"]


def test_a_study_is_exported_a_trial_per_line(client):
    answer = client.get(f"{API}/studies/{FINISHED}/export")
    lines = [json.loads(line) for line in answer.content.splitlines()]
    assert [line["ordinal"] for line in lines] == [0, 1, 2, 3]
    assert answer.headers["content-disposition"] == f'attachment; filename="{FINISHED}.jsonl"'
    assert int(answer.headers["content-length"]) == len(answer.content)


def test_a_study_is_exported_for_spreadsheets(client):
    answer = client.get(f"{API}/studies/{FINISHED}/export", params={"format": "csv"})
    rows = [*csv.DictReader(io.StringIO(answer.text))]
    assert [row["ordinal"] for row in rows] == ["0", "1", "2", "3"]


def test_a_bundle_is_taken_by_another_store(serve, tmp_path):
    with closing(Store(tmp_path / "one")) as store:
        store.add_study("searched", testing.study(), "test", [testing.trial(0, 0.5)])
    bundle = tmp_path / "study.cclsearch"
    with serve(store.root).client("read") as client:
        answer = client.get(f"{API}/studies/searched/export", params={"format": "bundle"})
    bundle.write_bytes(answer.content)
    other = str(tmp_path / "other")
    assert CliRunner().invoke(app, ["import", str(bundle), "--store", other]).exit_code == 0
    with closing(Store(tmp_path / "other")) as taken:
        assert taken.counts("searched").trials == 1


def test_a_bundle_whose_names_hold_control_characters_is_refused(client, tmp_path):
    answer = client.get(f"{API}/studies/{FINISHED}/export", params={"format": "bundle"})
    bundle = tmp_path / "study.cclsearch"
    bundle.write_bytes(answer.content)
    done = CliRunner().invoke(app, ["import", str(bundle), "--store", str(tmp_path / "other")])
    assert "is a name with a control character" in str(done.exception)


def test_nothing_of_an_export_stays_behind(served):
    folder = served.service.store / "service" / "exports"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".study.jsonl-of-a-killed-process").touch()
    with served.client("read") as client:
        client.get(f"{API}/studies/{FINISHED}/export")
    assert [*folder.iterdir()] == []


def test_a_study_that_is_too_large_is_exported_elsewhere(served, monkeypatch):
    monkeypatch.setattr(written, "MOST_TRIALS", 3)
    with served.client("read") as client:
        answers = [client.get(f"{API}/studies/{FINISHED}/{what}") for what in ("export", "report")]
    assert [answer.status_code for answer in answers] == [422, 422]
    assert "has 4 trials, more than 3; use `cclsearch export`" in answers[0].json()["error"]


def test_exports_wait_for_each_other(client):
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(client.get, f"{API}/studies/{FINISHED}/export") for _ in range(2)]
        assert [one.result().status_code for one in asked] == [200] * 2


@pytest.mark.parametrize(
    "what", ["api/v1/{}/export", "api/v1/{}/report", "{}/policies?learned=yes"]
)
def test_nobody_waits_where_others_wait_already(served, what):
    writing = served.service.writing
    while writing._room.acquire(blocking=False):
        pass
    with served.client("read") as client:
        answer = client.get("/" + what.format(f"studies/{FINISHED}"))
        writing._room.release()
        after = client.get("/" + what.format(f"studies/{FINISHED}"))
    assert (answer.status_code, after.status_code) == (429, 200)


@pytest.mark.parametrize(("what", "suffix"), [("export", "jsonl"), ("report", "html")])
def test_an_id_names_a_file(serve, tmp_path, what, suffix):
    with closing(Store(tmp_path / "odd")) as store:
        store.add_study("v1.2_a-b", testing.study(), "test", [])
    with serve(store.root).client("read") as client:
        answer = client.get(f"{API}/studies/v1.2_a-b/{what}")
    assert answer.headers["content-disposition"] == f'attachment; filename="v1.2_a-b.{suffix}"'


@pytest.mark.parametrize("what", ["export", "report"])
@pytest.mark.parametrize(
    "study_id", ["größe-日本", 'a"; filename="b.exe', "a\rb", "-rf", ".hidden"]
)
def test_a_name_that_no_study_can_have_is_missing(client, what, study_id):
    answer = client.get(f"{API}/studies/{quote(study_id, safe='')}/{what}")
    assert answer.status_code == 404
    assert "content-disposition" not in answer.headers


def test_a_file_is_offered_under_its_name_whatever_its_letters():
    name = 'größe"; filename="b.exe\r'
    assert attachment(name) == f"attachment; filename*=UTF-8''{quote(name, safe='')}"


def test_a_report_is_a_page_to_keep(client):
    answer = client.get(f"{API}/studies/{FINISHED}/report")
    assert answer.headers["content-disposition"] == f'attachment; filename="{FINISHED}.html"'
    assert answer.text.startswith("<!doctype html>")
    assert "<img src=x" not in answer.text


@pytest.mark.parametrize("what", ["export", "report", "history", "front", "knobs", "metrics"])
def test_a_study_that_is_none_is_missing_everywhere(client, what):
    answer = client.get(f"{API}/studies/nobody/{what}")
    assert (answer.status_code, answer.json()) == (404, {"error": "no study 'nobody'"})
