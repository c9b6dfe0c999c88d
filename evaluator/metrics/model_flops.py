"""How many floating-point operations the model of a workload needs, from its sizes alone.

Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways" (2022), appendix B: per token of
training 6 N + 12 L H Q S, with N the parameters that a token meets, L layers, H heads of size Q and
sequences of S tokens; a forward pass alone is a third of it. What is computed again, by activation
checkpointing, does not count, and the upper half of attention does, though it may be skipped.
N is without the table of embeddings, which is read and not multiplied, and of routed experts it
holds those that one token is sent to, as the published toolkit's does.
"""

from evaluator.memory.layer_sizes import edge_weights, layer_weights
from evaluator.metrics.base import Absent
from evaluator.rank.job import Precision
from evaluator.rank.job import Workload as Decoder
from records.workload import Workload

TRAINING_PER_FORWARD = 3
_SIZES = ("layer_count", "hidden_size", "head_count", "ffn_size", "vocab_size")
_EXPERT_SIZES = ("experts_per_token", "expert_ffn_size")


def flops_per_token(workload: Workload) -> float | Absent:
    """FLOP that one token costs on average, forward and in training backward too."""
    if workload.phase == "communication":
        return Absent("the workload only communicates")
    parameters = active_parameters(workload)
    if isinstance(parameters, Absent):
        return parameters
    if workload.layer_count is None or workload.hidden_size is None:
        return _untold("layer_count", "hidden_size")
    width = _attention_width(workload) or workload.hidden_size
    attention = 4 * workload.layer_count * width * tokens_per_sequence(workload)
    passes = TRAINING_PER_FORWARD if workload.phase == "training" else 1
    return passes * (2 * parameters + attention)


def tokens_per_sequence(workload: Workload) -> int:
    """Tokens of a sequence: in inference those of a prompt and of its answer."""
    return workload.tokens_per_step // workload.global_batch


def active_parameters(workload: Workload) -> float | Absent:
    """Parameters that a token meets in a decoder of these sizes, without the embedding table.

    Where sizes are missing, those of a dense model that says how many it has, less one table.
    """
    missing = [name for name in _needed(workload) if getattr(workload, name) is None]
    if not missing:
        return _counted(_decoder(workload))
    told, vocabulary, hidden = workload.parameter_count, workload.vocab_size, workload.hidden_size
    if told and vocabulary and hidden and not workload.expert_count:
        return float(told - vocabulary * hidden)
    return _untold(*missing)


def all_parameters(workload: Workload) -> float | Absent:
    """Parameters of a decoder of these sizes, every expert and the embedding table included."""
    missing = [name for name in _needed(workload) if getattr(workload, name) is None]
    if missing:
        return _untold(*missing)
    decoder = _decoder(workload)
    layers = sum(layer_weights(decoder, layer).total for layer in range(decoder.layer_count))
    return layers + edge_weights(decoder, first=True, last=True).total


def _needed(workload: Workload) -> tuple[str, ...]:
    return _SIZES + (_EXPERT_SIZES if workload.expert_count else ())


def _decoder(workload: Workload) -> Decoder:
    """The sizes as those take them who count parameters."""
    return Decoder(
        layer_count=workload.layer_count or 0,
        hidden_size=workload.hidden_size or 0,
        head_count=workload.head_count or 0,
        kv_head_count=workload.kv_head_count or workload.head_count or 0,
        ffn_size=workload.ffn_size or 0,
        vocab_size=workload.vocab_size or 0,
        sequence_length=workload.sequence_length,
        global_batch=workload.global_batch,
        precision=Precision.FP32,  # counts do not depend on it
        seed=workload.seed,
        expert_count=workload.expert_count or 0,
        experts_per_token=workload.experts_per_token or 0,
        shared_expert_count=workload.shared_expert_count or 0,
        expert_ffn_size=workload.expert_ffn_size or 0,
        dense_layer_count=workload.dense_layer_count or 0,
        head_size=workload.head_size or 0,
    )


def _attention_width(workload: Workload) -> int:
    """Numbers of all heads' queries of one token, where heads do not share the hidden size."""
    return (workload.head_count or 0) * (workload.head_size or 0)


def _counted(decoder: Decoder) -> float:
    layers = decoder.layer_count
    mixed = max(0, layers - decoder.dense_layer_count) if decoder.expert_count else 0
    total = edge_weights(decoder, first=False, last=True).total
    if mixed < layers:
        total += (layers - mixed) * layer_weights(decoder, 0).total
    if mixed:
        layer = layer_weights(decoder, layers - 1)
        met = decoder.experts_per_token / decoder.expert_count
        total += mixed * (layer.plain + layer.routed * met)
    return total


def _untold(*sizes: str) -> Absent:
    return Absent(f"the workload does not tell its {', '.join(sizes)}")
