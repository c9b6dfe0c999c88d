"""The numbers behind the offline strategy: calibration, surrogate, importance of knobs."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.space import Space
from records.study import Dimension, SearchSpace
from records.trial import Config, History
from search.strategies.cost_model import calibrate, estimated_parts
from search.strategies.surrogate import LEAST_CONFIGS, Distances, Kernel, Posterior, fit, importance
from tests.support import records as testing
from tests.support.records import ENVIRONMENT, WORKLOAD

SPACE = Space(
    SearchSpace(
        dimensions=(
            Dimension(name="tp", choices=(1, 2, 4, 8)),
            Dimension(name="mode", choices=("a", "b", "c")),
            Dimension(name="overlap", choices=(True, False), when="tp > 1"),
        )
    ),
    WORKLOAD,
    ENVIRONMENT,
)
CONFIGS = SPACE.feasible


def test_numbers_are_a_share_of_their_range_apart_texts_and_missing_knobs_are_one():
    one = Config({"tp": 1, "mode": "a"})
    other = Config({"tp": 4, "mode": "c", "overlap": True})

    (((tp, mode, overlap),),) = Distances(SPACE).between([one], [other])

    assert (tp, mode, overlap) == (2 / 3, 1, 1)


def test_distances_are_symmetric_and_zero_only_to_itself():
    apart = Distances(SPACE).between(CONFIGS, CONFIGS).sum(axis=-1)

    assert (apart == apart.T).all()
    assert ((apart == 0) == np.eye(len(CONFIGS), dtype=bool)).all()


@settings(deadline=None)
@given(
    st.integers(1, 9),
    st.lists(st.floats(0.02, 50), min_size=3, max_size=3),
    st.floats(0, 1),
)
def test_covariances_are_positive_where_a_number_may_be_missing(count, lengths, alone_share):
    space = Space(
        SearchSpace(
            dimensions=(
                Dimension(name="ring", choices=(True, False)),
                Dimension(name="segment", choices=tuple(range(count)), when="ring"),
                Dimension(name="eager", choices=(1, 2, 3)),
            )
        ),
        WORKLOAD,
        ENVIRONMENT,
    )
    apart = Distances(space).between(space.feasible, space.feasible)

    covariances = Kernel(np.array(lengths), alone_share, variance=100.0).of(apart)

    assert np.linalg.eigvalsh(covariances).min() > -1e-9
    assert 0 <= apart.min() <= apart.max() <= 1


def test_a_surrogate_believes_what_was_measured_and_doubts_what_is_far():
    apart = Distances(SPACE).between(CONFIGS, CONFIGS)
    measured = [0, 3, 6]
    values = np.array([0.5, -0.5, 0.1])

    model = fit(apart[np.ix_(measured, measured)], values, np.full(3, 100.0))
    means, deviations = model.predict(apart[:, measured])

    assert means[measured] == pytest.approx(values, abs=0.1)
    others = [n for n in range(len(CONFIGS)) if n not in measured]
    assert deviations[measured].max() < deviations[others].min()


def test_the_slope_of_the_posterior_is_that_of_its_differences():
    random = np.random.default_rng(1)
    apart, values = Distances(SPACE).between(CONFIGS, CONFIGS), random.normal(size=len(CONFIGS))
    posterior = Posterior(apart, values, np.full(len(CONFIGS), 2.0), np.ones((len(CONFIGS), 1)))
    at = np.array([-0.5, 0.3, 0.9, -0.4, -1.0, -2.0])

    _, slope = posterior.loss(at)

    steps = 1e-5 * np.eye(len(at))
    differences = [posterior.loss(at + s)[0] - posterior.loss(at - s)[0] for s in steps]
    assert slope == pytest.approx(np.array(differences) / 2e-5, rel=1e-4)


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=len(CONFIGS)))
@settings(deadline=None, max_examples=20)
def test_predictions_are_finite_and_never_certain(values):
    apart = Distances(SPACE).between(CONFIGS, CONFIGS)
    count = len(values)

    model = fit(apart[:count, :count], np.array(values), np.ones(count))
    means, deviations = model.predict(apart[:, :count])

    assert np.isfinite(means).all()
    assert (deviations > 0).all()


def test_calibration_finds_how_much_each_part_counts():
    parts = np.random.default_rng(0).uniform(0.5, 2, (40, 3))
    weights = np.array([3.0, 1.0, 0.4])
    measured = list(range(20))
    logs = np.log(parts @ weights)

    found = calibrate(parts, measured, logs[measured], misfit=0.1).logs

    assert np.abs(found - logs).max() < 0.1


def test_one_measurement_only_sets_the_scale():
    parts = np.array([[1.0, 2.0], [2.0, 4.0], [5.0, 1.0]])

    found = np.exp(calibrate(parts, [0], np.log([30.0])).logs)

    assert found == pytest.approx([30, 60, 60], rel=0.05)


def test_an_estimate_that_is_missing_for_one_configuration_is_none():
    def most(config):
        return {"compute": 1.0} if config["tp"] < 8 else None

    assert estimated_parts(most, CONFIGS) is None
    assert estimated_parts(lambda _: {"compute": 1.0, "never": 0.0}, CONFIGS).shape == (21, 1)


KNOBS = (
    Dimension(name="strong", choices=(1, 2, 4)),
    Dimension(name="weak", choices=("a", "b")),
    Dimension(name="dead", choices=(1, 2, 3)),
)


def space(*knobs):
    study = testing.study(*(knobs or KNOBS))
    return Space(study.space, study.workload, study.environment)


def history(time_s, count=18):
    """Trials of every configuration in a mixed order, as long as this says."""
    configs = [dict(config.values) for config in space().feasible]
    random.Random(7).shuffle(configs)
    trials = [testing.trial(n, time_s(config), config) for n, config in enumerate(configs[:count])]
    return History(tuple(trials))


def known_s(config):
    return 0.1 * config["strong"] * (1.2 if config["weak"] == "b" else 1.0)


@pytest.mark.parametrize("count", [9, 12, 18])
def test_knobs_are_ranked_by_what_they_do(count):
    found = importance(space(), history(known_s, count), sign=1)

    assert [effect.name for effect in found.effects] == ["strong", "weak", "dead"]
    assert found.explained > 0.7
    assert found.config_count == count


def test_an_effect_is_as_large_as_it_is():
    strong, weak, dead = importance(space(), history(known_s), sign=1).effects

    assert strong.ratio == pytest.approx(4, rel=0.1)
    assert weak.ratio == pytest.approx(1.2, rel=0.03)
    assert dead.ratio == pytest.approx(1, abs=0.02)
    assert (strong.best, strong.worst, weak.best) == (1, 4, "a")


def test_where_more_is_better_the_best_choice_is_the_largest():
    measured = history(known_s)
    more = History(measured.trials, costs={t.ordinal: -t.score.value for t in measured})

    strong = importance(space(), more, sign=-1).effects[0]

    assert (strong.name, strong.best, strong.worst) == ("strong", 4, 1)


def test_chance_explains_nothing():
    chance = random.Random(3)

    found = importance(space(), history(lambda _: chance.uniform(0.1, 0.5)), sign=1)

    assert found.explained < 0.25


@pytest.mark.parametrize(
    "measured",
    [
        history(known_s, LEAST_CONFIGS - 1),
        history(lambda _: 0.5),
        History(history(known_s).trials, costs={0: -0.1}),
    ],
    ids=["too few", "equal", "not above zero"],
)
def test_what_has_no_ratios_says_nothing(measured):
    assert importance(space(), measured, sign=1) is None


def test_settings_that_are_no_choices_are_left_out():
    narrow = space(Dimension(name="strong", choices=(1, 2)), *KNOBS[1:])

    found = importance(narrow, history(known_s), sign=1)

    assert found.config_count == 12


def test_a_knob_that_was_never_varied_is_not_told():
    knobs = (*KNOBS, Dimension(name="fixed", choices=(1, 2), when="strong > 4"))

    found = importance(space(*knobs), history(known_s), sign=1)

    assert "fixed" not in [effect.name for effect in found.effects]


def test_many_trials_are_thinned_out():
    knobs = tuple(Dimension(name=name, choices=tuple(range(1, 9))) for name in ("a", "b", "c"))
    trials = [
        testing.trial(
            n, 0.1 * (1 + n // 64), {"a": 1 + n // 64, "b": 1 + n // 8 % 8, "c": 1 + n % 8}
        )
        for n in range(512)
    ]

    found = importance(space(*knobs), History(tuple(trials)), sign=1)

    assert found.config_count <= 120
    assert found.effects[0].name == "a"
