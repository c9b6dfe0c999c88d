"""The built-in training job: the same batches, model and optimizer however they are spread.

Every number is in the workload's precision: parameters, gradients, optimizer state and what
ranks send. Only the loss is computed in fp32.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from evaluator.rank.context import RankContext
from evaluator.rank.job import Precision
from evaluator.rank.steps import Work
from evaluator.workloads.batches import Batches
from evaluator.workloads.decoder import build_decoder
from evaluator.workloads.parallel import Layout, open_layout, spread
from evaluator.workloads.passes import Passes, open_passes

_LEARNING_RATE = 1e-3
_DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16}


def train(context: RankContext) -> Work:
    """Build this rank's share of the training job; every rank must call it."""
    job = context.job
    layout = open_layout(job.config, context.device)
    dtype = _DTYPES[job.workload.precision]
    model = build_decoder(job.workload)
    model.keep_stage(layout.place("pp"), job.config.pp)
    model.to(device=context.device, dtype=dtype)
    share = spread(model, job.config, layout)
    replica = layout.place("dp_replicate") * job.config.dp_shard + layout.place("dp_shard")
    return Training(
        batches=Batches(
            job.workload, replica=replica, replica_count=job.config.dp, device=context.device
        ),
        passes=open_passes(share, job, layout, device=context.device, dtype=dtype),
        optimizer=torch.optim.AdamW(share.parameters(), lr=_LEARNING_RATE),
        layout=layout,
    )


class Training:
    """Repeats optimizer steps over the global batch and keeps their losses."""

    def __init__(
        self,
        *,
        batches: Batches,
        passes: Passes,
        optimizer: torch.optim.Optimizer,
        layout: Layout,
    ) -> None:
        self._batches = batches
        self._passes = passes
        self._optimizer = optimizer
        self._layout = layout
        self._losses: list[Tensor] = []

    def step(self, index: int) -> int:
        """Train on batch `index`; return the tokens fed where this rank counts them."""
        tokens, targets = self._batches.take(index)
        loss = self._passes.run(tokens, targets)
        self._optimizer.step()
        self._optimizer.zero_grad()
        if loss is not None:
            self._losses.append(loss)
        counts_tokens = self._layout.place("pp") == 0 and self._layout.place("tp") == 0
        return tokens.numel() if counts_tokens else 0

    def global_losses(self) -> list[float]:
        """Mean loss of every step so far; empty where the last stage is elsewhere."""
        if not self._losses:
            return []
        losses = torch.stack(self._losses)
        for name in ("dp_shard", "dp_replicate"):
            axis = self._layout.axis(name)
            if axis is not None:
                dist.all_reduce(losses, group=axis.get_group())
                losses /= axis.size()
        values: list[float] = losses.tolist()
        return values
