"""A number about a trial is in every view of it; one entry in the table of facts is enough."""

import csv
import json
from contextlib import closing
from dataclasses import replace

import pytest

from evaluator.objective import scoring_of
from records.store.store import Store
from search.llm.prompt import RatedHistory, trial_rows
from search.loop.leader import study_leader
from search.report.report import study_report
from search.views.frames import trials
from search.views.markdown import render_markdown
from tests.search.service.conftest import running
from tests.search.service.reading_pages import get
from tests.support import records as testing

STUDY = "20260301-000000-fact"
WHY = "NVML reported no energy of its devices"


def trial(ordinal, seconds, energy_j):
    outcome = testing.measured(seconds)
    measurement = replace(outcome.measurement, energy_j=energy_j)
    return testing.trial(ordinal, replace(outcome, measurement=measurement), {"tp": 1 + ordinal})


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A study of two trials, of which NVML reported the energy of the second."""
    root = tmp_path_factory.mktemp("facts")
    step_count = len(testing.measured().measurement.slowest_rank_s)
    with closing(Store(root)) as records:
        study = replace(testing.study(), strategy="offline")
        both = [trial(0, 0.5, None), trial(1, 0.25, 12.5 * step_count)]
        records.add_study(STUDY, study, "test", both, [])
    return root


def test_the_terminal_shows_energy_per_step(store, cclsearch):
    absent, known = (
        cclsearch("trial", "show", ordinal, "--store", store).out for ordinal in (0, 1)
    )
    facts = json.loads(cclsearch("trial", "show", 0, "--json", "--store", store).out)

    assert "  energy per step: 12.5 J\n" in known
    assert f"  energy per step: none, {WHY}\n" in absent
    assert (facts["energy_per_step"], facts["absent"]["energy_per_step"]) == (None, WHY)


def test_the_page_and_the_api_show_energy_per_step(store):
    with running(store) as served, served.client("read") as client:
        absent, known = (get(client, f"/studies/{STUDY}/trials/{n}").text for n in (0, 1))
        api = f"/api/v1/studies/{STUDY}/trials"
        listed = client.get(api).json()["items"]
        full = client.get(f"{api}/0").json()

    assert "energy per step12.5 J" in known
    assert f"energy per stepnone, {WHY}" in absent
    assert [each["energy_per_step"] for each in listed] == [None, 12.5]
    assert full["absent"]["energy_per_step"] == WHY


def test_the_report_shows_energy_per_step(store):
    with closing(Store(store)) as records:
        text = render_markdown(study_report(records.find(STUDY), records, ""))

    assert "- energy per step: 12.5 J" in text
    assert "| energy_per_step \\[J\\] |" in text


def test_csv_and_data_frames_have_a_column_of_energy_per_step(store, cclsearch, tmp_path):
    cclsearch("export", "--format", "csv", "-o", tmp_path / "out.csv", "--store", store)
    with (tmp_path / "out.csv").open() as file:
        cells = [row["energy_per_step [J]"] for row in csv.DictReader(file)]

    assert cells == ["", "12.5"]
    assert trials(STUDY, store).energy_per_step.dropna().tolist() == [12.5]


def test_the_prompt_shows_energy_per_step(store):
    with closing(Store(store)) as records:
        row = records.find(STUDY)
        history = study_leader(row, records).history
    shown = RatedHistory.of(history, scoring_of(row.study), row.study.measure)
    known, absent = trial_rows(shown, message_chars=100, dropped=set()).splitlines()

    assert "energy per step 12.5 J" in known
    assert "energy" not in absent
