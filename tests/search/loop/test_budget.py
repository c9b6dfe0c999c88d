"""A search stops for one reason, said in words."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from records.errors import StudyError
from records.machine import LaunchRecord
from records.study import Budget
from records.trial import FailureKind, Stage
from search.loop.budget import (
    HeldNodes,
    TimeLimit,
    check_first_trial,
    failures_in_a_row,
    launches_since_best,
    nodes_usd,
    stop_reason,
)
from search.loop.running import check_allocation
from tests.support.records import ENVIRONMENT, failed, history, study

CRASH = failed(FailureKind.CRASH)
OUT_OF_MEMORY = failed(FailureKind.OUT_OF_MEMORY)
INFRASTRUCTURE = failed(FailureKind.INFRASTRUCTURE)
CUT = replace(INFRASTRUCTURE, launched=LaunchRecord(argv=(), reason="timeout", wall_s=90.0))
INVALID = failed(FailureKind.INVALID_CONFIG, Stage.CHECK)
BUDGET = Budget(trials=5, patience=3, max_failures=4, max_wall_s=60.0)

TRIALS = "all 5 trials are used"
WALL = "the time limit of 60 s leaves no time for another trial"
ENDS = "the end of the allocation leaves no time for another trial"
PATIENCE = "3 measured trials in a row brought no improvement"
FAILURES = "4 trials in a row failed"


@pytest.mark.parametrize(
    ("outcomes", "out_of_time", "reason"),
    [
        ([], None, None),
        ([], WALL, WALL),
        ([1.0], None, None),
        ([5.0, 4.0, 3.0, 2.0], None, None),
        ([5.0, 4.0, 3.0, 2.0, 1.0], None, TRIALS),
        ([5.0, CRASH, 4.0, CRASH, 3.0], None, TRIALS),
        ([5.0, INVALID, 4.0, INVALID, 3.0, INVALID, 2.0], None, None),
        ([5.0, INFRASTRUCTURE, 4.0, INFRASTRUCTURE, 3.0], None, None),
        ([1.0, 2.0, 2.0], None, None),
        ([1.0, 2.0, 2.0, 2.0], None, PATIENCE),
        ([1.0, CRASH, CRASH, CRASH], None, None),
        ([1.0, OUT_OF_MEMORY, OUT_OF_MEMORY, OUT_OF_MEMORY], None, None),
        ([1.0, 1.0, 1.0, 1.0], None, PATIENCE),
        ([1.0, INVALID, INVALID, 2.0], None, None),
        ([1.0, INVALID, 2.0, INFRASTRUCTURE, 2.0, INVALID], None, None),
        ([2.0, 3.0, 3.0, 1.0, 3.0], None, TRIALS),
        ([2.0, 3.0, 3.0, 1.0], None, None),
        ([CRASH, CRASH, CRASH], None, None),
        ([CRASH, CRASH, CRASH, CRASH], None, FAILURES),
        ([OUT_OF_MEMORY] * 4, None, FAILURES),
        ([INVALID] * 4, None, FAILURES),
        ([INFRASTRUCTURE] * 4, None, FAILURES),
        ([1.0, INVALID, INVALID, INFRASTRUCTURE, INVALID], None, FAILURES),
        ([INVALID, INVALID, INVALID, 1.0, INVALID], None, None),
        ([5.0, 4.0, 3.0, 2.0, 1.0], WALL, TRIALS),
        ([1.0, 2.0, 2.0, 2.0], WALL, WALL),
    ],
)
def test_when_a_search_stops_and_why(outcomes, out_of_time, reason):
    assert stop_reason(BUDGET, history(*outcomes), 0, out_of_time) == reason


def limit(elapsed_s, budget, *, node_count=1, held_s=0.0, left_s=None, before_h=0.0):
    return TimeLimit(
        budget=budget,
        held=HeldNodes(node_count=node_count, held_s=lambda: held_s, left_s=lambda: left_s),
        clock=lambda: 100.0 + elapsed_s,
        started_s=100.0,
        launched_before=7,
        node_s_before=before_h * 3600,
    )


@pytest.mark.parametrize(
    ("elapsed_s", "made", "count", "reason"),
    [
        (59.9, 0, 0, None),
        (60.0, 0, 0, WALL),
        (40.0, 5, 2, None),
        (40.0, 4, 2, WALL),
        (29.0, 1, 3, None),
        (30.0, 1, 3, WALL),
        (40.0, 0, 3, None),
        (61.0, 4, 0, WALL),
    ],
    ids=[
        "there is time",
        "it is up",
        "what launches took so far fits",
        "it does not",
        "they count for half of the limit",
        "and no more",
        "how long one takes is not known",
        "it was up",
    ],
)
def test_launches_are_expected_to_take_what_those_before_took(elapsed_s, made, count, reason):
    assert limit(elapsed_s, BUDGET).out_of_time(7 + made, count) == reason


def test_node_hours_are_those_of_all_nodes_and_of_all_runs():
    budget = Budget(trials=5, max_node_hours=10.0)
    held = limit(900.0, budget, node_count=8, held_s=600.0, before_h=8.0)

    assert held.node_s == 8 * 600.0
    assert held.left_s() == pytest.approx((10 - 8) * 3600 / 8 - 600)
    assert held.out_of_time() is None
    assert held.out_of_time(7 + 3, 3) == (
        "the limit of 10 node-hours leaves no time for another trial"
    )


def test_an_allocation_ends_a_search_before_its_scheduler_does():
    assert limit(900.0, Budget(trials=5), left_s=31.0).out_of_time() is None
    assert limit(900.0, Budget(trials=5), left_s=30.0).out_of_time() == ENDS
    assert limit(900.0, BUDGET, left_s=30.0).left_s() == 60.0 - 900.0


TOO_SHORT = "the allocation ends sooner than one trial takes: trial 0 was ended after 90 s"


@pytest.mark.parametrize(
    ("outcomes", "out_of_time", "words"),
    [
        ([CUT], ENDS, TOO_SHORT),
        ([CUT], WALL, None),
        ([CUT], None, None),
        ([1.0, CUT], ENDS, None),
        ([CRASH], ENDS, None),
    ],
    ids=["cut", "another limit", "time is left", "one was measured", "its own doing"],
)
def test_an_allocation_that_ends_the_first_trial_is_too_short(outcomes, out_of_time, words):
    with pytest.raises(StudyError, match=words) if words else nullcontext():
        check_first_trial(history(*outcomes), lambda: out_of_time)


@pytest.mark.parametrize(
    ("left_s", "outcomes", "words"),
    [
        (None, [CUT], None),
        (31.0, [], None),
        (29.6, [], "the allocation ends in 30 s, too soon for one trial: 30 s are kept to record"),
        (121.0, [CUT], None),
        (119.9, [CUT], "ends in 120 s, too soon for one trial: one launch takes 90 s by those so"),
    ],
    ids=["no end", "some time", "none", "enough time", "less than a launch takes"],
)
def test_an_allocation_that_is_known_to_be_too_short_is_refused(left_s, outcomes, words):
    with pytest.raises(StudyError, match=words) if words else nullcontext():
        check_allocation(left_s, study(), history(*outcomes), ())


def test_without_a_limit_time_does_not_end_a_search():
    assert limit(1e12, Budget(trials=5)).left_s() is None
    assert limit(1e12, Budget(trials=5)).out_of_time(9, 9) is None


@pytest.mark.parametrize(("price", "usd"), [(None, None), (2.5, 2.5 * 4 * 3)])
def test_the_price_of_nodes_is_that_of_all_their_accelerators(price, usd):
    environment = replace(ENVIRONMENT, ranks_per_node=4, accelerator_usd_per_hour=price)

    assert nodes_usd(3 * 3600.0, environment) == usd


def test_a_trial_that_was_never_launched_costs_nothing():
    flood = history(1.0, *[INVALID, 0.5, INFRASTRUCTURE, 0.4] * 3)
    assert flood.launched_count == 7
    assert launches_since_best(flood) == 0 + 4
    assert failures_in_a_row(flood) == 0


def test_what_ran_out_of_memory_is_no_row_of_failures_once_something_ran():
    assert failures_in_a_row(history(1.0, *[OUT_OF_MEMORY] * 9, CRASH)) == 1
    assert failures_in_a_row(history(*[OUT_OF_MEMORY] * 9)) == 9


def test_without_patience_only_the_budget_ends_a_flat_search():
    without = replace(BUDGET, patience=None, trials=99)
    assert stop_reason(without, history(1.0, *[2.0] * 90), 0, None) is None


def test_of_equal_results_the_first_is_the_one_to_beat():
    assert launches_since_best(history(1.0, 1.0, 1.0)) == 2
    assert launches_since_best(history(CRASH, CRASH)) == 0
