"""Entries that work as the built-in ones do, and show more, or that only wait.

Runs inside ranks, so it knows only the standard library, torch and the rank's own modules.
"""

import json
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch._inductor import config as inductor
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from evaluator.rank.job import OptimizerLoop
from evaluator.rank.main import RankContext
from evaluator.rank.steps import Work
from evaluator.workloads import training
from evaluator.workloads.inference import Answers, Inference, serve
from evaluator.workloads.model import Attention, Decoder, build_decoder
from evaluator.workloads.training import Training, train

SHARPNESS = 15.0
EXPERTS_LEARNING_RATE = 2.0
SLOW_STEP_S = 0.01  # above what the launch is asked to stop at


def descend(context: RankContext) -> Work:
    """Trains so that a mistake shows in the loss.

    By plain gradient descent: AdamW would hide a gradient of the wrong length. And from queries
    and keys that tell positions apart, as they only would after long training.
    """
    training.open_optimizer = _plain_descent
    training.build_decoder = _sharp_decoder
    return train(context)


def descend_with_experts(context: RankContext) -> Training:
    """Trains by plain gradient descent, and leaves in the folder which experts the rank holds."""
    work = train(context)
    groups = [{"params": group["params"]} for group in work._optimizer.param_groups]
    work._optimizer = torch.optim.SGD(groups, lr=EXPERTS_LEARNING_RATE)
    held = [_own(weight) for group in groups for weight in group["params"] if weight.ndim == 3]
    note = {"expert_shapes": [list(weight.shape) for weight in held]}
    Path(f"rank{context.rank}.held.json").write_text(json.dumps(note), encoding="utf-8")
    return work


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


def tell_answers(context: RankContext) -> Inference:
    """Answers requests, and appends the choices of each round to a file of this rank."""
    work = serve(context)
    plain_answer = work.answer
    told = Path(f"rank{context.rank}.answers.jsonl")

    def answer(tokens: Tensor, targets: Tensor) -> Answers:
        answers = plain_answer(tokens, targets)
        with told.open("a", encoding="ascii") as file:
            file.write(json.dumps(answers.choices.tolist()) + "\n")
        return answers

    work.answer = answer  # type: ignore[method-assign] # the same work, told
    return work


class Alone:
    """Steps that last `step_s`, and tokens of which each rank feeds its share."""

    def __init__(self, context: RankContext, step_s: float) -> None:
        workload = context.job.workload
        self._tokens = workload.global_batch * workload.sequence_length // context.job.world_size
        self._step_s = step_s
        self._losses: list[float] = []

    def step(self, index: int) -> int:
        time.sleep(self._step_s)
        self._losses.append(float(index + 1))
        return self._tokens

    def global_losses(self) -> list[float]:
        return self._losses


def one_slow_rank(context: RankContext) -> Alone:
    """No rank waits for another here."""
    return Alone(context, SLOW_STEP_S if context.rank else 0.0)


def _own(weight: Tensor) -> Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight


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
