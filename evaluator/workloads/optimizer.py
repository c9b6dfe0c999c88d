"""The optimizer, and the way in which it goes over the parameters."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from evaluator.rank.job import OptimizerLoop

_LEARNING_RATE = 1e-3


def open_optimizer(parameters: Iterable[nn.Parameter], loop: OptimizerLoop) -> torch.optim.AdamW:
    """Give AdamW over all parameters.

    Parameters spread over different ranks are in groups of their own: one operation on many
    tensors cannot span them.
    """
    groups: defaultdict[DeviceMesh | None, list[nn.Parameter]] = defaultdict(list)
    for parameter in parameters:
        groups[parameter.device_mesh if isinstance(parameter, DTensor) else None].append(parameter)
    return torch.optim.AdamW(
        [{"params": group} for group in groups.values()],
        lr=_LEARNING_RATE,
        foreach=loop is OptimizerLoop.FOREACH,
        fused=loop is OptimizerLoop.FUSED,
    )
