"""The mixture-of-experts layer: a router, routed experts and shared ones; no token is dropped.

It has no load-balancing loss: the balance of one batch cannot be told from its parts, so such a
loss would depend on the layout.
"""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed._functional_collectives import (
    all_to_all_single,
    all_to_all_single_autograd,
)
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn import functional as F

from evaluator.rank.job import Workload
from evaluator.workloads.feed_forward import FeedForward


class ExpertLayer(nn.Module):
    """Each token passes the experts that the router chooses for it, and every shared expert."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.routed = RoutedExperts(workload)
        shared_size = workload.shared_expert_count * workload.expert_ffn_size
        self.shared = FeedForward(workload.hidden_size, shared_size) if shared_size else None

    def forward(self, x: Tensor) -> Tensor:
        """Transform (batch, sequence, hidden) position by position."""
        routed: Tensor = self.routed(x)
        return routed if self.shared is None else routed + self.shared(x)


class Router(nn.Module):
    """Chooses the experts of each token."""

    def __init__(self, hidden_size: int, expert_count: int, experts_per_token: int) -> None:
        super().__init__()
        self.experts_per_token = experts_per_token
        self.weight = nn.Parameter(torch.empty(expert_count, hidden_size))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Give weights that add up to 1 and expert numbers, each (tokens, experts per token).

        Scores are in fp32 whatever the tokens are: close ones should not swap in rounding.
        """
        scores = F.linear(tokens.float(), _local_in_parts(self.weight).float())
        best, chosen = scores.topk(self.experts_per_token, dim=-1)
        return best.softmax(dim=-1).to(tokens.dtype), chosen


class Experts(nn.Module):
    """The routed experts' SwiGLU layers, stacked: all of them, or this rank's equal share.

    The ranks of `peers` hold consecutive shares; rows travel to their expert's rank and back.
    """

    def __init__(self, hidden_size: int, ffn_size: int, expert_count: int) -> None:
        super().__init__()
        self.expert_count = expert_count
        self.peers: ProcessGroup | None = None
        self.gate = nn.Parameter(torch.empty(expert_count, ffn_size, hidden_size))
        self.up = nn.Parameter(torch.empty(expert_count, ffn_size, hidden_size))
        self.down = nn.Parameter(torch.empty(expert_count, hidden_size, ffn_size))

    # Tracing takes no grouped product in fp32, nor numbers of rows that it cannot foresee.
    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch leaves it untyped
    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Transform (rows, hidden) in the order of their experts, (expert count) ends of rows."""
        if self.peers is None:
            return self._transform(rows, ends)
        journey = Journey(ends, self.peers)
        return journey.back(self._transform(journey.out(rows), journey.ends))

    def _transform(self, rows: Tensor, ends: Tensor) -> Tensor:
        """An expert without rows takes part, so that its gradient is defined."""
        gate, up, down = (self._weight(weight) for weight in (self.gate, self.up, self.down))
        offsets = ends.to(torch.int32)
        opened = F.silu(F.grouped_mm(rows, gate, offs=offsets))
        return F.grouped_mm(opened * F.grouped_mm(rows, up, offs=offsets), down, offs=offsets)

    def _weight(self, weight: nn.Parameter) -> Tensor:
        """Give the matrices of the experts here, (experts, columns in, columns out).

        In their gradients the rows of all peers add up, but the loss is the mean of the peers'
        losses, and what exchanges gradients later divides by the number of copies alone.
        """
        local = weight.to_local() if isinstance(weight, DTensor) else weight
        if self.peers is not None:
            local = _MeanGradient.apply(local, self.peers.size())  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return local.transpose(1, 2)


class RoutedExperts(nn.Module):
    """Sends every token to its experts and adds up what they answer."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.router = Router(
            workload.hidden_size, workload.expert_count, workload.experts_per_token
        )
        self.experts = Experts(
            workload.hidden_size, workload.expert_ffn_size, workload.expert_count
        )

    def forward(self, x: Tensor) -> Tensor:
        """Transform (batch, sequence, hidden)."""
        tokens = x.flatten(0, -2)
        weights, chosen = self.router(tokens)
        ordered, order = chosen.flatten().sort(stable=True)
        numbers = torch.arange(self.experts.expert_count, device=x.device)
        ends = torch.searchsorted(ordered, numbers, right=True)
        places = _inverse(order)
        rows = _Copies.apply(tokens, order, places, weights.shape[-1])  # type: ignore[no-untyped-call]  # torch leaves it untyped
        answers: Tensor = self.experts(rows, ends).index_select(0, places)
        answers = answers.view(*weights.shape, -1)
        mixed: Tensor = (weights.unsqueeze(-1) * answers).sum(dim=1)
        return mixed.view(x.shape)


class Journey:
    """The way of one rank's rows to the ranks that hold their experts, and back."""

    def __init__(self, ends: Tensor, peers: ProcessGroup) -> None:
        """Ask the peers how many rows come; every peer must call it.

        `ends` says for each expert of all peers where its rows end.
        """
        self._peers = peers
        departing = ends.diff(prepend=ends.new_zeros(1)).view(peers.size(), -1)
        arriving = all_to_all_single(departing.flatten(), None, None, peers).view_as(departing)
        self._departing, self._arriving = torch.stack((departing, arriving)).sum(dim=2).tolist()
        self.ends = arriving.sum(dim=0).cumsum(dim=0)
        """Where the rows of each expert here end after `out`."""
        numbers = torch.arange(ends.numel(), device=ends.device) % departing.shape[1]
        expert_of_row = numbers.repeat_interleave(
            arriving.flatten(), output_size=sum(self._arriving)
        )
        self._order = expert_of_row.sort(stable=True).indices

    def out(self, rows: Tensor) -> Tensor:
        """Give the rows for this rank's experts, in the order of experts, then of peers."""
        arrived = all_to_all_single_autograd(rows, self._arriving, self._departing, self._peers)
        return arrived.index_select(0, self._order)

    def back(self, rows: Tensor) -> Tensor:
        """Give this rank's own rows in the order in which they were before `out`."""
        sorted_by_peer = rows.index_select(0, _inverse(self._order))
        return all_to_all_single_autograd(
            sorted_by_peer, self._departing, self._arriving, self._peers
        )


class _Kept(Protocol):
    """What a forward pass leaves for its backward pass."""

    saved_tensors: tuple[Tensor, ...]
    count: int

    def save_for_backward(self, *tensors: Tensor) -> None: ...


class _Copies(torch.autograd.Function):
    """One copy of each token for each of its experts; gradients add up in a fixed order."""

    @staticmethod
    def forward(
        kept: _Kept, tokens: Tensor, order: Tensor, places: Tensor, copy_count: int
    ) -> Tensor:
        kept.save_for_backward(places)
        kept.count = copy_count
        return tokens.index_select(0, order // copy_count)

    @staticmethod
    def backward(kept: _Kept, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (places,) = kept.saved_tensors
        copies = gradient.index_select(0, places).view(-1, kept.count, gradient.shape[-1])
        return copies.sum(dim=1), None, None, None


class _MeanGradient(torch.autograd.Function):
    """The tensor itself; of gradients that added up over some ranks, the mean."""

    @staticmethod
    def forward(kept: _Kept, tensor: Tensor, count: int) -> Tensor:
        kept.count = count
        return tensor.view_as(tensor)

    @staticmethod
    def backward(kept: _Kept, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient / kept.count, None


def _inverse(order: Tensor) -> Tensor:
    """Give the permutation that undoes another."""
    numbers = torch.arange(order.numel(), device=order.device)
    return torch.empty_like(order).scatter_(0, order, numbers)


def _local_in_parts(weight: Tensor) -> Tensor:
    """Give a weight that every slice holds whole; each slice gives a part of its gradient."""
    if not isinstance(weight, DTensor):
        return weight
    whole = weight.redistribute(placements=[Replicate()])
    assert isinstance(whole, DTensor)
    return whole.to_local(grad_placements=[Partial()])
