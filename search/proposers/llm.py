"""A language model as proposer, with an offline one for the turns that it cannot or need not take.

Knows nothing of the provider: it is given something that can be asked.
"""

from dataclasses import replace
from typing import Protocol, assert_never

from policies.space import Space
from records.exchange import Exchange
from records.study import Study
from records.trial import Failed, FailureKind, History, Policy, Trial
from search.choosers.chooser import untried
from search.llm.client import Asked, NoSubmission, Submission
from search.llm.request import Prompt
from search.ports import Proposal, Proposer
from search.prompt import PromptWriter, remaining_launches

MAX_EMPTY_TURNS = 3
RATIONALE_CHARS = 2000
_NOTHING_TO_LAUNCH = frozenset(
    {FailureKind.POLICY_ERROR, FailureKind.INVALID_CONFIG, FailureKind.DUPLICATE}
)


class PolicyWriter(Protocol):
    """Writes a policy for a prompt; raises `ProviderError` when it never can again."""

    def ask(self, prompt: Prompt) -> Asked:
        """Give a policy, or why there is none this time."""
        ...


class LlmProposer:
    """Asks a model for each policy, except where an offline proposer does as well.

    The fallback takes the turn, and its rationale says so, when

    - the untried feasible configurations all fit in the remaining launches: to try one after the
      other needs no model;
    - the last three trials were the model's and gave nothing to launch;
    - the model was asked and gave no policy.
    """

    name = "llm"

    def __init__(
        self, model: PolicyWriter, space: Space, prompts: PromptWriter, fallback: Proposer
    ) -> None:
        self._model = model
        self._space = space
        self._prompts = prompts
        self._fallback = fallback

    def propose(self, study: Study, history: History) -> Proposal | None:
        """Give the next policy; None when every feasible configuration was launched."""
        left = untried(self._space, history) if self._space.is_listable else None
        if left is not None and not left:
            return None
        launches = remaining_launches(study, history)
        if left is not None and len(left) <= launches:
            return self._instead(
                study,
                history,
                f"the {len(left)} untried configurations fit in the {launches} launches left, "
                "so they are tried one after the other and no model is asked",
            )
        if self._is_stuck(history):
            return self._instead(
                study,
                history,
                f"the model's last {MAX_EMPTY_TURNS} policies gave nothing to launch",
            )
        asked = self._model.ask(self._prompts.write(study, history, left))
        match asked:
            case Submission():
                return Proposal(policy=self._policy(asked, history), exchange=asked.exchange)
            case NoSubmission(reason=reason, exchange=exchange):
                return self._instead(
                    study, history, f"the model gave no policy: {reason}", exchange
                )
        assert_never(asked)

    def _instead(
        self, study: Study, history: History, why: str, exchange: Exchange | None = None
    ) -> Proposal | None:
        proposal = self._fallback.propose(study, history)
        if proposal is None:
            return None
        rationale = f"{proposal.policy.rationale} ({why})"
        return Proposal(policy=replace(proposal.policy, rationale=rationale), exchange=exchange)

    def _policy(self, submission: Submission, history: History) -> Policy:
        effect = submission.expected_effect
        rationale = submission.rationale + (f" Expected: {effect}" if effect else "")
        parent = history.best or (history.trials[-1] if len(history) else None)
        return Policy(
            source=submission.code,
            author=self.name,
            parent=parent.policy.digest if parent is not None else None,
            rationale=rationale[:RATIONALE_CHARS],
        )

    def _is_stuck(self, history: History) -> bool:
        latest = history.trials[-MAX_EMPTY_TURNS:]
        return len(latest) == MAX_EMPTY_TURNS and all(self._was_empty(t) for t in latest)

    def _was_empty(self, trial: Trial) -> bool:
        outcome = trial.outcome
        return (
            trial.policy.author == self.name
            and isinstance(outcome, Failed)
            and outcome.kind in _NOTHING_TO_LAUNCH
        )
