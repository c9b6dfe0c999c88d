"""A language model as proposer, with an offline strategy for the other turns."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import ClassVar, Literal, TypeAlias

from records.llm_exchange import LlmExchange
from records.study import Study
from records.trial import Config, History, Policy, Prediction, Trial
from search.llm.client import Allowance, LlmClient
from search.llm.estimates import Estimator
from search.llm.messages import Prompt, estimated_tokens
from search.llm.prompt import PromptWriter
from search.llm.tools import (
    MOST_SURPRISE,
    Draft,
    EstimateRequest,
    Problem,
    Question,
    RetryAction,
    TraceQuestion,
    offered_tools,
)
from search.llm.transcripts import Submission
from search.loop.budget import launches_since_best, remaining_launches
from search.loop.learned import learned_constraints
from search.loop.ports import Proposal
from search.loop.relative_speed import RelativeSpeeds
from search.loop.trial import precheck
from search.strategies.base import Chooser, untried
from search.strategies.proposers import OfflineProposer
from search.study.spaces import PreparedStudy

Turns: TypeAlias = Literal["every", "seldom"]
"""Which turns the model takes: all, or the first few and those where the search is stuck."""
TraceAnswer: TypeAlias = Callable[[TraceQuestion, History], str]
"""Answers a question about the traces of a trial of the history."""

CANDIDATE_COUNT = 5
FIRST_TURNS, FLAT_LAUNCHES = 3, 2
EMPTY_TURNS, ASK_AT_EACH = 3, 3
RATIONALE_CHARS = 2000


@dataclass(eq=False)
class LlmProposer:
    """Asks a model for policies; each is checked before it becomes a trial.

    The alternatives in its last reply come before the next request, while

    - each earlier policy of that reply was measured within `MOST_SURPRISE` of its expected speedup,
    - and the alternative is still expected to be better than the best.

    The offline strategy takes a turn

    - where `turns` says so: with "seldom" the model takes the first three turns after the seed, and
      each turn after two launches in a row without improvement;
    - once the remaining launches cover all untried feasible configurations;
    - when the model returns no policy; after three such turns in a row, every third asks it;
    - while the provider asks to wait;
    - for the rest of the run, once only the user can make the model answer.

    `notice` receives each reason, unless it repeats the one before.
    """

    client: LlmClient
    prepared: PreparedStudy
    offline: Chooser
    _: KW_ONLY
    turns: Turns
    allowance: Allowance | None = None
    trace_answer: TraceAnswer | None = None
    last_submission: Callable[[], Submission | None] = lambda: None
    """Returns the last recorded reply with policies."""
    notice: Callable[[str], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    name: ClassVar[str] = "llm"
    _lasting: str | None = field(default=None, init=False)
    _last_problem: str | None = field(default=None, init=False)
    _ask_again_s: float = field(default=-math.inf, init=False)
    _empty_count: int = field(default=0, init=False)
    _skipped_count: int = field(default=0, init=False)

    def propose(self, study: Study, history: History) -> Proposal | None:
        """Return the next policy, or None when every feasible configuration was launched."""
        space = self.prepared.space
        left = untried(space, history) if space.is_listable else None
        if left is not None and not left:
            return None
        launches = remaining_launches(study, history)
        if left is not None and len(left) <= launches:
            why = (
                f"the {launches} remaining launches cover all {len(left)} untried configurations, "
                "so no model is asked"
            )
            return self._offline_proposal(study, history, why)
        alternative = self._alternative(study, history)
        if alternative is not None:
            return alternative
        if not self._has_turn(history):
            return OfflineProposer(self.offline).propose(study, history)
        skip_reason = self._skip_reason()
        if skip_reason is not None:
            return self._offline_proposal(study, history, skip_reason)
        return self._ask(study, history, left)

    def _alternative(self, study: Study, history: History) -> Proposal | None:
        """Return the next policy of the last reply, unless the trials since then speak against it.

        Trials that are still being measured say nothing.
        """
        reply, turn = self.last_submission(), len(history) + len(history.pending)
        place = 0 if reply is None else turn - reply.trial
        if reply is None or not 1 <= place <= len(reply.draft.alternatives):
            return None
        scale = RelativeSpeeds.of(history, self.prepared.scoring.over(history), study.measure)
        ended = [*filter(None, map(history.find, range(reply.trial, turn)))]
        first = history.find(reply.trial)
        over = history.best if first is None else _predicted_over(first, history)
        draft = reply.draft.alternatives[place - 1]
        holds = all(_as_expected(trial, scale) for trial in ended)
        if over is None or not holds or not _beats_best(draft, over, history, scale):
            return None
        policy = self._policy(draft, over, history)
        if isinstance(precheck(self.prepared, policy, history), str):
            return None
        count = 1 + len(reply.draft.alternatives)
        where = f"policy {place + 1} of {count} in the reply for trial {reply.trial}"
        rationale = f"{where}: {policy.rationale}"[:RATIONALE_CHARS]
        return Proposal(policy=replace(policy, rationale=rationale))

    def _has_turn(self, history: History) -> bool:
        if self.turns == "every":
            return True
        is_early = len(history) + len(history.pending) <= FIRST_TURNS
        return is_early or launches_since_best(history) >= FLAT_LAUNCHES

    def _skip_reason(self) -> str | None:
        """Return why the model skips its turn, or None."""
        if self._lasting is not None:
            return f"the model is not asked: {self._lasting}"
        if self.clock() < self._ask_again_s:
            return f"the model is not asked yet: {self._last_problem}"
        if self._empty_count < EMPTY_TURNS or self._skipped_count == ASK_AT_EACH - 1:
            self._skipped_count = 0
            return None
        self._skipped_count += 1
        return (
            f"the model returned no policy in its last {self._empty_count} turns "
            "and is asked every third turn"
        )

    def _ask(
        self, study: Study, history: History, left: Sequence[Config] | None
    ) -> Proposal | None:
        found = self.offline.candidates(study, history, CANDIDATE_COUNT)
        # A candidate without an expectation, as of coordinate descent, must not come first.
        candidates = sorted(found, key=lambda choice: not choice.expected)
        space, reply = self.prepared.space, self.last_submission()
        learned = learned_constraints(space, history, study.revoked)
        write = partial(
            PromptWriter(space, self.prepared.scoring).write,
            study,
            history,
            left,
            candidates=candidates,
            learned=learned,
            memo="" if reply is None else reply.draft.memo,
        )
        estimator = Estimator(
            study=study,
            history=history,
            prepared=self.prepared,
            offline=self.offline,
            learned=learned,
        )
        prompt = write()

        def answer(question: Question) -> str:
            if isinstance(question, EstimateRequest):
                return estimator.answer(question)
            return "" if self.trace_answer is None else self.trace_answer(question, history)

        def shorter() -> Prompt:
            return write(turn_tokens=estimated_tokens(prompt.turn) // 2)

        accepted, exchange = self.client.ask(
            prompt,
            lambda draft: self._checked(draft, history),
            tools=offered_tools(
                estimates=not study.contexts,
                traces=self.trace_answer is not None and study.measure.profiled_steps > 0,
                alternatives=history.best is not None and not self.prepared.scoring.more,
            ),
            answer=answer,
            shorter=shorter,
            allowance=self.allowance,
        )
        if isinstance(accepted, Problem):
            self._note(accepted)
            why = f"the model returned no policy: {accepted.words}"
            recorded = exchange if exchange.request_count else None
            return self._offline_proposal(study, history, why, recorded)
        self._empty_count = 0
        self._last_problem = None
        policy, config = accepted
        offered = [choice.config for choice in candidates]
        accepts = f"accepts candidate {offered.index(config) + 1}: " if config in offered else ""
        rationale = f"{accepts}{policy.rationale}"[:RATIONALE_CHARS]
        return Proposal(policy=replace(policy, rationale=rationale), exchange=exchange)

    def _checked(self, draft: Draft, history: History) -> tuple[Policy, Config] | Problem:
        """Return the policy and its configuration, or what is wrong, also with an alternative."""
        drafts = (draft, *draft.alternatives)
        policies = [self._policy(each, history.best, history) for each in drafts]
        configs: list[Config] = []
        for number, policy in enumerate(policies):
            config = precheck(self.prepared, policy, history)
            if config in configs:
                config = "same configuration as an earlier policy of this reply"
            if isinstance(config, str):
                return Problem(words=f"alternative {number}: {config}" if number else config)
            configs.append(config)
        return policies[0], configs[0]

    def _note(self, problem: Problem) -> None:
        """Record a turn without a policy and its effect on later turns, and report it."""
        words, is_new = problem.words, problem.words != self._last_problem
        self._last_problem = words
        if problem.action is RetryAction.USER:
            self._lasting = words
            self.notice(f"the search continues without the model: {words}")
        elif problem.wait_s is not None:
            self._ask_again_s = self.clock() + problem.wait_s
            self.notice(f"the model is not asked for {problem.wait_s:.0f} s: {words}")
        else:
            self._empty_count += 1
            if is_new:
                self.notice(f"the model returned no policy in this turn: {words}")

    def _offline_proposal(
        self, study: Study, history: History, why: str, exchange: LlmExchange | None = None
    ) -> Proposal | None:
        proposal = OfflineProposer(self.offline).propose(study, history)
        if proposal is None:
            return None
        rationale = f"{proposal.policy.rationale} ({why})"
        return Proposal(policy=replace(proposal.policy, rationale=rationale), exchange=exchange)

    def _policy(self, draft: Draft, over: Trial | None, history: History) -> Policy:
        """Return the policy of a draft whose expected speedup is over this trial."""
        parent = over or (history.trials[-1] if len(history) else None)
        prediction = None
        if over is not None and draft.expected_speedup is not None:
            prediction = Prediction(speedup=draft.expected_speedup, over=over.ordinal)
        return Policy(
            source=draft.code,
            author=self.name,
            parent=parent.policy.digest if parent is not None else None,
            rationale=draft.rationale,
            prediction=prediction,
        )


def _predicted_over(trial: Trial, history: History) -> Trial | None:
    """Return the trial that the expectation of a trial refers to."""
    prediction = trial.policy.prediction
    return None if prediction is None else history.find(prediction.over)


def _as_expected(trial: Trial, scale: RelativeSpeeds) -> bool:
    """Whether a trial was measured, and about as fast as expected."""
    prediction = trial.policy.prediction
    speed = None if prediction is None else scale.speed(trial.ordinal, prediction.over)
    if prediction is None or speed is None:
        return False
    return 1 / MOST_SURPRISE <= speed.ratio / prediction.speedup <= MOST_SURPRISE


def _beats_best(draft: Draft, over: Trial, history: History, scale: RelativeSpeeds) -> bool:
    """Whether a policy is expected to be better than the best of now."""
    best = history.best
    speed = None if best is None else scale.speed(best.ordinal, over.ordinal)
    return speed is not None and (draft.expected_speedup or 0.0) > speed.ratio
