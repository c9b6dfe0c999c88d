"""Experts spread over ranks: cut along the tp axis, dealt out along ep, copied along the rest."""

from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInputOutput,
    RowwiseParallel,
)

from evaluator.rank.job import Config
from evaluator.workloads.layout import Layout
from evaluator.workloads.model import ExpertLayer, Experts, RoutedExperts


class SliceExperts(ParallelStyle):
    """Cuts every routed expert along its inner columns; all slices route the same tokens."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, RoutedExperts)
        _distribute(module.router, device_mesh, weight=Replicate())
        _distribute(module.experts, device_mesh, gate=Shard(1), up=Shard(1), down=Shard(2))
        module.register_forward_pre_hook(_take_whole_tokens)
        return module


def expert_plan(layer: ExpertLayer, between: Placement) -> dict[str, ParallelStyle]:
    """Return a block's plan for the layer, between layers that leave hidden states so placed.

    Routed and shared experts each give a part of the sum, which is exchanged once.
    """
    plan: dict[str, ParallelStyle] = {
        "feed_forward": PrepareModuleInputOutput(
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
    mesh = used[0] if len(used) == 1 else DeviceMesh._concatenate(used)
    if config.dp_shard > 1 and layout.axis("expert_copies") is not None:
        for experts in _experts(model):
            fully_shard(experts, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        return set()
    copies = mesh if mesh.ndim == 1 else mesh._flatten()
    for experts in _experts(model):
        replicate(experts, mesh=copies, mp_policy=policy)
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
    mesh = DeviceMesh._concatenate([peers, *slices]) if slices else peers
    return DTensor.from_local(own, mesh, [Shard(0), *placements], run_check=False)
