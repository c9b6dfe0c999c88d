"""The torch tensor of a plan."""

import torch

from evaluator.timing.fuzzing.tensors import TensorPlan

INTEGER_LIMIT = 100
"""Fits every integer type."""


def materialise(plan: TensorPlan) -> torch.Tensor:
    """Allocate and fill the tensor, random from the plan's seed: equal on equal devices.

    Its elements are from 0 to below 1, or whole from 0 to 99, or true and false.
    """
    allocation = _filled([plan.allocation_shape[dim] for dim in plan.order], plan)
    back = [plan.order.index(dim) for dim in range(len(plan.order))]
    return allocation.permute(back)[tuple(slice(None, None, step) for step in plan.steps)]


def _filled(shape: list[int], plan: TensorPlan) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, plan.dtype)
    generator = torch.Generator(plan.device).manual_seed(plan.seed)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.rand(shape, generator=generator, dtype=dtype, device=plan.device)
    limit = 2 if dtype is torch.bool else INTEGER_LIMIT
    return torch.randint(limit, shape, generator=generator, dtype=dtype, device=plan.device)
