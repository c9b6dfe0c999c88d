"""A front holds all that nothing beats, and a search with several objectives goes along it."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.objective import scoring_of
from records.study import Budget, Objective
from records.trial import FailureKind, History
from search.loop.budget import launches_since_best
from search.loop.leader import front_of, unbeaten
from search.loop.ports import Proposal
from search.strategies.proposers import SUM_SHARE, FrontProposer, one_cost
from tests.support import records as testing
from tests.support.evaluator import Fails, Takes

FEW = st.integers(0, 6).map(float)
TWO = st.lists(st.tuples(FEW, FEW), max_size=30)
THREE = st.lists(st.tuples(FEW, FEW, FEW), max_size=20)
TABLE = {  # seconds and KiB: 1, 2, 4 are the front
    0: Takes(step_time_s=0.50, peak_memory_bytes=400 << 10),
    1: Takes(step_time_s=0.20, peak_memory_bytes=900 << 10),
    2: Takes(step_time_s=0.30, peak_memory_bytes=300 << 10),
    3: Takes(step_time_s=0.30, peak_memory_bytes=500 << 10),
    4: Takes(step_time_s=0.60, peak_memory_bytes=100 << 10),
    5: Fails(kind=FailureKind.CRASH),
}


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


def test_each_turn_asks_for_the_best_by_other_weights_and_equal_histories_ask_equally():
    study = several("peak_memory")
    outcomes = [ending.outcome(study, 0, Random(0)) for ending in TABLE.values()]
    history = replace(testing.history(*outcomes), incumbent=3, costs={1: 0.21})
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
    assert [(one.objective, one.unit) for one in fastest] == [
        ("step_time", "s"),
        ("peak_memory", "bytes"),
    ]
    assert fastest[0].value.launch_count == 4
    assert fastest[1].value.centre == 900 << 10


def test_the_front_is_confirmed_as_far_as_the_budget_goes(tabular):
    # Six trials, then four rounds of two finalists and the seed, and of one more.
    budget = Budget(trials=6, patience=9, launches=6 + 4 * 4 + 3)
    made = tabular(TABLE, more=("peak_memory",), budget=budget)
    finding = made.run()
    confirmed = sum(member.reached[0].value.launch_count == 4 for member in finding.front)
    assert len(made.launched) == 6 + 4 * 4
    assert confirmed == 3


def test_who_breaks_a_limit_or_lacks_an_objective_is_not_on_the_front():
    study = several("peak_memory", limits=("step_time < 0.4 s",))
    scoring = scoring_of(study)
    outcomes = [ending.outcome(study, 0, Random(0)) for ending in TABLE.values()]
    trials = tuple(map(scoring.scored, testing.history(*outcomes)))
    assert [member.ordinal for member in front_of(History(trials), (), scoring)] == [1, 2]
    lacking = front_of(testing.history(0.5, 0.4), (), scoring_of(several("mfu")))
    assert lacking == ()
    assert front_of(testing.history(0.5, 0.4), (), scoring_of(several())) == ()


def test_flat_launches_are_counted_from_the_newest_on_the_front():
    history = testing.history(0.3, 0.5, 0.4, 0.6)
    assert launches_since_best(history) == 3
    assert launches_since_best(replace(history, front=(0, 2))) == 1
