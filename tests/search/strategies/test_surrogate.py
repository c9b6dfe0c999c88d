"""The numbers behind the offline strategy: calibration, surrogate, chance to run."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.space import Space
from records.study import Dimension, SearchSpace
from records.trial import Config
from search.strategies.cost_model import calibrate, estimated_parts
from search.strategies.surrogate import Distances, fit
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


def test_numbers_are_steps_apart_texts_and_missing_knobs_are_one():
    one = Config({"tp": 1, "mode": "a"})
    other = Config({"tp": 4, "mode": "c", "overlap": True})

    (((tp, mode, overlap),),) = Distances(SPACE).between([one], [other])

    assert (tp, mode, overlap) == (2, 1, 1)


def test_distances_are_symmetric_and_zero_only_to_itself():
    apart = Distances(SPACE).between(CONFIGS, CONFIGS).sum(axis=-1)

    assert (apart == apart.T).all()
    assert ((apart == 0) == np.eye(len(CONFIGS), dtype=bool)).all()


def test_a_surrogate_believes_what_was_measured_and_doubts_what_is_far():
    apart = Distances(SPACE).between(CONFIGS, CONFIGS)
    measured = [0, 3, 6]
    values = np.array([0.5, -0.5, 0.1])

    model = fit(apart[np.ix_(measured, measured)], values, np.full(3, 100.0))
    means, deviations = model.predict(apart[:, measured])

    assert means[measured] == pytest.approx(values, abs=0.1)
    others = [n for n in range(len(CONFIGS)) if n not in measured]
    assert deviations[measured].max() < deviations[others].min()


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

    found = calibrate(parts, measured, logs[measured])

    assert np.abs(found - logs).max() < 0.1


def test_one_measurement_only_sets_the_scale():
    parts = np.array([[1.0, 2.0], [2.0, 4.0], [5.0, 1.0]])

    found = np.exp(calibrate(parts, [0], np.log([30.0])))

    assert found == pytest.approx([30, 60, 60], rel=0.05)


def test_an_estimate_that_is_missing_for_one_configuration_is_none():
    def most(config):
        return {"compute": 1.0} if config["tp"] < 8 else None

    assert estimated_parts(most, CONFIGS) is None
    assert estimated_parts(lambda _: {"compute": 1.0, "never": 0.0}, CONFIGS).shape == (21, 1)
