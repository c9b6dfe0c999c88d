"""The training job with an optimizer that shows mistakes, and with a note of what each rank holds.

Runs inside ranks, so it knows only the standard library, torch and the rank's own modules.
"""

import json
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from evaluator.rank.main import RankContext
from evaluator.workloads.training import Training, train

LEARNING_RATE = 2.0


def descend(context: RankContext) -> Training:
    """Train by plain gradient descent: AdamW would hide a gradient that is off by a factor."""
    work = train(context)
    groups = [{"params": group["params"]} for group in work._optimizer.param_groups]
    work._optimizer = torch.optim.SGD(groups, lr=LEARNING_RATE)
    held = [_own(weight) for group in groups for weight in group["params"] if weight.ndim == 3]
    note = {"expert_shapes": [list(weight.shape) for weight in held]}
    Path(f"rank{context.rank}.held.json").write_text(json.dumps(note), encoding="utf-8")
    return work


def _own(weight: torch.Tensor) -> torch.Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight
