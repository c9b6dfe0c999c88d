"""Entries that train as the built-in one does, and show more on request."""

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn
from torch._inductor import config as inductor
from torch.nn.parallel import DistributedDataParallel

from evaluator.rank.job import OptimizerLoop
from evaluator.rank.main import RankContext
from evaluator.rank.steps import Work
from evaluator.workloads import training
from evaluator.workloads.model import Attention, Decoder, build_decoder
from evaluator.workloads.training import train

SHARPNESS = 15.0


def descend(context: RankContext) -> Work:
    """Trains so that a mistake shows in the loss.

    By plain gradient descent: AdamW would hide a gradient of the wrong length. And from queries
    and keys that tell positions apart, as they only would after long training.
    """
    training.open_optimizer = _plain_descent
    training.build_decoder = _sharp_decoder
    return train(context)


def describe(context: RankContext) -> Work:
    """Leaves in the folder how the rank was set up."""
    work = train(context)
    model = work._passes._model
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    text = {
        "thread_count": torch.get_num_threads(),
        "has_static_graph": getattr(model, "static_graph", None),
        "is_compiled": [block._compiled_call_impl is not None for block in inner.blocks],
    }
    Path(f"rank{context.rank}.described.json").write_text(json.dumps(text), encoding="utf-8")
    return work


def describe_compiled(context: RankContext) -> Work:
    """As above, compiled to calls of torch's own kernels: new ones take g++ half a minute."""
    inductor.fallback_by_default = True
    return describe(context)


def _sharp_decoder(*arguments: object, **options: object) -> Decoder:
    model = build_decoder(*arguments, **options)
    for module in model.modules():
        if isinstance(module, Attention):
            module.query.weight.data.mul_(SHARPNESS)
            module.key.weight.data.mul_(SHARPNESS)
    return model


def _plain_descent(
    parameters: Iterable[nn.Parameter],
    loop: OptimizerLoop,  # noqa: ARG001 - stands in for the trainer's own
) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(parameters), lr=0.3, foreach=False)
