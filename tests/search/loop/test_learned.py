"""What failures teach, and which knobs are dead."""

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
from search.loop.learned import DeadKnob, dead_knobs, learned_constraints
from search.study.spaces import completed, space_of
from search.study.study_file import builtin_study
from tests.support.records import ENVIRONMENT, WORKLOAD, failed, study, trial

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


BATCHES = "learned: micro_batch >= 4"
CONTRADICTED = LARGE_BATCHES_FAIL.append(
    trial(7, 0.7, {"micro_batch": 8, "pp": 4, "recompute": True})
)


@pytest.mark.parametrize(
    ("history", "revoked"),
    [
        (History(LARGE_BATCHES_FAIL.trials[:5]), ()),
        (past(*[((n, 1, False), OUT_OF_MEMORY) for n in (1, 2, 4, 8)]), ()),
        (CONTRADICTED, ()),
        (LARGE_BATCHES_FAIL, (BATCHES,)),
    ],
    ids=["two failures", "nothing measured", "contradicted", "revoked"],
)
def test_without_enough_evidence_or_against_it_nothing_is_learnt(history, revoked):
    assert BATCHES not in names(history, revoked)


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


CAUSES = ("no kernel for 4 heads", "", "rank 2 lost its peer", "", "cannot divide 7 by 2", "", "")


@pytest.mark.parametrize(
    ("outcome", "learnt"),
    [
        (lambda _: failed(FailureKind.INFRASTRUCTURE), []),
        (lambda _: failed(FailureKind.METRIC_ERROR), []),
        (lambda ordinal: replace(failed(), message=CAUSES[ordinal - 1]), []),
        (lambda ordinal: replace(failed(), message=f"rank {ordinal}: no kernel"), [BATCHES]),
    ],
    ids=["infrastructure", "metric", "other causes", "other numbers"],
)
def test_only_failures_of_the_configuration_with_one_cause_are_a_lesson(outcome, learnt):
    other = tuple(
        replace(t, outcome=outcome(t.ordinal)) if t.score is None else t for t in LARGE_BATCHES_FAIL
    )
    assert names(History(other)) == learnt


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


KNOBS = study(
    Dimension(name="tp", choices=(1, 2, 4)),
    Dimension(name="bucket", choices=(25, 50, 100)),
    Dimension(name="fused", choices=(False, True)),
)
THREE = Space(KNOBS.space, KNOBS.workload, KNOBS.environment)


def measured(*told):
    return History(
        tuple(
            trial(n, outcome, {"tp": tp, "bucket": bucket, "fused": fused})
            for n, (tp, bucket, fused, outcome) in enumerate(told)
        )
    )


def test_a_knob_that_made_no_difference_in_two_pairs_is_dead():
    history = measured(
        (1, 25, True, 1.00), (1, 50, True, 1.02), (2, 25, True, 2.00), (2, 50, True, 1.99)
    )

    (knob,) = dead_knobs(THREE, history)
    assert replace(knob, largest_share=0.0) == DeadKnob(
        name="bucket", pair_count=2, largest_share=0.0, values=(25, 50)
    )
    assert abs(knob.largest_share - 0.02) < 1e-9


EQUAL = ((1, 25, True, 1.0), (1, 50, True, 1.0))


@pytest.mark.parametrize(
    "rows",
    [
        (*EQUAL, (2, 25, True, 2.0), (2, 50, True, 2.0), (4, 25, True, 3.0), (4, 50, True, 3.1)),
        EQUAL,
        ((1, 25, True, 1.0), (1, 50, False, 1.0), (2, 25, True, 2.0), (2, 50, False, 2.0)),
        ((1, 25, True, 1.0), (1, 50, True, failed()), (2, 25, True, 2.0), (2, 50, True, failed())),
    ],
    ids=["one difference", "one pair", "two knobs change", "failures"],
)
def test_a_knob_is_not_dead_without_two_pairs_that_all_tie(rows):
    assert dead_knobs(THREE, measured(*rows)) == ()


def test_three_values_alone_are_three_pairs():
    history = measured((1, 25, True, 1.0), (1, 50, True, 1.01), (1, 100, True, 1.02))

    (knob,) = dead_knobs(THREE, history)
    assert (knob.pair_count, knob.values) == (3, (25, 50, 100))


def test_what_launches_made_again_say_counts_more():
    history = measured(
        (1, 25, True, 1.0), (1, 50, True, 1.5), (2, 25, True, 2.0), (2, 50, True, 2.0)
    )

    assert dead_knobs(THREE, history) == ()
    assert [k.name for k in dead_knobs(THREE, replace(history, costs={1: 1.01}))] == ["bucket"]


def test_costs_below_zero_compare_by_size_and_zero_only_with_itself():
    history = measured(
        (1, 25, True, 1.0), (1, 50, True, 1.0), (2, 25, True, 1.0), (2, 50, True, 1.0)
    )

    maximised = replace(history, costs={0: -100.0, 1: -101.0, 2: -50.0, 3: -50.5})
    assert [knob.name for knob in dead_knobs(THREE, maximised)] == ["bucket"]
    assert dead_knobs(THREE, replace(history, costs={0: 0.0, 1: 1.0, 2: 5.0, 3: 5.0})) == ()


def test_several_objectives_have_no_dead_knobs():
    history = measured((1, 25, True, 1.0), (1, 50, True, 1.0), (1, 100, True, 1.0))

    assert dead_knobs(THREE, replace(history, weights=(("step_time", 1.0),))) == ()


@given(st.lists(st.sampled_from([1.0, 1.01, 1.02]), min_size=18, max_size=18), st.randoms())
def test_the_order_of_trials_does_not_matter(costs, random):
    told = [
        (config["tp"], config["bucket"], config["fused"], cost)
        for config, cost in zip(THREE.feasible, costs, strict=True)
    ]
    mixed = random.sample(told, len(told))

    dead = dead_knobs(THREE, measured(*told))
    assert [knob.name for knob in dead] == ["tp", "bucket", "fused"]
    assert dead_knobs(THREE, measured(*mixed)) == dead
