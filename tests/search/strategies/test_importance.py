"""How much knobs matter: found where it is there, and not told where nobody can know."""

import random

import pytest

from policies.space import Space
from records.study import Dimension
from records.trial import History
from search.strategies.surrogate import LEAST_CONFIGS, importance
from tests.support import records as testing

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
    configs = [
        {"strong": strong, "weak": weak, "dead": dead}
        for strong in (1, 2, 4)
        for weak in ("a", "b")
        for dead in (1, 2, 3)
    ]
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


def test_too_few_configurations_say_nothing():
    assert importance(space(), history(known_s, LEAST_CONFIGS - 1), sign=1) is None


def test_equal_results_say_nothing():
    assert importance(space(), history(lambda _: 0.5), sign=1) is None


def test_what_is_not_above_zero_has_no_ratio():
    shifted = history(known_s)
    below = History(shifted.trials, costs={0: -0.1})

    assert importance(space(), below, sign=1) is None


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
