"""Estimated time of collectives: those of a training step, and a mix of messages by its setup.

Costs of algorithms are those of Thakur, Rabenseifner and Gropp, "Optimization of Collective
Communication Operations in MPICH" (2005), each for the rank that has most to do. Of the knobs, only
those count that change how often, how far or in what format messages are sent.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, log2
from typing import TypeAlias

from evaluator.estimate.hardware import (
    Group,
    Machine,
    Traffic,
    all_reduce,
    gather_or_scatter,
    recomputations,
    transfer,
)
from evaluator.estimate.memory import (
    REDUCTION_BYTES,
    Share,
    Weights,
    in_buckets,
    kv_size,
    layer_weights,
    micro_batch_count,
)
from evaluator.rank.job import Checkpointing, CommHook, Config, ContextMethod
from evaluator.workloads.collectives.operations import (
    AdapterName,
    Collective,
    Operation,
    Setup,
    carriers,
)

HALF_BYTES = 2
POWER_SGD_RANK = 4
LOSS_REDUCTIONS = 3
"""All-reduces of one number per token from which a loss over sliced logits is made."""


def groups(config: Config) -> Mapping[str, Group]:
    """The ranks that communicate with each other, by what they do together.

    Pipelines are outermost; without shards the ranks of a context are among the replicas.
    """
    shards = Group(size=config.dp_shard * config.cp, stride=config.tp)
    replicas = Group(size=config.dp_replicate * config.cp, stride=config.tp)
    if config.dp_shard > 1:
        replicas = Group(size=config.dp_replicate, stride=shards.size * shards.stride)
    same_experts = config.dp * config.cp // config.ep
    return {
        "tensor": Group(size=config.tp, stride=1),
        "context": Group(size=config.cp, stride=config.tp),
        "expert": Group(size=config.ep, stride=config.tp),
        "shard": shards,
        "replica": replicas,
        "same_experts": Group(size=same_experts, stride=config.tp * config.ep),
        "pipeline": Group(size=config.pp, stride=config.world_size // config.pp),
    }


def tensor_traffic(share: Share) -> Traffic:
    """Of one micro-batch: around attention and feed-forward, and at the edges of the model."""
    work, config = share.work, share.config
    if config.tp == 1:
        return Traffic()
    hidden = share.number_bytes * share.tokens * work.hidden_size
    one = _joined(share, hidden)
    forwards = 1 + recomputations(share)
    around = one * (2 * share.layer_count * (forwards + 1))
    edges = one * ((share.place == 0) + share.gives_loss)
    if not share.gives_loss:
        return around + edges
    if config.loss_parallel:
        return around + edges + all_reduce(4 * share.tokens, config.tp) * LOSS_REDUCTIONS
    logits = share.number_bytes * share.tokens * work.vocab_size
    return around + edges + gather_or_scatter(logits, config.tp)


def context_traffic(share: Share) -> Traffic:
    """Of one micro-batch: parts of keys and values, or of all heads, to those who lack them."""
    config = share.config
    if config.cp == 1:
        return Traffic()
    size = share.number_bytes / config.tp
    pair = size * 2 * share.tokens * kv_size(share.work)  # keys and values of one part
    forwards = 1 + recomputations(share)
    match config.context_method:
        case ContextMethod.RING:
            around = transfer(pair * (config.cp - 1), config.cp - 1)
            layer = around * (forwards + 2)  # on the way back with their gradients
        case ContextMethod.ALL_GATHER:
            layer = gather_or_scatter(pair * config.cp, config.cp) * (forwards + 1)
        case ContextMethod.ULYSSES:
            swapped = pair + size * 2 * share.tokens * share.work.attention_width
            layer = gather_or_scatter(swapped, config.cp, calls=4) * (forwards + 1)
    return layer * share.layer_count


def expert_traffic(share: Share) -> Traffic:
    """Of one micro-batch: rows to their experts and back, after a word on how many there are."""
    work, config = share.work, share.config
    if config.ep == 1:
        return Traffic()
    rows = share.tokens * work.experts_per_token
    there = gather_or_scatter(share.number_bytes * rows * work.hidden_size, config.ep)
    counts = gather_or_scatter(0, config.ep)
    # Selective checkpointing keeps what was exchanged.
    kept = config.activation_checkpointing is Checkpointing.SELECTIVE
    forwards = 1 if kept else 1 + recomputations(share)
    return ((there * 2 + counts) * forwards + there * 2) * share.expert_layer_count


def pipeline_traffic(share: Share) -> Traffic:
    """Of one micro-batch: hidden states onwards, and their gradients back."""
    work, config = share.work, share.config
    if config.pp == 1:
        return Traffic()
    cut = config.tp if config.sequence_parallel else 1
    hidden = share.number_bytes * share.tokens * work.hidden_size / cut
    return transfer(hidden) * (2 * len(share.stages))


def gathered_traffic(share: Share) -> Traffic:
    """Of a step: sharded parameters put together for their passes."""
    config = share.config
    if config.dp_shard == 1:
        return Traffic()
    count = micro_batch_count(share.work, config)
    # Stages keep parameters between micro-batches, unless they drop them in each.
    times = count * (1 + config.reshards) if config.pp == 1 else 1 + count * config.reshards
    group = groups(config)["shard"].size
    size = share.number_bytes * _weights(share).plain
    once = gather_or_scatter(size, group, calls=share.layer_count + len(share.stages))
    return once * times


def reduced_traffic(share: Share) -> Traffic:
    """Of a step: gradients of sharded parameters, each rank keeping those of its shard."""
    config = share.config
    if config.dp_shard == 1:
        return Traffic()
    size = REDUCTION_BYTES.get(config.fsdp_reduction, share.number_bytes)
    group = groups(config)["shard"].size
    calls = share.layer_count + len(share.stages)
    return gather_or_scatter(size * _weights(share).plain, group, calls)


def replicated_traffic(share: Share) -> Traffic:
    """Of a step: gradients of what several ranks hold."""
    config = share.config
    group = groups(config)["replica"].size
    size = share.number_bytes * _weights(share).plain
    if config.dp_shard > 1:
        size /= groups(config)["shard"].size
    if not in_buckets(config):
        return all_reduce(size, group, calls=share.layer_count + len(share.stages))
    buckets = max(1, round(size / (config.ddp_bucket_mib << 20)))
    return all_reduce(size * _compressed(share), group, calls=buckets)


def routed_traffic(share: Share) -> Traffic:
    """Of a step: gradients of routed experts between the ranks that hold the same ones."""
    config = share.config
    size = share.number_bytes * _weights(share).routed
    return all_reduce(size, groups(config)["same_experts"].size, calls=share.expert_layer_count)


def _weights(share: Share) -> Weights:
    """Of all stages of a rank, before sharding; where experts stay, all of them are plain."""
    config = share.config
    total = Weights(share.edge)
    for layer in share.layers:
        total += layer_weights(share.work, layer, tp=config.tp, ep=config.ep)
    return total if config.ep > 1 else Weights(total.total)


def _joined(share: Share, hidden_bytes: float) -> Traffic:
    """What slices contribute, added up: parts scattered and gathered, or in one call."""
    tp = share.config.tp
    if share.config.sequence_parallel:
        return gather_or_scatter(hidden_bytes, tp) * 2
    return all_reduce(hidden_bytes, tp)


def _compressed(share: Share) -> float:
    """The part of a gradient's bytes that a hook sends."""
    match share.config.ddp_comm_hook:
        case CommHook.NONE:
            return 1
        case CommHook.FP16 | CommHook.BF16:
            return HALF_BYTES / share.number_bytes
        case CommHook.POWER_SGD:
            return min(1.0, 2 * POWER_SGD_RANK / share.work.hidden_size)


@dataclass(frozen=True, slots=True)
class Shape:
    """Rounds one after the other; what is sent and added up in them, in sizes of the message."""

    rounds: float
    sent: float
    added: float = 0.0


Algorithm: TypeAlias = Callable[[int], Shape]
"""Its shape for a number of ranks."""


def _doublings(ranks: int) -> int:
    """How often 1 is doubled until it is no less than the ranks."""
    return ceil(log2(ranks))


_SHAPES: Mapping[str, Algorithm] = {
    # Parts are added up going round, and their sums go round again.
    "ring": lambda n: Shape(2 * (n - 1), 2 * ((n - 1) / n), (n - 1) / n),
    # The same between ranks that are twice as far, or near, every time.
    "halving": lambda n: Shape(2 * _doublings(n), 2 * ((n - 1) / n), (n - 1) / n),
    # Whole messages between ranks that are twice as far every time.
    "doubling": lambda n: Shape(_doublings(n), _doublings(n), _doublings(n)),
    "tree and back": lambda n: Shape(2 * _doublings(n), 2 * _doublings(n), _doublings(n)),
    "root and back": lambda n: Shape(2 * (n - 1), 2 * (n - 1), n - 1),
    # Sums are made on the way.
    "switches": lambda n: Shape(2, 1) if n > 1 else Shape(0, 0),
    # One rank has to do with every other in turn; so has each where all send to all.
    "root": lambda n: Shape(n - 1, n - 1),
    "tree": lambda n: Shape(_doublings(n), _doublings(n)),
    "chain": lambda n: Shape(n - 1, 1),
    # Parts are scattered, then gathered in a ring.
    "scattered": lambda n: Shape(_doublings(n) + n - 1, 2 * (n - 1) / n),
    # Parts for all ranks travel together, in ever larger packets.
    "joined": lambda n: Shape(_doublings(n), n - 1),
    "there and back": lambda n: Shape(2, 2) if n > 1 else Shape(0, 0),
}
_OF_ALL_REDUCE = {
    "linear": "root and back",
    "nonoverlapping": "tree and back",
    "recursive_doubling": "doubling",
    "rabenseifner": "halving",
    "tree": "tree and back",
    "collnetchain": "tree and back",
    "collnetdirect": "switches",
    "nvls": "switches",
    "nvlstree": "switches",
}
_OF_WHOLE = {
    "linear": "root",
    "chain": "chain",
    "pipeline": "chain",
    "ring": "chain",
    "scatter_allgather": "scattered",
    "scatter_allgather_ring": "scattered",
    "rabenseifner": "scattered",
}
_OF_PARTS = dict.fromkeys(
    (
        *("bruck", "modified_bruck", "recursive_doubling", "recursive_halving"),
        *("butterfly", "binomial"),
    ),
    "joined",
)


def traffic_of(operation: Operation, algorithm: str, ranks: int, segment_bytes: int = 0) -> Traffic:
    """What a call costs by an algorithm; one that is not known goes as is usual.

    In segments, a part is added up while the next is on its way.
    """
    shape = _SHAPES[_shape_name(operation.collective, algorithm.lower())](ranks)
    size = operation.message_bytes
    part = size / ranks
    segments = max(1, ceil(part / segment_bytes)) if segment_bytes else 1
    rounds = shape.rounds * (1 + segments) / 2
    return Traffic(1, rounds, shape.sent * size, shape.added * size / segments)


def _shape_name(collective: Collective, algorithm: str) -> str:
    match collective:
        case Collective.ALL_REDUCE:
            return _OF_ALL_REDUCE.get(algorithm, "ring")
        case Collective.BROADCAST | Collective.REDUCE:
            return _OF_WHOLE.get(algorithm, "tree")
        case Collective.BARRIER:
            return "tree"
        case Collective.SEND_RECV:
            return "there and back"
        case _:
            return _OF_PARTS.get(algorithm, "root")


MPI_CALLS, MPI_ROUNDS, MPI_BYTES = 0.01, 0.02, 0.25
"""Of what gloo takes over sockets, what MPI takes over memory that ranks share."""
TOUCHES = 3  # two numbers are read and their sum is written
COPIES = 4  # read and written on the way in, and again on the way out
SLOWED = {"LL": 2.0, "LL128": 1.05}
"""Times for the same bytes with protocols that send flags along."""
HASTENED = {"LL": 0.5, "LL128": 0.6}
"""And for a round, which nothing else has to announce."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """What a setup asks of the library below: an algorithm and segments for a collective.

    Collectives that are not listed go as is usual.
    """

    algorithms: Mapping[Collective, str] = field(default_factory=dict)
    segments_bytes: Mapping[Collective, int] = field(default_factory=dict)
    protocol: str | None = None


def estimate_exchange(
    messages: Sequence[Operation], setup: Setup, ways: Ways, machine: Machine, rank_count: int
) -> Mapping[str, float]:
    """Seconds of a step, by what takes them."""
    carried = carriers(messages, setup)
    traffic = Traffic()
    for part in (part for carrier in carried for part in carrier.parts):
        algorithm = ways.algorithms.get(part.collective, "")
        segment_bytes = ways.segments_bytes.get(part.collective, 0)
        traffic += traffic_of(part, algorithm, rank_count, segment_bytes)
    copied = sum(part.message_bytes for each in carried if each.is_copied for part in each.parts)
    touched = machine.crowding / machine.memory_bytes_per_s
    sent = _carried(traffic, setup, ways)
    group = Group(size=rank_count, stride=1)
    return {
        "calls": machine.exchange(Traffic(calls=sent.calls), group),
        "rounds": machine.exchange(Traffic(rounds=sent.rounds), group),
        "transfers": machine.exchange(Traffic(sent_bytes=sent.sent_bytes), group),
        "sums": TOUCHES * traffic.added_bytes * touched,
        "copies": COPIES * copied * touched,
    }


def _carried(traffic: Traffic, setup: Setup, ways: Ways) -> Traffic:
    """The same in what gloo, or NCCL, would take for it; overlapping calls wait together."""
    waiting = 1 / min(setup.in_flight, max(1.0, traffic.calls))
    if setup.comm_adapter is AdapterName.MPI:
        return Traffic(
            MPI_CALLS * traffic.calls,
            MPI_ROUNDS * traffic.rounds * waiting,
            MPI_BYTES * traffic.sent_bytes,
        )
    protocol = ways.protocol or ""
    return replace(
        traffic,
        rounds=traffic.rounds * waiting * HASTENED.get(protocol, 1.0),
        sent_bytes=traffic.sent_bytes * SLOWED.get(protocol, 1.0),
    )
