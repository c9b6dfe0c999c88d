"""Pages that set trials beside each other: exploring a study, comparing studies and trials."""

from contextlib import closing
from dataclasses import replace

import pytest

from records.store.store import Store
from records.trial import Measured, MetricValue
from tests.search.service.conftest import FAILED, FINISHED, IMPORTED
from tests.search.service.reading_pages import get, table
from tests.support import records as testing

STUDY = "20260301-000000-made"


def traded(step_time_s: float, memory_bytes: float) -> Measured:
    """A result that takes so much memory."""
    plain = testing.measured(step_time_s)
    taken = MetricValue(
        name="peak_memory", value=memory_bytes, unit="bytes", better="lower", version=1
    )
    return replace(plain, metrics=(*plain.metrics, taken))


@pytest.fixture
def explored(reader_of, tmp_path):
    """A client of a service with a study of which two trials are on the front, and one failed."""
    results = (traded(0.5, 2**20), traded(0.25, 2**22), traded(0.5, 2**22))
    outcomes = (*results, testing.failed(message="</title><script>alert(1)</script>"))
    knobs = [{"tp": tp, "pp": pp} for tp in (1, 2) for pp in (1, 2)]
    with closing(Store(tmp_path / "store")) as store:
        trials = [testing.trial(n, one, knobs[n]) for n, one in enumerate(outcomes)]
        store.add_study(STUDY, replace(testing.study(), strategy="offline"), "test", trials)
    return reader_of(store.root)


def test_every_mark_and_every_row_names_its_trial(explored):
    page = get(explored, f"/studies/{STUDY}/explore")

    scatter, lines = [
        {each.attributes["data-trial"] for each in svg.all() if "data-trial" in each.attributes}
        for svg in page.all("svg")
        if any("data-trial" in each.attributes for each in svg.all())
    ]
    rows = [row for row in page.find("shown").all("tr") if "data-trial" in row.attributes]
    assert scatter == {"0", "1", "2"}
    assert lines == {"0", "1", "2", "3"}
    assert [row.attributes["data-trial"] for row in rows] == ["1", "0", "2", "3"]


def test_rows_say_without_scripts_what_the_charts_show(explored):
    page = get(explored, f"/studies/{STUDY}/explore")

    assert table(page, "4 trials, best first") == [
        ["", "1 ★ the best", "0.25", "4", "1", "--pp=2 --tp=1"],
        ["", "0 on the front", "0.5", "1", "1", "--pp=1 --tp=1"],
        ["", "2", "0.5", "4", "1", "--pp=1 --tp=2"],
        ["", "3", "✗ crash", "", "", "--pp=2 --tp=2"],
    ]
    headings = [each.text for each in page.all("th") if each.attributes.get("scope") == "col"]
    assert headings == ["Trial", "step_time (s)", "peak_memory (MiB)", "Launches", "Parameters"]


def test_a_metric_that_nobody_has_is_said_to_be_missing(explored):
    page = get(explored, f"/studies/{STUDY}/explore?against=%3Cscript%3E")

    assert "no measured trial" in page.text
    assert "'<script>'" in page.text
    assert page.find("shown")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("explore", "Nothing to explore yet"),
        ("trials", "No trial has ended yet"),
        ("policies", "No policy was tried yet"),
    ],
)
def test_there_is_nothing_to_explore_before_a_trial_ended(reader_of, tmp_path, name, words):
    with closing(Store(tmp_path / "store")) as store:
        store.create(STUDY, testing.study(), "test")
    assert words in get(reader_of(store.root), f"/studies/{STUDY}/{name}").text


def test_two_trials_are_judged_and_their_settings_set_beside_each_other(client):
    page = get(client, f"/compare?side={FINISHED}:0&side={FINISHED}")

    rows = {row[0]: row[1:] for row in table(page, "Differences from A are marked with ≠")}
    assert rows["Trial"] == ["0", "2 best"]
    assert rows["tp"] == ["1", "≠ 2"]
    assert rows["pp"] == ["1", "1"]
    assert rows["Result"][1].startswith("0.25 s in one launch, so its spread is unknown")
    assert "undecided: B looks 2.00x faster than A" in page.text
    assert "they were not launched in turns" in page.text


def test_each_of_several_sides_is_called_by_its_own_letter(client):
    page = get(client, "/compare?" + "&".join(f"side={FINISHED}:{n}" for n in (0, 1, 3)))

    headings = [each.text for each in page.all("h2")]
    assert headings[0].startswith("B, trial 1 of finished")
    assert headings[1].startswith("C, trial 3 of finished")
    second, third = page.text.partition("C, trial 3")[::2]
    assert "undecided: B looks 1.25x faster than A" in second
    assert "is called B" not in second
    assert "The text below calls C B." in third
    assert "unknown, B failed: it broke" in third


def test_studies_show_how_each_search_went(client):
    page = get(client, f"/compare?side={FINISHED}&side={IMPORTED}")

    assert "nothing is proven" in page.text
    assert "How far each search was from the best of all" in page.text


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ("", 200, "Select sides"),
        (f"side={FINISHED}", 200, "Add a second side"),
        (f"side={FINISHED}&side=&side=", 200, "Add a second side"),
        (f"side={FINISHED}&side={FAILED}", 200, "no trial that may lead"),
        (f"side={FINISHED}:2&side={FINISHED}", 200, "give two trials"),
        ("side=nothing", 404, "no study 'nothing'"),
        (f"side={FINISHED}:99", 404, "has no trial 99"),
        (f"side={FINISHED}:%3Cb%3E", 422, "names no trial"),
        ("&".join(f"side={FINISHED}:{n}" for n in range(9)), 422, "9 sides are too many"),
    ],
)
def test_what_cannot_be_judged_is_said_in_words(client, asked, status, words):
    assert words in get(client, f"/compare?{asked}", status).text
