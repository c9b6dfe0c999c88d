"""Strategies that ask a model, on landscapes: from transcripts, or live and kept as transcripts."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from evaluator.objective import scoring_of
from policies.space import Space
from records.errors import CclsearchError
from records.history import History
from records.study import Llm, Study
from records.trial import Config, Failed, Policy
from search import settings
from search.choosers.chooser import Choice
from search.choosers.hybrid import HybridChooser
from search.compose import MODEL_TURNS
from search.contexts import decided
from search.judging import Judge
from search.llm.client import LlmClient, Transport
from search.llm.settings import Secret
from search.llm.transcripts import TranscriptFolder
from search.prompt import PromptWriter
from search.proposers.llm import LlmProposer
from search.search_bench.ground import Ground

if TYPE_CHECKING:
    from search.llm.settings import LlmSettings

NOBODY = "no-key"
"""What is sent with requests that only transcripts answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Which model is asked, and the folder of what it answered; without a key nothing else is."""

    transcripts: Path
    llm: Llm = field(default_factory=Llm)

    def chooser(self, strategy: str, ground: Ground) -> "ModelChooser":
        """The strategy of this name on a landscape."""
        reached, live = self._reached()
        proposer = LlmProposer(
            LlmClient(reached, TranscriptFolder(self.transcripts, live)),
            ground.space,
            PromptWriter(ground.space, scoring_of(ground.study)),
            HybridChooser(ground.space, ground.estimate),
            _Judge(ground.study, ground.space),
            turns=MODEL_TURNS[strategy],
        )
        return ModelChooser(strategy, proposer, ground)

    def _reached(self) -> tuple["LlmSettings", Transport | None]:
        if not settings.has_key():
            return settings.reached(self.llm, Secret(NOBODY), self.llm.base_url), None
        # Imported here: the SDK takes seconds to load, and transcripts do without.
        from search.llm.transport import AnthropicTransport

        reached = settings.llm_settings(self.llm)
        return reached, AnthropicTransport(reached)


class ModelChooser:
    """A proposer as a chooser: the configuration that its policy decides, in the sandbox."""

    def __init__(self, name: str, proposer: LlmProposer, ground: Ground) -> None:
        self.name = name
        self._proposer = proposer
        self._ground = ground

    def choose(self, study: Study, history: History) -> Choice | None:
        """Give what the next policy decides; None when everything was tried."""
        proposal = self._proposer.propose(study, history)
        if proposal is None:
            return None
        config = decided(proposal.policy, study, self._ground.space)
        if isinstance(config, Failed):
            raise CclsearchError(f"a policy that was judged sound is not: {config}")
        return Choice(config=config, why=proposal.policy.rationale)


class _Judge(Judge):
    """What was never measured is not feasible on a landscape."""

    def __init__(self, study: Study, space: Space) -> None:
        super().__init__(study, space)
        self._recorded = frozenset(space.feasible)

    def __call__(self, policy: Policy, history: History) -> Config | str:
        """Give the configuration that could be launched, or why there is none."""
        judged = super().__call__(policy, history)
        if isinstance(judged, Config) and judged not in self._recorded:
            return f"{judged} cannot be launched here; choose one that is feasible"
        return judged
