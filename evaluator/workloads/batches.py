"""Each step's tokens: a function of workload and step alone, the same in every configuration."""

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from evaluator.rank.job import Workload
from evaluator.rank.job_file import JobError

_STRIDE = 7
_SEED_STRIDE = 1_000_003


class Tokens(Protocol):
    """Where sequences come from."""

    def sequences(self, generator: torch.Generator, rows: slice) -> Tensor:
        """Draw a global batch and give some rows of it, each one token longer than a sequence."""


class Batches:
    """One replica's share of each global batch, and of its sequences the given places."""

    def __init__(
        self,
        workload: Workload,
        *,
        replica: int,
        replica_count: int,
        positions: Tensor,
        device: torch.device,
    ) -> None:
        self._source = open_tokens(workload)
        self._seed = workload.seed
        share = workload.global_batch // replica_count
        self._rows = slice(replica * share, (replica + 1) * share)
        self._positions = positions
        self._device = device

    def take(self, index: int) -> tuple[Tensor, Tensor]:
        """Tokens and next tokens of batch `index`, each (sequences of this replica, positions)."""
        generator = torch.Generator().manual_seed(self._seed * _SEED_STRIDE + index)
        sequences = self._source.sequences(generator, self._rows)
        tokens, targets = sequences[:, self._positions], sequences[:, self._positions + 1]
        return tokens.to(self._device), targets.to(self._device)


class SyntheticTokens:
    """Each sequence starts at a random token and goes on in equal strides around the vocabulary.

    Easy to learn, so that the loss falls within a few steps if, and only if, training works.
    """

    def __init__(self, workload: Workload) -> None:
        self._vocab_size = workload.vocab_size
        self._global_batch = workload.global_batch
        self._offsets = _STRIDE * torch.arange(workload.sequence_length + 1)

    def sequences(self, generator: torch.Generator, rows: slice) -> Tensor:
        """Draw the starts of all rows, count on from those that are wanted."""
        starts = torch.randint(self._vocab_size, (self._global_batch, 1), generator=generator)
        return (starts[rows] + self._offsets) % self._vocab_size


class TextTokens:
    """Pieces of a file, each byte a token; raises `JobError` if the file gives no sequence."""

    def __init__(self, workload: Workload, path: Path) -> None:
        self._workload = workload
        self._span = torch.arange(workload.sequence_length + 1)
        try:
            size = path.stat().st_size
            if size < len(self._span):
                raise JobError(
                    f"text_file: {path} has {size} bytes, but a sequence takes {len(self._span)}"
                )
            self._bytes = torch.from_file(str(path), size=size, dtype=torch.uint8)
        except (OSError, RuntimeError) as error:
            raise JobError(f"text_file: {path} cannot be read: {error}") from error

    def sequences(self, generator: torch.Generator, rows: slice) -> Tensor:
        """Draw where all rows begin, read those that are wanted."""
        last = len(self._bytes) - len(self._span)
        starts = torch.randint(last + 1, (self._workload.global_batch, 1), generator=generator)
        return self._bytes[starts[rows] + self._span].long() % self._workload.vocab_size


def open_tokens(workload: Workload) -> Tokens:
    """Read the workload's text if it names one; raises `JobError`."""
    if workload.text_file is None:
        return SyntheticTokens(workload)
    return TextTokens(workload, Path(workload.text_file).expanduser())
