"""Metrics of recorded trials, computed long after they ran: kept, redone by version, readable."""

import json
from contextlib import closing
from dataclasses import replace

import pytest

from evaluator.metrics.registry import definition_digest, definitions
from records.store.store import Store
from records.study import Context
from records.trial import Config, MetricValue
from search.loop.trial import mean_outcome
from search.replay import metrics as processes
from search.replay.metrics import ENDED, Work, compute_trials, recompute_metrics
from search.study.spaces import join_contexts
from tests.support import records as testing

STUDY = "20260101-000000-aaaa"
OWN = """
import os
from pathlib import Path

from evaluator.metrics.base import Absent, Formula

SCALE = 1
FATAL_S = 0.9


def _first(evidence):
    if evidence.step_times_s[0] == FATAL_S:
        os._exit(3)
    return evidence.step_times_s[0]


def _broken(evidence):
    raise RuntimeError("no such thing")


def _steps(evidence):
    if evidence.step_times_s[0] == 0.2 and Path("stop").exists():
        raise KeyboardInterrupt
    return SCALE * float(len(evidence.step_times_s))


def _lanes(evidence):
    if evidence.traces is None:
        return Absent("nothing was traced")
    return float(len(evidence.traces.ranks[0].spans.lanes))


def _metric(name, formula, unit="s", version=1, source="samples"):
    return Formula(
        name=name, label=name.title(), unit=unit, better="higher", version=version,
        sources=frozenset({source}), description="Of the timed steps.", formula=formula,
    )


first_step = _metric("first_step", _first)
broken = _metric("broken", _broken)
step_count = _metric("step_count", _steps, "steps", 1)
lane_count = _metric("lane_count", _lanes, "streams", source="kineto")
"""


@pytest.fixture
def own(tmp_path):
    """Writes the user's metrics; gives the file."""

    def write(version=1, scale=1):
        path = tmp_path / "own.py"
        text = OWN.replace("SCALE = 1", f"SCALE = {scale}")
        path.write_text(text.replace('"steps", 1', f'"steps", {version}'), encoding="utf-8")
        return path

    return write


@pytest.fixture
def compute(cclsearch):
    """Computes metrics of all studies of a store; gives what is printed for programs."""

    def run(root, *names, file=None):
        options = () if file is None else ("--metrics-file", file)
        command = ("metrics", "compute", "--all", *names, *options, "--store", root, "--json")
        ended = cclsearch(*command)
        assert (ended.code, ended.err) == (0, "")
        return [json.loads(line) for line in ended.out.splitlines()]

    return run


@pytest.fixture
def store(tmp_path):
    """A store with three trials that were measured and one that failed."""
    with closing(Store(tmp_path / "many")) as opened:
        trials = testing.history(0.1, 0.2, 0.3, testing.failed()).trials
        opened.add_study(STUDY, testing.study(), "1", trials)
        yield opened


def values(root, ordinal=0):
    with closing(Store(root)) as store:
        return {value.name: value for value in store.metric_values(STUDY)[ordinal]}


def afterwards(store, file, names=("first_step",), told=None):
    known = definitions(file, names).known
    seen = [] if told is None else told
    return recompute_metrics(
        [store.find("")], store, known, file, lambda row, count: seen.append((row.id, count))
    )


# Of one trial.


def test_a_metric_of_today_is_computed_once_of_what_was_traced_before(
    cclsearch, compute, own, traced_store
):
    root, asked = traced_store(), ("lane_count", "step_count")
    (told,) = compute(root, *asked, file=own())
    assert (told["study_id"], told["ordinal"], told["unread"]) == (STUDY, 0, {})
    assert [value["name"] for value in told["values"]] == [*asked]
    assert values(root)["step_count"] == MetricValue(
        name="step_count", value=5.0, unit="steps", better="higher", version=1
    )
    assert values(root)["lane_count"].value > 0
    options = ("--metrics-file", own(), "--store", root)
    ended = cclsearch("metrics", "compute", "--all", "step_count", *options)
    assert ended.out.startswith("nothing to compute: every trial of 1 study has all of these")
    best = cclsearch("best", "--objective", "lane_count", "--format", "args", "--store", root)
    limit = ("--limit", "lane_count < 1", "--objective", "step_time", "--store", root)
    assert (best.code, best.out) == (0, "--n=0\n")
    assert "has no trial that satisfies all limits" in cclsearch("best", *limit).err


def test_a_corrected_version_takes_the_place_of_the_older_one_which_stays_readable(
    cclsearch, compute, own, traced_store
):
    root = traced_store()
    compute(root, "step_count", file=own())
    (told,) = compute(root, "step_count", file=own(version=2, scale=10))
    assert [(value["value"], value["version"]) for value in told["before"]] == [(5.0, 1)]
    assert values(root)["step_count"].value == 50.0
    trial = json.loads(cclsearch("trial", "show", "0", "--store", root, "--json").out)
    every = [(each["version"], each["value"]) for each in trial["computed_metrics"]]
    assert every == [(1, 5.0), (2, 50.0)]
    shown = cclsearch("trial", "show", "0", "--store", root).out
    assert "step_count: 50 steps (version 2, computed 20" in shown


def test_other_code_under_the_same_version_is_refused(cclsearch, compute, own, traced_store):
    root = traced_store()
    compute(root, "step_count", "lane_count", file=own())
    options = ("--metrics-file", own(scale=2), "--store", root)
    ended = cclsearch("metrics", "compute", "--all", "step_count", *options)
    assert (ended.code, ended.out) == (2, "")
    assert "metric 'step_count' version 1 was computed by other code" in ended.err
    assert compute(root, "lane_count", file=own(scale=2)) == []


def test_a_trial_whose_traces_are_gone_says_so_and_keeps_its_other_metrics(
    compute, own, traced_store
):
    root = traced_store()
    for path in (root / "artifacts").rglob("*"):
        if path.is_file():
            path.unlink()
    (told,) = compute(root, "step_count", "lane_count", file=own())
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
    (told,) = compute(root, "lane_count", file=own())
    altered.write_bytes(whole)
    (again,) = compute(root, "lane_count", file=own())
    assert "was changed since it was recorded" in told["unread"]["lane_count"]
    assert [value["name"] for value in again["values"]] == ["lane_count"]


def test_a_value_of_an_older_version_is_computed_again_from_the_samples(compute, tmp_path):
    measured = testing.measured(0.5)
    older = replace(measured.metrics[0], version=0, value=0.75)
    with closing(Store(tmp_path / "old")) as store:
        trial = testing.trial(0, replace(measured, metrics=(older,)), {"tp": 1})
        store.add_study(STUDY, testing.study(), "1", [trial])
    (told,) = compute(store.root, "step_time")
    assert [value["value"] for value in told["before"]] == [0.75]
    assert values(store.root)["step_time"].value == 0.5


def test_several_contexts_give_the_mean_as_they_did_when_they_were_launched(compute, tmp_path):
    study = testing.study()
    inside = Context(name="long", workload=study.workload, environment=study.environment)
    ended = [(study.name, testing.measured(0.2)), ("long", testing.measured(0.8))]
    config = join_contexts(Config({"tp": 1, "pp": 1}), {"long": Config({"tp": 2, "pp": 1})})
    outcome = replace(mean_outcome(ended), metrics=())
    with closing(Store(tmp_path / "contexts")) as store:
        trial = replace(testing.trial(0, 0.4), outcome=outcome, config=config)
        store.add_study(STUDY, replace(study, contexts=(inside,)), "1", [trial])
    (told,) = compute(store.root, "step_time")
    assert [value["value"] for value in told["values"]] == [pytest.approx(0.4)]


# Of many trials.


def test_a_process_that_dies_costs_its_own_trial_only(own, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_WORTH_A_PROCESS_COUNT", 1)
    monkeypatch.setattr(processes.os, "sched_getaffinity", lambda _: {0, 1})
    works = [
        Work(
            study=testing.study(),
            ordinal=ordinal,
            config=Config({"tp": 1}),
            outcome=testing.measured(step_s),
            names=("first_step",),
        )
        for ordinal, step_s in enumerate([0.1, 0.9, 0.3, 0.4])
    ]
    metrics = {each.metric.name: each.metric for each in definitions(own()).known}
    with closing(compute_trials(works, metrics, tmp_path, own())) as found:
        told = {answer.ordinal: answer for answer in found}
    assert told[1].unread == {"first_step": ENDED}
    values = {ordinal: [v.value for v in answer.values] for ordinal, answer in told.items()}
    assert values == {0: [0.1], 1: [], 2: [0.3], 3: [0.4]}


def test_what_was_computed_before_an_interruption_is_kept_and_the_rest_follows(store, own):
    told = []
    with closing(afterwards(store, own(), told=told)) as found:
        next(found)
    assert sorted(store.computed_metrics(STUDY)) == [0]
    with closing(afterwards(store, own(), told=told)) as found:
        assert [done.answer.ordinal for done in found] == [1, 2]
    assert told == [(STUDY, 3), (STUDY, 2)]
    assert [v.value for v in store.metric_values(STUDY)[2] if v.name == "first_step"] == [0.3]


def test_ctrl_c_keeps_what_was_computed_and_the_same_command_goes_on(
    cclsearch, compute, own, store, tmp_path
):
    stop = tmp_path / "here" / "stop"
    stop.touch()
    options = ("--metrics-file", own(), "--store", store.root)
    stopped = cclsearch("metrics", "compute", "--all", "step_count", *options)
    stop.unlink()
    assert stopped.code == 75
    assert stopped.out == f"trial {STUDY}:0: step_count 5 steps\n"
    assert "interrupted; computed values are stored" in stopped.err
    rest = compute(store.root, "step_count", file=own())
    assert [told["ordinal"] for told in rest] == [1, 2]


def test_a_metric_that_fails_is_absent_with_its_reason_and_the_others_have_values(store, own):
    with closing(afterwards(store, own(), names=("broken", "first_step"))) as found:
        done = next(found)
    assert [value.name for value in done.answer.values] == ["first_step"]
    assert done.answer.absent["broken"].endswith("RuntimeError: no such thing")
    (broken,) = [m for m in store.computed_metrics(STUDY)[0] if m.name == "broken"]
    assert broken.value is None


def test_a_rebuilt_store_has_the_metrics_that_were_computed_afterwards(store, own):
    with closing(afterwards(store, own())) as found:
        computed = len(list(found))
    before = store.computed_metrics(STUDY)
    store.close()
    for path in store.root.glob("cclsearch.db*"):
        path.unlink()
    with closing(Store(store.root)) as rebuilt:
        assert rebuilt.computed_metrics(STUDY) == before
    assert len(before) == computed == 3


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("FATAL_S = 0.9", "FATAL_S = 0.8", False),
        ("    return evidence.step_times_s[0]\n", "    return evidence.step_times_s[1]\n", False),
        ("    return evidence.step", "    # as ever\n    return  evidence.step", True),
        ("Of the timed steps.", "Another word for it.", True),
        ("no such thing", "nothing of the kind", True),
    ],
)
def test_a_definition_is_another_one_when_anything_that_it_uses_is(old, new, is_same):
    changed = OWN.replace(old, new)
    assert changed != OWN
    same = definition_digest(changed, "first_step") == definition_digest(OWN, "first_step")
    assert same is is_same
