"""What a rank computes in one micro-batch: floating-point operations, and operators to start."""

from evaluator.memory.layer_sizes import edge_weights, has_experts, layer_weights
from evaluator.memory.shares import SPLIT_BACKWARD, Share, in_buckets
from evaluator.rank.job import AttentionBackend, Checkpointing, ContextMethod

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
    for stage in share.stages:
        for layer in stage.layers:
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
    split = config.pp > 1 and config.pipeline_schedule in SPLIT_BACKWARD
    return SPLIT_RECOMPUTATIONS if split else 1


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
    work, config = share.work, share.config
    mixed = sum(has_experts(work, layer) for stage in share.stages for layer in stage.layers)
    unfused = config.attention_backend is AttentionBackend.MATH
    each = LAYER_OPERATORS + (UNFUSED_OPERATORS if unfused else 0)
    left = COMPILED if config.compile else 1
    return left * (each * share.layer_count + EXPERT_OPERATORS * mixed)


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
