"""Which launches count, how noisy they are, and which trials nothing beats."""

import math
from dataclasses import replace
from random import Random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.objective import scoring, scoring_of
from records.study import Budget, Measure, Objective
from records.trial import FailureKind, History, Purpose
from search.loop.budget import launches_since_best
from search.loop.leader import (
    LEAST_RACE_ROUNDS,
    MOST_RUN_AGAIN,
    counted,
    front_of,
    launch_of,
    left_out_rounds,
    noise_of,
    rounds_between,
    unbeaten,
)
from search.loop.ports import Proposal
from search.strategies.proposers import SUM_SHARE, FrontProposer, one_cost
from tests.support import records as testing
from tests.support.evaluator import Fails, Takes
from tests.support.search import relaunch

QUIET, BUSY = (testing.conditions(others_cpu_share=share) for share in (0.0, 0.9))
MEASURE = Measure(race_rounds=4, confirm_rounds=4)


def launch(number, ordinal, conditions, purpose=Purpose.RACE, **fields):
    outcome = testing.measured()
    measurement = replace(outcome.measurement, conditions=conditions)
    disturbed = replace(outcome, measurement=measurement)
    return relaunch(ordinal, disturbed, number, purpose=purpose, **fields)


def contest(*conditions, **fields):
    """Rounds of two trials, of which each has these conditions."""
    return [
        launch(number, ordinal, found, **fields)
        for number, found in enumerate(conditions)
        for ordinal in (0, 1)
    ]


def rounds(launches):
    return sorted({repeat.round for repeat in launches})


@pytest.mark.parametrize(
    ("conditions", "counts"),
    [
        ([BUSY], [0]),
        ([BUSY, BUSY, BUSY], [0, 1, 2]),
        ([QUIET, QUIET, BUSY], [0, 1, 2]),
        ([BUSY, QUIET], [0, 1]),
        ([BUSY, QUIET, QUIET], [1, 2]),
        ([BUSY, BUSY, QUIET], [1, 2]),
        ([BUSY, BUSY, QUIET, QUIET], [2, 3]),
        ([BUSY, BUSY, BUSY, QUIET, QUIET], [2, 3, 4]),
        ([QUIET, QUIET], [0, 1]),
        ([None, None], [0, 1]),
    ],
)
def test_a_disturbed_round_counts_until_it_is_replaced(conditions, counts):
    assert LEAST_RACE_ROUNDS == MOST_RUN_AGAIN == 2
    assert rounds(counted(contest(*conditions), MEASURE)) == counts


def test_a_round_is_left_out_whole_when_one_of_its_launches_was_disturbed():
    launches = [launch(0, 0, QUIET), launch(0, 1, BUSY), *contest(QUIET, QUIET, QUIET)[2:]]

    assert rounds(counted(launches, MEASURE)) == [1, 2]


def test_a_final_is_not_left_with_fewer_rounds_than_it_needs():
    launches = contest(BUSY, BUSY, QUIET, QUIET, QUIET, purpose=Purpose.CONFIRM)

    assert rounds(counted(launches, MEASURE)) == [1, 2, 3, 4]


def test_a_round_that_was_cut_short_replaces_nothing():
    launches = [*contest(BUSY, QUIET), launch(2, 0, QUIET)]

    assert rounds(counted(launches, MEASURE)) == [0, 1, 2]


def test_every_contest_has_its_own_allowance():
    busy = [BUSY, BUSY, QUIET, QUIET]
    launches = [
        *contest(*busy, series=2),
        *contest(*busy, series=3),
        *contest(*busy, QUIET, QUIET, purpose=Purpose.CONFIRM),
    ]

    assert left_out_rounds(launches, MEASURE) == {
        (series, purpose, number)
        for series, purpose in ((2, Purpose.RACE), (3, Purpose.RACE), (2, Purpose.CONFIRM))
        for number in (0, 1)
    }


def test_a_self_test_and_a_round_with_a_failure_count_although_they_were_disturbed():
    self_test = [launch(number, 0, BUSY, purpose=Purpose.SELF_TEST) for number in (0, 1)]
    broken = [launch(0, 0, BUSY), relaunch(1, testing.failed(), purpose=Purpose.RACE)]

    assert counted(self_test, MEASURE) == tuple(self_test)
    assert counted(broken, MEASURE) == tuple(broken)


def test_a_disturbed_launch_is_not_called_clearly_slower():
    measurement = replace(testing.measured().measurement, stopped="slower", conditions=BUSY)

    assert measurement.caveats == (
        "stopped early, slower than the best, while other work disturbed it",
    )


def test_the_noise_is_that_of_launches_made_alike():
    turns = replace(testing.measured().measurement, turn_steps=(5,))
    launches = [
        *(relaunch(0, 1.0, n, purpose=Purpose.SELF_TEST, series=1) for n in range(4)),
        *(
            relaunch(
                0, replace(testing.measured(1.0 + n), measurement=turns), n,
                purpose=Purpose.SELF_TEST,
            )
            for n in range(2)
        ),
    ]  # fmt: skip
    by_steps = scoring(Objective(expression="step_time"))

    assert noise_of(launches, by_steps, together=False).sd == 0
    assert noise_of(launches, by_steps, together=True).sd == pytest.approx(math.log(2))


def turns(ordinal, *steps_s, **fields):
    """A launch whose steps were turns each."""
    outcome = testing.measured(median(steps_s))
    times_s = (steps_s, tuple(step_s / 2 for step_s in steps_s))
    measurement = replace(outcome.measurement, step_times_s=times_s, turn_steps=(1,) * len(steps_s))
    return relaunch(ordinal, replace(outcome, measurement=measurement), **fields)


def test_steps_that_took_turns_are_compared_with_their_neighbours():
    moments = (1.0, 1.5, 2.0, 0.7, 1.2)
    slower = [1.1 * moment for moment in moments]
    slower[1] *= 5  # hit one job alone
    launches = [turns(0, *moments), turns(1, *slower)]
    by_steps, by_tokens = (
        scoring(Objective(expression=expression)) for expression in ("step_time", "step_time * 1")
    )

    (paired,) = rounds_between(launches, 1, 0, by_steps)
    (unpaired,) = rounds_between(launches, 1, 0, by_tokens)

    assert paired.candidate.value / paired.anchor.value == pytest.approx(1.1)
    assert unpaired.candidate.value / unpaired.anchor.value == pytest.approx(1.32 / 1.2)


def test_steps_that_took_no_turns_count_by_the_mean_of_their_faster_half():
    outcome = testing.measured(1.2)
    times_s = ((1.0, 1.2, 9.0, 1.2, 1.1),)
    apart = replace(outcome, measurement=replace(outcome.measurement, step_times_s=times_s))

    launch = launch_of(apart, scoring(Objective(expression="step_time")))

    assert launch.value == pytest.approx(1.05)
    assert launch.mean == pytest.approx(2.7)


def test_the_noise_of_steps_that_took_turns_is_that_of_their_differences():
    moments = (1.0, 1.5, 2.0, 0.7, 1.2)
    pair = [
        turns(0, *(factor * moment for moment in order), purpose=Purpose.SELF_TEST, number=number)
        for number, (factor, order) in enumerate(((1.0, moments), (1.02, moments)))
    ]

    noise = noise_of(pair, scoring(Objective(expression="step_time")), together=True)

    assert noise.sd == pytest.approx(math.log(1.02))


FEW = st.integers(0, 6).map(float)
TWO = st.lists(st.tuples(FEW, FEW), max_size=30)
THREE = st.lists(st.tuples(FEW, FEW, FEW), max_size=20)
TABLE = {  # seconds and KiB: 1, 2, 4 are the front
    n: Takes(step_time_s=step_s, peak_memory_bytes=kib << 10)
    for n, (step_s, kib) in enumerate([(0.5, 400), (0.2, 900), (0.3, 300), (0.3, 500), (0.6, 100)])
} | {5: Fails(kind=FailureKind.CRASH)}


def beats(one, other):
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


@given(st.one_of(TWO, THREE))
@settings(deadline=None, derandomize=True)
def test_a_front_is_all_that_nothing_beats_in_the_order_of_the_first_cost(found):
    costs = dict(enumerate(found))
    front = unbeaten(costs)
    assert set(front) == {
        key for key, cost in costs.items() if not any(beats(other, cost) for other in found)
    }
    assert [costs[key][0] for key in front] == sorted(costs[key][0] for key in front)


@given(TWO.filter(len), st.floats(0.05, 0.95))
@settings(deadline=None, derandomize=True)
def test_whatever_the_weights_one_cost_is_lowest_on_the_front(found, weight):
    costs = dict(enumerate(found))
    weighed = one_cost(costs, (weight, 1 - weight))
    assert all(0 <= cost <= 1 + SUM_SHARE for cost in weighed.values())
    lowest = min(weighed.values())
    assert {key for key in costs if weighed[key] == lowest} & set(unbeaten(costs))


def several(*more, limits=()):
    study = replace(testing.study(), limits=limits)
    return replace(study, more_objectives=tuple(Objective(expression=text) for text in more))


class Listens:
    name = "listens"

    def __init__(self):
        self.told = []

    def propose(self, study, history):  # noqa: ARG002 - the port
        self.told.append(history)
        return Proposal(policy=history.trials[0].policy)


def of_the_table(study):
    outcomes = [ending.outcome(study, 0, Random(0)) for ending in TABLE.values()]
    return testing.history(*outcomes)


def test_each_turn_asks_for_the_best_by_other_weights_and_equal_histories_ask_equally():
    study = several("peak_memory")
    history = replace(of_the_table(study), incumbent=3, costs={1: 0.21})
    inner = Listens()
    proposer = FrontProposer(inner, scoring_of(study))
    for turn in (History(history.trials[:5]), History(history.trials), history, history):
        proposer.propose(study, turn)
    told = inner.told
    assert [one.incumbent for one in told] == [None] * 4
    assert told[0].weights != told[1].weights
    assert (told[2].weights, told[2].costs) == (told[3].weights, told[3].costs)
    assert {one.best.ordinal for one in told} <= {1, 2, 4}
    assert [text for text, _ in told[0].weights] == ["step_time", "peak_memory"]
    assert sum(weight for _, weight in told[0].weights) == pytest.approx(1)


def test_a_search_with_two_objectives_finds_and_confirms_its_front(tabular):
    made = tabular(TABLE, more=("peak_memory",), budget=Budget(trials=6, patience=9))
    finding = made.run()
    by_ordinal = {trial.ordinal: trial.config["n"] for trial in made.history}
    front = [by_ordinal[member.ordinal] for member in finding.front]
    assert front == [1, 2, 4]
    assert by_ordinal[finding.winner] == 1
    assert all(made.launched.count(n) == 5 for n in front)
    fastest = finding.front[0].reached
    units = [("step_time", "s"), ("peak_memory", "bytes")]
    assert [(one.objective, one.unit) for one in fastest] == units
    assert fastest[0].value.launch_count == 4
    assert fastest[1].value.centre == 900 << 10


def test_the_front_is_confirmed_as_far_as_the_budget_goes(tabular):
    # Six trials, then four rounds of two finalists and the seed, and of one more.
    budget = Budget(trials=6, patience=9, launches=6 + 4 * 4 + 3)
    made = tabular(TABLE, more=("peak_memory",), budget=budget)
    front = made.run().front
    assert len(made.launched) == 6 + 4 * 4
    assert sum(member.reached[0].value.launch_count == 4 for member in front) == 3


def test_who_breaks_a_limit_or_lacks_an_objective_is_not_on_the_front():
    study = several("peak_memory", limits=("step_time < 0.4 s",))
    scoring = scoring_of(study)
    trials = tuple(map(scoring.scored, of_the_table(study)))
    assert [member.ordinal for member in front_of(History(trials), (), scoring)] == [1, 2]
    for lacking in (several("mfu"), several()):
        assert front_of(testing.history(0.5, 0.4), (), scoring_of(lacking)) == ()


def test_flat_launches_are_counted_from_the_newest_on_the_front():
    history = testing.history(0.3, 0.5, 0.4, 0.6)
    assert launches_since_best(history) == 3
    assert launches_since_best(replace(history, front=(0, 2))) == 1
