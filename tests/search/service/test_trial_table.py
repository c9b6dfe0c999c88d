"""The page with the trials of a study: filters, order, columns, pages, spreadsheet."""

import csv
import io
from contextlib import closing
from dataclasses import replace

import pytest

from records.store.store import Store
from records.study import Dimension
from records.trial import Config, FailureKind, MetricValue, Policy, Repeat, Trial
from search.report import explored as repeats
from tests.search.service.conftest import FINISHED
from tests.search.service.reading_pages import get, links, table
from tests.support import records as testing

MANY = "20260301-000000-many"


def test_a_row_tells_what_a_trial_set_and_reached(client):
    page = get(client, f"/studies/{FINISHED}/trials")

    rows = table(page, "4 trials")
    assert [row[1] for row in rows] == ["0", "1", "2 ★ the best", "3"]
    assert rows[2][2:6] == ["0.25 s", "one launch", "2", "1"]
    assert rows[3][2] == "failed"
    assert rows[3][-1].startswith("out_of_memory: it broke <img src=x onerror=alert(1)>&'\"")
    assert links(page)["2"] == f"/studies/{FINISHED}/trials/2"


def test_a_heading_sorts_by_it_and_then_the_other_way(client):
    page = get(client, f"/studies/{FINISHED}/trials")
    up = get(client, f"/studies/{FINISHED}/trials{links(page)['step_time']}")
    down = get(client, f"/studies/{FINISHED}/trials{links(up)['step_time']}")

    assert [row[2] for row in table(up, "4 trials")] == ["0.25 s", "0.4 s", "0.5 s", "failed"]
    assert [row[2] for row in table(down, "4 trials")] == ["0.5 s", "0.4 s", "0.25 s", "failed"]
    sorted_by = [each for each in down.all("th") if "aria-sort" in each.attributes]
    assert [(each.text, each.attributes["aria-sort"]) for each in sorted_by] == [
        ("step_time", "descending")
    ]


@pytest.mark.parametrize(
    ("asked", "ordinals"),
    [
        ("status=failed", ["3"]),
        ("kind=out_of_memory&status=&author=&text=", ["3"]),
        ("text=tp%22:+2", ["2 ★ the best", "3"]),
        ("author=llm&sort=config.tp&order=down", ["3", "2 ★ the best", "1", "0"]),
    ],
)
def test_only_trials_that_fit_are_shown(client, asked, ordinals):
    page = get(client, f"/studies/{FINISHED}/trials?{asked}")

    caption = next(iter(page.all("caption"))).text
    assert "the filter" in caption
    assert [row[1] for row in table(page, caption.split()[0])] == ordinals


def test_chosen_columns_are_shown_and_stay_chosen_when_sorted(client):
    page = get(client, f"/studies/{FINISHED}/trials?columns=config.pp")

    headings = [each.text for each in page.all("th") if each.attributes.get("scope") == "col"]
    assert headings == ["Trial", "step_time", "Launches", "pp", "By", "Notes"]
    checked = [each for each in page.all("input") if "checked" in each.attributes]
    assert [each.attributes["value"] for each in checked] == ["config.pp"]
    assert "columns=config.pp" in links(page)["pp"]


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ("author=nobody", 200, "No matching trials"),
        *((asked, 422, "That does not work like this") for asked in (
            "sort=%22'", "order=sideways", "limit=100000", "kind=none"
        )),
    ],
)  # fmt: skip
def test_what_fits_nothing_or_cannot_be_asked_is_said_in_words(client, asked, status, words):
    assert words in get(client, f"/studies/{FINISHED}/trials?{asked}", status).text


def test_the_spreadsheet_has_the_rows_that_fit_and_runs_no_formula(reader_of, tmp_path):
    with closing(Store(tmp_path / "store")) as store:
        bad = testing.failed(message="=cmd|' /C calc'!A0")
        trials = [
            testing.trial(n, outcome, {"tp": n + 1}) for n, outcome in enumerate((0.5, bad, 0.25))
        ]
        store.add_study(MANY, replace(testing.study(), strategy="offline"), "test", trials)
    client = reader_of(store.root)
    address = f"/studies/{MANY}/trials.csv"
    answer, failed = client.get(f"{address}?sort=score"), client.get(f"{address}?status=failed")

    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert answer.headers["content-disposition"] == f'attachment; filename="{MANY}-trials.csv"'
    assert [row["ordinal"] for row in rows] == ["2", "0", "1"]
    assert [row["score [s]"] for row in rows] == ["0.25", "0.5", ""]
    (row,) = csv.DictReader(io.StringIO(failed.text))
    assert row["failure_message"] == "'=cmd|' /C calc'!A0"


def test_launches_that_were_made_again_are_told_with_their_interval(
    reader_of, tmp_path, monkeypatch
):
    rounds = [
        Repeat(
            series=2,
            round=number,
            ordinal=ordinal,
            position=ordinal,
            outcome=testing.measured(0.25 + 0.25 * ordinal + number / 100),
        )
        for number in range(4)
        for ordinal in (0, 1)
    ]
    with closing(Store(tmp_path / "store")) as store:
        trials = testing.history(0.25, 0.5).trials
        study = replace(testing.study(), strategy="offline")
        store.add_study(MANY, study, "test", trials, rounds)
    client = reader_of(store.root)
    every, one = (
        get(client, f"/studies/{MANY}/trials"),
        get(client, f"/studies/{MANY}/trials/1"),
    )
    monkeypatch.setattr(repeats, "MOST_REPEATS", 7)
    many = get(client, f"/studies/{MANY}/trials")
    alone = get(client, f"/studies/{MANY}/trials/1")

    assert table(every, "2 trials")[0][2:4] == ["0.265 s", "0.245 to 0.2861, 4 launches"]
    assert "0.515 s, median of 4 launches (95 % interval" in one.text
    names = [each.text for each in one.all("text") if "round" in each.text]
    assert names == [f"confirmation 2, round {number}" for number in range(4)]
    assert "4 launches" not in many.text
    assert "too many in this study" in alone.text


def test_thousands_of_trials_are_read_page_by_page(reader_of, tmp_path):
    with closing(Store(tmp_path / "store")) as store:
        study = replace(
            testing.study(Dimension(name="n", choices=tuple(range(100)))), strategy="offline"
        )
        store.add_study(MANY, study, "test", map(_trial, range(600)))
    client = reader_of(store.root)
    first = get(client, f"/studies/{MANY}/trials?sort=metric.peak_memory&order=down")
    last = get(client, f"/studies/{MANY}/trials?limit=500&offset=500")

    assert len(table(first, "600 trials")) == 100
    assert links(first)["Next"] == "?sort=metric.peak_memory&order=down&offset=100"
    assert table(first, "600 trials")[0][1] == "599"
    assert table(last, "600 trials")[-1][1] == "599"
    assert "Next" not in links(last)


def _trial(ordinal: int) -> Trial:
    knobs = {"n": ordinal % 100}
    if ordinal % 7 == 3:
        outcome = testing.failed(FailureKind.HANG)
    else:
        plain = testing.measured(1 + ordinal / 10_000)
        memory = MetricValue(
            name="peak_memory", value=2.0**20 * knobs["n"], unit="bytes", better="lower", version=1
        )
        outcome = replace(plain, metrics=(*plain.metrics, memory))
    policy = Policy(source="# the same\n", author="bo", rationale="")
    return replace(testing.trial(ordinal, outcome), config=Config(knobs), policy=policy)
