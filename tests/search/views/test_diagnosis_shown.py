"""Where a person meets a diagnosis: on a trial, and in the closing report."""

import json
from contextlib import closing

from evaluator.objective import scoring
from records.store.store import Store
from search.loop.leader import study_leader
from search.loop.study_result import find
from search.report.summary import StudyRecord, report_lines

SENTENCE = (
    "46 % of the step is compute, and the largest loss is exposed communication (36 %), mostly "
    "all_reduce over 2 ranks (22 %). The others wait for rank 1"
)


def test_a_trial_is_shown_with_what_its_traces_say(cclsearch, traced_store) -> None:
    root = traced_store()
    told = cclsearch("trial", "show", "0", "--store", root).out
    facts = json.loads(cclsearch("trial", "show", "0", "--store", root, "--json").out)

    assert f"Where time went\n  {SENTENCE}" in told
    assert (
        "\n  from traces: all_reduce over 2 ranks (ranks 0 1): 4 calls with 10.01 MiB in all"
        in told
    )
    assert facts["where_time_went"].startswith(SENTENCE)
    assert facts["outcome"]["diagnosis"]["collectives"][0]["kind"] == "all_reduce"


def test_a_trial_without_a_diagnosis_is_shown_without_one(cclsearch, traced_store) -> None:
    root = traced_store()

    assert "Where time went" not in cclsearch("trial", "show", "1", "--store", root).out
    facts = json.loads(cclsearch("trial", "show", "1", "--store", root, "--json").out)
    assert facts["where_time_went"] is None


def test_the_report_says_where_the_time_of_the_best_goes(traced_store) -> None:
    with closing(Store(traced_store())) as store:
        (row,) = store.studies()
        led = study_leader(row, store)
        finding = find(led, [], scoring(row.study.objective), row.study.measure, "why")
        told = dict(report_lines(finding, StudyRecord.of(row.id, store), ""))

    assert told["where time goes"].startswith(SENTENCE)
