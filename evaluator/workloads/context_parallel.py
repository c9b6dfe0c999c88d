"""Context parallelism: ranks hold parts of every sequence and attend to the other parts.

Three methods: a ring, gathered keys, and an exchange of heads (Ulysses). The ring itself is
torch's; here are the attention kernels that it runs on each kind of device.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed._functional_collectives import (
    all_gather_tensor_autograd,
    all_to_all_single_autograd,
)
from torch.distributed.device_mesh import DeviceMesh

try:
    from torch.distributed.tensor.experimental._context_parallel import _attention as _ring
except ImportError:  # torch before 2.10
    from torch.distributed.tensor.experimental import (  # type: ignore[no-redef]
        _attention as _ring,
    )

from evaluator.rank.job import AttentionBackend, Config, ContextMethod
from evaluator.workloads.model import Attend, CausalAttention

_aten = torch.ops.aten
_HEADS, _SEQUENCE = 1, 2
"""Dimensions of queries, keys and values after the batch."""


class _Operator(Protocol):
    def __call__(self, *tensors: object, **options: object) -> tuple[Tensor, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One attention kernel: its forward and backward operators and their arguments.

    `carried` names, in order, what forward gives after output and log-sum-exp for backward.
    """

    forward: _Operator
    backward: _Operator
    gradient_name: str = "grad_out"
    forward_options: Mapping[str, object] = field(default_factory=dict)
    backward_options: Mapping[str, object] = field(default_factory=dict)
    carried: tuple[str, ...] = ()


_SEEDS = ("philox_seed", "philox_offset")
_SIZES = ("cum_seq_q", "cum_seq_k", "max_q", "max_k")
_KERNELS = {
    "cpu": Kernel(
        forward=_aten._scaled_dot_product_flash_attention_for_cpu,
        backward=_aten._scaled_dot_product_flash_attention_for_cpu_backward,
    ),
    AttentionBackend.FLASH: Kernel(
        forward=_aten._scaled_dot_product_flash_attention,
        backward=_aten._scaled_dot_product_flash_attention_backward,
        carried=(*_SIZES, *_SEEDS),
    ),
    AttentionBackend.EFFICIENT: Kernel(
        forward=_aten._scaled_dot_product_efficient_attention,
        backward=_aten._scaled_dot_product_efficient_attention_backward,
        gradient_name="grad_out_",
        forward_options={"attn_bias": None, "compute_log_sumexp": True},
        backward_options={"attn_bias": None, "grad_input_mask": (True, True, True, False)},
        carried=_SEEDS,
    ),
    AttentionBackend.CUDNN: Kernel(
        forward=_aten._scaled_dot_product_cudnn_attention,
        backward=_aten._scaled_dot_product_cudnn_attention_backward,
        forward_options={"attn_bias": None, "compute_log_sumexp": True},
        backward_options={"attn_bias": None},
        carried=(*_SIZES, *_SEEDS),
    ),
}


class RingAttention:
    """Causal attention over sequences of which each rank holds a part from either end."""

    def __init__(self, cp: DeviceMesh, backend: AttentionBackend) -> None:
        # To the next rank only; torch would gather all parts together.
        _ring.set_rotate_method("alltoall")
        self._group = cp.get_group()
        if "mesh" in signature(_ring._templated_ring_attention).parameters:  # in older torch
            self._group = cp  # type: ignore[assignment]
        self._backend = backend

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend over (batch, heads, own parts of the sequence, size)."""
        kernel = self._kernel(query)
        mixed: Tensor = _Ring.apply(query, key, value, self._group, kernel)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return mixed

    def _kernel(self, query: Tensor) -> Kernel:
        if query.device.type == "cpu":
            return _KERNELS["cpu"]
        if self._backend is not AttentionBackend.AUTO:
            return _KERNELS[self._backend]
        # CUDA's flash kernels do not support fp32.
        fp32 = query.dtype is torch.float32
        return _KERNELS[AttentionBackend.EFFICIENT if fp32 else AttentionBackend.FLASH]


class _Context(Protocol):
    """What autograd keeps from the forward pass for the backward pass."""

    saved_tensors: tuple[Tensor, ...]
    group: ProcessGroup
    kernel: Kernel
    carried: dict[str, object]

    def save_for_backward(self, *tensors: Tensor) -> None: ...


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        context: _Context,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        group: ProcessGroup,
        kernel: Kernel,
    ) -> Tensor:
        output, log_sum_exp, *carried = _ring._templated_ring_attention(
            group,
            _SEQUENCE,
            partial(_forward, kernel),
            query,
            key,
            value,
            is_causal=True,
            dropout_p=0.0,
            **kernel.forward_options,
        )
        context.save_for_backward(query, key, value, output, log_sum_exp)
        context.group, context.kernel = group, kernel
        context.carried = dict(zip(kernel.carried, carried, strict=False))
        return output

    @staticmethod
    def backward(context: _Context, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, output, log_sum_exp = context.saved_tensors
        kernel = context.kernel
        of_query, of_key, of_value, *_ = _ring._templated_ring_attention_backward(
            context.group,
            _SEQUENCE,
            partial(_backward, kernel),
            gradient.contiguous(),
            kernel.gradient_name,
            query,
            key,
            value,
            output,
            log_sum_exp,
            is_causal=True,
            dropout_p=0.0,
            **kernel.backward_options,
            **context.carried,
        )
        return of_query, of_key, of_value, None, None


def _forward(
    kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, **options: object
) -> tuple[Tensor, ...]:
    """Attend; key heads that several query heads share are spread out only here, off the wire."""
    sharing = query.shape[_HEADS] // key.shape[_HEADS]
    return kernel.forward(query, _spread(key, sharing), _spread(value, sharing), **options)


def _backward(
    kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, **options: object
) -> tuple[Tensor, ...]:
    sharing = query.shape[_HEADS] // key.shape[_HEADS]
    of_query, of_key, of_value, *_ = kernel.backward(
        query=query, key=_spread(key, sharing), value=_spread(value, sharing), **options
    )
    return of_query, _gather(of_key, sharing), _gather(of_value, sharing)


def _spread(x: Tensor, sharing: int) -> Tensor:
    return x if sharing == 1 else x.repeat_interleave(sharing, _HEADS)


def _gather(gradient: Tensor, sharing: int) -> Tensor:
    if sharing == 1:
        return gradient
    batch, heads, *rest = gradient.shape
    return gradient.view(batch, heads // sharing, sharing, *rest).sum(1 + _HEADS)


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
    """Return the attention of every layer; `cp` is `None` where sequences are whole."""
    plain = CausalAttention(config.attention_backend)
    if cp is None:
        return plain
    match config.context_method:
        case ContextMethod.RING:
            return RingAttention(cp, config.attention_backend)
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
