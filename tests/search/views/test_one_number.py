"""A trial has the same facts wherever it is shown: its number over the launches that count, not its
first one; and a number about it, energy per step, with the reason where it is absent."""

import csv
import json
from contextlib import closing
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from evaluator.objective import scoring, scoring_of
from policies.space import Space
from records.store.store import Store
from records.study import Dimension, Objective
from records.trial import History, Purpose, Repeat
from search.cli.main import app
from search.llm.prompt import PromptWriter
from search.loop.leader import supported_values
from search.loop.study_result import trial_spread
from search.report.data import ReportData
from search.report.report import study_report
from search.views.format import reached_words
from search.views.frames import trials
from search.views.markdown import render_markdown
from tests.search.service.conftest import running
from tests.search.service.reading_pages import get, table
from tests.support import records as testing

SCORING = scoring(Objective(expression="step_time"))
STUDY = "20260301-000000-once"
LUCKY, RACED, CONFIRMED = 0.1574, (0.168, 0.1645), (0.1659, 0.163, 0.168)
LATER = (0.17, 0.171, 0.172)
WHY = "NVML reported no energy of its devices"


def launches(values, purpose, series=2, ordinal=1):
    return [
        Repeat(
            series=series,
            round=number,
            position=ordinal,
            ordinal=ordinal,
            purpose=purpose,
            outcome=testing.measured(seconds),
        )
        for number, seconds in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("first", "second", "values"),
    [
        ((RACED, Purpose.RACE), (CONFIRMED, Purpose.CONFIRM), CONFIRMED),
        ((RACED, Purpose.RACE), (CONFIRMED[:2], Purpose.CONFIRM), (*RACED, *CONFIRMED[:2])),
        ((CONFIRMED, Purpose.CONFIRM), (LATER, Purpose.CONFIRM, 5), LATER),
    ],
)
def test_the_last_final_with_an_interval_speaks_alone_else_with_the_races(first, second, values):
    assert supported_values([*launches(*first), *launches(*second)], SCORING) == {1: values}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((), "0.1574 s (one launch)"),
        ((1.08,), "1.08 s (one launch)"),
        ((1.08, 1.29), "1.08 and 1.29 s (2 launches)"),
        ((1.0, 1.1, 1.2), "1.1 s (0.8746 to 1.376, 3 launches)"),
    ],
)
def test_two_launches_have_no_interval_and_both_values(values, words):
    trial = testing.history(0.5, LUCKY).trials[1]
    again = {1: values} if values else {}

    assert reached_words(trial_spread(trial, History(again=again)), "s") == words


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A study whose second trial was lucky in its first launch, and slower than it in the final.

    Only its energy is known.
    """
    root = tmp_path_factory.mktemp("once")
    again = [*launches(RACED, Purpose.RACE), *launches(CONFIRMED, Purpose.CONFIRM, series=3)]
    both = [testing.trial(n, s, {"n": n, "m": 2 - n}) for n, s in enumerate((0.5, LUCKY, 0.16))]
    outcome = both[1].outcome
    energy_j = 12.5 * len(outcome.measurement.slowest_rank_s)
    known = replace(outcome, measurement=replace(outcome.measurement, energy_j=energy_j))
    both[1] = replace(both[1], outcome=known)
    with closing(Store(root)) as records:
        knobs = [Dimension(name=name, choices=(0, 1, 2)) for name in ("m", "n")]
        study = replace(testing.study(*knobs), strategy="offline")
        records.add_study(STUDY, study, "test", both, again)
    return root


def printed(store, *command):
    ended = CliRunner().invoke(app, [*command, "--store", str(store)], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_every_command_shows_it(store, tmp_path):
    listed = json.loads(printed(store, "list", "--json"))[0]
    shown = json.loads(printed(store, "show", "--json"))["trials"][1]
    absent, one = (json.loads(printed(store, "trial", "show", n, "--json")) for n in "01")
    compared = json.loads(printed(store, "compare", "trial:0", "trial:1", "--json"))
    first, text = (printed(store, "trial", "show", n) for n in "01")
    printed(store, "export", "--format", "csv", "-o", str(tmp_path / "out.csv"))
    with (tmp_path / "out.csv").open() as file:
        cells = [row["energy_per_step [J]"] for row in csv.DictReader(file)]

    assert {each["score"] for each in (shown, one)} == {0.1659}
    assert {each["launches"] for each in (listed, shown, one)} == {3}
    assert (listed["best"], compared["rows"][0]["b"]["centre"]) == (0.1659, 0.1659)
    assert "0.1574" not in printed(store, "show")
    assert "first launch: 0.1574 s" in text
    assert "  energy per step: 12.5 J\n" in text
    assert f"  energy per step: none, {WHY}\n" in first
    assert (absent["energy_per_step"], absent["absent"]["energy_per_step"]) == (None, WHY)
    assert cells == ["", "12.5", ""]


def test_the_prompt_the_report_and_the_table_of_python_show_it(store):
    with closing(Store(store)) as records:
        row = records.find(STUDY)
        history = ReportData.of(row, records, "").history
        report = study_report(row, records, "")
    space = Space(row.study.space, row.study.workload, row.study.environment)
    turn = PromptWriter(space, scoring_of(row.study)).write(row.study, history, None).turn
    prompt = turn.split("## Trials, newest first")[1].split("\n## ")[0]
    frame, text = trials(STUDY, store), render_markdown(report)

    assert "0.1659 s (0.1595 to 0.172, 3 launches)" in prompt
    assert "0.1574" not in prompt
    assert [" energy per step 12.5 J" in line for line in prompt.splitlines()].count(True) == 1
    every = next(section for section in report.sections if section.name == "trials")
    assert [row.cells[3].text for row in every.blocks[0].rows] == ["0.5", "0.1659", "0.16"]
    assert "- energy per step: 12.5 J" in text
    assert "| energy_per_step \\[J\\] |" in text
    assert list(frame.score) == [0.5, 0.1659, 0.16]
    assert frame.energy_per_step.dropna().tolist() == [12.5]


def test_every_page_and_the_api_show_it(store):
    with running(store) as served, served.client("read") as client:
        at = f"/studies/{STUDY}"
        listed = get(client, f"{at}/trials?sort=score")
        explored, first, one = (
            get(client, f"{at}/{p}") for p in ("explore", "trials/0", "trials/1")
        )
        overview, policies = get(client, at), get(client, f"{at}/policies")
        api = client.get(f"/api/v1{at}/trials?sort=score").json()["items"]
        absent, full = (client.get(f"/api/v1{at}/trials/{n}").json() for n in (0, 1))
        drawn = client.get(f"/api/v1{at}/history").json()["points"]

    assert [row[2] for row in table(listed, "3 trials")] == ["0.16 s", "0.1659 s", "0.5 s"]
    assert [row[-3] for row in table(listed, "3 trials")] == ["", "12.5", ""]
    assert [each["ordinal"] for each in api] == [2, 1, 0]
    assert (api[1]["score"]["value"], api[1]["score"]["launches"]) == (0.1659, 3)
    assert [each["energy_per_step"] for each in api] == [None, 12.5, None]
    assert (full["score"]["value"], full["first_launch"]) == (0.1659, 0.1574)
    assert absent["absent"]["energy_per_step"] == WHY
    assert [each["value"] for each in drawn] == [0.5, 0.1659, 0.16]
    for page in (listed, explored, overview, policies):
        assert "0.1574" not in page.text
    assert "0.1659" in explored.text
    assert "first launch0.1574 s" in one.text
    assert "energy per step12.5 J" in one.text
    assert f"energy per stepnone, {WHY}" in first.text
