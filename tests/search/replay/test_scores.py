"""`replay --mode score`: what a study's trials score by the definitions of today."""

import json
from contextlib import closing
from dataclasses import replace

import pytest

from records.store.store import Store
from records.trial import Repeat, Score
from tests.support import records as testing

STUDY = "20260101-000000-aaaa"
OWN = """
from evaluator.metrics.base import Formula

slowest = Formula(
    name="slowest_step", label="Slowest step", unit="s", better="higher",
    sources=frozenset({"samples"}), description="The slowest timed step.",
    formula=lambda evidence: max(evidence.step_times_s),
)
"""


@pytest.fixture
def stored(tmp_path):
    """A store of two trials, which an older definition of step_time had the wrong way round."""
    store = Store(tmp_path / "scored")
    store.create(STUDY, testing.study(), "1")
    for ordinal, (truth_s, told_s) in enumerate([(0.2, 0.9), (0.5, 0.4)]):
        measured = testing.measured(truth_s)
        older = replace(measured.metrics[0], version=0, value=told_s)
        trial = testing.trial(ordinal, replace(measured, metrics=(older,)), {"tp": ordinal + 1})
        store.finish(STUDY, replace(trial, score=Score(cost=told_s, value=told_s, unit="s")))
    store.finish(STUDY, testing.trial(2, testing.failed(), {"tp": 4}))
    store.close()
    return store.root


def scored(cclsearch, root, *arguments):
    ended = cclsearch("replay", "--mode", "score", *arguments, "--store", root)
    assert ended.err == ""
    return ended


def test_values_then_and_now_are_told_and_who_leads_and_nothing_is_stored(cclsearch, stored):
    lines = scored(cclsearch, stored).out.splitlines()
    assert lines[0] == f"study {STUDY}: scored by step_time; nothing was launched or stored"
    assert lines[1] == (
        "trial 0  tp=1  then 0.9 s, now 0.2 s: -77.78%; "
        "step_time 0.9 (version 0) -> 0.2 (version 1)"
    )
    assert lines[3].endswith("then none, now none: same")
    assert "leader of the search: trial 1, by step_time" in lines
    assert "leader by current values: trial 0, 0.2 s" in lines
    assert "newer versions: step_time 1 (recorded 0)" in lines
    assert lines[-1] == "differs: 2 of 3 trials, the leader"
    with closing(Store(stored)) as store:
        assert store.computed_metrics(STUDY) == {}


def test_strict_exits_with_7_where_anything_is_otherwise(cclsearch, stored):
    assert scored(cclsearch, stored, "--strict").code == 7
    cclsearch("metrics", "compute", "--all", "step_time", "--store", stored)
    assert scored(cclsearch, stored, "--strict").code == 0


def test_another_objective_out_of_a_file_scores_what_was_measured_before(
    cclsearch, stored, tmp_path
):
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    asked = ("--objective", "slowest_step", "--metrics-file", tmp_path / "own.py")
    facts = json.loads(scored(cclsearch, stored, *asked, "--json").out)
    assert (facts["led"], facts["leads_on_record"], facts["leads_today"]) == (1, None, 1)
    assert [trial["now"] for trial in facts["trials"]] == [0.2, 0.5, None]


def test_launches_made_again_under_an_older_definition_do_not_count_as_they_were(cclsearch, stored):
    with closing(Store(stored)) as store:
        slow = store.trial(STUDY, 0).outcome
        store.repeat(STUDY, *(Repeat(series=3, round=n, ordinal=0, outcome=slow) for n in range(3)))
    facts = json.loads(scored(cclsearch, stored, "--json").out)
    assert facts["leads_today"] == 0


def test_options_of_other_modes_are_refused(cclsearch, stored):
    ended = cclsearch("replay", "--objective", "step_time", "--store", stored)
    assert ended.code == 2
    assert "--objective needs --mode score, not llm" in ended.err
