"""Micro-batches in turn on a rank that holds every layer."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from evaluator.workloads.loss import MicroBatchLoss


class Accumulation:
    """Gradients add up over the micro-batches and are exchanged with the last one."""

    def __init__(self, model: nn.Module, loss: MicroBatchLoss, *, micro_batch: int) -> None:
        self._model = model
        self._loss = loss
        self._micro_batch = micro_batch

    def run(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Leave the gradients of (sequences, length) on the parameters; return the mean loss."""
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
