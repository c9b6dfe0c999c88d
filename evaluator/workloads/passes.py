"""Forward and backward over one step's micro-batches, in turn or through pipeline stages."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from evaluator.rank.job import Job
from evaluator.workloads.parallel import Layout


class Passes(Protocol):
    """Leaves the gradients of one global batch on the parameters, exchanged between replicas."""

    def run(self, tokens: Tensor, targets: Tensor) -> Tensor | None:
        """Process (sequences, length); the replica's mean loss, `None` where it is not seen."""


def open_passes(
    model: nn.Module, job: Job, layout: Layout, *, device: torch.device, dtype: torch.dtype
) -> Passes:
    """Choose the pipeline if there is one."""
    loss = MicroBatchLoss(job.micro_batch_count, layout.axis("tp"))
    stages = layout.axis("pp")
    if stages is None:
        return Accumulation(model, loss, micro_batch=job.config.micro_batch)
    return Pipeline(_stage(model, job, stages, device=device, dtype=dtype), loss)


class MicroBatchLoss:
    """One micro-batch's part of the mean loss: parts add up to the mean over all tokens."""

    def __init__(self, micro_batch_count: int, tp: DeviceMesh | None) -> None:
        self.micro_batch_count = micro_batch_count
        self._tp = tp

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Take logits (sequences, length, vocabulary or this rank's slice of it)."""
        logits = logits.flatten(0, 1).float()
        if self._tp is None:
            return F.cross_entropy(logits, targets.flatten()) / self.micro_batch_count
        whole = DTensor.from_local(logits, self._tp, [Shard(1)], run_check=False)
        loss = F.cross_entropy(whole, targets.flatten()) / self.micro_batch_count
        assert isinstance(loss, DTensor)
        return loss.full_tensor()

    def sliced(self) -> AbstractContextManager[None]:
        """Keep the vocabulary sliced within the block, which spans forward and backward."""
        return nullcontext() if self._tp is None else loss_parallel()


class Accumulation:
    """Micro-batches in turn; gradients add up and are exchanged with the last one."""

    def __init__(self, model: nn.Module, loss: MicroBatchLoss, *, micro_batch: int) -> None:
        self._model = model
        self._loss = loss
        self._micro_batch = micro_batch

    def run(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the replica's mean loss."""
        pieces = zip(
            torch.split(tokens, self._micro_batch),
            torch.split(targets, self._micro_batch),
            strict=True,
        )
        total = torch.zeros((), device=tokens.device)
        with self._loss.sliced():
            for i, (inputs, outputs) in enumerate(pieces):
                with self._exchange(wanted=i == self._loss.micro_batch_count - 1):
                    loss = self._loss(self._model(inputs), outputs)
                    torch.autograd.backward(loss)
                total += loss.detach()
        return total

    def _exchange(self, *, wanted: bool) -> AbstractContextManager[None]:
        if isinstance(self._model, FSDPModule):
            self._model.set_requires_gradient_sync(wanted)
        elif isinstance(self._model, DistributedDataParallel) and not wanted:
            return self._model.no_sync()
        return nullcontext()


class Pipeline:
    """One stage of a pipeline that alternates one forward with one backward (1F1B)."""

    def __init__(self, stage: PipelineStage, loss: MicroBatchLoss) -> None:
        self._stage = stage
        self._loss = loss
        # The loss already carries the micro-batch count.
        self._schedule = Schedule1F1B(
            stage, loss.micro_batch_count, loss_fn=loss, scale_grads=False
        )

    def run(self, tokens: Tensor, targets: Tensor) -> Tensor | None:
        """Return the replica's mean loss on the last stage."""
        parts: list[Tensor] = []
        with self._loss.sliced():
            if self._stage.is_first:
                self._schedule.step(tokens, return_outputs=False)
            elif self._stage.is_last:
                self._schedule.step(target=targets, losses=parts, return_outputs=False)
            else:
                self._schedule.step(return_outputs=False)
        return torch.stack(parts).detach().sum() if parts else None


def _stage(
    model: nn.Module, job: Job, stages: DeviceMesh, *, device: torch.device, dtype: torch.dtype
) -> PipelineStage:
    """Describe what crosses the stage's borders, so that no pass is spent on finding out."""
    workload, config = job.workload, job.config
    place, stage_count = stages.get_local_rank(), stages.size()
    batch, length = config.micro_batch, workload.sequence_length
    hidden = (batch, length // config.tp, workload.hidden_size)
    logits = (batch, length, workload.vocab_size // config.tp)
    if place == 0:
        inputs = torch.empty(batch, length, dtype=torch.long, device="meta")
    else:
        inputs = torch.empty(hidden, dtype=dtype, device="meta", requires_grad=True)
    outputs = torch.empty(
        logits if place == stage_count - 1 else hidden,
        dtype=dtype,
        device="meta",
        requires_grad=True,
    )
    return PipelineStage(
        model,
        place,
        stage_count,
        device,
        input_args=inputs,
        output_args=outputs,
        group=stages.get_group(),
    )
