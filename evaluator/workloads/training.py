"""The built-in training job: the same batches, model and optimizer however they are spread.

Every number is in the workload's precision: parameters, gradients, optimizer state and what
ranks send, unless a knob names another format. Only the loss is computed in fp32.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from evaluator.rank.context import RankContext
from evaluator.rank.steps import Work
from evaluator.workloads.accumulation import Accumulation
from evaluator.workloads.batches import Batches
from evaluator.workloads.context import own_positions
from evaluator.workloads.decoder import DTYPES, Stage, build_decoder
from evaluator.workloads.layout import Layout, open_layout
from evaluator.workloads.loss import MicroBatchLoss
from evaluator.workloads.optimizer import open_optimizer
from evaluator.workloads.pipeline import Pipeline, own_stages
from evaluator.workloads.spread import spread


class Passes(Protocol):
    """Forward and backward over one step's micro-batches."""

    def run(self, tokens: Tensor, targets: Tensor) -> Tensor | None:
        """Leave a global batch's gradients on the parameters, exchanged between replicas.

        Take this replica's (sequences, length); return its mean loss, `None` where it is not seen.
        """


def train(context: RankContext) -> Work:
    """Build this rank's share of the training job; every rank must call it."""
    workload, config = context.job.workload, context.job.config
    layout = open_layout(config, context.device)
    dtype = DTYPES[workload.precision]
    positions = own_positions(config, layout.place("cp"), workload.sequence_length)
    models = {
        stage: spread(
            build_decoder(workload, stage, positions, device=context.device, dtype=dtype),
            config,
            layout,
        )
        for stage in own_stages(config, layout.place("pp"))
    }
    parameters = chain.from_iterable(model.parameters() for model in models.values())
    return Training(
        batches=Batches(
            workload,
            replica=layout.place("dp_replicate") * config.dp_shard + layout.place("dp_shard"),
            replica_count=config.dp,
            positions=positions,
            device=context.device,
        ),
        passes=_open_passes(models, context, layout, dtype),
        optimizer=open_optimizer(parameters, config.optimizer_loop),
        layout=layout,
    )


def _open_passes(
    models: Mapping[Stage, nn.Module], context: RankContext, layout: Layout, dtype: torch.dtype
) -> Passes:
    job, tp, pp = context.job, layout.axis("tp"), layout.axis("pp")
    loss = MicroBatchLoss(job.micro_batch_count, tp if job.config.loss_parallel else None)
    if pp is None:
        (model,) = models.values()
        return Accumulation(model, loss, micro_batch=job.config.micro_batch)
    return Pipeline(models, loss, job, ranks=pp, device=context.device, dtype=dtype)


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
        for name in ("cp", "dp_shard", "dp_replicate"):
            axis = self._layout.axis(name)
            if axis is not None:
                dist.all_reduce(losses, group=axis.get_group())
                losses /= axis.size()
        values: list[float] = losses.tolist()
        return values
