"""The page of a study: what it found, what failed, what it does now, what can be done with it."""

import json
import shutil
from contextlib import closing

import pytest

from records.store.store import Store
from search.service.runner import EVENTS, run_folder
from tests.search.service.conftest import FAILED, FINISHED, HOSTILE, IMPORTED, running
from tests.search.service.reading_pages import get, links


@pytest.fixture
def client(shared):
    """A reader's client."""
    with shared.client("read") as found:
        yield found


@pytest.fixture(scope="module")
def changed(made_once, tmp_path_factory):
    """A service whose studies the tests here may change; nothing is ever searched."""
    with running(shutil.copytree(made_once, tmp_path_factory.mktemp("changed") / "store")) as found:
        yield found


@pytest.fixture
def admin(changed):
    """A client that may do everything."""
    with changed.client("admin") as found:
        yield found


def facts(page, identity: str) -> str:
    return " ".join(page.find(identity).text.split())


def test_a_finished_study_tells_its_best_with_unit_evidence_and_why_it_ended(client):
    told = facts(get(client, f"/studies/{FINISHED}"), "best")

    assert "0.25 s in trial 2" in told
    assert "One launch" in told
    assert "patience: 6 launches without improvement" in told


def test_what_a_study_found_counts_no_more_once_it_went_on(served):
    with closing(Store(served.service.store)) as store:
        store.update(FINISHED, status="interrupted")
    with served.client("read") as reader:
        page, trial = (get(reader, f"/studies/{FINISHED}{rest}") for rest in ("", "/trials/2"))
        found = reader.get(f"/api/v1/studies/{FINISHED}").json()

    assert "patience" not in facts(page, "best")
    assert "the best of the study" not in trial.text
    assert (found["finding"], found["best"]["value"]) == (None, 0.25)


def test_failures_are_told_by_kind_with_the_first_cause(client):
    page = get(client, f"/studies/{FAILED}")

    assert "2 out_of_memory; first in trial 0" in facts(page, "failures")
    assert "it broke <img src=x onerror=alert(1)>" in facts(page, "failures")
    assert f"/studies/{FAILED}/trials/0" in links(page).values()
    assert "no configuration could be measured" in facts(page, "best")
    assert "No trial has a value yet" in facts(page, "history")


def test_the_history_is_a_chart_with_a_mark_for_every_trial(client):
    page = get(client, f"/studies/{FINISHED}").find("history")

    marks = [each for each in page.all("a") if each.attributes.get("class") == "mark"]
    assert [each.attributes["href"].rpartition("/")[2] for each in marks] == ["0", "1", "2", "3"]
    assert any(each.attributes.get("class") == "failure" for each in page.all("g"))


def test_an_imported_study_says_that_nothing_was_launched_here(client):
    page = get(client, f"/studies/{IMPORTED}")

    assert "Imported (ccl-search)" in facts(page, "notice")
    assert "Imported value" in facts(page, "best")
    assert "lost <img src=x onerror=alert(1)>" in page.text


def test_report_and_export_lead_to_the_api(client):
    found = links(get(client, f"/studies/{FINISHED}"))

    assert client.get(found["Report"]).status_code == 200
    assert client.get(found["Export"]).status_code == 200


@pytest.fixture
def queued(admin) -> str:
    """The id of a study that waits."""
    answer = admin.post("/api/v1/studies", json={"trials": 3, "name": "waits"})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def test_a_queued_study_says_that_it_waits_and_is_read_again_without_scripts(admin, queued):
    page = get(admin, f"/studies/{queued}")
    (meta,) = (each for each in page.all("meta") if "http-equiv" in each.attributes)

    assert "Waiting." in facts(page, "notice")
    assert "It has not started." in facts(page, "now")
    assert (meta.attributes["http-equiv"], meta.parent.name) == ("refresh", "noscript")
    assert not any(
        "http-equiv" in m.attributes for m in get(admin, f"/studies/{FINISHED}").all("meta")
    )


def test_every_part_that_changes_while_a_search_runs_is_there_when_it_has_ended(admin, queued):
    def live(page):
        return {e.attributes.get("id") for e in page.all() if "data-live" in e.attributes}

    before = live(get(admin, f"/studies/{queued}"))
    admin.post(f"/studies/{queued}/cancel")
    after = live(get(admin, f"/studies/{queued}"))

    assert None not in before
    assert {"status", "actions", "now", "best", "history", "spent"} <= before
    assert before - after <= {"events"}


def test_what_a_search_says_is_told_in_words_and_never_as_markup(changed, admin, queued):
    folder = run_folder(changed.service.store, queued)
    folder.mkdir(parents=True)
    said = [
        {"event": "trial_started", "ordinal": 0, "author": HOSTILE, "rationale": HOSTILE},
        {"event": "config_decided", "ordinal": 0, "config": {"tp": HOSTILE}},
        {"event": "phase", "ordinal": 0, "phase": HOSTILE},
        {"event": "notice", "words": HOSTILE},
    ]
    (folder / EVENTS).write_text("".join(f"{json.dumps(each)}\n" for each in said))
    page = get(admin, f"/studies/{queued}")

    assert "<img src=x onerror=alert(1)>" in facts(page, "now")
    assert "<img src=x onerror=alert(1)>" in facts(page, "events")
    assert page.find("study").attributes["data-since"] == str((folder / EVENTS).stat().st_size)


def test_a_study_is_cancelled_and_resumed_by_its_buttons(admin, queued):
    cancelled = admin.post(f"/studies/{queued}/cancel")
    shown = get(admin, f"/studies/{queued}")
    resumed = admin.post(f"/studies/{queued}/resume", data={"more_trials": ""})

    assert (cancelled.status_code, cancelled.headers["location"]) == (303, f"/studies/{queued}")
    assert "cancelled" in facts(shown, "status")
    assert "Resume" in facts(shown, "actions")
    assert resumed.status_code == 303
    assert "queued" in facts(get(admin, f"/studies/{queued}"), "status")


@pytest.mark.parametrize("more", ["0", "-1", "many", "1e9", "9" * 40])
def test_more_trials_that_are_no_number_are_refused_on_a_page(admin, queued, more):
    admin.post(f"/studies/{queued}/cancel")
    answer = admin.post(f"/studies/{queued}/resume", data={"more_trials": more})

    assert answer.status_code == 422
    assert "<h1>" in answer.text


def test_what_cannot_be_cancelled_is_said_on_a_page(admin):
    answer = admin.post(f"/studies/{FINISHED}/cancel")

    assert answer.status_code == 409
    assert "<h1>That does not fit any more</h1>" in answer.text


def test_who_may_only_read_can_do_nothing_with_a_form(client):
    assert client.post(f"/studies/{FINISHED}/cancel").status_code == 403
    assert client.post(f"/studies/{FINISHED}/resume", data={}).status_code == 403
