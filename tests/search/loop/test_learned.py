"""What failures teach: a predicate needs enough of them, and nothing measured against it."""

import json
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.space import Space
from records.store.store import Store
from records.study import Dimension, SearchSpace
from records.trial import Config, FailureKind, History, Stage
from search.loop.learned import learned_constraints
from search.study.spaces import completed, space_of
from search.study.study_file import builtin_study
from tests.support.records import ENVIRONMENT, WORKLOAD, failed, trial

OUT_OF_MEMORY = failed(FailureKind.OUT_OF_MEMORY)
SPACE = Space(
    SearchSpace(
        dimensions=(
            Dimension(name="micro_batch", choices=(1, 2, 4, 8)),
            Dimension(name="pp", choices=(1, 2, 4)),
            Dimension(name="recompute", choices=(False, True)),
        )
    ),
    WORKLOAD,
    ENVIRONMENT,
)


def past(*rows):
    return History(
        tuple(
            trial(n, outcome, {"micro_batch": micro_batch, "pp": pp, "recompute": recompute})
            for n, ((micro_batch, pp, recompute), outcome) in enumerate(rows)
        )
    )


def names(history, revoked=()):
    return [each.constraint.name for each in learned_constraints(SPACE, history, revoked)]


LARGE_BATCHES_FAIL = past(
    ((1, 1, False), 1.0),
    ((4, 1, False), OUT_OF_MEMORY),
    ((2, 2, False), 0.8),
    ((8, 2, False), OUT_OF_MEMORY),
    ((2, 4, True), 0.9),
    ((4, 4, True), OUT_OF_MEMORY),
    ((1, 2, True), 1.1),
)


def test_three_failures_with_one_cause_teach_the_condition_that_they_share():
    (found,) = learned_constraints(SPACE, LARGE_BATCHES_FAIL, ())

    assert found.constraint.expression == "not (micro_batch >= 4)"
    assert found.kind is FailureKind.OUT_OF_MEMORY
    assert found.ordinals == (1, 3, 5)
    assert found.breaks(Config({"micro_batch": 8, "pp": 1, "recompute": True})) == (
        "breaks learned: micro_batch >= 4: not (micro_batch >= 4) (ended in out_of_memory in "
        "trials #1, #3, #5 and was measured in none) with micro_batch=8"
    )
    assert found.breaks(Config({"micro_batch": 2, "pp": 1, "recompute": True})) is None
    assert found.breaks(Config({"pp": 1})) is None


def test_two_failures_teach_nothing():
    assert names(History(LARGE_BATCHES_FAIL.trials[:5])) == []


def test_failures_without_a_measured_trial_teach_nothing():
    rows = [((n, 1, False), OUT_OF_MEMORY) for n in (1, 2, 4, 8)]
    assert names(past(*rows)) == []


def test_a_measured_trial_that_contradicts_it_takes_it_away():
    again = LARGE_BATCHES_FAIL.append(trial(7, 0.7, {"micro_batch": 8, "pp": 4, "recompute": True}))
    assert "learned: micro_batch >= 4" not in names(again)


def test_what_a_person_took_back_is_not_learnt_again():
    assert "learned: micro_batch >= 4" not in names(
        LARGE_BATCHES_FAIL, revoked=("learned: micro_batch >= 4",)
    )


def test_two_knobs_together_can_be_the_cause():
    history = past(
        ((8, 1, False), OUT_OF_MEMORY),
        ((4, 1, False), OUT_OF_MEMORY),
        ((8, 2, False), OUT_OF_MEMORY),
        ((8, 1, True), 1.0),
        ((1, 1, False), 1.2),
        ((4, 2, True), 0.9),
        ((2, 2, False), 0.9),
    )
    assert names(history) == ["learned: micro_batch >= 4 and recompute == False"]


@pytest.mark.parametrize("kind", [FailureKind.INFRASTRUCTURE, FailureKind.METRIC_ERROR])
def test_failures_that_are_not_the_configurations_doing_teach_nothing(kind):
    other = tuple(
        replace(t, outcome=failed(kind)) if t.score is None else t for t in LARGE_BATCHES_FAIL
    )
    assert names(History(other)) == []


def test_crashes_with_different_causes_are_not_one_lesson():
    causes = iter(["no kernel for 4 heads", "rank 2 lost its peer", "cannot divide 7 by 2"])
    other = tuple(
        replace(t, outcome=replace(failed(), message=next(causes))) if t.score is None else t
        for t in LARGE_BATCHES_FAIL
    )
    assert names(History(other)) == []


def test_crashes_whose_causes_differ_only_in_numbers_are_one_lesson():
    other = tuple(
        replace(t, outcome=replace(failed(), message=f"rank {t.ordinal}: no kernel"))
        if t.score is None
        else t
        for t in LARGE_BATCHES_FAIL
    )
    assert names(History(other)) == ["learned: micro_batch >= 4"]


def test_where_most_launches_fail_anyway_a_shared_condition_may_be_chance():
    rows = [
        ((n, pp, False), failed(message=f"cause {'abc'[n % 3]}")) for n in (4, 8) for pp in (1, 2)
    ]
    elsewhere = [((1, pp, False), failed(FailureKind.HANG)) for pp in (1, 2, 4)]
    oom = [((n, 4, True), OUT_OF_MEMORY) for n in (2, 4, 8)]
    assert names(past(((1, 1, True), 1.0), *rows, *elsewhere, *oom)) == []


OUTCOMES = st.one_of(
    st.floats(0.1, 10.0), st.sampled_from([OUT_OF_MEMORY, failed(stage=Stage.LAUNCH)])
)


@given(
    st.lists(
        st.tuples(st.sampled_from(SPACE.feasible), OUTCOMES),
        max_size=16,
        unique_by=lambda row: row[0],
    )
)
@settings(deadline=None, max_examples=25)
def test_nothing_measured_ever_breaks_what_was_learnt_and_every_named_failure_does(rows):
    history = History(
        tuple(trial(n, outcome, dict(config.values)) for n, (config, outcome) in enumerate(rows))
    )
    for found in learned_constraints(SPACE, history, ()):
        assert all(found.breaks(t.config) is None for t in history.measured)
        assert all(found.breaks(history.trials[n].config) for n in found.ordinals)
        assert len(found.ordinals) >= 3


@pytest.fixture
def failing(tmp_path):
    """A study on record in which three pipelines of four stages ran out of memory."""
    study = completed(builtin_study(ENVIRONMENT))
    feasible = space_of(study).feasible
    deep = [config for config in feasible if config["pp"] == 4][:3]
    flat = [config for config in feasible if config["pp"] == 1][:3]
    with closing(Store(tmp_path / "store")) as store:
        store.create("20260101-000000-aaaa", study, "test")
        for n, config in enumerate((*flat, *deep)):
            outcome = OUT_OF_MEMORY if config in deep else 1.0
            store.finish("20260101-000000-aaaa", trial(n, outcome, dict(config.values)))
    return ("show", "--constraints", "--store", tmp_path / "store")


def test_what_was_learnt_is_shown_and_can_be_taken_back(failing, cclsearch):
    told = json.loads(cclsearch(*failing, "--json").out)
    (found,) = told["learned"]
    assert found["kind"] == "out_of_memory"
    assert found["trials"] == [3, 4, 5]
    assert f"--constraints --revoke '{found['name']}'" in cclsearch(*failing).out

    revoked = cclsearch(*failing, "--revoke", found["name"])

    assert f"revoked: {found['name']}" in revoked.out
    after = json.loads(cclsearch(*failing, "--json").out)
    assert after["revoked"] == [found["name"]]
    assert found["name"] not in [each["name"] for each in after["learned"]]


def test_only_what_was_learnt_can_be_taken_back(failing, cclsearch):
    refused = cclsearch(*failing, "--revoke", "learned: tp == 9")
    assert refused.code == 2
    assert "no learned constraint has the name 'learned: tp == 9'" in refused.err
