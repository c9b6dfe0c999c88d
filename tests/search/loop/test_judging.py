"""What is said of a policy before it becomes a trial."""

from dataclasses import replace

import pytest

from policies.space import Space
from records.study import Dimension, Study
from records.trial import Config, FailureKind, History, Policy, Trial
from search.loop.learned import learned_constraints
from search.loop.trial import precheck
from search.study.spaces import prepare
from tests.support import records as testing

STUDY = testing.study(
    Dimension(name="dp", choices=(1, 2, 4)),
    Dimension(name="micro_batch", choices=(1, 2, 4, 8)),
    Dimension(name="bucket", choices=(1, 2)),
)
SPACE = Space(STUDY.space, STUDY.workload, STUDY.environment)
OUT_OF_MEMORY = testing.failed(FailureKind.OUT_OF_MEMORY, message="no room")


def policy(**settings: int) -> Policy:
    source = f"def generate_config(workload, environment):\n    return {settings}\n"
    return Policy(source=source, author="llm")


def judged(answer: Policy, history: History, study: Study = STUDY) -> Config | str:
    return precheck(prepare(study, SPACE), answer, history)


def launched(ordinal: int, dp: int, micro_batch: int) -> Trial:
    """A launch that runs out of memory where the micro batch is 8."""
    knobs = {"dp": dp, "micro_batch": micro_batch, "bucket": 1}
    return testing.trial(ordinal, OUT_OF_MEMORY if micro_batch == 8 else 0.5, knobs)


@pytest.fixture
def teaching() -> History:
    """A history in which all of one bucket was launched."""
    pairs = [(dp, micro_batch) for dp in (1, 2, 4) for micro_batch in (1, 2, 4, 8)]
    return History(tuple(launched(n, *pair) for n, pair in enumerate(pairs)))


def test_a_policy_that_can_be_launched_gives_its_configuration() -> None:
    config = {"dp": 1, "micro_batch": 2, "bucket": 1}

    assert judged(policy(**config), History()) == Config(config)


def test_a_policy_that_raises_is_told_its_line() -> None:
    broken = Policy(
        source="def generate_config(workload, environment):\n    return {}['dp']\n", author="llm"
    )

    words = judged(broken, History())

    assert isinstance(words, str)
    assert words.startswith("the policy failed: line 2: KeyError: 'dp'")


def test_a_value_that_is_no_choice_is_named() -> None:
    words = judged(policy(dp=3, micro_batch=1, bucket=1), History())

    assert isinstance(words, str)
    assert "dp" in words
    assert "3" in words


def test_a_configuration_that_was_launched_is_told_with_what_came_of_it(teaching) -> None:
    measured = judged(policy(dp=1, micro_batch=1, bucket=1), teaching)
    failed = judged(policy(dp=1, micro_batch=8, bucket=1), teaching)

    assert measured == "same configuration as trial 0, which scored 0.5 s"
    assert failed == "same configuration as trial 3, which ended in out_of_memory: no room"


def test_a_failure_of_the_infrastructure_may_be_launched_again() -> None:
    knobs = {"dp": 1, "micro_batch": 1, "bucket": 1}
    history = History((testing.trial(0, testing.failed(FailureKind.INFRASTRUCTURE), knobs),))

    assert judged(policy(**knobs), history) == Config(knobs)


def test_a_configuration_that_is_being_measured_is_a_duplicate() -> None:
    knobs = {"dp": 1, "micro_batch": 1, "bucket": 1}
    words = judged(policy(**knobs), History(pending=(Config(knobs),)))

    assert words == "same configuration as a trial that is being measured"


def test_a_rule_that_failures_taught_is_kept_until_a_person_takes_it_back(teaching) -> None:
    (rule, *_) = learned_constraints(SPACE, teaching, ())
    names = tuple(each.constraint.name for each in learned_constraints(SPACE, teaching, ()))
    answer = policy(dp=1, micro_batch=8, bucket=2)
    words = judged(answer, teaching)
    revoked = judged(answer, teaching, replace(STUDY, revoked=names))

    assert rule.ordinals == (3, 7, 11)
    assert isinstance(words, str)
    assert words.startswith("every trial like this ended in out_of_memory (#3, #7, #11): ")
    assert isinstance(revoked, Config)
