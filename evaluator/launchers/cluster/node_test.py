"""Test the nodes of a cluster before a study: which are slower than the others, and by how much.

A node that is slow makes a configuration slow that happens to use it, or all of them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from statistics import median_low

import msgspec

from evaluator.ports import Job
from records.machine import NodeRecord

SECONDS = 1.0
"""For the products of one device."""
TEST_LIMIT_S = 180.0
SLOWER_PRODUCT, SLOWER_EXCHANGE = 1.15, 1.5
"""How many times the time of most others makes a node slow."""
SCRIPT = "node_test.py"


class _Found(msgspec.Struct, frozen=True):
    """What a node measured; `exchange_s` by the number of the neighbour."""

    node_rank: int
    product_s: float
    exchange_s: dict[int, float] = {}


def node_test_job(node_count: int, python: str) -> Job:
    """Return the job that tests the nodes, with one process on each."""
    source = (files("evaluator.workloads") / SCRIPT).read_text(encoding="utf-8")
    places = ("{node_rank}", "{node_count}", "{master_addr}", "{master_port}")
    return Job(
        argv=(python, SCRIPT, *places, f"{SECONDS:g}"),
        world_size=node_count,
        files={SCRIPT: source},
        timeout_s=TEST_LIMIT_S,
        maps_freely=True,
    )


def judged(nodes: Sequence[NodeRecord], folder: Path) -> tuple[NodeRecord, ...]:
    """Return the nodes with what their test found in `folder`, and why those that are slow are.

    A node is slow by its products, or by its exchanges with both neighbours: where only one of them
    takes long, either node may be the cause.
    """
    found = {each.node_rank: each for each in _read(folder) if each.node_rank < len(nodes)}
    products_s = [each.product_s for each in found.values()]
    exchanges_s = [s for each in found.values() for s in each.exchange_s.values()]
    usual = (
        median_low(products_s) if products_s else 0.0,
        median_low(exchanges_s) if exchanges_s else 0.0,
    )
    return tuple(_judged(node, found.get(number), *usual) for number, node in enumerate(nodes))


def _judged(
    node: NodeRecord, found: _Found | None, product_s: float, exchange_s: float
) -> NodeRecord:
    if found is None:
        return node
    own_s = sorted(found.exchange_s.values())
    reasons = []
    if found.product_s > SLOWER_PRODUCT * product_s:
        reasons.append(
            f"matrix products take {found.product_s / product_s:.2f} times as long as elsewhere"
        )
    if len(own_s) > 1 and own_s[0] > SLOWER_EXCHANGE * exchange_s:
        reasons.append(
            f"exchanges with both neighbours take {own_s[0] / exchange_s:.2f} times as long as "
            "between others"
        )
    return replace(
        node,
        product_s=found.product_s,
        exchange_s=own_s[0] if own_s else None,
        slow=" and ".join(reasons) or None,
    )


def _read(folder: Path) -> list[_Found]:
    found = []
    for path in sorted(folder.glob("node*.json")):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=_Found))
        except (OSError, msgspec.MsgspecError):
            continue
    return found


def fastest(nodes: Sequence[NodeRecord], count: int) -> tuple[NodeRecord, ...]:
    """Return the nodes with those marked that a study on `count` of them uses.

    Those that are not slow come first; slow ones are used only where there are too few others.
    """
    order = sorted(range(len(nodes)), key=lambda number: nodes[number].slow is not None)
    used = set(order[:count])
    return tuple(replace(node, used=number in used) for number, node in enumerate(nodes))


def slow_node_words(nodes: Sequence[NodeRecord]) -> tuple[str, ...]:
    """Return a sentence for each slow node: what is slow, and whether it is left out."""
    without = "it is left out"
    with_it = "it is used, as there is no other: ask for one more with [cluster] nodes"
    return tuple(
        f"node {node.name} is slow: {node.slow}; {with_it if node.used else without}"
        for node in nodes
        if node.slow is not None
    )


def topology_words(nodes: Sequence[NodeRecord]) -> str | None:
    """Return how the nodes that are used are connected, in words; None without any."""
    used = [node for node in nodes if node.used]
    if not used:
        return None
    switches = Counter(node.switch for node in used if node.switch is not None)
    parts = [f"{count} on switch {name}" for name, count in switches.items()]
    gpus = Counter(used[0].gpus)
    parts += [f"each with {count} x {name}" for name, count in gpus.items()]
    interfaces = {node.interface for node in used if node.interface is not None}
    parts += [f"connected by {', '.join(sorted(interfaces))}"] if interfaces else []
    return ", ".join([f"{len(used)} {'node' if len(used) == 1 else 'nodes'}", *parts])
