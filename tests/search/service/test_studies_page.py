"""The page of studies, the leaderboard, health, and the frame around all pages."""

import re

import pytest

from search.service.pages.base import moment
from search.views.charts import sparkline
from search.views.format import format_elapsed
from tests.search.service.conftest import FAILED, FINISHED, IMPORTED
from tests.search.service.reading_pages import get, links
from tests.support import records as testing


@pytest.fixture
def client(shared):
    """A reader's client."""
    with shared.client("read") as found:
        yield found


def texts(page, name: str) -> list[str]:
    return [" ".join(each.text.split()) for each in page.all(name)]


def test_every_study_is_listed_with_its_best_and_its_caveats(client):
    page = get(client, "/studies")
    found = links(page)

    assert {f"/studies/{each}" for each in (FINISHED, FAILED, IMPORTED)} <= {*found.values()}
    assert any("0.25 s" in text for text in texts(page, "td"))
    assert sum(each.attributes.get("name") == "side" for each in page.all("input")) == 3


def test_studies_are_found_by_text_and_by_status(client):
    by_text = links(get(client, "/studies?text=all+failed"))
    none = get(client, "/studies?status=running")

    assert f"/studies/{FAILED}" in by_text.values()
    assert f"/studies/{FINISHED}" not in by_text.values()
    assert "No matching study" in none.text


def test_a_status_that_is_none_and_a_page_behind_the_last_are_no_errors(client):
    assert "finished" in get(client, "/studies?status=nonsense").text
    get(client, "/studies?offset=100000")
    get(client, "/studies?offset=-1", status=422)


def test_what_is_searched_for_is_written_as_text(client):
    page = get(client, '/studies?text="><script>alert(1)</script>')

    assert '"><script>alert(1)</script>' in {
        each.attributes.get("value") for each in page.all("input")
    }


@pytest.mark.parametrize("address", ["/studies", f"/studies/{FINISHED}", "/leaderboard", "/health"])
def test_every_page_has_one_heading_its_landmarks_and_a_way_past_the_navigation(client, address):
    page = get(client, address)

    assert len(list(page.all("h1"))) == 1
    assert {"header", "main", "nav"} <= {each.name for each in page.all()}
    assert links(page)["Skip to the content"] == "#content"
    assert all(each.attributes.get("aria-label") for each in page.all("nav"))


@pytest.mark.parametrize("address", ["/studies", f"/studies/{FINISHED}", "/leaderboard", "/health"])
def test_every_field_has_a_label_and_no_id_is_used_twice(client, address):
    page = get(client, address)
    labelled = {each.attributes.get("for") for each in page.all("label")}
    fields = [e for e in page.all() if e.name in ("input", "select", "textarea")]
    ids = [each.attributes["id"] for each in page.all() if "id" in each.attributes]

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


def test_a_leaderboard_by_a_metric_that_nothing_has_says_so(client):
    assert "nonsense" in get(client, "/leaderboard?by=nonsense", status=422).text


def test_health_tells_of_the_queue_the_devices_and_the_disk(client):
    page = get(client, "/health")
    told = texts(page, "dt")

    assert {"version", "uptime", "free on disk", "store", "API key"} <= {*told}
    assert "this machine" in texts(page, "th")


def test_a_sparkline_goes_the_way_that_is_better():
    falling = sparkline([(0, 4.0), (3, 2.0)], 9, lower_is_better=True)
    rising = sparkline([(0, 2.0), (3, 4.0)], 9, lower_is_better=False)

    assert re.search(r'points="3,3 41,3 41,25 117,25"', falling)
    assert re.search(r'points="3,25 41,25 41,3 117,3"', rising)
    assert sparkline([], 9, lower_is_better=True) == ""


def test_an_imported_study_started_when_its_own_search_did(client):
    rows = get(client, "/studies").find("rows").all("tr")
    started = {" ".join(row.text.split()): row.all("td") for row in rows}
    (imported,) = (cells for words, cells in started.items() if IMPORTED in words)
    listed = client.get("/api/v1/studies").json()["items"]
    (study,) = (each for each in listed if each["id"] == IMPORTED)

    own, at_import = testing.START, study["created_at"]
    assert (study["started_at"], at_import > own) == (own, True)
    assert "imported" in [*imported][-1].text


def test_a_sparkline_is_flat_where_nothing_got_better():
    assert 'points="3,25 117,25"' in sparkline([(0, 1.0)], 4, lower_is_better=True)


def test_moments_are_told_in_utc_and_what_is_none_as_it_stands():
    assert ">1 Jan 2026, 23:30 UTC<" in moment("2026-01-02T00:30:00+01:00")
    assert moment("<b>yesterday</b>") == "<b>yesterday</b>"
    assert moment("0001-01-01T00:00:00+23:00") == "0001-01-01T00:00:00+23:00"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (61, "1 min 1 s"), (7200, "2 h"), (180_000, "2 days 2 h")],
)
def test_lengths_of_time_are_told_by_their_two_largest_units(seconds, words):
    assert format_elapsed(seconds) == words
