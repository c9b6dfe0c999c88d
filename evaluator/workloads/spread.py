"""The order in which one stage of the model is spread over the ranks."""

from torch import nn
from torch._inductor import config as inductor

from evaluator.rank.job import Config
from evaluator.workloads.checkpointing import recompute
from evaluator.workloads.context import open_attention
from evaluator.workloads.data_parallel import share_gradients
from evaluator.workloads.decoder import Attention, Decoder
from evaluator.workloads.expert_parallel import deal_experts
from evaluator.workloads.layout import Layout
from evaluator.workloads.tensor import slice_tensors


def spread(model: Decoder, config: Config, layout: Layout) -> nn.Module:
    """Turn a whole stage, on its device, into this rank's share of it.

    Each transformation wraps what the one before it left: compilation must see recomputation and
    cut tensors, and the exchange of gradients must see compiled blocks.
    """
    tp = layout.axis("tp")
    if tp is not None:
        slice_tensors(model, config, tp)
    attend = open_attention(config, layout.axis("cp"))
    for module in model.modules():
        if isinstance(module, Attention):
            module.attend = attend
    peers = layout.axis("ep")
    if peers is not None:
        deal_experts(model, peers)
    recompute(model, config.activation_checkpointing)
    if config.compile:
        # A pool of compilers for each rank would crowd the machine.
        inductor.compile_threads = config.threads_per_rank
        for block in model.blocks:
            block.compile()
    return share_gradients(model, config, layout)
