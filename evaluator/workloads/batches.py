"""Synthetic batches: a function of seed and step alone, so every configuration sees the same."""

import torch
from torch import Tensor

from evaluator.rank.job import Workload

_STRIDE = 7
_SEED_STRIDE = 1_000_003


class Batches:
    """One replica's share of each global batch.

    Each sequence starts at a random token and goes on in equal strides around the vocabulary:
    easy to learn, so that the loss falls within a few steps if, and only if, training works.
    """

    def __init__(
        self, workload: Workload, *, replica: int, replica_count: int, device: torch.device
    ) -> None:
        self._workload = workload
        share = workload.global_batch // replica_count
        self._rows = slice(replica * share, (replica + 1) * share)
        self._offsets = _STRIDE * torch.arange(workload.sequence_length + 1)
        self._device = device

    def take(self, index: int) -> tuple[Tensor, Tensor]:
        """Tokens and next tokens of batch `index`, each (sequences of this replica, length)."""
        generator = torch.Generator().manual_seed(self._workload.seed * _SEED_STRIDE + index)
        starts = torch.randint(
            self._workload.vocab_size, (self._workload.global_batch, 1), generator=generator
        )
        sequences = (starts[self._rows] + self._offsets) % self._workload.vocab_size
        sequences = sequences.to(self._device)
        return sequences[:, :-1], sequences[:, 1:]
