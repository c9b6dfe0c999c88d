"""The nodes of a search in words: how they are connected, and which are slow."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from evaluator.launchers.cluster.scheduler import SchedulerError, answer_of
from records.machine import NodeRecord

_FACT = re.compile(r"(\w+)=(\S*)")


def switch_of_nodes(launcher: str, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the switch of each node that Slurm knows of; nothing where it has no topology."""
    if not launcher.startswith("slurm"):
        return {}
    found: dict[str, str] = {}
    try:
        for line in answer_of(["scontrol", "show", "topology"], environment).splitlines():
            facts = dict(_FACT.findall(line))
            if facts.get("Level") == "0" and facts.get("Nodes"):
                listed = answer_of(["scontrol", "show", "hostnames", facts["Nodes"]], environment)
                switch: str = facts["SwitchName"]
                found |= dict.fromkeys(listed.split(), switch)
    except (SchedulerError, KeyError):
        return {}
    return found


def topology_words(nodes: Sequence[NodeRecord]) -> str | None:
    """Return how the nodes that are used are connected, in words; None without any."""
    used = [node for node in nodes if node.used]
    if not used:
        return None
    switches = Counter(node.switch for node in used if node.switch is not None)
    parts = [f"{count} on switch {name}" for name, count in switches.items()]
    gpus = Counter(used[0].gpus)
    parts += [f"each with {count} x {name}" for name, count in gpus.items()]
    return ", ".join([f"{len(used)} {'node' if len(used) == 1 else 'nodes'}", *parts])


def slow_node_words(nodes: Sequence[NodeRecord]) -> tuple[str, ...]:
    """Return a sentence for each slow node: what is slow, and whether it is left out."""
    without = "it is left out"
    with_it = "it is used, as there is no other: ask for one more with [cluster] nodes"
    return tuple(
        f"node {node.name} is slow: {node.slow}; {with_it if node.used else without}"
        for node in nodes
        if node.slow is not None
    )
