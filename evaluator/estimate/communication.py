"""What a rank sends: in every micro-batch between slices, parts and experts, and once in a step."""

from evaluator.estimate.compute import recomputations
from evaluator.estimate.machine import Group
from evaluator.estimate.traffic import Traffic, all_reduce, gather_or_scatter, transfer
from evaluator.memory.estimate import NUMBER_BYTES, REDUCTION_BYTES
from evaluator.memory.layer_sizes import Weights, has_experts, kv_size, layer_weights
from evaluator.memory.shares import Share, in_buckets, micro_batch_count
from evaluator.rank.job import Checkpointing, CommHook, Config, ContextMethod, Reshard

HALF_BYTES = 2
POWER_SGD_RANK = 4
LOSS_REDUCTIONS = 3
"""All-reduces of one number per token from which a loss over sliced logits is made."""


def tensor_group(config: Config) -> Group:
    """Ranks that hold slices of the same matrices: neighbours."""
    return Group(size=config.tp, stride=1)


def context_group(config: Config) -> Group:
    """Ranks that hold parts of the same sequences."""
    return Group(size=config.cp, stride=config.tp)


def expert_group(config: Config) -> Group:
    """Ranks that hold each expert once, innermost among shards and context."""
    return Group(size=config.ep, stride=config.tp)


def shard_group(config: Config) -> Group:
    """Ranks that parameters are sharded over."""
    return Group(size=config.dp_shard * config.cp, stride=config.tp)


def replica_group(config: Config) -> Group:
    """Ranks with the same parameters; without shards those of the context are among them."""
    if config.dp_shard > 1:
        shards = shard_group(config)
        return Group(size=config.dp_replicate, stride=shards.size * shards.stride)
    return Group(size=config.dp_replicate * config.cp, stride=config.tp)


def copies_group(config: Config) -> Group:
    """Ranks that hold the same routed experts."""
    return Group(size=config.dp * config.cp // config.ep, stride=config.tp * config.ep)


def pipeline_group(config: Config) -> Group:
    """Ranks that hold the stages of one model, outermost of all."""
    return Group(size=config.pp, stride=config.world_size // config.pp)


def tensor_traffic(share: Share) -> Traffic:
    """Of one micro-batch: around attention and feed-forward, and at the edges of the model."""
    work, config = share.work, share.config
    if config.tp == 1:
        return Traffic()
    hidden = _number_bytes(share) * share.tokens * work.hidden_size
    one = _joined(share, hidden)
    forwards = 1 + recomputations(share)
    around = one * (2 * share.layer_count * (forwards + 1))
    edges = one * ((share.place == 0) + share.gives_loss)
    return around + edges + (_loss_traffic(share) if share.gives_loss else Traffic())


def context_traffic(share: Share) -> Traffic:
    """Of one micro-batch: parts of keys and values, or of all heads, to those who lack them."""
    config = share.config
    if config.cp == 1:
        return Traffic()
    size = _number_bytes(share) / config.tp
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
    there = gather_or_scatter(_number_bytes(share) * rows * work.hidden_size, config.ep)
    counts = gather_or_scatter(0, config.ep)
    # Selective checkpointing keeps what was exchanged.
    kept = config.activation_checkpointing is Checkpointing.SELECTIVE
    forwards = 1 if kept else 1 + recomputations(share)
    return ((there * 2 + counts) * forwards + there * 2) * _expert_layers(share)


def pipeline_traffic(share: Share) -> Traffic:
    """Of one micro-batch: hidden states onwards, and their gradients back."""
    work, config = share.work, share.config
    if config.pp == 1:
        return Traffic()
    cut = config.tp if config.sequence_parallel else 1
    hidden = _number_bytes(share) * share.tokens * work.hidden_size / cut
    return transfer(hidden) * (2 * len(share.stages))


def gathered_traffic(share: Share) -> Traffic:
    """Of a step: sharded parameters put together for their passes."""
    config = share.config
    if config.dp_shard == 1:
        return Traffic()
    count = micro_batch_count(share.work, config)
    always = config.fsdp_reshard is Reshard.ALWAYS
    drops = always or (config.fsdp_reshard is Reshard.AUTO and config.pp == 1)
    # Stages keep parameters between micro-batches, unless they drop them in each.
    times = count * (1 + drops) if config.pp == 1 else 1 + count * drops
    group = shard_group(config).size
    size = _number_bytes(share) * _weights(share).plain
    once = gather_or_scatter(size, group, calls=share.layer_count + len(share.stages))
    return once * times


def reduced_traffic(share: Share) -> Traffic:
    """Of a step: gradients of sharded parameters, each rank keeping those of its shard."""
    config = share.config
    if config.dp_shard == 1:
        return Traffic()
    size = REDUCTION_BYTES.get(config.fsdp_reduction, _number_bytes(share))
    group = shard_group(config).size
    calls = share.layer_count + len(share.stages)
    return gather_or_scatter(size * _weights(share).plain, group, calls)


def replicated_traffic(share: Share) -> Traffic:
    """Of a step: gradients of what several ranks hold."""
    config = share.config
    group = replica_group(config).size
    size = _number_bytes(share) * _weights(share).plain
    if config.dp_shard > 1:
        size /= shard_group(config).size
    if not in_buckets(config):
        return all_reduce(size, group, calls=share.layer_count + len(share.stages))
    buckets = max(1, round(size / (config.ddp_bucket_mib << 20)))
    return all_reduce(size * _compressed(share), group, calls=buckets)


def routed_traffic(share: Share) -> Traffic:
    """Of a step: gradients of routed experts between the ranks that hold the same ones."""
    config = share.config
    size = _number_bytes(share) * _weights(share).routed
    return all_reduce(size, copies_group(config).size, calls=_expert_layers(share))


def _weights(share: Share) -> Weights:
    """Of all stages of a rank, before sharding; where experts stay, all of them are plain."""
    config = share.config
    total = Weights(share.edge)
    for stage in share.stages:
        for layer in stage.layers:
            total += layer_weights(share.work, layer, tp=config.tp, ep=config.ep)
    return total if config.ep > 1 else Weights(total.total)


def _joined(share: Share, hidden_bytes: float) -> Traffic:
    """What slices contribute, added up: parts scattered and gathered, or at once."""
    tp = share.config.tp
    if share.config.sequence_parallel:
        return gather_or_scatter(hidden_bytes, tp) * 2
    return all_reduce(hidden_bytes, tp)


def _loss_traffic(share: Share) -> Traffic:
    config = share.config
    if config.loss_parallel:
        return all_reduce(4 * share.tokens, config.tp) * LOSS_REDUCTIONS
    return gather_or_scatter(_number_bytes(share) * share.tokens * share.work.vocab_size, config.tp)


def _expert_layers(share: Share) -> int:
    return sum(has_experts(share.work, layer) for stage in share.stages for layer in stage.layers)


def _compressed(share: Share) -> float:
    """The part of a gradient's bytes that a hook sends."""
    match share.config.ddp_comm_hook:
        case CommHook.NONE:
            return 1
        case CommHook.FP16 | CommHook.BF16:
            return HALF_BYTES / _number_bytes(share)
        case CommHook.POWER_SGD:
            return min(1.0, 2 * POWER_SGD_RANK / share.work.hidden_size)


def _number_bytes(share: Share) -> int:
    return NUMBER_BYTES[share.work.precision]
