"""What the offline proposers share: a chosen configuration written as a policy."""

import json
from collections.abc import Set

from policies.space import Space
from records.trial import Config, History, Policy
from search.ports import Proposal


def as_policy(config: Config, author: str, rationale: str) -> Proposal:
    """A policy that returns one configuration, so that all records look alike."""
    settings = "\n".join(f"        {knob!r}: {value!r}," for knob, value in config.values.items())
    source = (
        f"{json.dumps(rationale)}\n\n\n"
        "def generate_config(workload, environment):\n"
        f"    return {{\n{settings}\n    }}\n"
    )
    return Proposal(policy=Policy(source=source, author=author, rationale=rationale))


def untried(space: Space, history: History) -> list[Config]:
    """Feasible configurations that were not launched yet, in the order of the space."""
    seen = attempted(history)
    return [config for config in space.feasible if config not in seen]


def attempted(history: History) -> Set[Config]:
    """Configurations that reached a launch, whatever came of it."""
    return {trial.config for trial in history if trial.config is not None and trial.reached_launch}
