"""How many numbers a decoder's parts hold, and how many they keep per token for the backward pass.

Counts follow the operations in `evaluator.workloads`, one by one, in the manner of Korthikanti et
al., "Reducing Activation Recomputation in Large Transformer Models" (2022): an operation keeps the
inputs that its derivative needs. `tp`, `ep` and the like divide what each rank holds of them.
"""

from dataclasses import dataclass

from evaluator.rank.job import (
    AttentionBackend,
    Checkpointing,
    Config,
    ContextMethod,
    DeviceKind,
    Workload,
)

EXPERT_MATRICES = 3  # gate, up, down
NORM_KEPT = {DeviceKind.CPU: 2, DeviceKind.CUDA: 1}
"""Its input, and where its kernel is not fused also the normalized input before it is scaled."""
FEED_FORWARD_KEPT = 4  # the gate's and the up layer's outputs, silu of the gate, their product


@dataclass(frozen=True, slots=True)
class Weights:
    """Numbers of parameters: those of routed experts are spread in their own way."""

    plain: float
    routed: float = 0

    def __add__(self, other: "Weights") -> "Weights":
        """Both together."""
        return Weights(self.plain + other.plain, self.routed + other.routed)

    @property
    def total(self) -> float:
        """All of them."""
        return self.plain + self.routed


def layer_weights(work: Workload, layer: int, *, tp: int = 1, ep: int = 1) -> Weights:
    """Parameters of one decoder layer on one rank, before sharding over data-parallel ranks."""
    hidden = work.hidden_size
    attention = 2 * hidden * work.attention_width + 2 * hidden * kv_size(work)
    norms = 2 * hidden
    if not has_experts(work, layer):
        return Weights((attention + EXPERT_MATRICES * hidden * work.ffn_size) / tp + norms)
    expert = EXPERT_MATRICES * hidden * work.expert_ffn_size
    shared = expert * work.shared_expert_count
    router = hidden * work.expert_count
    return Weights(
        (attention + shared) / tp + norms + router, expert * work.expert_count / (tp * ep)
    )


def edge_weights(work: Workload, *, first: bool, last: bool, tp: int = 1) -> Weights:
    """Parameters of the embedding and of the head with its norm, where a rank holds them."""
    table = work.vocab_size * work.hidden_size / tp
    return Weights(table * (first + last) + (work.hidden_size if last else 0))


def layer_kept(work: Workload, layer: int, config: Config, device: DeviceKind) -> float:
    """Numbers kept per token of a rank's part of the sequence, from one layer's forward pass."""
    match config.activation_checkpointing:
        case Checkpointing.FULL:
            return _input(work, config)
        case Checkpointing.SELECTIVE:
            return _input(work, config) + _selected(work, layer, config)
        case Checkpointing.NONE:
            return layer_whole(work, layer, config, device)


def layer_whole(work: Workload, layer: int, config: Config, device: DeviceKind) -> float:
    """Numbers kept per token if nothing is computed again.

    Inputs of the two norms, their outputs gathered for the sliced matrices, rotated queries and
    keys, values, what attention gives, and the feed-forward layer's inner results.
    """
    hidden = work.hidden_size
    norms = 2 * NORM_KEPT[device] * _input(work, config)
    gathered = 2 * hidden
    queries = 2 * work.attention_width
    attention = (queries + 2 * kv_size(work) * _key_copies(config)) / config.tp
    return norms + gathered + attention + _scores(work, config) + _inner(work, layer, config)


def layer_flow(work: Workload, layer: int, config: Config) -> float:
    """Numbers per token of the gradients that flow through one layer's backward pass at once."""
    inner = (
        work.experts_per_token * work.expert_ffn_size
        if has_experts(work, layer)
        else (work.ffn_size)
    )
    return 2 * work.hidden_size + 3 * inner / config.tp


def head_kept(work: Workload, config: Config, device: DeviceKind) -> float:
    """Numbers kept per token from the last norm and the head's own input."""
    return NORM_KEPT[device] * _input(work, config) + work.hidden_size


def has_experts(work: Workload, layer: int) -> bool:
    """Whether a layer has experts; the first ones may be dense."""
    return work.expert_count > 0 and layer >= work.dense_layer_count


def kv_size(work: Workload) -> int:
    """Numbers of one token's keys, or values."""
    return work.head_width * work.kv_head_count


def _input(work: Workload, config: Config) -> float:
    """A hidden state between layers, of which sequence parallelism leaves each rank a part."""
    return work.hidden_size / (config.tp if config.sequence_parallel else 1)


def _inner(work: Workload, layer: int, config: Config) -> float:
    """What the feed-forward layer keeps; routed rows are copied on their way to the experts."""
    if not has_experts(work, layer):
        return FEED_FORWARD_KEPT * work.ffn_size / config.tp
    size, rows = work.expert_ffn_size, work.experts_per_token
    copies = 2 if config.ep == 1 else 4
    routed = rows * (copies * work.hidden_size + FEED_FORWARD_KEPT * size / config.tp)
    shared = FEED_FORWARD_KEPT * size * work.shared_expert_count / config.tp
    return routed + shared + work.expert_count


def _selected(work: Workload, layer: int, config: Config) -> float:
    """Outputs of matrix products and of attention, which selective checkpointing keeps."""
    hidden = work.hidden_size
    queries = 2 * work.attention_width
    products = (queries + hidden + 2 * kv_size(work)) / config.tp + hidden
    if has_experts(work, layer):
        shared = work.shared_expert_count * work.expert_ffn_size
        return products + 2 * shared / config.tp
    return products + 2 * work.ffn_size / config.tp


def _key_copies(config: Config) -> int:
    """How many ranks' parts of the keys and values are kept together."""
    gathers = config.cp > 1 and config.context_method is ContextMethod.ALL_GATHER
    return config.cp if gathers else 1


def _scores(work: Workload, config: Config) -> float:
    """Attention weights, which only the unfused kernel keeps."""
    if config.attention_backend is not AttentionBackend.MATH:
        return 0
    return work.head_count / config.tp * work.sequence_length
