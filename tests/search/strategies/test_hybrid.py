"""What the offline strategy takes into account when it chooses the next configuration."""

from dataclasses import replace

import pytest

from policies.space import Space
from records.study import Budget, Constraint, Dimension
from records.trial import Config, FailureKind, History
from search.strategies.base import Shortage
from search.strategies.offline import HybridChooser
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
    measured.append(settings(mode="all"))

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


def test_among_equally_promising_configurations_the_nearest_comes_first():
    flat = [settings(tp=tp, micro_batch=size) for tp in (1, 8) for size in (1, 4, 8)]
    history = past(*((each, 1.0) for each in flat))

    choice = HybridChooser(SPACE, unknown).choose(STUDY, history)

    assert SPACE.distance(history.best.config, choice.config)[0] == 1


def test_where_there_is_no_estimate_the_first_settings_are_new_ones():
    chooser, history = HybridChooser(SPACE, unknown), past((SEED, None))
    for _ in range(3):
        chosen = chooser.choose(STUDY, history).config
        history = history.append(trial(len(history), truth(chosen), dict(chosen.values)))

    for knob in ("tp", "micro_batch"):
        assert len({each.config[knob] for each in history}) == 4
    assert len({each.config["mode"] for each in history}) == 3


def bytes_of(values):
    """Memory that a configuration is estimated to need; twice as much is needed."""
    return 8e9 * values["micro_batch"] / values["tp"]


LIMITED = Space(
    STUDY.space,
    STUDY.workload,
    replace(STUDY.environment, memory_bytes=int(30e9)),
    {"estimated_memory_bytes": bytes_of},
)


def test_after_a_start_out_of_memory_what_needs_least_comes_next():
    choice = HybridChooser(LIMITED, parts_of_truth).choose(
        STUDY, past((settings(micro_batch=4), OUT_OF_MEMORY))
    )

    assert bytes_of(choice.config.values) <= 8e9
    assert "likely to run" in choice.why


def test_how_much_memory_is_needed_is_learned_from_what_ran_out_of_it():
    chooser = HybridChooser(LIMITED, parts_of_truth)
    history = past((settings(tp=8), None), (settings(micro_batch=2), OUT_OF_MEMORY))

    chosen = [each.config.values for each in chooser.candidates(STUDY, history, 5)]

    assert max(map(bytes_of, chosen)) < 16e9


TORCH = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.00 GiB of "
    "which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.4 GiB in use"
)
OLD_TORCH = (
    "CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 15.00 GiB total capacity; "
    "14.53 GiB already allocated; 8.00 MiB free; 15 GiB reserved)"
)


@pytest.mark.parametrize(
    ("message", "total_gib", "needed_gib"),
    [
        (TORCH, 79, 98.5),
        (OLD_TORCH, 15, 15 - 6 / 1024),
        ("HIP out of memory. Tried to allocate 96.00 MiB", None, None),
        ("total capacity of 1.2.3 GiB", None, None),
        ("killed", None, None),
    ],
)
def test_a_message_says_how_much_memory_there_was_and_how_much_was_needed(
    message, total_gib, needed_gib
):
    short = Shortage.of(message)

    assert short.total_bytes == (total_gib and total_gib * 2**30)
    assert short.needed_bytes == (needed_gib and needed_gib * 2**30)


def test_an_estimate_turned_round_is_given_up():
    def turned(config):
        return {"all": 1 / truth(config)}

    chooser, history = HybridChooser(SPACE, turned), past((SEED, None))
    for _ in range(14):
        chosen = chooser.choose(STUDY, history).config
        history = history.append(trial(len(history), truth(chosen), dict(chosen.values)))

    assert truth(history.best.config) < 1.1 * min(map(truth, SPACE.feasible))


def searched(count):
    """A search over some trials with a good estimate."""
    chooser, history = HybridChooser(SPACE, parts_of_truth), past((SEED, None))
    for _ in range(count - 1):
        chosen = chooser.choose(STUDY, history).config
        history = history.append(trial(len(history), truth(chosen), dict(chosen.values)))
    return chooser, history


def test_a_search_ends_when_no_launch_is_expected_to_gain_anything():
    chooser, history = searched(12)

    assert chooser.no_gain(STUDY, History(history.trials[:4])) is None
    words = chooser.no_gain(STUDY, history)
    assert words.startswith("nothing is left to gain: the most promising of 36 untried")


def test_where_the_estimate_expects_no_gain_measured_trials_alone_choose():
    chooser, history = searched(12)
    blind = HybridChooser(SPACE, unknown).choose(STUDY, history)

    chosen = chooser.choose(STUDY, history)

    assert chosen.config == blind.config
    assert "by measured trials alone, as the estimate expects no gain" in chosen.why
    assert "alone" not in blind.why


def test_a_search_goes_on_until_three_launches_after_the_first_five_gained_nothing():
    chooser, history = searched(12)
    ends = [
        count
        for count in range(1, 13)
        if chooser.no_gain(STUDY, History(history.trials[:count])) is not None
    ]

    assert ends
    assert min(ends) >= 5 + 3


def test_launches_out_of_memory_do_not_end_a_search():
    ran_out = [(settings(micro_batch=8, tp=tp), OUT_OF_MEMORY) for tp in (1, 2, 4, 8)]
    history = past((SEED, None), *ran_out, (settings(mode="all", micro_batch=8), OUT_OF_MEMORY))

    assert HybridChooser(SPACE, parts_of_truth).no_gain(STUDY, history) is None


def test_what_fits_in_the_budget_is_tried_all_the_same():
    chooser, history = searched(12)
    enough = replace(STUDY, budget=Budget(trials=len(SPACE.feasible)))

    assert chooser.no_gain(enough, history) is None


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
