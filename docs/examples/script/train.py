"""Trains a small network with DistributedDataParallel; three lines are cclsearch's."""

import argparse
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import cclsearch  # 1

GLOBAL_BATCH = int(os.environ.get("GLOBAL_BATCH", "32"))
SEQUENCE_LENGTH, VOCABULARY, WIDTH = 64, 256, 64


class Network(nn.Module):
    """Predicts each next token from the one before it."""

    def __init__(self, checkpointing: bool) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        inner = 4 * WIDTH
        self.hidden = nn.Sequential(nn.Linear(WIDTH, inner), nn.GELU(), nn.Linear(inner, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        x = self.embedding(tokens[:, :-1])
        if self.checkpointing:
            x = x + checkpoint(self.hidden, x, use_reentrant=False)
        else:
            x = x + self.hidden(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dp", type=int, help="number of ranks, which torchrun starts")
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--activation-checkpointing", choices=["true", "false"], default="false")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(Network(options.activation_checkpointing == "true"))
    optimizer = torch.optim.AdamW(model.parameters())
    # The same tokens in every trial, divided among the ranks.
    batch = torch.randint(VOCABULARY, (GLOBAL_BATCH, SEQUENCE_LENGTH))[rank::ranks]

    for _ in cclsearch.steps(range(1000)):  # 2
        parts = batch.split(options.micro_batch)
        for number, part in enumerate(parts, 1):
            with nullcontext() if number == len(parts) else model.no_sync():
                loss = model(part) / len(parts)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        cclsearch.log(tokens=batch.numel())  # 3
    dist.destroy_process_group()


main()
