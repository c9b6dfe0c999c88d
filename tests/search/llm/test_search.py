"""Whole searches with a model that speaks the Messages API over a real socket."""

import json
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from itertools import chain

import pytest

from policies.space import Space
from records.study import Budget
from records.trial import Measured
from search.llm.proposer import LlmProposer
from search.loop.study_result import StudyResult
from search.settings import Secret
from search.strategies.offline import CoordinateChooser
from search.study.spaces import prepare
from search.views.terminal import PlainProgress
from tests.support import records as testing
from tests.support.evaluator import Takes
from tests.support.records import contents
from tests.support.search import (
    RecordedRequest,
    Script,
    ScriptedReply,
    connected,
    cut,
    dropped_connection,
    fault,
    interrupted,
    message,
    prompt_too_long,
    refusal,
    stalled,
    submission,
    text,
    tool_use,
    tool_uses,
)

KEY = "sk-ant-loopback-0123456789abcdef"
POLICY = "def generate_config(workload, environment):\n    return {{'n': {}}}\n"
VALUES = range(80)
BEST = 60


PLACE = (testing.study().workload, testing.study().environment)


def step_time_s(n: int) -> float:
    """The table of the search, best in its middle."""
    return 1.0 + abs(n - BEST) / 100


def good(launched: Collection[object]) -> ScriptedReply:
    """A policy for a configuration that was not launched."""
    n = max(n for n in VALUES if n not in launched)
    return submission(POLICY.format(n), rationale=f"by the way, your key is {KEY}")


@dataclass(frozen=True)
class Turn:
    """What a model answers in one turn, before a good policy if it `recovers`.

    `result` is in what the exchange records about it.
    """

    result: str
    replies: tuple[ScriptedReply, ...]
    recovers: bool = False


def ends(result: str, *replies: ScriptedReply) -> Turn:
    return Turn(result, replies)


def recovers(*replies: ScriptedReply) -> Turn:
    return Turn("submitted", replies, recovers=True)


SUBMITTED = submission(POLICY.format(9))
WINDOW = message(stop_reason="model_context_window_exceeded")
RUNS = (
    (
        ends("unavailable (429): slow down", *[fault(429, "slow down", retry_after_s=0.01)] * 2),
        ends("unavailable (529): busy [key]", *[fault(529, f"busy {KEY}")] * 2),
        recovers(text(f"First, your key is {KEY}."), cut(SUBMITTED), tool_uses({}, {})),
        ends("unavailable (500)", *[fault(500)] * 2),
        ends("Server disconnected", *[dropped_connection()] * 2),
        recovers(
            submission("#" * (1 << 20)),
            submission(POLICY.format(9) + "\0"),
            tool_use({"code": POLICY.format(9)}, name="launch"),
        ),
        ends("ReadTimeout", stalled(SUBMITTED)),
        ends("peer closed connection", *[interrupted(SUBMITTED)] * 2),
        recovers(tool_use({"code": ""}), tool_use({"code": 7}), tool_use("no object")),
        ends("answered 200 without a message of the Messages API", ScriptedReply(page="<html>")),
        ends("refused to answer (frontier_llm)", refusal()),
        recovers(
            submission(POLICY.format(max(VALUES) + 1)),
            submission(POLICY.format(0)),
            submission(POLICY.format(f"unknown or '{KEY}'")),
        ),
        ends("too long for 'claude-opus-5-5' at 127.0.0.1 (413", *[fault(413)] * 2),
        ends("longer than the model can hold", WINDOW, WINDOW),
        recovers(prompt_too_long()),
        ends("same configuration as trial 0", *[submission(POLICY.format(0))] * 4),
        ends("(400: no such field)", fault(400, "no such field")),
    ),
    (ends("the key in ANTHROPIC_API_KEY was rejected (401)", fault(401, KEY)),),
    (ends("may not use 'claude-opus-5-5' (403)", fault(403)),),
    (ends("has no model 'claude-opus-5-5' or no Messages API there (404)", fault(404)),),
)
TURNS = tuple(chain(*RUNS))
REQUEST_COUNT = sum(len(turn.replies) + turn.recovers for turn in TURNS)


def scripted(launched: Callable[[], Collection[object]]) -> Script:
    """Answers turn after turn as listed, then says that the list is at its end."""
    replies = chain.from_iterable(
        (*turn.replies, *([None] if turn.recovers else [])) for turn in TURNS
    )
    return lambda _: next(replies, fault(400, "past the script")) or good(launched())


def searched(study, script: Script) -> tuple[StudyResult, list[RecordedRequest]]:
    """Search to the end of the budget with a model that answers from a script, as one run does."""
    notice = PlainProgress(study.said).notice
    with connected(script, key=Secret(KEY), attempts=2, timeout_s=5.0) as (server, client):
        prepared = prepare(study.study, Space(study.study.space, *PLACE))
        study.proposer = lambda space: LlmProposer(
            client, prepared, CoordinateChooser(space), turns="every", notice=notice
        )
        return study.run(), server.requests


@pytest.fixture
def study(tabular):
    made = tabular({n: Takes(step_time_s=step_time_s(n)) for n in VALUES})
    made.measure = replace(made.measure, confirm_rounds=0)
    return made


def test_a_search_that_meets_every_fault_ends_with_its_best_so_far(study, caplog):
    caplog.set_level(logging.DEBUG)
    script, requests = scripted(lambda: study.launched), []
    for turns, trial_count in zip(RUNS, (19, 21, 23, 25), strict=True):
        study.budget = Budget(trials=trial_count, patience=99)
        finding, sent = searched(study, script)
        requests += sent
        best = min(study.launched, key=step_time_s)
        assert study.history.trials[finding.winner].config["n"] == best, turns
        assert finding.stop_reason == f"all {trial_count} trials are used"

    assert len(requests) == REQUEST_COUNT
    history = study.history
    assert all(isinstance(trial.outcome, Measured) for trial in history)
    assert len(set(study.launched)) == len(study.launched) == len(history) == 25
    asked = [trial for trial in history if trial.exchange is not None]
    exchanges = [study.store.exchange(trial.exchange) for trial in asked]
    assert all(turn.result in each.result for turn, each in zip(TURNS, exchanges, strict=True))
    assert [trial.policy.author for trial in asked] == [
        "llm" if turn.recovers else "coordinate" for turn in TURNS
    ]
    notices = [line for line in study.said.getvalue().splitlines() if line.startswith("NOTICE")]
    lasting = [notice for notice in notices if notice.endswith("or use --strategy offline")]
    assert len(lasting) == len(RUNS)
    assert len(notices) == sum(not turn.recovers for turn in TURNS)
    study.store.close()
    kept = [content for _, content in contents(study.root)]
    assert not any(KEY.encode() in content for content in kept)
    assert sum(b"[key]" in content for content in kept) > 3
    assert KEY not in study.said.getvalue() + caplog.text
    assert all(KEY not in json.dumps(request.body) for request in requests)
