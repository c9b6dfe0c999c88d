"""Pages about policies: the list, what one changed of another, and the differences themselves."""

from hypothesis import given
from hypothesis import strategies as st

from search.service.pages.base import visible
from tests.search.service.conftest import FAILED, FINISHED
from tests.search.service.reading_pages import get, links, table


def test_policies_are_listed_with_their_trials(client):
    page = get(client, f"/studies/{FINISHED}/policies")

    rows = table(page, "Programs in the order")
    assert [row[4] for row in rows] == [
        "0: 0.5 s",
        "1: 0.4 s transcript",
        "2 ★ the best: 0.25 s transcript",
        "3: ✗ out of memory transcript",
    ]
    assert rows[0][2] == "none"
    assert rows[1][2] == rows[0][0]
    assert rows[0][3].startswith("try <img src=x onerror=alert(1)>&'\"")
    first, second = (
        get(client, f"/studies/{FINISHED}/policies?limit=3&offset={offset}") for offset in (0, 3)
    )
    assert (len(table(first, "Programs")), links(first)["Next"]) == (3, "?offset=3")
    assert [row[4] for row in table(second, "Programs")] == ["3: ✗ out of memory transcript"]


def test_what_failures_taught_is_worked_out_when_it_is_asked_for(client):
    page = get(client, f"/studies/{FAILED}/policies")
    taught = get(client, f"/studies/{FAILED}/policies{links(page)['Compute them']}")

    assert "None with enough evidence" in taught.text


def test_a_policy_shows_what_it_changes_of_its_parent(client):
    listed = get(client, f"/studies/{FINISHED}/policies")
    digest = links(listed)[table(listed, "Programs")[1][0]]
    page = get(client, digest)

    (gone,) = [each for each in page.all("td") if each.attributes.get("class") == "gone"]
    (come,) = [each for each in page.all("td") if each.attributes.get("class") == "come"]
    assert (gone.text, come.text) == ("print(0)", "print(1)")
    signs = [each.text for each in page.all("td") if "sign" in each.attributes.get("class", "")]
    assert [sign for sign in signs if sign] == ["−", "+"]


def test_any_two_policies_of_a_study_can_be_compared(client):
    listed = get(client, f"/studies/{FINISHED}/policies")
    where = [links(listed)[row[0]] for row in table(listed, "Programs")]
    first = where[0].rpartition("/")[2]
    page = get(client, f"{where[2]}?against={first}")
    get(client, f"{where[2]}?against={'0' * 64}", status=404)
    get(client, f"{where[2]}?against=../..", status=422)
    get(client, f"/studies/{FAILED}/policies/{where[2].rpartition('/')[2]}", status=404)

    (gone,) = [each for each in page.all("td") if each.attributes.get("class") == "gone"]
    assert gone.text == "print(0)"


@given(st.text())
def test_what_is_shown_holds_nothing_that_steers_a_reader(text):
    assert not set(visible(text)) & set("\r\x1b\x00\x7f\u202e\u2028")


def test_control_characters_are_shown_as_escapes_and_overwritten_lines_apart():
    assert visible("a\x1b[1m\x00\r\nb\rc\u202ed\x9b") == "a\\u001b[1m\\u0000\nb\nc\\u202ed\\u009b"
