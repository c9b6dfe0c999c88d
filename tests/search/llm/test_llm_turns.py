"""Who takes a turn, the model or the offline strategy, and who is told."""

from dataclasses import replace

import pytest

from policies.space import Space
from records.study import Budget, Dimension
from records.trial import FailureKind, History, Stage
from search.llm.client import Allowance
from search.strategies.proposers import OfflineProposer
from search.strategies.simple import CoordinateChooser
from tests.support import records as testing
from tests.support.search import Script, fault, refusal, submission

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


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ([refusal()], "the model refused to answer (frontier_llm)"),
        ([fault(529, "Overloaded")] * 2, "is overloaded or unavailable (529): Overloaded"),
    ],
)
def test_a_model_that_gives_nothing_is_replaced_for_the_turn(
    proposing, script: Script, reason: str
) -> None:
    history = tried(1.0)
    with proposing(STUDY, script) as (_, proposer):
        proposal = proposer.propose(STUDY, history)

    offline = OfflineProposer(CoordinateChooser(SPACE)).propose(STUDY, history)
    assert proposal is not None
    assert offline is not None
    assert proposal.policy.source == offline.policy.source
    assert proposal.policy.author == "coordinate"
    assert proposal.policy.rationale.startswith(offline.policy.rationale)
    assert reason in proposal.policy.rationale
    assert proposal.exchange is not None
    assert reason in proposal.exchange.result


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_fault_that_only_a_person_cures_is_said_once(proposing, status: int) -> None:
    notices: list[str] = []
    with proposing(STUDY, [fault(status)], notice=notices.append) as (server, proposer):
        first = proposer.propose(STUDY, History())
        second = proposer.propose(STUDY, History())

    assert first is not None
    assert second is not None
    assert first.policy.author == second.policy.author == "coordinate"
    assert first.exchange is not None
    assert second.exchange is None
    assert "the model is not asked" in second.policy.rationale
    assert len(server.requests) == 1
    (notice,) = notices
    assert notice.startswith("the search continues without the model: ")
    assert f"({status}" in notice
    assert notice.endswith("or use --strategy offline")


def test_after_three_turns_without_a_policy_the_model_is_asked_in_every_third(proposing) -> None:
    with proposing(STUDY, lambda _: refusal()) as (server, proposer):
        asked = [proposer.propose(STUDY, History()).exchange is not None for _ in range(10)]

    assert asked == [True, True, True, False, False, True, False, False, True, False]
    assert len(server.requests) == 5


def test_a_policy_ends_the_row_of_turns_without_one(proposing) -> None:
    replies = [refusal(), refusal(), refusal(), submission(code(4, 8)), refusal(), refusal()]
    with proposing(STUDY, replies) as (_, proposer):
        asked = [proposer.propose(STUDY, History()).exchange is not None for _ in range(8)]

    assert asked == [True, True, True, False, False, True, True, True]


def test_asked_seldom_the_model_takes_the_first_turns_and_those_without_progress(proposing) -> None:
    step_times_s = [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 9.0, 9.0]
    histories = [tried(*step_times_s[:count]) for count in range(1, 9)]
    with proposing(STUDY, lambda _: submission(code(4, 8)), turns="seldom") as (_, proposer):
        authors = [proposer.propose(STUDY, history).policy.author for history in histories]

    assert authors == ["llm"] * 3 + ["coordinate"] * 4 + ["llm"]


def test_beyond_its_tokens_the_model_is_not_asked_and_this_is_said(proposing) -> None:
    notices: list[str] = []
    allowance = Allowance(Budget(max_tokens=100), "m", None, list)
    with proposing(STUDY, [], allowance=allowance, notice=notices.append) as (server, proposer):
        first, second = (proposer.propose(STUDY, History()) for _ in range(2))

    assert first is not None
    assert second is not None
    assert first.exchange is second.exchange is None
    assert "0 of 100 tokens for the model are used" in first.policy.rationale
    assert not server.requests
    assert len(notices) == 1


def test_a_space_that_fits_in_the_budget_is_tried_without_a_model(proposing) -> None:
    study = replace(STUDY, budget=Budget(trials=12))
    with proposing(STUDY, []) as (server, proposer):
        proposal = proposer.propose(study, History())

    assert proposal is not None
    assert proposal.policy.author == "coordinate"
    assert (
        "the 12 remaining launches cover all 12 untried configurations" in proposal.policy.rationale
    )
    assert proposal.exchange is None
    assert not server.requests


def test_a_space_one_larger_than_the_budget_is_left_to_the_model(proposing) -> None:
    study = replace(STUDY, budget=Budget(trials=11))
    with proposing(STUDY, [submission(code(4, 8)), submission(code(4, 8))]) as (server, proposer):
        proposer.propose(study, History())
        proposer.propose(study, tried(1.0))

    assert len(server.requests) == 2


def test_only_launches_are_charged_when_the_budget_is_counted(proposing) -> None:
    study = replace(STUDY, budget=Budget(trials=12))
    history = tried(1.0).append(testing.trial(1, NOTHING))
    with proposing(STUDY, []) as (server, proposer):
        proposal = proposer.propose(study, history)

    assert proposal is not None
    assert (
        "the 11 remaining launches cover all 11 untried configurations" in proposal.policy.rationale
    )
    assert not server.requests


def test_when_everything_was_tried_there_is_nothing_to_propose(proposing) -> None:
    with proposing(STUDY, []) as (server, proposer):
        assert proposer.propose(STUDY, tried(*[1.0] * 12)) is None

    assert not server.requests


def test_a_provider_that_asks_for_an_hour_is_left_alone_for_an_hour(proposing) -> None:
    notices: list[str] = []
    now = [0.0]
    script = [fault(429, "slow down", retry_after_s=3600), submission(code(4, 8))]
    with proposing(STUDY, script, notice=notices.append, clock=lambda: now[0]) as (
        server,
        proposer,
    ):
        authors = []
        for now[0] in (0.0, 10.0, 3599.0, 3601.0):
            authors.append(proposer.propose(STUDY, tried(1.0)).policy.author)

    assert authors == ["coordinate", "coordinate", "coordinate", "llm"]
    assert len(server.requests) == 2
    assert notices == [
        "the model is not asked for 3600 s: 127.0.0.1 asks to wait 3600 s (429): slow down"
    ]


def test_a_turn_without_a_policy_is_said_once_for_the_same_reason(proposing) -> None:
    notices: list[str] = []
    script = [refusal(), refusal(), refusal("cyber"), submission(code(4, 8)), refusal("cyber")]
    with proposing(STUDY, script, notice=notices.append) as (_, proposer):
        for _ in range(7):
            proposer.propose(STUDY, tried(1.0))

    assert notices == [
        "the model returned no policy in this turn: the model refused to answer (frontier_llm)",
        "the model returned no policy in this turn: the model refused to answer (cyber)",
        "the model returned no policy in this turn: the model refused to answer (cyber)",
    ]
