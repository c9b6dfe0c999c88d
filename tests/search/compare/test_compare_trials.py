"""Two trials of a study are compared by launches that took turns; anything else proves nothing."""

import json
from dataclasses import replace

import pytest

from records.study import Objective
from records.trial import FailureKind, MetricValue, Purpose, Repeat
from tests.search.compare.conftest import OTHER, STEADY, STUDY, measuring
from tests.support import records as testing
from tests.support.evaluator import Takes

TRIALS = testing.history(0.5, 0.4, testing.failed(FailureKind.OUT_OF_MEMORY), 0.45)


def in_turns(factors=STEADY, purpose=Purpose.CONFIRM, series=4, **costs):
    """Rounds in which trials are launched: `t0=0.5` takes half a second times each factor."""
    launched = {int(name.removeprefix("t")): cost for name, cost in costs.items()}
    return [
        Repeat(
            series=series,
            round=number,
            ordinal=ordinal,
            outcome=testing.measured(cost * (factor if ordinal else 1.0)),
            purpose=purpose,
            position=position,
        )
        for number, factor in enumerate(factors)
        for position, (ordinal, cost) in enumerate(launched.items())
    ]


TURNS = in_turns(t0=0.5, t1=0.4)


@pytest.fixture
def compared(cclsearch, store):
    """Compares two trials of a store made of these; gives what is printed for programs."""

    def compare(a, b, *flags, repeats=(), study=None, trials=TRIALS, other=None):
        studies = {STUDY: (study or measuring(), trials, repeats)}
        if other is not None:
            studies[OTHER] = (other, TRIALS)
        ended = cclsearch("compare", a, b, *flags, "--store", store(**studies), "--json")
        assert (ended.code, ended.err) == (0, "")
        facts = json.loads(ended.out)
        return {**facts, "sides": [facts["a"], facts["b"]], **facts["rows"][0]}

    return compare


def test_shared_rounds_decide(compared):
    found = compared("trial:0", f"best:{STUDY[:10]}", repeats=TURNS)

    assert (found["verdict"], found["reason"]) == ("fast", "paired_interval_clears_band")
    assert found["ratio"] == pytest.approx(0.8, rel=0.01)
    assert found["ratio_low"] < found["ratio"] < found["ratio_high"]
    assert found["round_count"] == len(found["rounds"]) == 5
    assert found["rounds"][1] == {"round": "confirm 4 1", "a": 0.5, "b": pytest.approx(0.404)}
    assert found["a"]["launch_count"] == 5
    assert found["a"]["step_count"] == 25
    assert (found["a"]["centre"], found["b"]["centre"]) == (0.5, 0.4)


def test_the_reference_comes_first_and_the_candidate_second(compared):
    found = compared("trial:1", "trial:0", repeats=TURNS)

    assert found["verdict"] == "slow"
    assert found["words"].startswith("B is 1.25x slower than A (95 % interval 1.2")
    assert found["sides"] == [
        {"name": f"trial:{STUDY}:1", "settings": "n=1"},
        {"name": f"trial:{STUDY}:0", "settings": "n=0"},
    ]


@pytest.mark.parametrize(
    ("study", "flags", "terms"),
    [
        (measuring(), ("--margin", 0.5, "--alpha", 0.1), (0.5, 0.1)),
        (measuring(margin=0.3, alpha=0.01), (), (0.3, 0.01)),
    ],
)
def test_the_margin_is_that_of_the_study_unless_another_is_given(compared, study, flags, terms):
    found = compared("trial:0", "trial:1", *flags, study=study, repeats=TURNS)

    assert found["verdict"] == "same"
    assert (found["margin"], found["alpha"]) == terms


def test_a_search_leaves_what_is_needed(cclsearch, tabular):
    study = tabular({n: Takes(step_time_s=0.5 - n / 8, noise=0.004) for n in range(3)})
    study.run()

    ended = cclsearch("compare", "trial:0", "best", "--store", study.root, "--json")

    (found,) = json.loads(ended.out)["rows"]
    assert (found["verdict"], found["round_count"] >= 4) == ("fast", True)


RACE = Purpose.RACE


@pytest.mark.parametrize(
    ("repeats", "verdict", "reason"),
    [
        (in_turns((1.0, 1.001) * 3, t0=0.5, t1=0.5), "same", "paired_interval_inside_band"),
        (in_turns(STEADY[:3], t0=0.5, t1=0.4), "undecided", "too_few_rounds"),
        (in_turns(STEADY, RACE, t0=0.5, t1=0.4), "fast", "paired_interval_clears_band"),
        (
            [*in_turns(series=4, t0=0.5), *in_turns(series=5, t1=0.4)],
            "undecided",
            "not_interleaved",
        ),
        ([*in_turns(t0=0.5), *in_turns(purpose=RACE, t1=0.4)], "undecided", "not_interleaved"),
    ],
)
def test_only_enough_rounds_of_one_series_and_purpose_decide(compared, repeats, verdict, reason):
    found = compared("trial:0", "trial:1", repeats=repeats)

    assert (found["verdict"], found["reason"]) == (verdict, reason)


def test_confirming_launches_speak_before_those_that_chose_what_to_confirm(compared):
    race = in_turns((1.0,) * 6, RACE, series=2, t0=0.5, t1=0.1)

    found = compared("trial:0", "trial:1", repeats=[*race, *TURNS])

    assert found["ratio"] == pytest.approx(0.8, rel=0.01)
    assert {each["round"].split()[0] for each in found["rounds"]} == {"confirm"}


def test_a_round_in_which_one_failed_is_not_counted_and_is_told(compared):
    repeats = [*TURNS[:-1], replace(TURNS[-1], outcome=testing.failed())]

    found = compared("trial:0", "trial:1", repeats=repeats)

    assert found["round_count"] == 4
    assert found["caveats"] == ["B: 1 of 5 launches to re-measure it failed; crash: it broke"]


def test_trials_that_never_took_turns_are_undecided(compared):
    found = compared("trial:0", "trial:3")

    assert (found["verdict"], found["reason"]) == ("undecided", "not_interleaved")
    assert found["words"].startswith("undecided: B looks 1.11x faster than A; they were not")
    assert (found["a"]["low"], found["a"]["launch_count"]) == (None, 1)
    assert found["next"][0].startswith(f"cclsearch resume {STUDY} --trials 5 --store ")


def test_a_failed_trial_is_unknown_for_the_reason_it_failed(compared):
    found = compared("trial:0", "trial:2")

    assert (found["verdict"], found["reason"]) == ("unknown", "out_of_memory")
    assert (found["why"], found["b"]) == ("B failed: it broke", None)
    assert found["next"][0].startswith(f"cclsearch trial show {STUDY} 2 ")


@pytest.mark.parametrize(
    ("changes", "field", "values"),
    [
        ({"workload": {"global_batch": 32}}, "tokens_per_step", (2048, 4096)),
        ({"workload": {"layer_count": 8}}, "layer_count", (4, 8)),
        ({"environment": {"world_size": 16}}, "world_size", (4, 16)),
        ({"environment": {"accelerator": "H100"}}, "accelerator", ("cpu", "H100")),
        ({"objective": {"direction": "maximize"}}, "study", (STUDY, OTHER)),
        ({"objective": {"expression": "rank_count"}}, "objective", ("step_time", "rank_count")),
        ({}, "study", (STUDY, OTHER)),
    ],
)
def test_trials_of_different_work_are_not_compared(compared, changes, field, values):
    study = measuring()
    parts = {part: replace(getattr(study, part), **fields) for part, fields in changes.items()}

    found = compared(f"trial:{STUDY}:0", f"trial:{OTHER}:1", other=replace(study, **parts))

    assert (found["verdict"], found["reason"]) == ("unknown", f"not_comparable:{field}")
    assert found["why"] == f"{field} is {values[0]} for A and {values[1]} for B"


def with_second(**changes):
    """Trials of which the second was measured otherwise."""
    usual = testing.measured(0.4)
    changed = replace(usual, measurement=replace(usual.measurement, **changes))
    return testing.history(0.5, changed)


@pytest.mark.parametrize(
    ("field", "value", "reason", "words"),
    [
        ("tokens_per_step", 99, "not_comparable:tokens_per_step", "is 2048 for A and 99 for B"),
        ("device", "cuda", "not_comparable:device", "device is cpu for A and cuda for B"),
        ("torch_version", "3.0", "not_comparable:torch_version", "is 2.0 for A and 3.0 for B"),
        ("profiled", True, "traced_samples", "B was timed in profiled steps"),
    ],
)
def test_launches_of_different_work_or_software_are_not_compared(
    compared, field, value, reason, words
):
    found = compared("trial:0", "trial:1", trials=with_second(**{field: value}))

    assert (found["verdict"], found["reason"]) == ("unknown", reason)
    assert words in found["why"]


def test_launches_that_were_not_profiled_speak_for_a_trial_that_was(compared):
    found = compared("trial:0", "trial:1", trials=with_second(profiled=True), repeats=TURNS)

    assert found["verdict"] == "fast"
    assert found["caveats"] == ["B: timed in profiled steps, which the profiler slows down"]


def throughput(ordinal, *values):
    """Launches of a trial, a round each."""
    like = MetricValue(name="tokens_per_s", value=0.0, unit="1/s", better="higher", version=1)
    usual = testing.measured()
    launched = [replace(usual, metrics=(replace(like, value=value),)) for value in values]
    return [
        Repeat(series=4, round=number, ordinal=ordinal, outcome=outcome)
        for number, outcome in enumerate(launched)
    ]


def test_of_what_should_be_high_more_is_better(compared):
    study = replace(measuring(), objective=Objective(expression="tokens_per_s"))
    repeats = [*throughput(0, *[100.0] * 5), *throughput(1, 150.0, 151.0, 149.0, 150.0, 150.5)]

    found = compared("trial:0", "trial:1", study=study, repeats=repeats)

    assert found["verdict"] == "fast"
    assert found["ratio"] == pytest.approx(1 / 1.5, rel=0.01)
    assert (found["lower_is_better"], found["change"]) == (False, pytest.approx(0.5, rel=0.01))


def test_what_is_not_positive_has_no_ratio(compared):
    objective = Objective(expression="step_time - 100", direction="minimize")
    study = replace(measuring(), objective=objective)

    found = compared("trial:0", "trial:1", study=study)

    assert (found["verdict"], found["reason"]) == ("unknown", "bad_time")
