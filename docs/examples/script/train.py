"""Trains a small network as its environment says, and reports what it did in TRACE_DIR."""

import json
import os
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint

TRACE_DIR = Path(os.environ["TRACE_DIR"])
MICRO_BATCH = int(os.environ["MICRO_BATCH"])
CHECKPOINTING = os.environ["ACTIVATION_CHECKPOINTING"] == "true"
GLOBAL_BATCH = int(os.environ["GLOBAL_BATCH"])
SEQUENCE_LENGTH = int(os.environ["SEQUENCE_LENGTH"])
WARMUP, TIMED, PROFILED = (int(os.environ[f"{n}_STEPS"]) for n in ("WARMUP", "TIMED", "PROFILED"))
VOCABULARY, WIDTH = 256, 64


class Network(nn.Module):
    """Guesses each next token from the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        inner = 4 * WIDTH
        self.hidden = nn.Sequential(nn.Linear(WIDTH, inner), nn.GELU(), nn.Linear(inner, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Give the loss."""
        x = self.embedding(tokens[:, :-1])
        if CHECKPOINTING:
            x = x + checkpoint(self.hidden, x, use_reentrant=False)
        else:
            x = x + self.hidden(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    """Warm up, time, profile, report."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(Network())
    optimizer = torch.optim.AdamW(model.parameters())
    # The same tokens in every trial, dealt out to the ranks.
    tokens = torch.randint(VOCABULARY, (GLOBAL_BATCH, SEQUENCE_LENGTH))[rank::ranks]

    def step() -> float:
        started = time.perf_counter()
        parts = tokens.split(MICRO_BATCH)
        for number, part in enumerate(parts, 1):
            with nullcontext() if number == len(parts) else model.no_sync():
                (model(part) / len(parts)).backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - started

    for _ in range(WARMUP):
        step()
    times = [step() for _ in range(TIMED)]
    if PROFILED:
        with profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=0, warmup=1, active=PROFILED, repeat=1),
            on_trace_ready=lambda p: p.export_chrome_trace(str(TRACE_DIR / f"rank{rank}.json")),
        ) as profiler:
            for _ in range(1 + PROFILED):
                step()
                profiler.step()

    reports: list[tuple[list[float], int]] = [([], 0)] * ranks
    dist.all_gather_object(reports, (times, tokens.numel()))
    if rank == 0:
        report = {
            "tokens_per_step": sum(count for _, count in reports),
            "step_times_s": [times for times, _ in reports],
        }
        (TRACE_DIR / "steps.json").write_text(json.dumps(report))
    dist.destroy_process_group()


main()
