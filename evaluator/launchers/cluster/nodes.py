"""How many nodes a study needs, what it may not ask of them, and how they are connected."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from evaluator.launchers.cluster.scheduler import SchedulerError, answer_of
from evaluator.launchers.cluster.schedulers.catalog import LAUNCHERS, check_settings
from evaluator.launchers.local import ISOLATED, may_isolate
from evaluator.ports import Job
from records.errors import StudyError, suggestion
from records.machine import NodeRecord
from records.study import LOCAL, Cluster, Environment, Study

_OF_THIS_MACHINE = (
    *("TMPDIR", "HOSTNAME", "HOST", "DISPLAY", "XDG_*", "SSH_*", "DBUS_*", "PWD", "OLDPWD"),
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    *("SLURM*", "PMI*", "OMPI_*", "PBS_*", "LSB_*", "FLUX_*", "KUBERNETES_*"),
)
"""Variables of ours that mean something else on a node, which has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """What a study needs: this many nodes, each with room for `ranks_per_node` ranks."""

    count: int
    ranks_per_node: int
    needs_gpus: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSlots:
    """The nodes that jobs which run in parallel share out."""

    nodes: Nodes

    @property
    def count(self) -> int:
        """How many there are."""
        return self.nodes.count

    def needed(self, job: Job) -> int:
        """Return how many a job takes."""
        return -(-job.world_size // self.nodes.ranks_per_node)

    def confine(self, job: Job, numbers: Sequence[int]) -> Job:
        """Return the job confined to these nodes."""
        return replace(job, nodes=tuple(numbers))


def nodes_of(study: Study) -> Nodes:
    """Return the nodes of a study; raises `StudyError` where its ranks do not fit on them."""
    environments = (study.environment, *(context.environment for context in study.contexts))
    needed, per_node = max(map(_node_count, environments)), study.environment.ranks_per_node
    given = None if study.cluster is None else study.cluster.nodes
    if given is not None and given < needed:
        raise StudyError(
            f"[cluster] nodes is {given}, and [environment] world_size "
            f"{study.environment.world_size} takes {needed} of {per_node} ranks each; set nodes to "
            f"{needed}, or world_size to {given * per_node}"
        )
    return Nodes(
        count=given or needed,
        ranks_per_node=per_node,
        needs_gpus=study.environment.device == "cuda",
    )


def _node_count(environment: Environment) -> int:
    return -(-environment.world_size // environment.ranks_per_node)


def check_launcher(study: Study) -> None:
    """Raise `StudyError` for what the launcher of a study cannot do, before it asks for nodes."""
    launcher = study.launch.launcher
    if launcher not in LAUNCHERS:
        known = suggestion(launcher, LAUNCHERS)
        raise StudyError(f"[launch] launcher {launcher!r} is unknown; {known}")
    if study.launch.isolate and not study.is_local:
        raise StudyError(
            f"[launch] isolate is for this machine alone; leave it out with launcher {launcher}"
        )
    if study.launch.isolate and not may_isolate():
        raise StudyError(
            "[launch] isolate needs the right to raise priorities; run as root, give this user "
            f"`nice {ISOLATED}` in /etc/security/limits.conf, or use --no-isolate"
        )
    if study.is_local:
        if study.cluster is not None:
            raise StudyError(
                f'[cluster] needs another launcher than {LOCAL}; set launcher = "slurm" or the '
                "like under [launch]; `cclsearch launchers` lists them"
            )
        return
    check_settings(launcher, cluster_of(study))
    nodes = nodes_of(study)
    if any(c.environment.ranks_per_node != nodes.ranks_per_node for c in study.contexts):
        raise StudyError("[context] ranks_per_node must be that of the study on a cluster")
    if study.environment.device == "tpu":
        raise StudyError(f'launcher {launcher} starts no jobs on TPUs; use launcher = "local"')
    spans = nodes.ranks_per_node < study.environment.world_size
    if spans and study.launch.recipe == "command" and study.command is not None:
        _check_command(study.command.run)


_PER_NODE = re.compile(r"--nproc[-_]per[-_]node(=.*)?")


def _check_command(words: Sequence[str]) -> None:
    """Raise `StudyError` for a command that would start every rank on every node."""
    for number, word in enumerate(words):
        following = words[number + 1] if number + 1 < len(words) else ""
        if word in ("--standalone", "--nnodes=1") or (word, following) == ("--nnodes", "1"):
            raise StudyError(
                f"[command] run: {word} keeps torchrun on one node, and configurations take "
                "several; leave it out: torchrun reads the nodes and their meeting point from its "
                "environment, which each node is given"
            )
        if _PER_NODE.fullmatch(word) and "{rank_count}" in (following if word[-1] == "e" else word):
            raise StudyError(
                f"[command] run: {word} would start all ranks on each node; write "
                "--nproc-per-node={ranks_per_node}, or leave it out"
            )


def environment_for_nodes(
    study: Study, ours: Mapping[str, str], *, is_shared: bool
) -> Mapping[str, str]:
    """Return what jobs on other nodes see of ours, of which they may see all.

    Nodes that share no disk with us have other paths: they see what the study names.
    """
    inherited = () if study.command is None else study.command.inherit
    return {
        name: text
        for name, text in ours.items()
        if any(fnmatchcase(name, pattern) for pattern in inherited)
        or (is_shared and not any(fnmatchcase(name, pattern) for pattern in _OF_THIS_MACHINE))
    }


def cluster_of(study: Study) -> Cluster:
    """Return the `[cluster]` of a study, or the defaults where it states none."""
    return study.cluster or Cluster()


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
