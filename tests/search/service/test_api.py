"""The API over real HTTP: what is read, found, refused, compared, ranked and exported."""

import csv
import io
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from urllib.parse import quote

import pytest
from fastapi import HTTPException
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from evaluator.timing.decision import Spread
from records.codec import from_json, to_json
from records.store.store import Store
from search.cli.main import app
from search.loop.study_result import StudyResult
from search.service import data as written
from search.service.api.trials import attachment, part_of
from tests.search.service.conftest import FAILED, FINISHED, IMPORTED
from tests.support import records as testing

API = "/api/v1"
STUDY = f"/studies/{FINISHED}"
FILES = f"{STUDY}/trials/0/files"
LOG = f"{API}{FILES}/logs/rank0.log"
ONE_LAUNCH = {"value": 0.25, "unit": "s", "caveats": [], "low": None, "high": None, "launches": 1}
SIZES = st.integers(0, 200)
CONTENT = bytes(range(200))


@pytest.fixture
def ask(client):
    """Gives what a GET answers, as a document."""

    def asked(path, code=200, **query):
        answer = client.get(f"{API}{path}", params=query or None)
        assert answer.status_code == code, answer.text
        return answer.json()

    return asked


def ids(page):
    return [each["id"] for each in page["items"]]


def ordinals(page):
    return [each["ordinal"] for each in page["items"]]


def test_studies_are_listed_newest_first_with_their_best(ask):
    page = ask("/studies")
    by_id = {each["id"]: each for each in page["items"]}
    pages = [ask("/studies", limit=1, offset=n) for n in range(4)]

    assert (page["total"], page["offset"]) == (3, 0)
    assert by_id[FINISHED]["best"] == {**ONE_LAUNCH, "both": None}
    assert by_id[FAILED]["best"] is None
    assert by_id[IMPORTED]["imported_from"] == "ccl-search"
    assert [one for each in pages for one in ids(each)] == ids(page)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"text": "ALL failed"}, [FAILED]),
        ({"text": "%"}, []),
        ({"status": "finished"}, [IMPORTED, FAILED, FINISHED]),
        ({"status": "running"}, []),
    ],
)
def test_studies_are_found_by_text_and_by_status(ask, query, found):
    assert ids(ask("/studies", **query)) == found


def test_a_best_that_was_confirmed_is_told_with_its_interval(served):
    spread = Spread(centre=0.26, low=0.24, high=0.28, launch_count=4)
    with closing(Store(served.service.store)) as store:
        finding = from_json(StudyResult, store.find(FINISHED).summary)
        summary = to_json(replace(finding, result=spread))
        store.update(FINISHED, status="finished", summary=summary)
    with served.client("read") as client:
        best = client.get(f"{API}{STUDY}").json()["best"]
        served.service.records.update(FINISHED, status="interrupted")
        after = client.get(f"{API}{STUDY}").json()

    measured = {"value": 0.26, "low": 0.24, "high": 0.28, "launches": 4}
    assert best == {**ONE_LAUNCH, **measured, "both": None}
    assert (after["status"], after["finding"]) == ("interrupted", None)


def test_a_study_tells_what_was_asked_and_found(ask):
    study = ask(STUDY)
    assert (study["trials"], study["failed"]) == (4, 1)
    assert study["study"]["objective"]["expression"] == "step_time"
    assert study["finding"]["winner"] == 2
    assert study["failures"] == {"out_of_memory": 1}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, [0, 1, 2, 3]),
        ({"order": "down"}, [3, 2, 1, 0]),
        ({"sort": "score"}, [2, 1, 0, 3]),
        ({"sort": "score", "order": "down"}, [0, 1, 2, 3]),
        ({"sort": "config.tp", "order": "down"}, [3, 2, 1, 0]),
        ({"sort": "metric.step_time"}, [2, 1, 0, 3]),
        ({"status": "failed"}, [3]),
        ({"status": "measured"}, [0, 1, 2]),
        ({"kind": "out_of_memory"}, [3]),
        ({"text": "it BROKE"}, [3]),
        ({"author": "nobody"}, []),
    ],
)
def test_trials_are_filtered_and_sorted_those_without_a_value_last(ask, query, found):
    assert ordinals(ask(f"{STUDY}/trials", **query)) == found


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        (f"{STUDY}/trials?limit=0", 422, "query.limit: Input should be greater than or equal"),
        (f"{STUDY}/trials?offset=-1", 422, "query.offset: Input should be greater than or"),
        (f"{STUDY}/trials?sort=outcome", 422, "query.sort: String should match pattern"),
        (f'{STUDY}/trials?sort=config."; drop', 422, "query.sort: String should match pattern"),
        (f"{STUDY}/trials?kind=bad luck", 422, "query.kind: Input should be"),
        (f"{STUDY}/trials/4", 404, f"study {FINISHED} has no trial 4"),
        (f"{STUDY}/trials/-1", 422, "path.ordinal"),
        (f"{STUDY}/trials/{'9' * 20}", 422, "path.ordinal"),
        (f"{STUDY}/trials/0/transcript", 404, "no model was asked for trial 0"),
        (f"{STUDY}/policies/{'0' * 64}", 404, "has no policy"),
        (f"{STUDY}/policies/x", 422, "path.digest"),
        (f"/studies/{FINISHED[:-1]}/trials", 404, "no study"),
        (f"/studies/{'a' * 300}/trials", 404, "no study"),
        ("/studies/%00/trials", 404, "no study"),
        ("/studies/%2e%2e/trials", 404, "no study '..'"),
        ("/leaderboard?by=beauty", 422, "no submission has metric 'beauty'"),
        (f"/compare/trials?a={FINISHED}:0&b={FINISHED}:0", 422, "give two"),
        (f"/compare/trials?a={FINISHED}:0&b={FINISHED}:9", 404, "has no trial 9"),
        (f"/compare/trials?a={FINISHED}:0&b={FAILED}", 404, "no trial that may lead"),
        (f"/compare/trials?a=nobody:0&b={FINISHED}", 404, "no study 'nobody'"),
        (f"/compare/trials?a={FINISHED}:-1&b={FINISHED}", 422, "query.a"),
        (f"/compare/trials?a=/etc/passwd&b={FINISHED}", 404, "no study '/etc/passwd'"),
        (f"/compare/trials?a=a:b:1&b={FINISHED}", 422, "query.a"),
        *(
            (f"/studies/nobody/{what}", 404, "no study 'nobody'")
            for what in ("export", "report", "history", "front", "knobs", "metrics")
        ),
    ],
)
def test_what_makes_no_sense_or_is_not_there_is_refused_in_words(ask, path, status, words):
    found = ask(path, status)
    assert found.keys() == {"error"}
    assert words in found["error"]


def test_a_trial_is_told_in_full(ask):
    trial = ask(f"{STUDY}/trials/2")
    assert (trial["status"], trial["score"]["value"]) == ("measured", 0.25)
    assert trial["metric_values"][0]["name"] == "step_time"


def test_metrics_are_told_by_trial_and_by_name(ask):
    page = ask(f"{STUDY}/metrics", limit=2)
    assert (ordinals(page), page["total"]) == ([0, 1], 4)
    assert ask(f"{STUDY}/metrics", name="mfu")["items"][0]["metrics"] == []
    known = ask("/metric-definitions", limit=1, offset=0)
    assert known["total"] > 20
    assert {"name", "unit", "better", "description"} <= known["items"][0].keys()


def test_policies_are_told_with_what_changed(ask):
    page = ask(f"{STUDY}/policies", limit=2, offset=1)
    second, third = page["items"]
    policy = ask(f"{STUDY}/policies/{second['digest']}")
    against = ask(f"{STUDY}/policies/{second['digest']}", against=third["digest"])

    assert (page["total"], second["trials"], second["trial_count"]) == (4, [1], 1)
    assert policy["against"] == second["parent"]
    assert "+print(1)" in policy["diff"]
    assert "-print(2)" in against["diff"]


@pytest.mark.parametrize("base", ["/api/v1", ""])
def test_a_conversation_that_is_kept_no_more_is_missing(served, base):
    with served.client("read") as client:
        asked = f"{base}{STUDY}/trials/1/transcript"
        before = client.get(asked)
        with closing(Store(served.service.store)) as store:
            store.artifacts.path(store.trial(FINISHED, 1).exchange).unlink()
        answer = client.get(asked)

    assert (before.status_code, answer.status_code) == (200, 404)
    assert f"what was asked for trial 1 of study {FINISHED} is missing" in answer.text


def test_a_batch_of_a_billion_is_answered(served):
    with served.client("submit") as client:
        answer = client.post(f"{API}/studies", json={"workload": {"global_batch": 999_999_999}})
    assert answer.status_code == 201


def test_trials_are_compared_as_the_command_line_does(ask, made_once):
    found = ask("/compare/trials", a=f"{FINISHED}:0", b=FINISHED)
    args = ["compare", f"trial:{FINISHED}:0", f"best:{FINISHED}", "--json"]
    printed = CliRunner().invoke(app, [*args, "--store", str(made_once)])
    told = json.loads(printed.stdout)
    assert found["comparison"]["rows"][0]["words"] == told["rows"][0]["words"]
    assert found["comparison"]["counts"] == told["counts"]
    assert {"knob": "tp", "a": 1, "b": 2, "differs": True} in found["settings"]


def test_studies_are_compared_with_how_both_searches_went(ask):
    found = ask("/compare/studies", a=FINISHED, b=IMPORTED)
    without = ask("/compare/studies", a=FINISHED, b=FAILED)
    assert found["comparison"]["rows"][0]["verdict"] == "unknown"
    assert [step["ordinal"] for step in found["a"]["history"]["best_so_far"]] == [0, 1, 2]
    assert found["b"]["best"] == 0
    assert without["comparison"] is None
    assert without["why"] == f"study {FAILED} has no trial that may lead"


def test_the_leaderboard_is_that_of_the_command_line_in_pages(ask, made_once):
    board, top = ask("/leaderboard"), ask("/leaderboard", top=1)
    args = ["leaderboard", "--json", "--store", str(made_once)]
    told = json.loads(CliRunner().invoke(app, args).stdout)

    def names(groups):
        return [[each["name"] for each in group["submissions"]] for group in groups]

    assert names(board["items"]) == names(told["groups"])
    assert board["items"][0]["submissions"][0]["metrics"]["step_time"]["unit"] == "s"
    assert ([*map(len, names(top["items"]))], top["items"][0]["total"]) == ([1], 2)
    assert ask("/leaderboard", offset=5)["items"] == []


def test_a_study_is_exported_a_trial_per_line_or_row(client):
    lines = client.get(f"{API}{STUDY}/export").content.splitlines()
    table = client.get(f"{API}{STUDY}/export", params={"format": "csv"}).text
    assert [json.loads(line)["ordinal"] for line in lines] == [0, 1, 2, 3]
    assert [row["ordinal"] for row in csv.DictReader(io.StringIO(table))] == ["0", "1", "2", "3"]


def test_a_bundle_is_taken_by_another_store_but_not_with_control_characters(
    client, serve, tmp_path
):
    with closing(Store(tmp_path / "one")) as store:
        store.add_study("v1.2_a-b", testing.study(), "test", [testing.trial(0, 0.5)])
    bundle, other = tmp_path / "study.cclsearch", str(tmp_path / "other")
    with serve(store.root).client("read") as plain:
        answer = plain.get(f"{API}/studies/v1.2_a-b/export", params={"format": "bundle"})
    bundle.write_bytes(answer.content)
    assert 'filename="v1.2_a-b.cclsearch"' in answer.headers["content-disposition"]
    assert CliRunner().invoke(app, ["import", str(bundle), "--store", other]).exit_code == 0
    with closing(Store(tmp_path / "other")) as taken:
        assert taken.counts("v1.2_a-b").trials == 1

    hostile = client.get(f"{API}{STUDY}/export", params={"format": "bundle"})
    bundle.write_bytes(hostile.content)
    done = CliRunner().invoke(app, ["import", str(bundle), "--store", other])
    assert "is a name with a control character" in str(done.exception)


def test_nothing_of_an_export_stays_behind(served):
    folder = served.service.store / "service" / "exports"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".study.jsonl-of-a-killed-process").touch()
    with served.client("read") as client:
        client.get(f"{API}{STUDY}/export")
    assert [*folder.iterdir()] == []


def test_a_study_that_is_too_large_is_exported_elsewhere(client, monkeypatch):
    monkeypatch.setattr(written, "MOST_TRIALS", 3)
    for what in ("export", "report"):
        answer = client.get(f"{API}{STUDY}/{what}")
        assert answer.status_code == 422
        assert "has 4 trials, more than 3; use `cclsearch export`" in answer.json()["error"]


def test_exports_wait_for_each_other(client):
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(client.get, f"{API}{STUDY}/export") for _ in range(2)]
        assert [one.result().status_code for one in asked] == [200] * 2


@pytest.mark.parametrize(
    "what", ["api/v1/{}/export", "api/v1/{}/report", "{}/policies?learned=yes"]
)
def test_nobody_waits_where_others_wait_already(served, what):
    room, address = served.service.writing._room, "/" + what.format(f"studies/{FINISHED}")
    while room.acquire(blocking=False):
        pass
    with served.client("read") as client:
        answer = client.get(address)
        room.release()
        after = client.get(address)
    assert (answer.status_code, after.status_code) == (429, 200)


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
    answer = client.get(f"{API}{STUDY}/report")
    assert answer.headers["content-disposition"] == f'attachment; filename="{FINISHED}.html"'
    assert answer.text.startswith("<!doctype html>")
    assert "<img src=x" not in answer.text


@given(size=SIZES, first=SIZES, last=SIZES)
def test_any_part_is_the_slice_of_the_whole(size, first, last):
    asked = CONTENT[first : min(last + 1, size)]
    whole_or_part = CONTENT[:size] if last < first else asked if first < size else None
    assert _slice(f"bytes={first}-{last}", size) == whole_or_part
    assert _slice(f"bytes={first}-", size) == (CONTENT[first:size] if first < size else None)
    assert _slice(f"bytes=-{last}", size) == (CONTENT[max(0, size - last) : size] or None)


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


def test_files_are_listed_with_where_they_are(client):
    page = client.get(f"{API}{FILES}").json()
    (file,) = page["items"]
    assert (page["total"], file["name"]) == (1, "logs/rank0.log")
    assert file["size_bytes"] == len(client.get(file["url"]).content)


def test_a_file_is_a_download_that_no_browser_runs(client):
    answer = client.get(LOG)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="rank0.log"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert b"onerror" in answer.content and b"\x1b[31m" in answer.content


def test_a_file_is_sent_in_the_part_that_is_asked_for_and_only_once(client):
    whole = client.get(LOG)
    part = client.get(LOG, headers={"range": "bytes=5-9"})
    changed = client.get(LOG, headers={"range": "bytes=5-9", "if-range": '"another"'})
    beyond = client.get(LOG, headers={"range": "bytes=100000-"})
    known = client.get(LOG, headers={"if-none-match": whole.headers["etag"]})

    size = len(whole.content)
    assert (part.status_code, part.content) == (206, whole.content[5:10])
    assert part.headers["content-range"] == f"bytes 5-9/{size}"
    assert (changed.status_code, changed.content) == (200, whole.content)
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{size}")
    assert beyond.json() == {"error": "that part is not in the file"}
    assert (known.status_code, known.content) == (304, b"")


@pytest.mark.parametrize(
    "path",
    [
        *(
            f"{FILES}/{name}"
            for name in (
                "..%2f..%2f..%2fcclsearch.db", "%2e%2e/%2e%2e/cclsearch.db", "%2fetc%2fpasswd",
                "logs%2f..%2f..%2fcclsearch.db", "logs\\rank0.log", "logs/rank0.log%00.txt",
                "logs//rank0.log", "%ff%fe", "a" * 3000,
            )
        ),
        f"{STUDY}/trials/9/files/logs/rank0.log",
        "/studies/nobody/trials/0/files/logs/rank0.log",
    ],
)  # fmt: skip
def test_a_name_that_leads_elsewhere_is_a_file_that_is_missing(ask, path):
    assert ask(path, 404).keys() == {"error"}


def test_a_file_that_was_lost_is_missing_in_words(served):
    records = served.service.records
    (artifact,) = records.trial(FINISHED, 0).outcome.artifacts
    records.artifacts.path(artifact.digest).unlink()
    with served.client("read") as client:
        answer = client.get(LOG)
    assert answer.status_code == 404
    assert "is missing from" in answer.json()["error"]
