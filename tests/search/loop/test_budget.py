"""A search stops for one reason, said in words."""

from dataclasses import replace

import pytest

from policies.space import Space
from records.study import Budget, Dimension
from records.trial import FailureKind, Stage
from search.loop.budget import (
    TimeLimit,
    failures_in_a_row,
    launches_since_best,
    stop_reason,
    without_patience,
)
from tests.support.records import failed, history, study

CRASH = failed(FailureKind.CRASH)
INFRASTRUCTURE = failed(FailureKind.INFRASTRUCTURE)
INVALID = failed(FailureKind.INVALID_CONFIG, Stage.CHECK)
BUDGET = Budget(trials=5, patience=3, max_failures=4, max_wall_s=60.0)

TRIALS = "all 5 trials are used"
WALL = "the time limit of 60 s leaves no time for another trial"
PATIENCE = "3 launches in a row brought no improvement"
FAILURES = "4 trials in a row failed"


@pytest.mark.parametrize(
    ("outcomes", "elapsed_s", "reason"),
    [
        ([], 0.0, None),
        ([], 59.9, None),
        ([], 60.0, WALL),
        ([1.0], 0.0, None),
        ([5.0, 4.0, 3.0, 2.0], 0.0, None),
        ([5.0, 4.0, 3.0, 2.0, 1.0], 0.0, TRIALS),
        ([5.0, CRASH, 4.0, CRASH, 3.0], 0.0, TRIALS),
        ([5.0, INVALID, 4.0, INVALID, 3.0, INVALID, 2.0], 0.0, None),
        ([5.0, INFRASTRUCTURE, 4.0, INFRASTRUCTURE, 3.0], 0.0, None),
        ([1.0, 2.0, 2.0], 0.0, None),
        ([1.0, 2.0, 2.0, 2.0], 0.0, PATIENCE),
        ([1.0, CRASH, CRASH, CRASH], 0.0, PATIENCE),
        ([1.0, 1.0, 1.0, 1.0], 0.0, PATIENCE),
        ([1.0, INVALID, INVALID, 2.0], 0.0, None),
        ([1.0, INVALID, 2.0, INFRASTRUCTURE, 2.0, INVALID], 0.0, None),
        ([2.0, 3.0, 3.0, 1.0, 3.0], 0.0, TRIALS),
        ([2.0, 3.0, 3.0, 1.0], 0.0, None),
        ([CRASH, CRASH, CRASH], 0.0, None),
        ([CRASH, CRASH, CRASH, CRASH], 0.0, FAILURES),
        ([INVALID] * 4, 0.0, FAILURES),
        ([INFRASTRUCTURE] * 4, 0.0, FAILURES),
        ([1.0, INVALID, INVALID, INFRASTRUCTURE, INVALID], 0.0, FAILURES),
        ([INVALID, INVALID, INVALID, 1.0, INVALID], 0.0, None),
        ([5.0, 4.0, 3.0, 2.0, 1.0], 99.0, TRIALS),
        ([1.0, 2.0, 2.0, 2.0], 99.0, WALL),
    ],
)
def test_when_a_search_stops_and_why(outcomes, elapsed_s, reason):
    assert stop_reason(BUDGET, history(*outcomes), 0, elapsed_s) == reason


@pytest.mark.parametrize(
    ("elapsed_s", "made", "count", "expected_s"),
    [(10.0, 5, 3, 16.0), (40.0, 1, 3, 70.0), (10.0, 0, 3, 10.0), (61.0, 4, 0, 61.0)],
    ids=["by the mean so far", "at most half of the limit", "unknown at first", "now"],
)
def test_launches_are_expected_to_take_what_those_before_took(elapsed_s, made, count, expected_s):
    clock = iter([100.0 + elapsed_s] * 2).__next__
    limit = TimeLimit(max_s=60.0, clock=clock, started_s=100.0, launched_before=7)

    assert limit.expected_s(7 + made, count) == expected_s
    assert limit.allows(7 + made, count) == (expected_s < 60.0)


def test_without_a_time_limit_time_does_not_end_a_search():
    assert stop_reason(Budget(trials=5, max_wall_s=None), history(1.0), 0, 1e12) is None


def test_a_trial_that_was_never_launched_costs_nothing():
    flood = history(1.0, *[INVALID, 0.5, INFRASTRUCTURE, 0.4] * 3)
    assert flood.launched_count == 7
    assert launches_since_best(flood) == 0 + 4
    assert failures_in_a_row(flood) == 0


def test_of_equal_results_the_first_is_the_one_to_beat():
    assert launches_since_best(history(1.0, 1.0, 1.0)) == 2
    assert launches_since_best(history(CRASH, CRASH)) == 0


@pytest.mark.parametrize(("trials", "patience"), [(3, 1), (4, 4), (9, 9)])
def test_a_budget_for_the_whole_space_is_not_cut_short_by_patience(trials, patience):
    asked = study(Dimension(name="n", choices=(1, 2, 3, 4)))
    asked = replace(asked, budget=Budget(trials=trials, patience=1))
    space = Space(asked.space, asked.workload, asked.environment)
    assert without_patience(asked, space).budget.patience == patience
