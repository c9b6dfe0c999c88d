"""Metrics of many trials: in processes side by side, and kept when it is interrupted."""

from contextlib import closing

import pytest

from evaluator.metrics.registry import definition_digest, definitions
from records.store.store import Store
from records.trial import Config
from search.replay import metrics as processes
from search.replay.metrics import ENDED, Work, compute_trials, recompute_metrics
from tests.support import records as testing

STUDY = "20260101-000000-aaaa"
OWN = """
import os
from evaluator.metrics.base import Formula

FATAL_S = 0.9


def _first(evidence):
    if evidence.step_times_s[0] == FATAL_S:
        os._exit(3)
    return evidence.step_times_s[0]


def _broken(evidence):
    raise RuntimeError("no such thing")


first_step = Formula(
    name="first_step", label="First step", unit="s", better="lower",
    sources=frozenset({"samples"}), description="The first timed step.", formula=_first,
)
broken = Formula(
    name="broken", label="Broken", unit="s", better="lower",
    sources=frozenset({"samples"}), description="It always fails.", formula=_broken,
)
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    return path


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
    metrics = {each.metric.name: each.metric for each in definitions(own).known}

    with closing(compute_trials(works, metrics, tmp_path, own)) as found:
        told = {answer.ordinal: answer for answer in found}

    assert told[1].unread == {"first_step": ENDED}
    values = {ordinal: [v.value for v in answer.values] for ordinal, answer in told.items()}
    assert values == {0: [0.1], 1: [], 2: [0.3], 3: [0.4]}


@pytest.fixture
def store(tmp_path):
    with closing(Store(tmp_path / "many")) as opened:
        trials = testing.history(0.1, 0.2, 0.3, testing.failed()).trials
        opened.add_study(STUDY, testing.study(), "1", trials)
        yield opened


def afterwards(store, own, names=("first_step",), told=None):
    known = definitions(own, names).known
    seen = [] if told is None else told
    return recompute_metrics(
        [store.find("")], store, known, own, lambda row, count: seen.append((row.id, count))
    )


def test_what_was_computed_before_an_interruption_is_kept_and_the_rest_follows(store, own):
    told = []
    with closing(afterwards(store, own, told=told)) as found:
        next(found)
    assert sorted(store.computed_metrics(STUDY)) == [0]

    with closing(afterwards(store, own, told=told)) as found:
        assert [done.answer.ordinal for done in found] == [1, 2]
    assert told == [(STUDY, 3), (STUDY, 2)]
    assert [v.value for v in store.metric_values(STUDY)[2] if v.name == "first_step"] == [0.3]


def test_a_metric_that_fails_is_absent_with_its_reason_and_the_others_have_values(store, own):
    with closing(afterwards(store, own, names=("broken", "first_step"))) as found:
        done = next(found)

    assert [value.name for value in done.answer.values] == ["first_step"]
    assert done.answer.absent["broken"].endswith("RuntimeError: no such thing")
    (broken,) = [m for m in store.computed_metrics(STUDY)[0] if m.name == "broken"]
    assert broken.value is None


def test_a_rebuilt_store_has_the_metrics_that_were_computed_afterwards(store, own):
    with closing(afterwards(store, own)) as found:
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
        ("evidence.step_times_s[0]\n", "evidence.step_times_s[1]\n", False),
        ("    return evidence", "    # as ever\n    return  evidence", True),
        ("The first timed step.", "Another word for it.", True),
        ("no such thing", "nothing of the kind", True),
    ],
)
def test_a_definition_is_another_one_when_anything_that_it_uses_is(old, new, is_same):
    changed = OWN.replace(old, new)

    assert changed != OWN
    same = definition_digest(changed, "first_step") == definition_digest(OWN, "first_step")
    assert same is is_same
