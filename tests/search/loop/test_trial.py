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


KNOBS = {"dp": 1, "micro_batch": 1, "bucket": 1}
RAISES = "def generate_config(workload, environment):\n    return {}['dp']\n"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Policy(source=RAISES, author="llm"), "the policy failed: line 2: KeyError: 'dp'"),
        (policy(dp=3, micro_batch=1, bucket=1), "knob dp is 3"),
        (policy(**KNOBS), "same configuration as trial 0, which scored 0.5 s"),
        (
            policy(dp=1, micro_batch=8, bucket=1),
            "same configuration as trial 3, which ended in out_of_memory: no room",
        ),
    ],
)
def test_what_is_wrong_with_a_policy_is_said(teaching, answer, words):
    assert judged(answer, teaching).startswith(words)


def test_a_configuration_that_was_not_measured_may_be_launched_but_not_twice_at_once():
    lost = testing.trial(0, testing.failed(FailureKind.INFRASTRUCTURE), KNOBS)
    pending = History(pending=(Config(KNOBS),))

    assert judged(policy(**KNOBS), History()) == Config(KNOBS)
    assert judged(policy(**KNOBS), History((lost,))) == Config(KNOBS)
    assert judged(policy(**KNOBS), pending) == (
        "same configuration as a trial that is being measured"
    )


def test_a_rule_that_failures_taught_is_kept_until_a_person_takes_it_back(teaching):
    (rule, *_) = learned_constraints(SPACE, teaching, ())
    names = tuple(each.constraint.name for each in learned_constraints(SPACE, teaching, ()))
    answer = policy(dp=1, micro_batch=8, bucket=2)
    words = judged(answer, teaching)
    revoked = judged(answer, teaching, replace(STUDY, revoked=names))

    assert rule.ordinals == (3, 7, 11)
    assert words.startswith("every trial like this ended in out_of_memory (#3, #7, #11): ")
    assert isinstance(revoked, Config)
