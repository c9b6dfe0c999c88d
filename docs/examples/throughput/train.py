"""Trains a small network; the batch size is free, so trials are compared by throughput."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import cclsearch

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8, help="sequences of each rank")
options = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 256)))
optimizer = torch.optim.AdamW(model.parameters())
batches = [torch.randint(256, (options.batch_size, 65)) for _ in range(4)]

for batch in cclsearch.steps(batches):
    logits = model(batch[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    cclsearch.log(tokens=logits.shape[0] * logits.shape[1])
dist.destroy_process_group()
