"""Prompts read and answered from sizes alone: every token of an answer reads all weights again."""

from collections.abc import Mapping

from evaluator.estimate.communication import tensor_group
from evaluator.estimate.compute import (
    EDGE_OPERATORS,
    forward_operators,
    head_flops,
    layer_flops,
)
from evaluator.estimate.machine import Machine
from evaluator.estimate.traffic import Traffic, all_reduce, gather_or_scatter
from evaluator.memory.estimate import NUMBER_BYTES
from evaluator.memory.layer_sizes import Weights, kv_size, layer_weights
from evaluator.memory.shares import Share, micro_batch_count, shares
from evaluator.rank.job import Config, Workload

GATHERS = 2  # the vectors of tokens, and the logits


def estimated_inference(work: Workload, config: Config, machine: Machine) -> Mapping[str, float]:
    """Seconds in which a batch is answered, by what takes them; every rank does the same."""
    (share,) = shares(work, config)
    rounds = micro_batch_count(work, config)
    reads = work.output_length  # the prompt, then every token of an answer but the last
    started = (forward_operators(share) + EDGE_OPERATORS) * reads * machine.dispatch_s
    prefill = config.micro_batch * work.sequence_length
    traffic = _traffic(share, prefill) + _traffic(share, config.micro_batch) * (reads - 1)
    compute = _answer_flops(share) / machine.flops_per_s
    read = _read_bytes(share) / machine.memory_bytes_per_s
    return {
        "compute": rounds * machine.together([compute]),
        "memory_reads": rounds * machine.together([read]),
        "launch_overhead": rounds * machine.together([started]),
        "tensor_communication": rounds * machine.exchange(traffic, tensor_group(config)),
    }


def _answer_flops(share: Share) -> float:
    """Of one round; only the last token of a prompt is asked what comes next."""
    work = share.work
    decoded = work.output_length - 1
    prompt = work.sequence_length * layer_flops(share, work.sequence_length)
    # A single query sees every key: all the scores of a length are half of those of twice as many.
    answer = decoded * layer_flops(share, 2 * _mean_length(work))
    return share.config.micro_batch * (prompt + answer + work.output_length * head_flops(share))


def _read_bytes(share: Share) -> float:
    """Of one round while it decodes: weights and the cache, once for every token."""
    work, config = share.work, share.config
    weights = Weights(work.vocab_size * work.hidden_size / config.tp)
    for layer in range(work.layer_count):
        weights += layer_weights(work, layer, tp=config.tp)
    rows = config.micro_batch * work.experts_per_token
    met = min(1.0, rows / work.expert_count) if work.expert_count else 0
    keys = 2 * work.layer_count * kv_size(work) / config.tp
    cache = config.micro_batch * _mean_length(work) * keys
    numbers = weights.plain + weights.routed * met + cache
    return NUMBER_BYTES[work.precision] * (work.output_length - 1) * numbers


def _traffic(share: Share, tokens: int) -> Traffic:
    """Of one pass: attention and feed-forward added up in every layer, columns joined at the edges.

    Logits are only those of the last place.
    """
    work, config = share.work, share.config
    size = NUMBER_BYTES[work.precision]
    hidden = all_reduce(size * tokens * work.hidden_size, config.tp) * (2 * work.layer_count)
    if config.tp == 1:
        return hidden
    edges = tokens * work.hidden_size + config.micro_batch * work.vocab_size
    return hidden + gather_or_scatter(size * edges, config.tp, calls=GATHERS)


def _mean_length(work: Workload) -> float:
    return work.sequence_length + work.output_length / 2
