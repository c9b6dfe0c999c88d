"""What the offline strategy takes into account when it chooses the next configuration."""

from dataclasses import replace

import pytest

from policies.space import Space
from records.study import Budget, Constraint, Dimension
from records.trial import Config, FailureKind, History
from search.strategies.offline import DOUBT_AFTER, HybridChooser
from tests.support.records import failed, study, trial

OUT_OF_MEMORY = failed(FailureKind.OUT_OF_MEMORY)
STUDY = replace(
    study(
        Dimension(name="tp", choices=(1, 2, 4, 8)),
        Dimension(name="micro_batch", choices=(1, 2, 4, 8)),
        Dimension(name="mode", choices=("none", "some", "all")),
    ),
    budget=Budget(trials=20),
)
SPACE = Space(STUDY.space, STUDY.workload, STUDY.environment)
SEED = {"tp": 1, "micro_batch": 1, "mode": "none"}


def unknown(_):
    return None


def truth(config):
    """Seconds of a step: the best is tp 4, micro batch 8."""
    return abs(config["tp"] - 4) + 8 / config["micro_batch"] + len(config["mode"]) / 100


def parts_of_truth(config):
    """Each part of it, in a unit that measuring has to find out."""
    return {
        "degree": 100 * abs(config["tp"] - 4) + 1e-6,
        "batch": 100 * 8 / config["micro_batch"],
        "mode": len(config["mode"]),
    }


def past(*rows, **fields):
    trials = tuple(
        trial(n, truth(Config(knobs)) if outcome is None else outcome, dict(knobs))
        for n, (knobs, outcome) in enumerate(rows)
    )
    return History(trials, **fields)


def settings(**knobs):
    return {**SEED, **knobs}


def test_a_good_estimate_leads_to_the_best_configuration_at_once():
    choice = HybridChooser(SPACE, parts_of_truth).choose(STUDY, past((SEED, None)))

    assert choice.config["tp"] == 4
    assert choice.config["micro_batch"] == 8


def test_without_an_estimate_what_was_measured_says_where_it_gets_better():
    measured = [settings(), settings(tp=2), settings(micro_batch=2), settings(micro_batch=4)]

    choice = HybridChooser(SPACE, unknown).choose(STUDY, past(*((m, None) for m in measured)))

    assert choice.config["tp"] >= 2
    assert choice.config["micro_batch"] >= 4


def test_while_nothing_was_measured_it_is_not_sure_of_the_neighbours_of_a_failure():
    failures = past((SEED, OUT_OF_MEMORY), (settings(mode="some"), OUT_OF_MEMORY))

    choice = HybridChooser(SPACE, unknown).choose(STUDY, failures)

    assert choice.config["tp"] != 1
    assert choice.config["micro_batch"] != 1
    assert "nothing was measured yet" in choice.why


def test_configurations_like_those_that_failed_are_expected_to_fail():
    ran_out = [(settings(micro_batch=8, tp=tp), OUT_OF_MEMORY) for tp in (1, 2, 8)]
    history = past((SEED, None), (settings(tp=2), None), *ran_out)

    chosen = HybridChooser(SPACE, parts_of_truth).candidates(STUDY, history, 5)

    assert chosen[0].config["micro_batch"] < 8
    assert any("runs with a chance of" in choice.why for choice in chosen)


def test_what_breaks_a_limit_is_avoided_like_a_failure():
    def broken(ordinal, knobs):
        one = trial(ordinal, truth(Config(knobs)), dict(knobs))
        return replace(one, score=replace(one.score, broken=("too much",)))

    over = [settings(micro_batch=8, tp=tp) for tp in (1, 2, 8)]
    trials = (trial(0, truth(Config(SEED)), SEED), *(broken(n, k) for n, k in enumerate(over, 1)))

    choice = HybridChooser(SPACE, parts_of_truth).choose(STUDY, History(trials))

    assert choice.config["micro_batch"] < 8


def test_what_is_being_measured_is_neither_chosen_nor_expected_to_surprise():
    first = HybridChooser(SPACE, parts_of_truth).choose(STUDY, past((SEED, None))).config

    second = HybridChooser(SPACE, parts_of_truth).choose(
        STUDY, past((SEED, None), pending=(first,))
    )

    assert second.config != first


def test_candidates_are_different_and_begin_with_the_choice():
    chooser, history = HybridChooser(SPACE, parts_of_truth), past((SEED, None))

    candidates = chooser.candidates(STUDY, history, 5)

    assert len({choice.config for choice in candidates}) == 5
    assert candidates[0] == chooser.choose(STUDY, history)
    assert "; expected " in candidates[0].why


def test_when_nothing_gets_better_a_move_of_coordinate_descent_comes_in_between():
    best = settings(tp=4, micro_batch=8)
    worse = [settings(tp=tp, micro_batch=1) for tp in (1, 2, 4, 8)]
    flat = past((best, None), *((w, None) for w in worse))
    assert len(worse) == DOUBT_AFTER

    choice = HybridChooser(SPACE, unknown).choose(STUDY, flat)

    assert SPACE.distance(Config(best), choice.config)[0] == 1
    assert choice.expected.startswith("expected ")


def test_a_budget_that_lasts_for_all_that_is_left_is_told():
    space = Space(
        replace(
            STUDY.space,
            constraints=(Constraint(name="few", expression="tp == 1 and mode == 'none'"),),
        ),
        STUDY.workload,
        STUDY.environment,
    )

    choice = HybridChooser(space, unknown).choose(STUDY, past((SEED, None)))

    assert choice.why.endswith("; all 3 untried configurations fit in the 19 launches left")


@pytest.mark.parametrize("objective", ["tokens_per_s", "step_time"])
def test_what_is_expected_is_how_many_times_as_good_as_the_best(objective):
    asked = replace(STUDY, objective=replace(STUDY.objective, expression=objective))
    seed_s = truth(Config(SEED))
    one = trial(0, seed_s, dict(SEED))
    sign, value = (-1, 1 / seed_s) if objective == "tokens_per_s" else (1, seed_s)
    history = History((replace(one, score=replace(one.score, cost=sign * value, value=value)),))

    found = HybridChooser(SPACE, parts_of_truth).candidates(asked, history, 20)

    for choice in found:
        ratio = float(choice.expected.split()[1].rstrip("x"))
        assert ratio == pytest.approx(seed_s / truth(choice.config), rel=0.3)
        assert choice.expected in choice.why
