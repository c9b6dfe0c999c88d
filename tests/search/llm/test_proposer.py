"""Who takes a turn, the model or the offline strategy, and what a turn of the model brings."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from policies.space import Space
from records.study import Budget, Context, Dimension, Measure, Objective, Study
from records.trial import Config, FailureKind, History, Policy, Prediction, Stage
from search.llm.client import Allowance
from search.llm.tools import Draft, TraceQuestion, TraceTopic, called
from search.llm.transcripts import Submission
from search.strategies.base import Choice, untried
from search.strategies.offline import CoordinateChooser, HybridChooser
from search.strategies.proposers import OfflineProposer
from tests.support import records as testing
from tests.support.search import fault, prompt_too_long, refusal, submission, tool_use

STUDY = replace(
    testing.study(
        Dimension(name="dp", choices=(1, 2, 4)), Dimension(name="micro_batch", choices=(1, 2, 4, 8))
    ),
    budget=Budget(trials=6),
)
SPACE = Space(STUDY.space, STUDY.workload, STUDY.environment)
LONGER = Context(
    name="long",
    workload=replace(STUDY.workload, sequence_length=512),
    environment=STUDY.environment,
)
NOTHING = testing.failed(FailureKind.POLICY_ERROR, Stage.DECIDE)


def code(dp: int, micro_batch: int) -> str:
    """A policy that gives these settings."""
    settings = f"{{'dp': {dp}, 'micro_batch': {micro_batch}}}"
    return f"def generate_config(workload, environment):\n    return {settings}\n"


GOOD = submission(code(4, 8))


def tried(*step_times_s: float) -> History:
    """A history that measured the first configurations of the space."""
    return History(
        tuple(
            testing.trial(n, step_s, dict(SPACE.feasible[n].values))
            for n, step_s in enumerate(step_times_s)
        )
    )


def test_the_model_is_asked_first(proposing):
    reply = submission(code(4, 8), rationale="fewer steps", expected_speedup=1.25)
    with proposing(STUDY, [reply]) as (server, proposer):
        proposal = proposer.propose(STUDY, History())

    assert proposal.policy == Policy(
        source=code(4, 8), author="llm", parent=None, rationale="fewer steps"
    )
    assert proposal.exchange.result == "submitted"
    assert "No trial yet; 6 of 6 launches remain." in json.dumps(server.requests[0].body)


@pytest.mark.parametrize(
    ("history", "prediction"),
    [
        (tried(2.0, 1.0).append(testing.trial(2, NOTHING)), Prediction(speedup=1.1, over=1)),
        (History((testing.trial(0, NOTHING), testing.trial(1, NOTHING))), None),
    ],
    ids=["best", "last"],
)
def test_a_policy_descends_from_the_best_one_or_the_last(proposing, history, prediction):
    with proposing(STUDY, [GOOD]) as (_, proposer):
        policy = proposer.propose(STUDY, history).policy

    assert policy.parent == history.trials[1].policy.digest
    assert policy.prediction == prediction


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (code(3, 1), "dp"),
        (code(1, 1), "same configuration as trial 0, which scored 1 s"),
        ("def generate_config(workload, environment):\n    return 1 / 0\n", "ZeroDivisionError"),
    ],
    ids=["invalid", "duplicate", "raises"],
)
def test_a_policy_with_nothing_to_launch_is_no_proposal(proposing, bad, words):
    with proposing(STUDY, [submission(bad), GOOD]) as (server, proposer):
        proposal = proposer.propose(STUDY, tried(1.0))

    assert proposal.policy.source == code(4, 8)
    assert words in json.dumps(server.requests[1].body["messages"][-1])


@pytest.mark.parametrize(
    ("script", "reason", "request_count"),
    [
        ([refusal()], "the model refused to answer (frontier_llm)", 1),
        ([fault(529, "Overloaded")] * 2, "is overloaded or unavailable (529): Overloaded", 2),
        ([submission(code(1, 1))] * 4, "returned no policy: same configuration as trial 0", 4),
    ],
    ids=["refuses", "overloaded", "does not learn"],
)
def test_a_model_that_gives_nothing_is_replaced_for_the_turn(
    proposing, script, reason, request_count
):
    history = tried(1.0)
    with proposing(STUDY, script) as (server, proposer):
        proposal = proposer.propose(STUDY, history)

    offline = OfflineProposer(CoordinateChooser(SPACE)).propose(STUDY, history).policy
    assert (proposal.policy.source, proposal.policy.author) == (offline.source, "coordinate")
    assert proposal.policy.rationale.startswith(offline.rationale)
    assert reason in proposal.policy.rationale
    assert proposal.exchange.result in proposal.policy.rationale
    assert proposal.exchange.request_count == len(server.requests) == request_count


def answered(server, place: int) -> dict[str, object]:
    """What the model read of its tool call before a request."""
    (result,) = server.requests[place].body["messages"][-1]["content"]
    return result


def asking(*configs: object):
    return tool_use({"configs": [*configs]}, name="estimate")


def test_the_model_may_ask_what_to_expect_before_it_submits(proposing):
    asked = [{"dp": 4}, {"dp": 1, "micro_batch": 1}, {"dp": 3}, {"expert_count": [8]}]
    offline = HybridChooser(SPACE, lambda config: {"compute": 1 / config["dp"], "send": 0.25})
    with proposing(STUDY, [asking(*asked), GOOD], offline=offline) as (server, proposer):
        proposal = proposer.propose(STUDY, tried(1.0, 0.8))

    assert proposal.policy.source == code(4, 8)
    assert proposal.exchange.request_count == 2
    assert [tool["name"] for tool in server.requests[0].body["tools"]] == [
        "estimate",
        "submit_policy",
    ]
    result = answered(server, 1)
    assert result["is_error"] is False
    valid, launched, no_choice, unknown = result["content"].splitlines()
    assert re.fullmatch(
        r"1\. dp=4 micro_batch=2: valid, not launched yet; expected \d\.\d\dx \(\d\.\d\d to "
        r"\d+\.\d\d\), runs with a chance of \d\d%; its step by sizes alone: compute 50%, "
        r"send 50%; nearest measured #1 \(dp 1\): the best",
        valid,
    )
    assert launched == "2. dp=1 micro_batch=1: same configuration as trial 0, which scored 1 s"
    assert no_choice == "3. not valid: knob dp is 3 (int), not one of [1, 2, 4]"
    assert unknown.startswith("4. not valid: 'expert_count' is unknown; known are dp, micro_batch")


def test_estimates_of_a_turn_are_bounded_and_cost_no_attempt_at_a_policy(proposing):
    bad = submission(code(1, 1))
    script = [*[asking({"dp": 2})] * 6, bad, bad, GOOD]
    with proposing(STUDY, script) as (server, proposer):
        proposal = proposer.propose(STUDY, tried(1.0))

    assert proposal.policy.source == code(4, 8)
    assert [answered(server, place)["is_error"] for place in range(1, 9)] == [
        *[False] * 5,
        *[True] * 3,
    ]
    assert "no more calls of estimate in this turn" in answered(server, 6)["content"]


def tracing(question: str = "kernels", **more: object):
    return tool_use({"question": question, **more}, name="trace")


def test_the_model_may_ask_about_traces_in_the_same_turn(proposing):
    questions = []

    def answer(question, history):
        questions.append((question, len(history)))
        return "the longest is gemm"

    script = [tracing(), asking({"dp": 2}), tracing("difference", trial=1, against=0), GOOD]
    with proposing(STUDY, script, trace_answer=answer) as (server, proposer):
        proposal = proposer.propose(STUDY, tried(1.0, 0.8))

    assert proposal.policy.source == code(4, 8)
    assert [tool["name"] for tool in server.requests[0].body["tools"]] == [
        "estimate",
        "trace",
        "submit_policy",
    ]
    assert answered(server, 1)["content"] == "the longest is gemm"
    assert questions == [
        (TraceQuestion(question=TraceTopic.KERNELS), 2),
        (TraceQuestion(question=TraceTopic.DIFFERENCE, trial=1, against=0), 2),
    ]


def test_estimates_and_traces_share_one_bound(proposing):
    script = [*[asking({"dp": 2}), tracing()] * 3, GOOD]
    with proposing(STUDY, script, trace_answer=lambda *_: "gemm") as (server, proposer):
        proposal = proposer.propose(STUDY, tried(1.0))

    assert proposal.policy.source == code(4, 8)
    assert [answered(server, n)["is_error"] for n in range(1, 7)] == [False] * 5 + [True]
    assert "no more calls of trace in this turn" in answered(server, 6)["content"]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"measure": Measure(profiled_steps=0)}, ["estimate", "submit_policy"]),
        ({"contexts": (LONGER,)}, ["trace", "submit_policy"]),
    ],
    ids=["nothing is profiled", "several contexts"],
)
def test_only_tools_with_answers_are_offered(proposing, changes, names):
    study = replace(STUDY, **changes)
    with proposing(study, [GOOD], trace_answer=lambda *_: "") as (server, proposer):
        proposer.propose(study, tried(1.0))

    assert [tool["name"] for tool in server.requests[0].body["tools"]] == names


@pytest.mark.parametrize(
    "given", [{}, {"question": "why"}, {"question": "step", "trial": "best"}, [], "step"]
)
def test_a_question_about_traces_that_is_none_is_told_how_to_ask(proposing, given):
    script = [tool_use(given, name="trace"), GOOD]
    with proposing(STUDY, script, trace_answer=lambda *_: "") as (server, proposer):
        proposal = proposer.propose(STUDY, tried(1.0))

    assert proposal.policy.source == code(4, 8)
    assert "trace takes question, one of step, collectives" in json.dumps(answered(server, 1))


def test_many_configurations_at_once_are_answered_in_part(proposing):
    with proposing(STUDY, [asking(*[{"dp": 2}] * 10), GOOD]) as (server, proposer):
        proposer.propose(STUDY, tried(1.0))

    *lines, rest = answered(server, 1)["content"].splitlines()
    assert len(lines) == 8
    assert rest == "The last 2 are not answered: 8 at a time."


@pytest.mark.parametrize("given", [{}, {"configs": []}, {"configs": [4]}, "dp=4"])
def test_a_question_that_is_none_is_told_how_to_ask(proposing, given):
    with proposing(STUDY, [tool_use(given, name="estimate"), GOOD]) as (server, proposer):
        proposal = proposer.propose(STUDY, tried(1.0))

    assert proposal.policy.source == code(4, 8)
    assert "estimate takes configs, a list of objects" in json.dumps(answered(server, 1))


def draft(dp: int, micro_batch: int, expected_speedup: float) -> Draft:
    return Draft(code=code(dp, micro_batch), rationale="why", expected_speedup=expected_speedup)


REPLY = Submission(
    trial=1,
    draft=replace(
        draft(1, 2, 1.25), alternatives=(draft(2, 4, 1.2), draft(4, 8, 1.15), draft(4, 4, 1.1))
    ),
)
"""The model's policy became trial 1; the seed was trial 0, at 1 s."""


def launched(*outcomes: object) -> History:
    """The seed, then the policies of the reply with these step times or failures."""
    drafts = (REPLY.draft, *REPLY.draft.alternatives)
    trials = [testing.trial(0, 1.0, {"dp": 1, "micro_batch": 1})]
    for ordinal, (one, outcome) in enumerate(zip(drafts, outcomes, strict=False), start=1):
        settings = {"dp": (1, 2, 4, 4)[ordinal - 1], "micro_batch": (2, 4, 8, 4)[ordinal - 1]}
        policy = Policy(
            source=one.code,
            author="llm",
            prediction=Prediction(speedup=one.expected_speedup, over=0),
        )
        trials.append(replace(testing.trial(ordinal, outcome, settings), policy=policy))
    return History(tuple(trials))


def test_alternatives_come_in_order_without_another_request(proposing):
    script = [submission(code(1, 8))]
    with proposing(STUDY, script, last_submission=lambda: REPLY) as (server, proposer):
        second, third = (
            proposer.propose(STUDY, launched(*times)) for times in ((0.95,), (0.95, 0.96))
        )
        after = proposer.propose(STUDY, launched(0.95, 0.96, 0.97, 0.98))

    assert (second.policy.source, third.policy.source) == (code(2, 4), code(4, 8))
    assert second.policy.rationale == "policy 2 of 4 in the reply for trial 1: why"
    assert second.policy.prediction == Prediction(speedup=1.2, over=0)
    assert second.exchange is third.exchange is None
    assert after.exchange is not None
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("history", "is_launched"),
    [
        (launched(0.85), True),
        (launched(1.05), False),
        (launched(0.6), False),
        (launched(NOTHING), False),
        (launched(0.77, 0.78), False),
        (launched(0.95).append(testing.trial(2, 0.9, {"dp": 2, "micro_batch": 2})), False),
        (replace(launched(), pending=(SPACE.feasible[1],)), True),
        (launched(), False),
    ],
    ids=[
        "the first is the new best, as expected",
        "the first is slower than expected",
        "the first is faster than expected",
        "the first failed",
        "the best is better than the next is expected to be",
        "another strategy took a turn",
        "the first is being measured",
        "the reply is of this turn",
    ],
)
def test_an_alternative_is_launched_while_the_reply_holds(proposing, history, is_launched):
    with proposing(STUDY, lambda _: GOOD, last_submission=lambda: REPLY) as (server, proposer):
        proposal = proposer.propose(STUDY, history)

    assert proposal.policy.rationale.startswith("policy ") == is_launched
    assert len(server.requests) == (not is_launched)


def test_an_alternative_that_may_no_longer_be_launched_is_dropped(proposing):
    seed, first = launched(0.95).trials
    history = History((seed, replace(first, config=Config({"dp": 2, "micro_batch": 4}))))
    with proposing(STUDY, [GOOD], last_submission=lambda: REPLY) as (server, proposer):
        proposer.propose(STUDY, history)

    assert len(server.requests) == 1


def test_alternatives_come_before_a_turn_of_the_offline_strategy(proposing):
    study = replace(STUDY, budget=Budget(trials=11))
    reply = replace(REPLY, trial=4)
    early = tried(9.0, 8.0, 7.0, 6.0)
    first = replace(launched(5.2).trials[1], ordinal=4)
    prediction = Prediction(speedup=1.1, over=3)
    history = early.append(replace(first, policy=replace(first.policy, prediction=prediction)))
    with proposing(study, [], turns="seldom", last_submission=lambda: reply) as (_, proposer):
        proposal = proposer.propose(study, history)

    assert proposal.policy.rationale.startswith("policy 2 of 4 in the reply for trial 4")


def written(source: str) -> dict[str, object]:
    return {"rationale": "why", "expected_speedup": 1.1, "code": source}


OTHER = written(code(1, 2))


@pytest.mark.parametrize(
    ("alternatives", "words"),
    [
        ([written(code(4, 8))], "alternative 1: same configuration as an earlier policy"),
        ([OTHER, written(code(1, 1))], "alternative 2: same configuration as trial 0"),
        ([written(code(3, 1))], "alternative 1: knob dp is 3"),
        ([written("")], "alternative 1: the submitted code is empty"),
        ([{**OTHER, "expected_speedup": None}], "alternative 1: expected_speedup is missing"),
        (["import"], "alternative 1: the submission is of type str"),
        ([OTHER] * 3, "alternatives is not a list of up to 2 policies"),
        ("none", "alternatives is not a list of up to 2 policies"),
    ],
)
def test_alternatives_are_checked_as_the_first_policy_is(proposing, alternatives, words):
    bad = submission(code(4, 8), alternatives=alternatives)
    good = submission(code(4, 8), alternatives=[OTHER])
    with proposing(STUDY, [bad, good]) as (
        server,
        proposer,
    ):
        proposal = proposer.propose(STUDY, tried(1.0))

    assert proposal.policy.source == code(4, 8)
    assert words in answered(server, 1)["content"]
    assert proposal.exchange.request_count == 2


@pytest.mark.parametrize("given", [None, []])
def test_a_reply_without_alternatives_is_one_policy(proposing, given):
    with proposing(STUDY, [submission(code(4, 8), alternatives=given)]) as (_, proposer):
        assert proposer.propose(STUDY, tried(1.0)).policy.source == code(4, 8)


@pytest.mark.parametrize(
    ("history", "more", "is_offered"),
    [
        (tried(1.0), (), True),
        (History((testing.trial(0, NOTHING),)), (), False),
        (tried(1.0), (Objective(expression="peak_memory"),), False),
    ],
    ids=["one objective", "nothing measured", "several objectives"],
)
def test_alternatives_are_offered_where_an_expectation_can_be_checked(
    proposing, history, more, is_offered
):
    study = replace(STUDY, more_objectives=more)
    with proposing(study, [GOOD]) as (server, proposer):
        proposer.propose(study, history)

    submit = server.requests[0].body["tools"][-1]
    assert ("alternatives" in submit["input_schema"]["properties"]) == is_offered


@pytest.mark.parametrize(
    ("given", "is_shown"),
    [("dp is what counts", True), ("", False), (None, False), (["dp"], False)],
)
def test_the_model_reads_its_memo_in_the_next_turn(proposing, given, is_shown):
    answered = called("submit_policy", {**OTHER, "memo": given})
    last = Submission(trial=0, draft=answered)
    with proposing(STUDY, [GOOD], last_submission=lambda: last) as (server, proposer):
        proposer.propose(STUDY, tried(1.0))

    body = json.dumps(server.requests[0].body["messages"])
    assert ("## Your memo" in body) == ("dp is what counts" in body) == is_shown


class Ranking(CoordinateChooser):
    """Offers the first untried configurations, and expects something of all but the first."""

    def candidates(self, _: Study, history: History, count: int) -> tuple[Choice, ...]:
        first, *others = untried(SPACE, history)[:count]
        return (
            Choice(config=first, why="is next"),
            *(Choice(config=each, why="is next", expected="expected 1.10x") for each in others),
        )


def test_candidates_are_offered_and_accepting_one_is_said(proposing):
    # The second on the list is the third untried one: of the first nothing is expected.
    taken = SPACE.feasible[2].values
    accepting = code(int(taken["dp"]), int(taken["micro_batch"]))
    with proposing(STUDY, [submission(accepting), GOOD], offline=Ranking(SPACE)) as (
        server,
        proposer,
    ):
        accepted, overruled = (proposer.propose(STUDY, History()) for _ in range(2))

    assert accepted.policy.rationale == "accepts candidate 2: because"
    assert overruled.policy.rationale == "because"
    told = json.dumps(server.requests[0].body["messages"])
    assert all(str(config) in told for config in SPACE.feasible[:5])


def test_a_candidate_of_which_nothing_is_expected_does_not_head_the_list(proposing):
    with proposing(STUDY, [GOOD], offline=Ranking(SPACE)) as (server, proposer):
        proposer.propose(STUDY, tried(1.0))

    told = server.requests[0].body["messages"][0]["content"][0]["text"]
    offered = [line for line in told.splitlines() if line[:3] in {"1. ", "5. "}]
    assert offered[0].endswith(": expected 1.10x")
    assert offered[1].endswith(": is next")


def test_a_prompt_that_is_too_long_is_halved(proposing):
    with proposing(STUDY, [prompt_too_long(), GOOD]) as (server, proposer):
        proposal = proposer.propose(replace(STUDY, budget=Budget(trials=7)), tried(*[1.0] * 4))

    assert proposal.policy.author == "llm"
    long, short = (len(json.dumps(request.body["messages"])) for request in server.requests)
    assert short < long


def test_choosing_a_proposer_imports_no_sdk():
    code = "import sys, search.llm.proposer; sys.exit('anthropic' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_same_history_gives_the_same_question(proposing):
    with proposing(STUDY, [GOOD, GOOD]) as (server, proposer):
        for _ in range(2):
            proposer.propose(STUDY, tried(1.0, 1.0))

    assert server.requests[0].body == server.requests[1].body


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_fault_that_only_a_person_cures_is_said_once(proposing, status):
    notices = []
    with proposing(STUDY, [fault(status)], notice=notices.append) as (server, proposer):
        first, second = (proposer.propose(STUDY, History()) for _ in range(2))

    assert first.policy.author == second.policy.author == "coordinate"
    assert first.exchange is not None
    assert second.exchange is None
    assert "the model is not asked" in second.policy.rationale
    assert len(server.requests) == 1
    (notice,) = notices
    assert notice.startswith("the search continues without the model: ")
    assert f"({status}" in notice
    assert notice.endswith("or use --strategy offline")


REFUSED = refusal()


@pytest.mark.parametrize(
    ("replies", "asked"),
    [
        ([REFUSED] * 5, "yyy..y..y."),
        ([REFUSED, REFUSED, REFUSED, GOOD, REFUSED, REFUSED], "yyy..yyy"),
    ],
    ids=["for ever", "until a policy"],
)
def test_after_three_turns_without_a_policy_the_model_is_asked_in_every_third(
    proposing, replies, asked
):
    with proposing(STUDY, replies) as (server, proposer):
        turns = [proposer.propose(STUDY, History()).exchange is not None for _ in asked]

    assert turns == [each == "y" for each in asked]
    assert len(server.requests) == asked.count("y")


def test_asked_seldom_the_model_takes_the_first_turns_and_those_without_progress(proposing):
    step_times_s = [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 9.0, 9.0]
    histories = [tried(*step_times_s[:count]) for count in range(1, 9)]
    with proposing(STUDY, lambda _: GOOD, turns="seldom") as (_, proposer):
        authors = [proposer.propose(STUDY, history).policy.author for history in histories]

    assert authors == ["llm"] * 3 + ["coordinate"] * 4 + ["llm"]


def test_beyond_its_tokens_the_model_is_not_asked_and_this_is_said(proposing):
    notices = []
    allowance = Allowance(Budget(max_tokens=100), "m", None, list)
    with proposing(STUDY, [], allowance=allowance, notice=notices.append) as (server, proposer):
        first, second = (proposer.propose(STUDY, History()) for _ in range(2))

    assert first.exchange is second.exchange is None
    assert "0 of 100 tokens for the model are used" in first.policy.rationale
    assert not server.requests
    assert len(notices) == 1


@pytest.mark.parametrize(
    ("history", "left"),
    [(History(), 12), (tried(1.0).append(testing.trial(1, NOTHING)), 11)],
    ids=["none used", "launches only"],
)
def test_a_space_that_fits_in_the_budget_is_tried_without_a_model(proposing, history, left):
    study = replace(STUDY, budget=Budget(trials=12))
    with proposing(STUDY, []) as (server, proposer):
        proposal = proposer.propose(study, history)

    words = f"the {left} remaining launches cover all {left} untried configurations"
    assert proposal.policy.author == "coordinate"
    assert words in proposal.policy.rationale
    assert proposal.exchange is None
    assert not server.requests


def test_a_space_one_larger_than_the_budget_is_left_to_the_model(proposing):
    study = replace(STUDY, budget=Budget(trials=11))
    with proposing(STUDY, [GOOD, GOOD]) as (server, proposer):
        proposer.propose(study, History())
        proposer.propose(study, tried(1.0))

    assert len(server.requests) == 2


def test_when_everything_was_tried_there_is_nothing_to_propose(proposing):
    with proposing(STUDY, []) as (server, proposer):
        assert proposer.propose(STUDY, tried(*[1.0] * 12)) is None

    assert not server.requests


def test_a_provider_that_asks_for_an_hour_is_left_alone_for_an_hour(proposing):
    notices, now = [], [0.0]
    script = [fault(429, "slow down", retry_after_s=3600), GOOD]
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


def test_a_turn_without_a_policy_is_said_once_for_the_same_reason(proposing):
    notices = []
    script = [REFUSED, REFUSED, refusal("cyber"), GOOD, refusal("cyber")]
    with proposing(STUDY, script, notice=notices.append) as (_, proposer):
        for _ in range(7):
            proposer.propose(STUDY, tried(1.0))

    words = "the model returned no policy in this turn: the model refused to answer"
    assert notices == [f"{words} ({why})" for why in ("frontier_llm", "cyber", "cyber")]
