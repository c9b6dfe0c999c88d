"""Activation checkpointing: what a block forgets after its forward pass and computes again."""

from functools import partial

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from evaluator.rank.job import Checkpointing
from evaluator.workloads.decoder import Decoder

_aten = torch.ops.aten
_EXPENSIVE_OPERATORS = [
    _aten.mm.default,
    _aten._grouped_mm.default,
    torch.ops._c10d_functional.all_to_all_single.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
]


def recompute(model: Decoder, checkpointing: Checkpointing) -> None:
    """Wrap every block; selective checkpointing keeps what the expensive operators gave."""
    if checkpointing is Checkpointing.NONE:
        return
    wrap = partial(checkpoint_wrapper, preserve_rng_state=False)  # nothing draws random numbers
    if checkpointing is Checkpointing.SELECTIVE:
        keep = partial(create_selective_checkpoint_contexts, _EXPENSIVE_OPERATORS)
        wrap = partial(wrap, context_fn=keep)
    for i, block in enumerate(model.blocks):
        model.blocks[i] = wrap(block)
