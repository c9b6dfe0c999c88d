"""Apply all parallelisms to one stage of the model, in order, and activation checkpointing."""

from functools import partial
from itertools import islice

import torch
from torch import nn
from torch._inductor import config as inductor
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from evaluator.rank.job import Checkpointing, CommHook, Config, Reduction
from evaluator.workloads.context_parallel import open_attention
from evaluator.workloads.expert_parallel import apply_expert_data_parallel, apply_expert_parallel
from evaluator.workloads.layout import Layout
from evaluator.workloads.model import Attention, Decoder
from evaluator.workloads.tensor_parallel import apply_tensor_parallel

_REDUCTIONS = {
    Reduction.PARAMETER: None,
    Reduction.FP32: torch.float32,
    Reduction.BF16: torch.bfloat16,
}


def apply_data_parallel(model: Decoder, config: Config, layout: Layout) -> nn.Module:
    """Connect a stage with the same stage on the ranks that see other tokens.

    A context-parallel rank sees other tokens of the same sequences. Parameters are sharded over
    the shards and the context; without shards they are replicated, by
    DistributedDataParallel where it can.
    """
    if config.dp_shard > 1:
        return _shard(model, config, layout)
    replicas = layout.joined("dp_replicate", "cp")
    if replicas is None:
        return model
    if _takes_distributed_data_parallel(config):
        return _replicate_in_buckets(model, config, replicas)
    return _replicate(model, config, layout, replicas)


def _takes_distributed_data_parallel(config: Config) -> bool:
    """It takes neither DTensors nor several stages, and split backward passes escape it."""
    stage_is_whole = config.stages_per_rank == 1 and not config.splits_backward
    return config.tp == 1 and config.cp == 1 and (config.pp == 1 or stage_is_whole)


def _replicate_in_buckets(model: nn.Module, config: Config, replicas: DeviceMesh) -> nn.Module:
    group = replicas.get_group()
    replica = DistributedDataParallel(
        model,
        process_group=group,
        forward_sync_buffers=False,
        bucket_cap_mb=config.ddp_bucket_mib,
        gradient_as_bucket_view=config.ddp_bucket_view,
        static_graph=config.ddp_static_graph,
    )
    match config.ddp_comm_hook:
        case CommHook.FP16:
            replica.register_comm_hook(group, default_hooks.fp16_compress_hook)
        case CommHook.BF16:
            replica.register_comm_hook(group, default_hooks.bf16_compress_hook)
        case CommHook.POWER_SGD:
            state = powerSGD_hook.PowerSGDState(
                group, matrix_approximation_rank=4, start_powerSGD_iter=2
            )
            replica.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        case CommHook.NONE:
            pass
    return replica


def _replicate(model: Decoder, config: Config, layout: Layout, replicas: DeviceMesh) -> nn.Module:
    policy = MixedPrecisionPolicy()
    experts = apply_expert_data_parallel(model, config, layout, policy, reshard=False)
    for module in (*model.blocks, model):
        replicate(module, mesh=replicas, ignored_params=experts)
    return _sum_only(model, replicas)


def _shard(model: Decoder, config: Config, layout: Layout) -> nn.Module:
    shards, replicas = layout.joined("dp_shard", "cp"), layout.axis("dp_replicate")
    if shards is None:
        return model
    mesh = shards if replicas is None else DeviceMesh._concatenate([replicas, shards])
    policy = MixedPrecisionPolicy(reduce_dtype=_REDUCTIONS[config.fsdp_reduction])
    experts = apply_expert_data_parallel(model, config, layout, policy, reshard=config.reshards)
    shard = partial(fully_shard, mesh=mesh, mp_policy=policy, ignored_params=experts)
    for block in model.blocks:
        shard(block, reshard_after_forward=config.reshards)
    # What only the root holds is needed again immediately, by the backward pass.
    shard(model, reshard_after_forward=False)
    _prefetch(model, config.fsdp_prefetch)
    return _sum_only(model, mesh)


def _prefetch(model: Decoder, count: int) -> None:
    """Gather the next blocks' parameters ahead of their passes; 0 leaves it to torch."""
    if count == 0:
        return
    blocks: list[FSDPModule] = [block for block in model.blocks if isinstance(block, FSDPModule)]
    for i, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(blocks[i + 1 : i + 1 + count])
        block.set_modules_to_backward_prefetch(list(islice(reversed(blocks[:i]), count)))


def _sum_only(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Keep to reductions that gloo has: it cannot scale while it adds."""
    if mesh.device_type == "cpu":
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
    return model


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


def apply_checkpointing(model: Decoder, checkpointing: Checkpointing) -> None:
    """Wrap every block; selective checkpointing keeps what the expensive operators gave."""
    if checkpointing is Checkpointing.NONE:
        return
    wrap = partial(checkpoint_wrapper, preserve_rng_state=False)  # nothing draws random numbers
    if checkpointing is Checkpointing.SELECTIVE:
        keep = partial(create_selective_checkpoint_contexts, _EXPENSIVE_OPERATORS)
        wrap = partial(wrap, context_fn=keep)
    for i, block in enumerate(model.blocks):
        model.blocks[i] = wrap(block)


def parallelize(model: Decoder, config: Config, layout: Layout) -> nn.Module:
    """Turn a whole stage, on its device, into this rank's share of it.

    Each transformation wraps what the one before it left: compilation must see recomputation and
    cut tensors, and the exchange of gradients must see compiled blocks.
    """
    tp = layout.axis("tp")
    if tp is not None:
        apply_tensor_parallel(model, config, tp)
    attend = open_attention(config, layout.axis("cp"))
    for module in model.modules():
        if isinstance(module, Attention):
            module.attend = attend
    peers = layout.axis("ep")
    if peers is not None:
        apply_expert_parallel(model, peers)
    apply_checkpointing(model, config.activation_checkpointing)
    if config.compile:
        # A pool of compilers for each rank would crowd the machine.
        inductor.compile_threads = config.threads_per_rank
        for block in model.blocks:
            block.compile()
    return apply_data_parallel(model, config, layout)
