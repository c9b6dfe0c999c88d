"""An offline strategy as a proposer: what it chooses is written as a policy."""

import json
from dataclasses import replace

from records.history import History
from records.study import Study
from records.trial import Config, Policy
from search.choosers.chooser import Chooser
from search.joined import own_part
from search.ports import Proposal


class OfflineProposer:
    """Proposes what a chooser chooses."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser

    @property
    def name(self) -> str:
        """That of the chooser."""
        return self._chooser.name

    def propose(self, study: Study, history: History) -> Proposal | None:
        """Give the chosen configuration as a policy, or None when everything was tried."""
        choice = self._chooser.choose(study, history)
        if choice is None:
            return None
        config = own_part(choice.config) if study.contexts else choice.config
        policy = as_policy(config, self.name, choice.why)
        best = history.best if choice.changes_best else None
        if best is not None and best.policy.digest != policy.digest:
            policy = replace(policy, parent=best.policy.digest)
        return Proposal(policy=policy)


def as_policy(config: Config, author: str, rationale: str) -> Policy:
    """A policy that returns one configuration, so that all records look alike."""
    settings = "\n".join(f"        {knob!r}: {value!r}," for knob, value in config.values.items())
    source = (
        f"{json.dumps(rationale)}\n\n\n"
        "def generate_config(workload, environment):\n"
        f"    return {{\n{settings}\n    }}\n"
    )
    return Policy(source=source, author=author, rationale=rationale)
