"""The built-in trainer, except that each rank first does one all_reduce and notes when it is done.

Launched by `launch.py`; runs inside the ranks.
"""

import time
from pathlib import Path

import torch
import torch.distributed as dist

from evaluator.rank.main import RankContext
from evaluator.rank.steps import Work
from evaluator.workloads import training


def train(context: RankContext) -> Work:
    dist.all_reduce(torch.ones(1, device=context.device))
    if context.device.type == "cuda":
        torch.cuda.synchronize(context.device)
    note = Path(f"rank{context.rank}.first_collective.txt")
    note.write_text(str(time.perf_counter_ns()), encoding="ascii")
    return training.train(context)
