"""Metrics of trials on record, computed long after they ran: kept, redone by version, readable."""

import json
from contextlib import closing
from dataclasses import replace

import pytest

from records.store.store import Store
from records.study import Context
from records.trial import Config, MetricValue
from search.loop.trial import mean_outcome
from search.study.spaces import join_contexts
from tests.support import records as testing

STUDY = "20260101-000000-aaaa"
OWN = """
from evaluator.metrics.base import Absent, Formula

SCALE = {scale}


def _steps(evidence):
    return SCALE * float(len(evidence.step_times_s))


def _lanes(evidence):
    if evidence.traces is None:
        return Absent("nothing was traced")
    return float(len(evidence.traces.ranks[0].spans.lanes))


step_count = Formula(
    name="step_count", label="Steps", unit="steps", better="higher", version={version},
    sources=frozenset({{"samples"}}), description="Timed steps.", formula=_steps,
)
lane_count = Formula(
    name="lane_count", label="Streams", unit="streams", better="lower",
    sources=frozenset({{"kineto"}}), description="Streams of the first rank.", formula=_lanes,
)
"""

INTERRUPTED = OWN.format(version=1, scale=1).replace(
    "    return SCALE",
    """    from pathlib import Path

    if evidence.step_times_s[0] == 0.2 and Path("stop").exists():
        raise KeyboardInterrupt
    return SCALE""",
)


@pytest.fixture
def own(tmp_path):
    """Writes the user's metrics; gives the options that name them."""

    def write(version=1, scale=1):
        path = tmp_path / "own.py"
        path.write_text(OWN.format(version=version, scale=scale), encoding="utf-8")
        return "--metrics-file", path

    return write


@pytest.fixture
def compute(cclsearch):
    """Computes metrics of all studies of a store; gives what is printed for programs."""

    def run(root, *arguments):
        ended = cclsearch("metrics", "compute", "--all", *arguments, "--store", root, "--json")
        assert (ended.code, ended.err) == (0, "")
        return [json.loads(line) for line in ended.out.splitlines()]

    return run


def values(root, ordinal=0):
    with closing(Store(root)) as store:
        return {value.name: value for value in store.metric_values(STUDY)[ordinal]}


def test_a_metric_of_today_is_computed_of_what_was_traced_before(compute, own, traced_store):
    root = traced_store()

    (told,) = compute(root, "lane_count", "step_count", *own())

    assert (told["study_id"], told["ordinal"], told["unread"]) == (STUDY, 0, {})
    assert [value["name"] for value in told["values"]] == ["lane_count", "step_count"]
    assert values(root)["step_count"] == MetricValue(
        name="step_count", value=5.0, unit="steps", better="higher", version=1
    )
    assert values(root)["lane_count"].value > 0


def test_what_is_on_record_is_not_computed_again(cclsearch, compute, own, traced_store):
    root = traced_store()
    compute(root, "step_count", *own())

    ended = cclsearch("metrics", "compute", "--all", "step_count", *own(), "--store", root)

    assert ended.out.startswith("nothing to compute: every trial of 1 study has all of these")


def test_a_corrected_version_takes_the_place_of_the_older_one_which_stays_readable(
    cclsearch, compute, own, traced_store
):
    root = traced_store()
    compute(root, "step_count", *own())

    (told,) = compute(root, "step_count", *own(version=2, scale=10))

    assert [(value["value"], value["version"]) for value in told["before"]] == [(5.0, 1)]
    assert values(root)["step_count"].value == 50.0
    trial = json.loads(cclsearch("trial", "show", "0", "--store", root, "--json").out)
    every = [(each["version"], each["value"]) for each in trial["computed_metrics"]]
    assert every == [(1, 5.0), (2, 50.0)]
    shown = cclsearch("trial", "show", "0", "--store", root).out
    assert "step_count: 50 steps (version 2, computed 20" in shown


def test_other_code_under_the_same_version_is_refused(cclsearch, compute, own, traced_store):
    root = traced_store()
    compute(root, "step_count", "lane_count", *own())

    other = own(scale=2)
    ended = cclsearch("metrics", "compute", "--all", "step_count", *other, "--store", root)

    assert (ended.code, ended.out) == (2, "")
    assert "metric 'step_count' version 1 was computed by other code" in ended.err
    assert compute(root, "lane_count", *other) == []


def test_a_trial_whose_traces_are_gone_says_so_and_keeps_its_other_metrics(
    compute, own, traced_store
):
    root = traced_store()
    for path in (root / "artifacts").rglob("*"):
        if path.is_file():
            path.unlink()

    (told,) = compute(root, "step_count", "lane_count", *own())

    assert [value["name"] for value in told["values"]] == ["step_count"]
    assert "is missing" in told["unread"]["lane_count"]
    assert "lane_count" not in values(root)


def test_altered_traces_are_not_read_and_are_computed_once_they_are_back(
    compute, own, traced_store
):
    root = traced_store()
    altered = sorted(path for path in (root / "artifacts").rglob("*") if path.is_file())[0]
    whole = altered.read_bytes()
    altered.write_bytes(whole[:-9] + b"123456789")

    (told,) = compute(root, "lane_count", *own())
    altered.write_bytes(whole)
    (again,) = compute(root, "lane_count", *own())

    assert "was changed since it was recorded" in told["unread"]["lane_count"]
    assert [value["name"] for value in again["values"]] == ["lane_count"]


def test_a_study_is_scored_by_what_was_computed_of_it_afterwards(
    cclsearch, compute, own, traced_store
):
    root = traced_store()
    compute(root, "lane_count", *own())

    best = cclsearch("best", "--objective", "lane_count", "--format", "args", "--store", root)
    limit = ("--limit", "lane_count < 1")
    none = cclsearch("best", *limit, "--objective", "step_time", "--store", root)

    assert (best.code, best.out) == (0, "--n=0\n")
    assert "has no trial that satisfies all limits" in none.err


def test_a_value_of_an_older_version_is_computed_again_from_the_samples(compute, tmp_path):
    store = Store(tmp_path / "old")
    measured = testing.measured(0.5)
    older = replace(measured.metrics[0], version=0, value=0.75)
    store.create(STUDY, testing.study(), "1")
    store.finish(STUDY, testing.trial(0, replace(measured, metrics=(older,)), {"tp": 1}))
    store.close()

    (told,) = compute(store.root, "step_time")

    assert [value["value"] for value in told["before"]] == [0.75]
    assert values(store.root)["step_time"].value == 0.5


def test_ctrl_c_keeps_what_was_computed_and_the_same_command_goes_on(cclsearch, compute, tmp_path):
    with closing(Store(tmp_path / "many")) as store:
        store.add_study(STUDY, testing.study(), "1", testing.history(0.1, 0.2, 0.3).trials)
    (tmp_path / "own.py").write_text(INTERRUPTED, encoding="utf-8")
    asked = ("step_count", "--metrics-file", tmp_path / "own.py")
    stop = tmp_path / "here" / "stop"
    stop.touch()

    stopped = cclsearch("metrics", "compute", "--all", *asked, "--store", store.root)
    stop.unlink()
    rest = compute(store.root, *asked)

    assert stopped.code == 75
    assert stopped.out == f"trial {STUDY}:0: step_count 5 steps\n"
    assert "interrupted; computed values are stored" in stopped.err
    assert [told["ordinal"] for told in rest] == [1, 2]


def test_several_contexts_give_the_mean_as_they_did_when_they_were_launched(compute, tmp_path):
    study = testing.study()
    inside = Context(name="long", workload=study.workload, environment=study.environment)
    study = replace(study, contexts=(inside,))
    ended = [(study.name, testing.measured(0.2)), ("long", testing.measured(0.8))]
    config = join_contexts(Config({"tp": 1, "pp": 1}), {"long": Config({"tp": 2, "pp": 1})})
    outcome = replace(mean_outcome(ended), metrics=())
    with closing(Store(tmp_path / "contexts")) as store:
        trial = replace(testing.trial(0, 0.4), outcome=outcome, config=config)
        store.add_study(STUDY, study, "1", [trial])

    (told,) = compute(store.root, "step_time")

    assert [value["value"] for value in told["values"]] == [pytest.approx(0.4)]
