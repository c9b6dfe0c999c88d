"""Attention over sequences that are whole on this rank, on the kernel the configuration names."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from evaluator.rank.job import AttentionBackend

_BACKENDS = {
    AttentionBackend.MATH: SDPBackend.MATH,
    AttentionBackend.FLASH: SDPBackend.FLASH_ATTENTION,
    AttentionBackend.EFFICIENT: SDPBackend.EFFICIENT_ATTENTION,
    AttentionBackend.CUDNN: SDPBackend.CUDNN_ATTENTION,
}


class Attend(Protocol):
    """Mixes values by how well their keys fit a query, never looking ahead."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend over (batch, heads, length, size); several query heads may share a key head."""


class CausalAttention:
    """Each query sees the keys up to its own place, or those that a mask shows it."""

    def __init__(self, backend: AttentionBackend) -> None:
        self._backend = backend

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None
    ) -> Tensor:
        """Attend over (batch, heads, length, size)."""
        with self._on_backend():
            return F.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=mask,
                # A query alone is in the last place and sees every key.
                is_causal=mask is None and query.shape[2] > 1,
                enable_gqa=key.shape[1] < query.shape[1],
            )

    def _on_backend(self) -> AbstractContextManager[None]:
        if self._backend is AttentionBackend.AUTO:
            return nullcontext()
        return sdpa_kernel(_BACKENDS[self._backend])
