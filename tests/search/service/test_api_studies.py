"""Studies and trials over real HTTP: whole, empty, missing, filtered, paged."""

from contextlib import closing
from dataclasses import replace

import pytest

from evaluator.timing.decision import Spread
from records.codec import from_json, to_json
from records.store.store import Store
from search.loop.study_result import StudyResult
from tests.search.service.conftest import FAILED, FINISHED, IMPORTED

API = "/api/v1"


@pytest.fixture
def ask(shared):
    """Gives the answer to a GET, as a status and a document."""
    with shared.client("read") as client:

        def asked(path, **query):
            answer = client.get(f"{API}{path}", params=query)
            return answer.status_code, answer.json()

        yield asked


def test_studies_are_listed_newest_first_with_their_best(ask):
    status, page = ask("/studies")
    assert (status, page["total"], page["offset"]) == (200, 3, 0)
    by_id = {each["id"]: each for each in page["items"]}
    own = {"value": 0.25, "unit": "s", "caveats": [], "low": None, "high": None, "launches": 1}
    own["both"] = None
    assert by_id[FINISHED]["best"] == own
    assert by_id[FAILED]["best"] is None
    assert by_id[IMPORTED]["imported_from"] == "ccl-search"


def test_a_best_that_was_confirmed_is_told_with_its_interval(served):
    spread = Spread(centre=0.26, low=0.24, high=0.28, launch_count=4)
    with closing(Store(served.service.store)) as store:
        finding = from_json(StudyResult, store.find(FINISHED).summary)
        summary = to_json(replace(finding, result=spread))
        store.update(FINISHED, status="finished", summary=summary)
    with served.client("read") as client:
        best = client.get(f"{API}/studies/{FINISHED}").json()["best"]
    told = {"value": 0.26, "unit": "s", "caveats": [], "low": 0.24, "high": 0.28, "launches": 4}
    told["both"] = None
    assert best == told


def test_pages_of_studies_fit_together(ask):
    whole = [each["id"] for each in ask("/studies")[1]["items"]]
    pages = [ask("/studies", limit=1, offset=n)[1]["items"] for n in range(4)]
    assert [each["id"] for page in pages for each in page] == whole


def test_studies_are_found_by_text_and_by_status(ask):
    assert [e["id"] for e in ask("/studies", text="ALL failed")[1]["items"]] == [FAILED]
    assert ask("/studies", text="%")[1] == {"items": [], "total": 0, "offset": 0}
    assert ask("/studies", status="finished")[1]["total"] == 3
    assert ask("/studies", status="running")[1]["total"] == 0


def test_a_study_tells_what_was_asked_and_found(ask):
    status, study = ask(f"/studies/{FINISHED}")
    assert (status, study["trials"], study["failed"]) == (200, 4, 1)
    assert study["study"]["objective"]["expression"] == "step_time"
    assert study["finding"]["winner"] == 2
    assert study["failures"] == {"out_of_memory": 1}


@pytest.mark.parametrize("which", ["nobody", FINISHED[:-1], "..", "%2e%2e", "a" * 300, "%00"])
def test_an_id_that_is_none_is_missing_not_an_error(shared, which):
    with shared.client("read") as client:
        answer = client.get(f"{API}/studies/{which}/trials")
    assert answer.status_code in {404, 422}
    assert answer.json().keys() == {"error"}


def test_trials_are_sorted_and_those_without_a_value_come_last(ask):
    def order(**query):
        return [each["ordinal"] for each in ask(f"/studies/{FINISHED}/trials", **query)[1]["items"]]

    assert order() == [0, 1, 2, 3]
    assert order(order="down") == [3, 2, 1, 0]
    assert order(sort="score") == [2, 1, 0, 3]
    assert order(sort="score", order="down") == [0, 1, 2, 3]
    assert order(sort="config.tp", order="down") == [3, 2, 1, 0]
    assert order(sort="metric.step_time") == [2, 1, 0, 3]


def test_trials_are_filtered(ask):
    def total(**query):
        return ask(f"/studies/{FINISHED}/trials", **query)[1]["total"]

    assert total(status="failed") == total(kind="out_of_memory") == total(text="it BROKE") == 1
    assert total(status="measured") == 3
    assert total(author="nobody") == 0


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"limit": 0}, "query.limit: Input should be greater than or equal to 1"),
        ({"offset": -1}, "query.offset: Input should be greater than or equal to 0"),
        ({"sort": "outcome"}, "query.sort: String should match pattern"),
        ({"sort": 'config."; drop table trials'}, "query.sort: String should match pattern"),
        ({"kind": "bad luck"}, "query.kind: Input should be"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_in_words(ask, query, words):
    status, answer = ask(f"/studies/{FINISHED}/trials", **query)
    assert status == 422
    assert answer["error"].startswith(words)


def test_a_trial_is_told_in_full(ask):
    status, trial = ask(f"/studies/{FINISHED}/trials/2")
    assert (status, trial["status"], trial["score"]["value"]) == (200, "measured", 0.25)
    assert trial["metric_values"][0]["name"] == "step_time"
    assert ask(f"/studies/{FINISHED}/trials/4")[0] == 404
    assert ask(f"/studies/{FINISHED}/trials/-1")[0] == 422
    assert ask(f"/studies/{FINISHED}/trials/99999999999999999999")[0] == 422


def test_metrics_are_told_by_trial_and_by_name(ask):
    page = ask(f"/studies/{FINISHED}/metrics", limit=2)[1]
    assert [each["ordinal"] for each in page["items"]] == [0, 1]
    assert page["total"] == 4
    assert ask(f"/studies/{FINISHED}/metrics", name="mfu")[1]["items"][0]["metrics"] == []
    known = ask("/metric-definitions", limit=1, offset=0)[1]
    assert known["total"] > 20
    assert {"name", "unit", "better", "description"} <= known["items"][0].keys()


def test_policies_are_told_with_what_changed(ask):
    page = ask(f"/studies/{FINISHED}/policies", limit=2, offset=1)[1]
    assert (page["total"], len(page["items"])) == (4, 2)
    second = page["items"][0]
    assert (second["trials"], second["trial_count"]) == ([1], 1)
    policy = ask(f"/studies/{FINISHED}/policies/{second['digest']}")[1]
    assert policy["against"] == second["parent"]
    assert "+print(1)" in policy["diff"]
    third = page["items"][1]["digest"]
    against = ask(f"/studies/{FINISHED}/policies/{second['digest']}", against=third)[1]
    assert "-print(2)" in against["diff"]


@pytest.mark.parametrize("digest", ["0" * 64, "x", "..%2f" * 3])
def test_a_policy_that_is_none_is_missing(ask, digest):
    assert ask(f"/studies/{FINISHED}/policies/{digest}")[0] in {404, 422}


def test_a_conversation_is_told_where_a_model_was_asked(ask):
    assert ask(f"/studies/{FINISHED}/trials/1/transcript")[1]["exchange"]["model"] == "m"
    assert ask(f"/studies/{FINISHED}/trials/0/transcript")[0] == 404


@pytest.mark.parametrize("base", ["/api/v1", ""])
def test_a_conversation_that_is_kept_no_more_is_missing(served, base):
    with closing(Store(served.service.store)) as store:
        store.artifacts.path(store.trial(FINISHED, 1).exchange).unlink()
    with served.client("read") as client:
        answer = client.get(f"{base}/studies/{FINISHED}/trials/1/transcript")

    assert answer.status_code == 404
    assert f"what was asked for trial 1 of study {FINISHED} is missing" in answer.text


def test_an_answer_changes_with_the_records(served):
    with served.client("read") as client:
        first = client.get(f"{API}/studies/{FINISHED}")
        served.service.records.update(FINISHED, status="interrupted")
        second = client.get(f"{API}/studies/{FINISHED}")
    assert (first.json()["status"], second.json()["status"]) == ("finished", "interrupted")


def test_a_fault_of_the_service_tells_nothing_of_its_inside(served, monkeypatch):
    def broken(*_given, **_named):
        raise RuntimeError("the inside")

    monkeypatch.setattr("search.service.api.studies.study_page", broken)
    with served.client("read") as client:
        answer = client.get(f"{API}/studies")
    assert answer.status_code == 500
    assert answer.json() == {"error": "something went wrong in the service; see its log"}


def test_a_batch_of_a_billion_is_answered(served):
    with served.client("submit") as client:
        answer = client.post(f"{API}/studies", json={"workload": {"global_batch": 999_999_999}})
    assert answer.status_code == 201
