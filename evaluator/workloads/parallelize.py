"""The ranks as a grid, and every parallelism applied to one stage of the model, in order.

Training uses distributed tensors for tensor parallelism, and may cut the sequence too between the
matrices. Inference uses plain slices joined by collectives: decoding is many small operations, for
which distributed tensors would take longer than the operations themselves. Experts are cut along
the tp axis, dealt out along ep, copied along the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._inductor import config as inductor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor import parallel as tensor_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from evaluator.rank.job import Checkpointing, CommHook, Config, Reduction
from evaluator.rank.steps import require_room_for_groups
from evaluator.workloads.context_parallel import open_attention
from evaluator.workloads.model import (
    Attention,
    Block,
    Decoder,
    ExpertLayer,
    Experts,
    FeedForward,
    RoutedExperts,
)

MERGES_MESHES = hasattr(DeviceMesh, "_concatenate")
"""Whether axes can be put together as one likes, and modules be replicated: from torch 2.10 on."""
_WHOLE = "whole"
"""An axis of a single rank, for older torch: what is sharded along it is replicated elsewhere."""
_AXES = ("pp", "dp_replicate", "dp_shard", "cp", _WHOLE, "tp")
"""Outermost first: neighbours in rank share the axis that talks most."""
_JOINED_GROUPS = 4
"""The most groups that are made of axes that are joined or divided again."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which ranks work together on what, seen from this rank."""

    mesh: DeviceMesh | None
    """`None` on a single rank. An axis of one rank is left out, if torch allows it: it would cost a
    group."""

    experts: DeviceMesh | None = None
    """The shards and the context once more, as `expert_copies` of groups (`ep`) that hold each
    expert once; `None` if every rank holds all experts."""

    def axis(self, name: str) -> DeviceMesh | None:
        """The ranks along an axis through this rank; `None` if the axis is not in use."""
        for mesh in (self.mesh, self.experts):
            if mesh is not None and name in (mesh.mesh_dim_names or ()):
                return mesh[name]
        return None

    def joined(self, *names: str) -> DeviceMesh | None:
        """The ranks along several axes as one axis; `None` if none of them is in use.

        Every rank must call it, for it connects them on first use.
        """
        used = tuple(name for name in names if name in self._names)
        if self.mesh is None or not used:
            return None
        return self.mesh[used]._flatten() if len(used) > 1 else self.mesh[used[0]]

    def merged(self, *axes: DeviceMesh) -> DeviceMesh:
        """Return one mesh with these axes."""
        if len(axes) == 1:
            return axes[0]
        if MERGES_MESHES:
            return DeviceMesh._concatenate(list(axes))
        assert self.mesh is not None
        # A slice of the mesh of all ranks, which knows the axes that were joined by their names.
        return self.mesh[tuple(name for axis in axes for name in axis.mesh_dim_names or ())]

    def place(self, name: str) -> int:
        """Return this rank's number along an axis."""
        axis = self.axis(name)
        return 0 if axis is None else axis.get_local_rank()

    def mean(self, losses: Sequence[Tensor], *names: str) -> list[float]:
        """Average what the ranks along these axes computed, if anything; each must call it."""
        if not losses:
            return []
        means = torch.stack(list(losses))
        for axis in filter(None, map(self.axis, names)):
            dist.all_reduce(means, group=axis.get_group())
            means /= axis.size()
        values: list[float] = means.tolist()
        return values

    @property
    def _names(self) -> tuple[str, ...]:
        return () if self.mesh is None else self.mesh.mesh_dim_names or ()


def open_layout(config: Config, device: torch.device) -> Layout:
    """Connect the ranks along every axis in use; every rank must call it."""
    sizes = {name: getattr(config, name, 1) for name in _AXES}
    used = tuple(name for name in _AXES if sizes[name] > 1)
    if not used:
        return Layout(None)
    if not MERGES_MESHES and config.dp_shard == 1 and config.dp_replicate * config.cp > 1:
        used = tuple(name for name in _AXES if name in (*used, _WHOLE))
    if len(used) > 1:
        require_room_for_groups(len(used) + _JOINED_GROUPS)
    layout = Layout(
        init_device_mesh(device.type, tuple(sizes[name] for name in used), mesh_dim_names=used)
    )
    shards = layout.joined("dp_shard", "cp")
    if config.ep == 1 or shards is None:
        return layout
    sizes = {"expert_copies": shards.size() // config.ep, "ep": config.ep}
    used = tuple(name for name in sizes if sizes[name] > 1)
    experts = shards._unflatten(0, tuple(sizes[name] for name in used), used)
    return replace(layout, experts=experts)


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
    model.autocasts = config.autocasts
    if config.compile:
        # A pool of compilers for each rank would crowd the machine.
        inductor.compile_threads = config.threads_per_rank
        for block in model.blocks:
            block.compile()
    return apply_data_parallel(model, config, layout)


Plan = dict[str, ParallelStyle]


def apply_tensor_parallel(model: Decoder, config: Config, tp: DeviceMesh) -> None:
    """Cut a stage's parameters, so that each rank computes with some heads and some columns.

    With sequence parallelism each rank holds a part of the sequence between the cut layers;
    with loss parallelism the logits stay cut along the vocabulary.
    """
    between = Shard(1) if config.sequence_parallel else Replicate()
    outer: Plan = {}
    if model.embedding is not None:
        outer["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
    if model.head is not None:
        logits = Shard(-1) if config.loss_parallel else Replicate()
        outer["head"] = ColwiseParallel(input_layouts=between, output_layouts=logits)
        if config.sequence_parallel:
            outer["norm"] = SequenceParallel()
    parallelize_module(model, tp, outer)
    for block in model.blocks:
        layer = block.feed_forward
        plan = _pair_plan("attention", ("query", "key", "value"), "output", between)
        if config.sequence_parallel:
            plan |= {"attention_norm": SequenceParallel(), "feed_forward_norm": SequenceParallel()}
        if isinstance(layer, ExpertLayer):
            plan |= expert_plan(layer, between)
        else:
            plan |= _pair_plan("feed_forward", ("gate", "up"), "down", between)
        parallelize_module(block, tp, plan)


def _pair_plan(part: str, inner: Sequence[str], outer: str, between: Placement) -> Plan:
    """Cut matrices that follow each other, so that no rank needs another's part in between."""
    gather = PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),))
    return {
        part: gather,
        **{f"{part}.{name}": ColwiseParallel() for name in inner},
        f"{part}.{outer}": RowwiseParallel(output_layouts=between),
    }


_OUTPUTS, _INPUTS = -2, -1
"""Dimensions of a linear layer's matrix, and of those of experts on a stack."""


def apply_inference_tensor_parallel(model: Decoder, tp: DeviceMesh) -> None:
    """Cut a whole model, so that each rank computes with some heads and some columns."""
    if model.embedding is not None:
        _cut(model.embedding.weight, -1, tp)  # a token's vector, not the vocabulary
        model.embedding.register_forward_hook(partial(_slices_gather, tp))
    if model.head is not None:
        _cut(model.head.weight, _OUTPUTS, tp)
        model.head.register_forward_hook(partial(_slices_gather, tp))
    for part in model.modules():
        match part:
            case Attention(query=query, key=key, value=value, output=output):
                _cut_pair((query.weight, key.weight, value.weight), output.weight, tp)
            case FeedForward(gate=gate, up=up, down=down):
                _cut_pair((gate.weight, up.weight), down.weight, tp)
            case Experts(gate=gate, up=up, down=down):
                _cut_pair((gate, up), down, tp)
            case Block(attention=attention, feed_forward=feed_forward):
                attention.register_forward_hook(partial(_add_up, tp))
                feed_forward.register_forward_hook(partial(_add_up, tp))


def _cut_pair(inner: Sequence[Tensor], outer: Tensor, tp: DeviceMesh) -> None:
    """Cut matrices that follow each other, so that no rank needs another's part in between."""
    for matrix in inner:
        _cut(matrix, _OUTPUTS, tp)
    _cut(outer, _INPUTS, tp)


def _cut(matrix: Tensor, dimension: int, tp: DeviceMesh) -> None:
    """Keep this rank's even part, in separate memory so that the whole can go."""
    matrix.data = matrix.data.chunk(tp.size(), dimension)[tp.get_local_rank()].clone()


def _add_up(tp: DeviceMesh, module: nn.Module, inputs: object, output: Tensor) -> Tensor:  # noqa: ARG001 - a hook
    """Turn what this rank's heads or columns contribute into the whole."""
    dist.all_reduce(output, group=tp.get_group())
    return output


def _slices_gather(tp: DeviceMesh, module: nn.Module, inputs: object, output: Tensor) -> Tensor:  # noqa: ARG001 - a hook
    """Turn some columns of the output into all of them."""
    parts = [torch.empty_like(output) for _ in range(tp.size())]
    dist.all_gather(parts, output, group=tp.get_group())
    return torch.cat(parts, dim=-1)


class SliceExperts(ParallelStyle):
    """Cuts every routed expert along its inner columns; all slices route the same tokens."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, RoutedExperts)
        _distribute(module.router, device_mesh, weight=Replicate())
        _distribute(module.experts, device_mesh, gate=Shard(1), up=Shard(1), down=Shard(2))
        module.register_forward_pre_hook(_take_whole_tokens)
        return module


def expert_plan(layer: ExpertLayer, between: Placement) -> Plan:
    """Return a block's plan for the layer, between layers that leave hidden states so placed.

    Routed and shared experts each give a part of the sum, which is exchanged once.
    """
    plan: Plan = {
        "feed_forward": tensor_parallel.PrepareModuleInputOutput(
            input_layouts=(between,),
            desired_input_layouts=(Replicate(),),
            output_layouts=(Partial(),),
            desired_output_layouts=(between,),
        ),
        "feed_forward.routed": SliceExperts(),
    }
    if layer.shared is not None:
        plan |= {
            "feed_forward.shared.gate": ColwiseParallel(),
            "feed_forward.shared.up": ColwiseParallel(),
            "feed_forward.shared.down": RowwiseParallel(output_layouts=Partial()),
        }
    return plan


def apply_expert_parallel(model: nn.Module, peers: DeviceMesh) -> None:
    """Leave each of the peers an equal share of consecutive experts in every layer."""
    for experts in _experts(model):
        for name, weight in list(experts.named_parameters()):
            experts.register_parameter(name, nn.Parameter(_deal(weight, peers)))
        experts.peers = peers.get_group()


def apply_expert_data_parallel(
    model: nn.Module, config: Config, layout: Layout, policy: MixedPrecisionPolicy, *, reshard: bool
) -> set[nn.Parameter]:
    """Connect dealt experts with their copies on other ranks, as the rest of the model is.

    Returns the parameters of which there are no copies: what wraps the model must ignore them.
    """
    if layout.experts is None:
        return set()
    meshes = [layout.axis("dp_replicate"), layout.axis("expert_copies")]
    used = [mesh for mesh in meshes if mesh is not None]
    if not used:
        return {weight for experts in _experts(model) for weight in experts.parameters()}
    mesh = layout.merged(*used)
    if config.dp_shard > 1 and layout.axis("expert_copies") is not None:
        for experts in _experts(model):
            fully_shard(experts, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        return set()
    copies = mesh if mesh.ndim == 1 else mesh._flatten()
    for experts in _experts(model):
        _replicate(experts, layout, copies, policy, set())
    return set()


def _experts(model: nn.Module) -> list[Experts]:
    return [module for module in model.modules() if isinstance(module, Experts)]


def _distribute(module: nn.Module, mesh: DeviceMesh, **placements: Placement) -> None:
    for name, placement in placements.items():
        whole = module.get_parameter(name)
        spread = distribute_tensor(whole, mesh, [placement])
        module.register_parameter(name, nn.Parameter(spread))


def _take_whole_tokens(_: nn.Module, inputs: tuple[DTensor]) -> tuple[Tensor]:
    """Every slice sees all tokens and gives a part of their gradient."""
    return (inputs[0].to_local(grad_placements=[Partial()]),)


def _deal(weight: Tensor, peers: DeviceMesh) -> DTensor:
    """Return the consecutive experts of this rank, of stacked ones that may be slices already."""
    slices = [weight.device_mesh] if isinstance(weight, DTensor) else []
    placements = weight.placements if isinstance(weight, DTensor) else ()
    local = weight.to_local() if isinstance(weight, DTensor) else weight
    own = local.detach().chunk(peers.size())[peers.get_local_rank()].clone()
    mesh = DeviceMesh._concatenate([peers, *slices]) if slices else peers  # from torch 2.10 on
    return DTensor.from_local(own, mesh, [Shard(0), *placements], run_check=False)


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
    # DistributedDataParallel takes neither DTensors nor several stages, and split backward passes
    # escape it.
    stage_is_whole = config.stages_per_rank == 1 and not config.splits_backward
    if config.tp == 1 and config.cp == 1 and (config.pp == 1 or stage_is_whole):
        return _replicate_in_buckets(model, config, replicas)
    policy = MixedPrecisionPolicy()
    experts = apply_expert_data_parallel(model, config, layout, policy, reshard=False)
    for module in (*model.blocks, model):
        _replicate(module, layout, replicas, policy, experts)
    return _sum_only(model, replicas)


def _replicate(
    module: nn.Module,
    layout: Layout,
    replicas: DeviceMesh,
    policy: MixedPrecisionPolicy,
    ignored: set[nn.Parameter],
) -> None:
    """Have the gradients of a module averaged over its replicas."""
    if MERGES_MESHES:
        from torch.distributed._composable.replicate_with_fsdp import replicate

        replicate(module, mesh=replicas, mp_policy=policy, ignored_params=ignored)
        return
    whole = layout.axis(_WHOLE)
    assert whole is not None
    mesh = layout.merged(replicas, whole)
    fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


def _replicate_in_buckets(model: nn.Module, config: Config, replicas: DeviceMesh) -> nn.Module:
    group = replicas.get_group()
    wrap = partial(DistributedDataParallel, forward_sync_buffers=False)
    if "forward_sync_buffers" not in signature(DistributedDataParallel).parameters:
        wrap = partial(DistributedDataParallel, broadcast_buffers=False)
    replica = wrap(
        model,
        process_group=group,
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
            from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook  # needs NumPy

            state = powerSGD_hook.PowerSGDState(
                group, matrix_approximation_rank=4, start_powerSGD_iter=2
            )
            replica.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        case CommHook.NONE:
            pass
    return replica


def _shard(model: Decoder, config: Config, layout: Layout) -> nn.Module:
    shards, replicas = layout.joined("dp_shard", "cp"), layout.axis("dp_replicate")
    if shards is None:
        return model
    mesh = shards if replicas is None else layout.merged(replicas, shards)
    policy = MixedPrecisionPolicy(reduce_dtype=_REDUCTIONS[config.fsdp_reduction])
    experts = apply_expert_data_parallel(model, config, layout, policy, reshard=config.reshards)
    shard = partial(fully_shard, mesh=mesh, mp_policy=policy)
    if experts:
        shard = partial(shard, ignored_params=experts)  # from torch 2.7 on
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
    if mesh.device_type != "cpu":
        return model
    if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        _complete_older_torch()
        return model
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    return model


def _complete_older_torch() -> None:
    """Give the streams of a CPU, which do nothing, what sharding asks of streams; keep to sums."""
    done = {"record_event": lambda _stream: torch.cpu.Event(), "wait_event": lambda *_: None}
    for name, does_nothing in done.items():
        setattr(torch.cpu.Stream, name, does_nothing)
    vars(_fsdp_collectives)["_get_gradient_divide_factors"] = _divide_after_sum


def _divide_after_sum(
    shards: dist.ProcessGroup, replicas: dist.ProcessGroup | None, *_: object
) -> tuple[float, float]:
    """By what older torch divides before and after it adds; without numbers it asks for a mean."""
    return 1.0, float(shards.size() * (1 if replicas is None else replicas.size()))


_aten = torch.ops.aten
_EXPENSIVE_OPERATORS = [
    _aten.mm.default,
    *([_aten._grouped_mm.default] if hasattr(_aten, "_grouped_mm") else []),
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
