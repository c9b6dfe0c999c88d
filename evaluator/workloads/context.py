"""Context parallelism: ranks hold parts of every sequence and attend to the other parts."""

import torch
from torch import Tensor
from torch.distributed._functional_collectives import (
    all_gather_tensor_autograd,
    all_to_all_single_autograd,
)
from torch.distributed.device_mesh import DeviceMesh

from evaluator.rank.job import Config, ContextMethod
from evaluator.workloads.attention import Attend, CausalAttention
from evaluator.workloads.ring import RingAttention

_HEADS, _SEQUENCE, _SIZE = 1, 2, 3
"""Dimensions of queries, keys and values after the batch."""


def own_positions(config: Config, place: int, length: int) -> Tensor:
    """The places of each sequence that a rank holds, in the order in which it holds them.

    In a ring a rank holds a part from either end: later parts look at more keys, so that whole
    parts in order would leave the first rank waiting for the last.
    """
    positions = torch.arange(length)
    if config.cp > 1 and config.context_method is ContextMethod.RING:
        parts = positions.chunk(2 * config.cp)
        return torch.cat((parts[place], parts[-1 - place]))
    return positions.chunk(config.cp)[place]


def open_attention(config: Config, cp: DeviceMesh | None) -> Attend:
    """Give the attention of every layer; `cp` is `None` where sequences are whole."""
    plain = CausalAttention(config.attention_backend)
    if cp is None:
        return plain
    match config.context_method:
        case ContextMethod.RING:
            return RingAttention(cp.get_group(), config.attention_backend)
        case ContextMethod.ALL_GATHER:
            return GatheredAttention(cp, plain)
        case ContextMethod.ULYSSES:
            return HeadExchange(cp, plain)


class GatheredAttention:
    """Every rank fetches all keys and values and attends with its own queries."""

    def __init__(self, cp: DeviceMesh, attend: CausalAttention) -> None:
        self._cp = cp
        self._attend = attend

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend over (batch, heads, own part of the sequence, size)."""
        both = all_gather_tensor_autograd(
            torch.stack((key, value)), gather_dim=1 + _SEQUENCE, group=self._cp
        )
        keys, values = both.unbind()
        length, own = keys.shape[_SEQUENCE], query.shape[_SEQUENCE]
        positions = torch.arange(length, device=query.device)
        first = self._cp.get_local_rank() * own
        mask = positions <= positions[first : first + own, None]
        return self._attend(query, keys, values, mask=mask)


class HeadExchange:
    """Ranks swap parts of sequences for heads, attend over whole sequences and swap back."""

    def __init__(self, cp: DeviceMesh, attend: CausalAttention) -> None:
        self._cp = cp
        self._attend = attend

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend over (batch, heads, own part of the sequence, size)."""
        whole = (self._swap(x, split=_HEADS, join=_SEQUENCE) for x in (query, key, value))
        return self._swap(self._attend(*whole), split=_SEQUENCE, join=_HEADS)

    def _swap(self, x: Tensor, *, split: int, join: int) -> Tensor:
        parts = torch.stack(x.chunk(self._cp.size(), split))
        swapped = all_to_all_single_autograd(parts, None, None, self._cp)
        return torch.cat(swapped.unbind(), join)
