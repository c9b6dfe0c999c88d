"""What ranks tell each other between measurements, through the library that is measured."""

from collections.abc import Sequence

import torch

from evaluator.workloads.collectives.adapters.adapter import CommAdapter, Tensors
from evaluator.workloads.collectives.operations import Collective, DType, Operation


def gathered(
    adapter: CommAdapter, numbers: Sequence[int], device: torch.device
) -> tuple[tuple[int, ...], ...]:
    """Give every rank's numbers to all ranks; each gives equally many, and at least one."""
    own = torch.tensor(numbers, dtype=torch.int64, device=device)
    everyones = own.new_empty(adapter.get_size() * len(numbers))
    operation = Operation(
        collective=Collective.ALL_GATHER_SINGLE, size_bytes=own.nbytes, dtype=DType.INT64
    )
    adapter.run_collective(operation, Tensors(inputs=(own,), outputs=(everyones,)))
    of_ranks: list[list[int]] = everyones.view(adapter.get_size(), len(numbers)).tolist()
    return tuple(tuple(of_rank) for of_rank in of_ranks)


def first_said(adapter: CommAdapter, line: str | None, device: torch.device) -> str | None:
    """Give all ranks the line of the first rank that has one; None if none has."""
    letters = [ord(letter) for letter in line or ""]
    lengths = [length for (length,) in gathered(adapter, [len(letters)], device)]
    if not any(lengths):
        return None
    padding = [0] * (max(lengths) - len(letters))
    lines = gathered(adapter, letters + padding, device)
    rank = next(rank for rank, length in enumerate(lengths) if length)
    return "".join(map(chr, lines[rank][: lengths[rank]]))
