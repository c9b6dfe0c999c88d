"""Who takes a turn, the model or the offline proposer, and what is recorded about it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from evaluator.objective import Scoring
from policies.space import Space
from records.expression import parse
from records.study import (
    Budget,
    Dimension,
    Environment,
    Objective,
    SearchSpace,
    Study,
)
from records.trial import (
    Config,
    Failed,
    FailureKind,
    History,
    Measured,
    Measurement,
    Outcome,
    Policy,
    Score,
    Stage,
    Trial,
)
from records.workload import Workload
from search.choosers.coordinate import CoordinateChooser
from search.llm.client import LlmClient
from search.llm.errors import ProviderError
from search.llm.settings import LlmSettings, Secret
from search.prompt import PromptWriter
from search.proposers.llm import LlmProposer
from search.proposers.offline import OfflineProposer
from search.testing import (
    Script,
    ScriptedMessagesServer,
    fault,
    refusal,
    submission,
)

CODE = "def generate_config(workload, environment):\n    return {'dp': 4, 'micro_batch': 8}\n"
STUDY = Study(
    name="small",
    workload=Workload(name="tiny", global_batch=8, sequence_length=64),
    environment=Environment(
        name="box", device="cpu", accelerator="cpu", world_size=4, ranks_per_node=4
    ),
    space=SearchSpace(
        dimensions=(
            Dimension(name="dp", choices=(1, 2, 4)),
            Dimension(name="micro_batch", choices=(1, 2, 4, 8)),
        )
    ),
    objective=Objective(expression="step_time"),
    seed_policy="balanced",
    budget=Budget(trials=6),
)
SPACE = Space(STUDY.space, STUDY.workload, STUDY.environment)
SCORING = Scoring(parse("step_time"), lower_is_better=True, unit="s")
MEASUREMENT = Measurement(
    step_times_s=((1.0,),),
    warmup_times_s=(),
    losses=(),
    tokens_per_step=512,
    peak_memory_bytes=(),
    wall_s=1.0,
    device="cpu",
    torch_version="2.13.0",
)


@contextmanager
def proposing(script: Script) -> Iterator[tuple[ScriptedMessagesServer, LlmProposer]]:
    with ScriptedMessagesServer(script) as server:
        client = LlmClient(
            LlmSettings(
                api_key=Secret("sk-test"), base_url=server.url, attempts=2, retry_wait_s=0.001
            )
        )
        try:
            yield server, LlmProposer(client, SPACE, PromptWriter(SPACE, SCORING), OFFLINE)
        finally:
            client.close()


OFFLINE = OfflineProposer(CoordinateChooser(SPACE))


def trial(
    ordinal: int,
    *,
    config: Config | None = None,
    outcome: Outcome | None = None,
    author: str = "llm",
    step_s: float = 1.0,
) -> Trial:
    ended = outcome or Measured(measurement=MEASUREMENT, metrics=())
    return Trial(
        ordinal=ordinal,
        policy=Policy(source=f"# policy {ordinal}", author=author),
        config=config,
        outcome=ended,
        score=Score(cost=step_s, value=step_s, unit="s") if outcome is None else None,
        started_at="2026-01-01T00:00:00Z",
        ended_at="2026-01-01T00:01:00Z",
    )


def empty(ordinal: int, kind: FailureKind, author: str = "llm") -> Trial:
    stage = Stage.DECIDE if kind is FailureKind.POLICY_ERROR else Stage.CHECK
    outcome = Failed(stage=stage, kind=kind, message="nothing to launch")
    return trial(ordinal, outcome=outcome, author=author)


def all_tried_but(count: int) -> History:
    return History(
        tuple(
            trial(i, config=c) for i, c in enumerate(SPACE.feasible[: len(SPACE.feasible) - count])
        )
    )


def test_the_model_is_asked_first() -> None:
    with proposing([submission(CODE, rationale="fewer steps", expected_effect="-10 %")]) as (
        server,
        proposer,
    ):
        proposal = proposer.propose(STUDY, History())

    assert proposal is not None
    assert proposal.policy == Policy(
        source=CODE, author="llm", parent=None, rationale="fewer steps Expected: -10 %"
    )
    assert proposal.exchange is not None
    assert proposal.exchange.result == "submitted"
    assert "No trial yet; 6 of 6 launches remain." in json.dumps(server.requests[0].body)


def test_a_policy_descends_from_the_best_one() -> None:
    history = History(
        (
            trial(1, config=SPACE.feasible[0], step_s=2.0),
            trial(2, config=SPACE.feasible[1], step_s=1.0),
            empty(3, FailureKind.POLICY_ERROR),
        )
    )
    with proposing([submission(CODE)]) as (_, proposer):
        proposal = proposer.propose(STUDY, history)

    assert proposal is not None
    assert proposal.policy.parent == history.trials[1].policy.digest


def test_without_a_measured_trial_a_policy_descends_from_the_last_one() -> None:
    history = History((empty(1, FailureKind.POLICY_ERROR), empty(2, FailureKind.INVALID_CONFIG)))
    with proposing([submission(CODE)]) as (_, proposer):
        proposal = proposer.propose(STUDY, history)

    assert proposal is not None
    assert proposal.policy.parent == history.trials[1].policy.digest


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ([refusal()], "the model refused to answer (frontier_llm)"),
        ([fault(529, "Overloaded")] * 2, "is overloaded or unavailable (529): Overloaded"),
    ],
)
def test_a_model_that_gives_nothing_is_replaced_for_the_turn(script: Script, reason: str) -> None:
    history = History((trial(1, config=SPACE.feasible[0]),))
    with proposing(script) as (_, proposer):
        proposal = proposer.propose(STUDY, history)

    offline = OFFLINE.propose(STUDY, history)
    assert proposal is not None
    assert offline is not None
    assert proposal.policy.source == offline.policy.source
    assert proposal.policy.author == "coordinate"
    assert proposal.policy.rationale.startswith(offline.policy.rationale)
    assert reason in proposal.policy.rationale
    assert proposal.exchange is not None
    assert reason in proposal.exchange.result


def test_a_rejected_key_ends_the_search() -> None:
    with proposing([fault(401)]) as (_, proposer), pytest.raises(ProviderError, match="401"):
        proposer.propose(STUDY, History())


def test_after_three_empty_turns_the_offline_proposer_takes_one() -> None:
    kinds = (FailureKind.POLICY_ERROR, FailureKind.INVALID_CONFIG, FailureKind.DUPLICATE)
    history = History(tuple(empty(i, kind) for i, kind in enumerate(kinds, start=1)))
    with proposing([submission(CODE)]) as (server, proposer):
        instead = proposer.propose(STUDY, history)
        assert instead is not None
        offline = trial(4, config=SPACE.feasible[0], author=instead.policy.author)
        after = proposer.propose(STUDY, history.append(offline))

    assert "the model's last 3 policies gave nothing to launch" in instead.policy.rationale
    assert instead.exchange is None
    assert after is not None
    assert after.policy.author == "llm"
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "last",
    [
        empty(3, FailureKind.POLICY_ERROR, author="coordinate"),
        trial(3, config=SPACE.feasible[0]),
        trial(
            3,
            config=SPACE.feasible[0],
            outcome=Failed(stage=Stage.LAUNCH, kind=FailureKind.CRASH, message="exit 1"),
        ),
    ],
    ids=["another author", "measured", "launched"],
)
def test_two_empty_turns_are_not_enough(last: Trial) -> None:
    first = (empty(1, FailureKind.POLICY_ERROR), empty(2, FailureKind.POLICY_ERROR))
    with proposing([submission(CODE)]) as (server, proposer):
        proposer.propose(STUDY, History((*first, last)))

    assert len(server.requests) == 1


def test_a_space_that_fits_in_the_budget_is_tried_without_a_model() -> None:
    study = replace(STUDY, budget=Budget(trials=12))
    with proposing([]) as (server, proposer):
        proposal = proposer.propose(study, History())

    assert proposal is not None
    assert proposal.policy.author == "coordinate"
    assert "the 12 untried configurations fit in the 12 launches left" in proposal.policy.rationale
    assert proposal.exchange is None
    assert not server.requests


def test_a_space_one_larger_than_the_budget_is_left_to_the_model() -> None:
    study = replace(STUDY, budget=Budget(trials=11))
    with proposing([submission(CODE), submission(CODE)]) as (server, proposer):
        proposer.propose(study, History())
        proposer.propose(study, History((trial(1, config=SPACE.feasible[0]),)))

    assert len(server.requests) == 2


def test_only_launches_are_charged_when_the_budget_is_counted() -> None:
    study = replace(STUDY, budget=Budget(trials=12))
    history = History((empty(1, FailureKind.POLICY_ERROR), trial(2, config=SPACE.feasible[0])))
    with proposing([]) as (server, proposer):
        proposal = proposer.propose(study, history)

    assert proposal is not None
    assert "the 11 untried configurations fit in the 11 launches left" in proposal.policy.rationale
    assert not server.requests


def test_when_everything_was_tried_there_is_nothing_to_propose() -> None:
    with proposing([]) as (server, proposer):
        assert proposer.propose(STUDY, all_tried_but(0)) is None

    assert not server.requests


def test_choosing_a_proposer_imports_no_sdk() -> None:
    code = "import sys, search.proposers.llm; sys.exit('anthropic' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_same_history_gives_the_same_question() -> None:
    history = all_tried_but(10)
    with proposing([submission(CODE), submission(CODE)]) as (server, proposer):
        proposer.propose(STUDY, history)
        proposer.propose(STUDY, history)

    assert server.requests[0].body == server.requests[1].body
