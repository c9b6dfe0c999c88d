"""A score exists exactly when a trial was measured, and a point of a space has one identity."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from records.trial import Config, FailureKind, History, Policy, Score, Stage
from tests.support.records import failed, history, measured, trial

KNOBS = st.dictionaries(
    st.text(max_size=8), st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
)


@pytest.mark.parametrize(
    ("outcome", "score"), [(measured(), None), (failed(), Score(cost=1.0, value=1.0, unit="s"))]
)
def test_a_score_exists_exactly_when_a_trial_was_measured(outcome, score):
    with pytest.raises(ValueError, match="trial 3: a score exists exactly when it was measured"):
        replace(trial(3, outcome), outcome=outcome, score=score)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_score_is_a_finite_number(number):
    with pytest.raises(ValueError, match="must be finite"):
        Score(cost=number, value=1.0, unit="s")
    with pytest.raises(ValueError, match="must be finite"):
        Score(cost=1.0, value=number, unit="s")


@pytest.mark.parametrize("one", [4, 4.0, True, "4"])
@pytest.mark.parametrize("other", [4, 4.0, True, "4"])
def test_settings_of_different_types_are_different_points(one, other):
    same = type(one) is type(other)
    assert (Config({"tp": one}).digest == Config({"tp": other}).digest) is same
    assert (Config({"tp": one}) == Config({"tp": other})) is same


@given(KNOBS)
@settings(deadline=None)
def test_the_order_of_the_knobs_does_not_matter(values):
    shuffled = Config(dict(reversed(values.items())))
    assert shuffled == Config(values)
    assert hash(shuffled) == hash(Config(values))
    assert str(shuffled) == str(Config(values))


@given(KNOBS, KNOBS)
@settings(deadline=None)
def test_equal_points_have_equal_hashes_and_digests(one, other):
    a, b = Config(one), Config(other)
    assert (a == b) is (a.digest == b.digest)
    assert a != b or hash(a) == hash(b)


def test_names_and_values_cannot_be_confused_by_a_digest():
    assert Config({"a": "1", "b": "2"}).digest != Config({"a": "1,b=2"}).digest
    assert Config({"a": '","b":"'}).digest != Config({"a": "", "b": ""}).digest


def test_a_policy_is_known_by_its_text_alone():
    one = Policy(source="x", author="seed", rationale="why")
    assert one.digest == Policy(source="x", author="llm").digest
    assert one.digest != Policy(source="x ", author="seed", rationale="why").digest


def test_a_step_takes_as_long_as_its_slowest_rank():
    ragged = replace(measured().measurement, step_times_s=((1.0, 5.0), (2.0, 3.0)))
    assert ragged.slowest_rank_s == (2.0, 5.0)
    with pytest.raises(ValueError):
        _ = replace(ragged, step_times_s=((1.0, 5.0), (2.0,))).slowest_rank_s


@pytest.mark.parametrize(
    ("outcome", "reached_launch", "launched"),
    [
        (failed(FailureKind.POLICY_ERROR, Stage.DECIDE), False, False),
        (failed(FailureKind.DUPLICATE, Stage.CHECK), False, False),
        (failed(FailureKind.INFRASTRUCTURE, Stage.LAUNCH), True, False),
        (failed(FailureKind.CRASH, Stage.LAUNCH), True, True),
        (failed(FailureKind.METRIC_ERROR, Stage.SCORE), True, True),
        (measured(), True, True),
    ],
)
def test_the_budget_counts_what_ended_by_the_configurations_own_doing(
    outcome, reached_launch, launched
):
    one = trial(0, outcome, {"n": 1})
    assert one.reached_launch is reached_launch
    assert one.launched is launched
    assert History((one,)).launched_count == launched


def test_a_failed_trial_never_wins():
    past = history(failed(), 0.5, failed(FailureKind.OUT_OF_MEMORY), 0.25, 0.25)
    assert past.best is past.trials[3]
    assert [t.ordinal for t in past.ranked] == [3, 4, 1]
    assert history(failed(), failed()).best is None


def test_a_configuration_is_tried_once_a_launch_ended_by_its_own_doing():
    infrastructure = failed(FailureKind.INFRASTRUCTURE)
    duplicate = failed(FailureKind.DUPLICATE, Stage.CHECK)
    past = History((trial(0, infrastructure, {"n": 1}), trial(1, duplicate, {"n": 2})))
    assert past.tried(Config({"n": 1})) is None
    assert past.tried(Config({"n": 2})) is None
    past = past.append(trial(2, failed(FailureKind.CRASH), {"n": 1}))
    assert past.tried(Config({"n": 1})).ordinal == 2
    assert past.tried(Config({"n": True})) is None
    assert past.tried(Config({"n": 1.0})) is None


def test_a_trial_that_ends_late_takes_its_place_and_is_pending_no_more():
    first, second, third = (trial(n, 0.5, {"n": n}) for n in range(3))
    past = History((first,), pending=(second.config, third.config)).append(third)
    assert (past.trials, past.pending) == ((first, third), (second.config,))
    assert (past.find(1), past.find(2)) == (None, third)
    assert past.before(2).trials == (first,)
    past = past.append(second)
    assert (past.trials, past.pending) == ((first, second, third), ())
    assert past.before(2).trials == (first, second)


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (0, ()),
        (1, ("measured in parallel with 1 other trial",)),
        (3, ("measured in parallel with 3 other trials",)),
    ],
)
def test_a_measurement_says_what_it_was_made_beside(count, told):
    assert replace(measured().measurement, beside_count=count).caveats == told
