"""What a turn of the model brings: a judged policy, and what is recorded about it."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from policies.space import Space
from records.study import Budget, Dimension, Study
from records.trial import FailureKind, History, Policy, Prediction, Stage
from search.strategies.base import Choice, untried
from search.strategies.simple import CoordinateChooser
from tests.support import records as testing
from tests.support.search import prompt_too_long, submission

STUDY = replace(
    testing.study(
        Dimension(name="dp", choices=(1, 2, 4)), Dimension(name="micro_batch", choices=(1, 2, 4, 8))
    ),
    budget=Budget(trials=6),
)
SPACE = Space(STUDY.space, STUDY.workload, STUDY.environment)
NOTHING = testing.failed(FailureKind.POLICY_ERROR, Stage.DECIDE)


def code(dp: int, micro_batch: int) -> str:
    """A policy that gives these settings."""
    settings = f"{{'dp': {dp}, 'micro_batch': {micro_batch}}}"
    return f"def generate_config(workload, environment):\n    return {settings}\n"


def tried(*step_times_s: float) -> History:
    """A history that measured the first configurations of the space."""
    return History(
        tuple(
            testing.trial(n, step_s, dict(SPACE.feasible[n].values))
            for n, step_s in enumerate(step_times_s)
        )
    )


class Ranking(CoordinateChooser):
    """Chooses as coordinate descent does, and offers the first untried configurations."""

    def candidates(self, _: Study, history: History, count: int) -> tuple[Choice, ...]:
        left = untried(SPACE, history)[:count]
        return tuple(Choice(config=config, why="is next") for config in left)


def test_the_model_is_asked_first(proposing) -> None:
    reply = submission(code(4, 8), rationale="fewer steps", expected_speedup=1.25)
    with proposing(STUDY, [reply]) as (server, proposer):
        proposal = proposer.propose(STUDY, History())

    assert proposal is not None
    assert proposal.policy == Policy(
        source=code(4, 8), author="llm", parent=None, rationale="fewer steps"
    )
    assert proposal.exchange is not None
    assert proposal.exchange.result == "submitted"
    assert "No trial yet; 6 of 6 launches remain." in json.dumps(server.requests[0].body)


def test_a_policy_descends_from_the_best_one(proposing) -> None:
    history = tried(2.0, 1.0).append(testing.trial(2, NOTHING))
    with proposing(STUDY, [submission(code(4, 8))]) as (_, proposer):
        proposal = proposer.propose(STUDY, history)

    assert proposal is not None
    assert proposal.policy.parent == history.trials[1].policy.digest
    assert proposal.policy.prediction == Prediction(speedup=1.1, over=1)


def test_without_a_measured_trial_a_policy_descends_from_the_last_one(proposing) -> None:
    history = History((testing.trial(0, NOTHING), testing.trial(1, NOTHING)))
    with proposing(STUDY, [submission(code(4, 8))]) as (_, proposer):
        proposal = proposer.propose(STUDY, history)

    assert proposal is not None
    assert proposal.policy.parent == history.trials[1].policy.digest


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (code(3, 1), "dp"),
        (code(1, 1), "same configuration as trial 0, which scored 1 s"),
        ("def generate_config(workload, environment):\n    return 1 / 0\n", "ZeroDivisionError"),
    ],
    ids=["invalid", "duplicate", "raises"],
)
def test_a_policy_with_nothing_to_launch_is_no_proposal(proposing, bad: str, words: str) -> None:
    history = tried(1.0)
    with proposing(STUDY, [submission(bad), submission(code(4, 8))]) as (server, proposer):
        proposal = proposer.propose(STUDY, history)

    assert proposal is not None
    assert proposal.policy.source == code(4, 8)
    assert words in json.dumps(server.requests[1].body["messages"][-1])


def test_a_model_that_does_not_learn_leaves_the_turn_with_its_last_violation(proposing) -> None:
    history = tried(1.0)
    with proposing(STUDY, lambda _: submission(code(1, 1))) as (server, proposer):
        proposal = proposer.propose(STUDY, history)

    assert proposal is not None
    assert proposal.policy.author == "coordinate"
    assert "returned no policy: same configuration as trial 0" in proposal.policy.rationale
    assert proposal.exchange is not None
    assert proposal.exchange.request_count == len(server.requests) == 4


def test_candidates_are_offered_and_accepting_one_is_said(proposing) -> None:
    taken, own = SPACE.feasible[1].values, code(4, 8)
    accepting = code(int(taken["dp"]), int(taken["micro_batch"]))
    with proposing(STUDY, [submission(accepting), submission(own)], offline=Ranking(SPACE)) as (
        server,
        proposer,
    ):
        accepted, overruled = (proposer.propose(STUDY, History()) for _ in range(2))

    assert accepted is not None
    assert overruled is not None
    assert accepted.policy.rationale == "accepts candidate 2: because"
    assert overruled.policy.rationale == "because"
    told = json.dumps(server.requests[0].body["messages"])
    assert all(str(config) in told for config in SPACE.feasible[:5])


class Doubtful(Ranking):
    """Expects something of all candidates but the first."""

    def candidates(self, study: Study, history: History, count: int) -> tuple[Choice, ...]:
        first, *others = super().candidates(study, history, count)
        return (first, *(replace(choice, expected="expected 1.10x") for choice in others))


def test_a_candidate_of_which_nothing_is_expected_does_not_head_the_list(proposing) -> None:
    with proposing(STUDY, [submission(code(4, 8))], offline=Doubtful(SPACE)) as (server, proposer):
        proposer.propose(STUDY, tried(1.0))

    told = server.requests[0].body["messages"][0]["content"][0]["text"]
    offered = [line for line in told.splitlines() if line[:3] in {"1. ", "5. "}]
    assert offered[0].endswith(": expected 1.10x")
    assert offered[1].endswith(": is next")


def test_a_prompt_that_is_too_long_is_halved(proposing) -> None:
    history = tried(*[1.0] * 4)
    with proposing(STUDY, [prompt_too_long(), submission(code(4, 8))]) as (server, proposer):
        proposal = proposer.propose(replace(STUDY, budget=Budget(trials=7)), history)

    assert proposal is not None
    assert proposal.policy.author == "llm"
    long, short = (len(json.dumps(request.body["messages"])) for request in server.requests)
    assert short < long


def test_choosing_a_proposer_imports_no_sdk() -> None:
    code = "import sys, search.llm.proposer; sys.exit('anthropic' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_same_history_gives_the_same_question(proposing) -> None:
    history = tried(1.0, 1.0)
    with proposing(STUDY, [submission(code(4, 8)), submission(code(4, 8))]) as (server, proposer):
        proposer.propose(STUDY, history)
        proposer.propose(STUDY, history)

    assert server.requests[0].body == server.requests[1].body
