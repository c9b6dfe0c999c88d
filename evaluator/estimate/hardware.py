"""Work of a micro-batch and rates of a machine: operations, operators, traffic, peaks.

Peaks are those of known accelerators, round numbers for others. Traffic is that of rings, which
carry large messages everywhere: an all-reduce goes around twice.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from operator import add

from evaluator.accelerators import accelerator, peak_flops_per_s
from evaluator.estimate.memory import (
    Share,
    edge_weights,
    in_buckets,
    layer_weights,
)
from evaluator.machine import core_count
from evaluator.rank.job import AttentionBackend, Checkpointing, ContextMethod
from records.study import Environment, Link

BACKWARD = 2
"""A backward pass computes twice a forward pass: gradients of inputs, and of weights."""
PER_WEIGHT = 2  # a product and a sum
SPLIT_RECOMPUTATIONS = 10
"""How often a backward pass in two parts computes a layer again: once for the gradients of its
input, and once more for each of its nine weights."""

LAYER_OPERATORS = 40
EXPERT_OPERATORS = 60
UNFUSED_OPERATORS = 10
EDGE_OPERATORS = 15
COMPILED = 0.25
"""The part of a layer's operators that is left where it was compiled."""
STAGE_OPERATORS = 60
"""What a schedule of several stages does around each pass through one of them."""
SHARDED_OPERATORS = 20
"""What watches over a layer's parameters, or its gradients, does around each pass through it."""
SLICED_OPERATORS = 250
"""What distributed tensors do in Python in each pass through a layer, in ordinary operators."""


def forward_flops(share: Share) -> float:
    """Of one micro-batch through all stages of a rank."""
    head = head_flops(share) if share.gives_loss else 0
    return share.tokens * (layer_flops(share, share.work.sequence_length) + head)


def layer_flops(share: Share, length: float) -> float:
    """Of one token that attends to a sequence so long, through all layers of a rank."""
    work, config = share.work, share.config
    scores = _seen(share) * PER_WEIGHT * 2 * length * work.attention_width / config.tp
    met = work.experts_per_token / work.expert_count if work.expert_count else 0
    flops = scores * share.layer_count
    for layer in share.layers:
        weights = layer_weights(work, layer, tp=config.tp)
        flops += PER_WEIGHT * (weights.plain + weights.routed * met)
    return flops


def head_flops(share: Share) -> float:
    """Of the logits of one token."""
    return PER_WEIGHT * edge_weights(share.work, first=False, last=True, tp=share.config.tp).total


def recomputations(share: Share) -> int:
    """How often a rank's layers are computed again in one micro-batch."""
    config = share.config
    if config.activation_checkpointing is Checkpointing.NONE:
        return 0
    return SPLIT_RECOMPUTATIONS if config.splits_backward else 1


def recomputed_flops(share: Share) -> float:
    """Selective checkpointing keeps the results of matrix products and of attention."""
    if share.config.activation_checkpointing is not Checkpointing.FULL:
        return 0
    layers = share.tokens * layer_flops(share, share.work.sequence_length)
    return recomputations(share) * layers


def operators(share: Share) -> float:
    """Operators of all passes of one micro-batch, those that are computed again too."""
    config = share.config
    layers = forward_operators(share) * (1 + BACKWARD + recomputations(share))
    edge = EDGE_OPERATORS * (1 + BACKWARD) if share.gives_loss else 0
    watched = config.dp > 1 and not in_buckets(config)
    around = SHARDED_OPERATORS * (share.layer_count + len(share.stages)) if watched else 0
    if len(share.stages) > 1:
        around += STAGE_OPERATORS * len(share.stages)
    return layers + edge + 2 * around


def forward_operators(share: Share) -> float:
    """Operators of a forward pass through all layers of a rank."""
    config = share.config
    unfused = config.attention_backend is AttentionBackend.MATH
    each = LAYER_OPERATORS + (UNFUSED_OPERATORS if unfused else 0)
    left = COMPILED if config.compile else 1
    return left * (each * share.layer_count + EXPERT_OPERATORS * share.expert_layer_count)


def sliced_operators(share: Share) -> float:
    """What comes on top in one micro-batch where matrices are distributed tensors."""
    if share.config.tp == 1:
        return 0
    return SLICED_OPERATORS * share.layer_count * (1 + BACKWARD + recomputations(share))


def _seen(share: Share) -> float:
    """The part of all scores that is computed: kernels skip what is ahead, masks only hide it."""
    config = share.config
    masked = config.cp > 1 and config.context_method is ContextMethod.ALL_GATHER
    return 1.0 if masked or config.attention_backend is AttentionBackend.MATH else 0.5


@dataclass(frozen=True, slots=True)
class Traffic:
    """Calls of one rank, their rounds one after the other, bytes sent and bytes added up."""

    calls: float = 0.0
    rounds: float = 0.0
    sent_bytes: float = 0.0
    added_bytes: float = 0.0

    def __add__(self, other: "Traffic") -> "Traffic":
        """Both, one after the other."""
        return Traffic(*map(add, astuple(self), astuple(other)))

    def __mul__(self, times: float) -> "Traffic":
        """Return the same, N times."""
        return Traffic(*(amount * times for amount in astuple(self)))


def all_reduce(size_bytes: float, ranks: int, calls: float = 1) -> Traffic:
    """Traffic for a tensor of this size, in N calls."""
    return _around(2 * (ranks - 1), size_bytes, ranks, calls)


def gather_or_scatter(size_bytes: float, ranks: int, calls: float = 1) -> Traffic:
    """All-gather, reduce-scatter or all-to-all; `size_bytes` is the whole of all parts."""
    return _around(ranks - 1, size_bytes, ranks, calls)


def transfer(size_bytes: float, calls: float = 1) -> Traffic:
    """Traffic from one rank to another, in N calls."""
    return Traffic(calls, calls, size_bytes)


def _around(rounds: int, size_bytes: float, ranks: int, calls: float) -> Traffic:
    if ranks == 1:
        return Traffic()
    return Traffic(calls, calls * rounds, rounds * size_bytes / ranks)


CPU_FLOPS_PER_S = 60e9
CUDA_FLOPS_PER_S = 300e12
REACHED = 0.5
"""The part of an accelerator's peak that large matrix products reach."""
MEMORY_BYTES_PER_S = {"cpu": 10e9, "cuda": 2e12}
DISPATCH_S = 15e-6
"""What it takes to start one operator from Python, with its part of the backward pass's record."""
CALL_S = {"cpu": 500e-6, "cuda": 20e-6}
"""What one collective call takes in addition to its rounds: process groups, streams, events."""
ROUND_S = {"cpu": 100e-6, "cuda": 5e-6}
"""How long a rank waits for its neighbour in one round of a collective."""
SCALE_UP_BYTES_PER_S = {"cpu": 1e9, "cuda": 200e9}
SCALE_OUT_BYTES_PER_S = {"cpu": 1e9, "cuda": 25e9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that communicate: how many, and the distance of neighbours, in ranks."""

    size: int
    stride: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Rates of one rank; `crowding` is how many ranks share a core, 1 where each has its own.

    Where it `joins_tensors`, one operator goes over many together.
    """

    flops_per_s: float
    memory_bytes_per_s: float
    dispatch_s: float
    call_s: float
    scale_up: Link
    scale_out: Link
    ranks_per_node: int
    crowding: float = 1.0
    joins_tensors: bool = False

    def together(self, seconds: Sequence[float]) -> float:
        """How long ranks take with so much work each: the busiest, or all on the cores they share.

        The cores have work as long as any rank has.
        """
        return max(max(seconds), self.crowding * sum(seconds) / len(seconds))

    def leaves_node(self, group: Group) -> bool:
        """Whether the ranks of a group are on several nodes."""
        return group.size * group.stride > self.ranks_per_node

    def exchange(self, traffic: Traffic, group: Group) -> float:
        """How long collectives of a group take on the slowest link between its ranks.

        Parallel groups share what leads out of their nodes. Ranks without their own core
        wait for their turn in every call.
        """
        link, sharing = self.scale_up, 1
        if self.leaves_node(group):
            link, sharing = self.scale_out, min(group.stride, self.ranks_per_node)
        waiting = traffic.calls * self.call_s + traffic.rounds * (link.latency_s or 0.0)
        sending = traffic.sent_bytes * sharing / link.bandwidth_bytes_per_s
        return self.crowding * (waiting + sending)


def machine_of(
    environment: Environment, precision: str, rank_count: int, threads_per_rank: int = 1
) -> Machine:
    """Return the rates of an environment for N ranks; what it does not state is assumed."""
    # What is assumed of GPUs is nearer to a TPU than what is assumed of CPUs.
    device = "cpu" if environment.device == "cpu" else "cuda"
    neighbours = min(rank_count, environment.ranks_per_node)
    cores = core_count(environment) or neighbours * threads_per_rank
    on_cpu = device == "cpu"
    threads = max(1.0, min(threads_per_rank, cores / neighbours))
    known = accelerator(environment.accelerator)
    peak = peak_flops_per_s(known, precision) if known else None
    return Machine(
        flops_per_s=CPU_FLOPS_PER_S * threads if on_cpu else REACHED * (peak or CUDA_FLOPS_PER_S),
        memory_bytes_per_s=MEMORY_BYTES_PER_S[device],
        dispatch_s=DISPATCH_S,
        call_s=CALL_S[device],
        scale_up=_link(environment.scale_up, SCALE_UP_BYTES_PER_S[device], ROUND_S[device]),
        scale_out=_link(environment.scale_out, SCALE_OUT_BYTES_PER_S[device], 2 * ROUND_S[device]),
        ranks_per_node=environment.ranks_per_node,
        crowding=max(1.0, neighbours / cores) if on_cpu else 1.0,
        joins_tensors=not on_cpu,
    )


def _link(stated: Link | None, bandwidth_bytes_per_s: float, latency_s: float) -> Link:
    if stated is None:
        return Link(bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=latency_s)
    return replace(stated, latency_s=latency_s) if stated.latency_s is None else stated
