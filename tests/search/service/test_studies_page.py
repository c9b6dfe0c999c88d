"""The page of studies, the leaderboard, health, and the frame around all pages."""

import re
from contextlib import closing

import pytest

from records.store.rows import Labels, PendingTrial
from records.store.store import Store
from search.client.client import Client
from search.service.queue import State
from search.views.charts import sparkline
from search.views.format import format_elapsed
from tests.search.service.conftest import FAILED, FINISHED, HOSTILE, IMPORTED, Served
from tests.search.service.reading_pages import get, links
from tests.support import records as testing

STUDIES = [f"/studies/{each}" for each in (FINISHED, FAILED, IMPORTED)]
ADDRESSES = ["/studies", f"/studies/{FINISHED}", "/leaderboard", "/health"]


def texts(page, name: str) -> list[str]:
    return [" ".join(each.text.split()) for each in page.all(name)]


def test_every_study_is_listed_with_its_best_and_its_caveats(client):
    page = get(client, "/studies")

    assert {f"/studies/{each}" for each in (FINISHED, FAILED, IMPORTED)} <= {*links(page).values()}
    assert any("0.25 s" in text for text in texts(page, "td"))
    assert sum(each.attributes.get("name") == "side" for each in page.all("input")) == 3


def test_studies_are_found_by_text_and_by_status(client):
    by_text = links(get(client, "/studies?text=all+failed")).values()
    quoted = get(client, '/studies?text="><script>alert(1)</script>')

    assert f"/studies/{FAILED}" in by_text
    assert f"/studies/{FINISHED}" not in by_text
    assert "No matching study" in get(client, "/studies?status=running").text
    assert "finished" in get(client, "/studies?status=nonsense").text
    assert '"><script>alert(1)</script>' in {
        each.attributes.get("value") for each in quoted.all("input")
    }
    get(client, "/studies?offset=100000")
    get(client, "/studies?offset=-1", status=422)


@pytest.fixture
def labelled(served) -> Served:
    """A service whose finished study is tagged, and whose failed one is archived."""
    with closing(Store(served.service.store)) as store:
        store.label(FINISHED, Labels(tags=("nightly", "v2"), notes=f"why\n{HOSTILE}"))
        store.label(FAILED, Labels(archived=True))
    return served


def test_studies_are_found_by_tag_and_archived_ones_only_where_they_are_asked_for(labelled):
    with labelled.client("read") as reader:
        all_of_them = get(reader, "/studies")
        tagged = links(get(reader, "/studies?tag=nightly"))
        archived = links(get(reader, "/studies?archived=yes"))
        listed = reader.get("/api/v1/studies", params={"archived": True}).json()["items"]

    assert f"/studies/{FAILED}" not in links(all_of_them).values()
    assert links(all_of_them)["v2"] == "/studies?tag=v2"
    assert [one for one in tagged.values() if one in STUDIES] == [f"/studies/{FINISHED}"]
    assert [one for one in archived.values() if one in STUDIES] == [f"/studies/{FAILED}"]
    assert [(one["id"], one["archived"]) for one in listed] == [(FAILED, True)]


@pytest.mark.parametrize(
    ("order", "listed"),
    [
        ("", [IMPORTED, FAILED, FINISHED]),
        ("sort=created_at&order=asc", [FINISHED, FAILED, IMPORTED]),
        ("sort=name&order=asc", [FAILED, FINISHED, IMPORTED]),
        ("sort=trials&order=desc", [FINISHED, IMPORTED, FAILED]),
    ],
)
def test_studies_are_sorted_by_their_columns(client, order, listed):
    page = get(client, f"/studies?{order}")

    found = [link for link in links(page).values() if link in STUDIES]
    assert found == [f"/studies/{each}" for each in listed]
    assert len([e for e in page.all("th") if "aria-sort" in e.attributes]) == 1
    get(client, "/studies?sort=nonsense", status=422)


def test_labels_are_edited_on_the_page_by_who_may(labelled):
    form = {"tags": "v3,  nightly", "notes": " because ", "archived": "yes"}
    with labelled.client("read") as reader, labelled.client("submit") as submitter:
        shown = get(reader, f"/studies/{FINISHED}")
        refused = reader.post(f"/studies/{FINISHED}/labels", data=form)
        saved = submitter.post(f"/studies/{FINISHED}/labels", data=form)
        wrong = submitter.post(f"/studies/{FINISHED}/labels", data={"tags": "<b>"})
        fields = get(submitter, f"/studies/{FINISHED}")

    assert "<img src=x onerror=alert(1)>" in shown.text
    assert "Save" not in texts(shown, "button")
    assert (refused.status_code, saved.status_code) == (403, 303)
    assert (wrong.status_code, "is not a tag" in wrong.text) == (422, True)
    assert fields.find("tags").attributes["value"] == "nightly, v3"
    assert fields.find("notes").text == "because"


def test_a_study_of_another_is_labelled_by_admins_alone(served):
    with served.client("admin") as admin, served.client("submit") as submitter:
        study_id = admin.post("/api/v1/studies", json={"trials": 1}).json()["id"]
        path = f"/api/v1/studies/{study_id}/labels"
        refused = submitter.post(path, json={"archived": True})
        done = admin.post(path, json={"archived": True})

    assert (refused.status_code, done.status_code) == (403, 200)


def test_the_client_labels_and_finds_studies(labelled):
    with Client(labelled.url, labelled.tokens["submit"], patience_s=0) as client:
        found = client.study(FINISHED).label(tags=["mine"], notes="a key ghp_" + "x" * 36)
        named = [one.id for one in client.studies({"tag": "mine"})]
        study = client.study(FINISHED).now()

    assert (found.tags, found.notes, found.archived) == (["mine"], "a key ***", False)
    assert named == [FINISHED]
    assert (study.tags, study.notes) == (found.tags, found.notes)


@pytest.fixture
def measured(served) -> str:
    """The id of a submitted study that has ended, with two measured trials and a failed one."""
    with served.client("admin") as admin:
        study_id = admin.post("/api/v1/studies", json={"trials": 3}).json()["id"]
    with closing(Store(served.service.store)) as store:
        for ordinal, outcome in enumerate((0.5, 0.25, testing.failed())):
            trial = testing.trial(ordinal, outcome, {"tp": ordinal + 1})
            store.begin(
                study_id, PendingTrial(ordinal=ordinal, policy=trial.policy, started_at=""), None
            )
            store.finish(study_id, trial)
    served.service.table.change_from(study_id, State.QUEUED, State.FINISHED)
    return study_id


def test_two_trials_race_in_a_new_study_of_the_same_environment(served, measured):
    with served.client("submit") as submitter:
        page = get(submitter, f"/compare?side={measured}:1&side={measured}:0")
        sent = [
            e.attributes["value"] for e in page.all("input") if e.attributes.get("name") == "trial"
        ]
        raced = submitter.post(f"/studies/{measured}/race", data={"trial": sent})
        new_id = raced.headers["location"].rpartition("/")[2]
        study = submitter.get(f"/api/v1/studies/{new_id}").json()

    assert (sent, raced.status_code) == (["1", "0"], 303)
    assert (study["status"], study["submitted_by"]) == ("queued", "submit")
    assert study["environment"] == "builtin"
    assert study["name"].startswith("trial 1 against 0 of ")
    records = served.service.records
    assert [each.policy for each in records.pending(new_id)] == [
        records.trial(measured, ordinal).policy for ordinal in (1, 0)
    ]


@pytest.mark.parametrize(
    ("role", "trials", "status", "words"),
    [
        ("read", [0, 1], 403, "needs the role submit"),
        ("submit", [0, 0], 422, "trial 0 cannot race itself"),
        ("submit", [0, 2], 422, "trial 2 of study"),
        ("submit", [0, 9], 422, "trial 9 of study"),
        ("submit", [0], 422, "trials"),
    ],
)
def test_what_cannot_race_is_refused(served, measured, role, trials, status, words):
    with served.client(role) as client:
        answer = client.post(f"/api/v1/studies/{measured}/race", json={"trials": trials})

    assert (answer.status_code, words in answer.text) == (status, True)


def test_a_study_that_was_not_submitted_here_races_on_the_command_line(client, served):
    page = get(client, f"/compare?side={FINISHED}:0&side={FINISHED}:1")
    with served.client("admin") as admin:
        answer = admin.post(f"/api/v1/studies/{FINISHED}/race", json={"trials": [0, 1]})

    assert "Race these two" not in page.text
    assert answer.status_code == 409
    assert f"cclsearch race {FINISHED} 0 1" in answer.text


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_page_has_its_landmarks_labels_and_a_way_past_the_navigation(client, address):
    page = get(client, address)
    labelled = {each.attributes.get("for") for each in page.all("label")}
    fields = [e for e in page.all() if e.name in ("input", "select", "textarea")]
    ids = [each.attributes["id"] for each in page.all() if "id" in each.attributes]

    assert len(list(page.all("h1"))) == 1
    assert {"header", "main", "nav"} <= {each.name for each in page.all()}
    assert links(page)["Skip to the content"] == "#content"
    assert all(each.attributes.get("aria-label") for each in page.all("nav"))
    assert len(ids) == len(set(ids))
    assert all(
        each.attributes.get("type") == "hidden"
        or "aria-label" in each.attributes
        or each.attributes.get("id") in labelled
        for each in fields
    )


def test_the_first_address_leads_to_the_studies(client):
    answer = client.get("/")

    assert (answer.status_code, answer.headers["location"]) == (303, "/studies")


def test_who_may_only_read_is_offered_nothing_that_they_may_not(client, shared):
    with shared.client("submit") as submitter:
        assert "New study" in links(get(submitter, "/studies"))
    assert "New study" not in links(get(client, "/studies"))
    assert "Resume" not in texts(get(client, f"/studies/{FINISHED}"), "button")


def test_what_is_not_there_is_said_on_a_page(client):
    page = get(client, "/studies/none-such", status=404)

    assert "There is nothing here" in texts(page, "h1")
    assert links(page)["Go to the studies"] == "/studies"


def test_static_files_need_no_token_and_are_kept_for_long(shared, client):
    links_to = [each.attributes["href"] for each in get(client, "/studies").all("link")]
    with shared.client(None) as nobody:
        answers = [nobody.get(address) for address in links_to]
        missing = nobody.get("/static/0/..%2Frendering.py")

    assert [answer.status_code for answer in answers] == [200] * len(links_to)
    assert all("immutable" in answer.headers["cache-control"] for answer in answers)
    assert missing.status_code == 404


def test_the_leaderboard_ranks_what_did_the_same_work(client):
    page = get(client, "/leaderboard")

    assert f"/studies/{FINISHED}" in links(page).values()
    assert any("step_time" in text for text in texts(page, "th"))
    assert "No such workload" in get(client, "/leaderboard?workload=none-such").text
    assert "nonsense" in get(client, "/leaderboard?by=nonsense", status=422).text


def test_health_tells_of_the_queue_the_devices_and_the_disk(client):
    page = get(client, "/health")

    assert {"version", "uptime", "free on disk", "store", "API key"} <= {*texts(page, "dt")}
    assert "this machine" in texts(page, "th")


def test_a_sparkline_goes_the_way_that_is_better():
    falling = sparkline([(0, 4.0), (3, 2.0)], 9, lower_is_better=True)
    rising = sparkline([(0, 2.0), (3, 4.0)], 9, lower_is_better=False)

    assert re.search(r'points="3,3 41,3 41,25 117,25"', falling)
    assert re.search(r'points="3,25 41,25 41,3 117,3"', rising)
    assert 'points="3,25 117,25"' in sparkline([(0, 1.0)], 4, lower_is_better=True)
    assert sparkline([], 9, lower_is_better=True) == ""


def test_an_imported_study_started_when_its_own_search_did(client):
    rows = get(client, "/studies").find("rows").all("tr")
    (imported,) = (row for row in rows if IMPORTED in row.text)
    listed = client.get("/api/v1/studies").json()["items"]
    (study,) = (each for each in listed if each["id"] == IMPORTED)

    assert (study["started_at"], study["created_at"] > testing.START) == (testing.START, True)
    assert "imported" in [*imported.all("td")][-1].text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (61, "1 min 1 s"), (7200, "2 h"), (180_000, "2 days 2 h")],
)
def test_lengths_of_time_are_told_by_their_two_largest_units(seconds, words):
    assert format_elapsed(seconds) == words
