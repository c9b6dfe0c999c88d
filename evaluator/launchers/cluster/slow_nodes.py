"""Test the nodes of a cluster before a study: which are slower than the others, and by how much.

A node that is slow makes a configuration slow that happens to use it, or all of them.
"""

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from statistics import median_low
from threading import Event
from typing import TYPE_CHECKING

import msgspec

from evaluator.launchers.cluster.allocation import Allocation, NodesUnavailable
from evaluator.ports import Job, PhaseListener
from records.machine import NodeRecord

if TYPE_CHECKING:
    from evaluator.launchers.cluster.launcher import ClusterLauncher

_LOG = logging.getLogger(__name__)


SECONDS = 1.0
"""For the products of one device."""
TEST_LIMIT_S = 180.0
SLOWER_PRODUCT, SLOWER_EXCHANGE = 1.2, 1.5
"""How many times the time of most others makes a node slow."""
SCRIPT = "node_test.py"


class _Found(msgspec.Struct, frozen=True):
    """What a node measured; `exchange_s` by the number of the neighbour."""

    node_rank: int
    product_s: float
    exchange_s: dict[int, float] = {}


def tested_nodes(
    launcher: "ClusterLauncher",
    workdir: Path,
    needed_count: int,
    switches: Mapping[str, str],
    on_phase: PhaseListener,
) -> tuple[NodeRecord, ...]:
    """Wait for the nodes of a search and test them; have slow ones used last.

    A search takes `needed_count` of them. The test runs in `workdir`, an empty folder. Returns
    nothing where there are no nodes: launches then say why.
    """
    allocation = launcher.allocation
    try:
        agents = allocation.agents(Event(), on_phase)
    except NodesUnavailable:
        return ()
    nodes = [
        NodeRecord(
            name=agent.node,
            gpus=agent.facts.gpus,
            switch=switches.get(agent.node),
        )
        for agent in agents
    ]
    if len(nodes) > 1 and allocation.cluster.test_nodes:
        result = launcher.run(_job(allocation), workdir, lambda _phase: None)
        if result.reason != "finished":
            _LOG.warning("nodes not tested reason=%s words=%s", result.reason, result.message)
        nodes = [*judged(nodes, workdir)]
    chosen = fastest(nodes, needed_count)
    allocation.use_last(node.name for node in chosen if node.slow is not None)
    return chosen


def _job(allocation: Allocation) -> Job:
    """Return the job that tests the nodes, with one process on each."""
    source = (files("evaluator.workloads") / SCRIPT).read_text(encoding="utf-8")
    count, here = allocation.nodes.count, sys.executable if allocation.is_shared else "python3"
    return Job(
        argv=(
            *(allocation.cluster.python or here, SCRIPT),
            *("{node_rank}", str(count), f"{SECONDS:g}"),
        ),
        world_size=count * allocation.nodes.ranks_per_node,
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
