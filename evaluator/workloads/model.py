"""A Llama-style decoder, whole or as the consecutive layers of one pipeline stage, and its loss.

The mixture-of-experts layer drops no token and has no load-balancing loss: the balance of one
batch cannot be computed from its parts, so such a loss would depend on the layout.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from evaluator.rank.job import AttentionBackend, Precision, Workload

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


class FeedForward(nn.Module):
    """Two matrices into an inner space, of which one opens the other, and one back."""

    def __init__(self, hidden_size: int, ffn_size: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden_size, ffn_size, bias=False)
        self.up = nn.Linear(hidden_size, ffn_size, bias=False)
        self.down = nn.Linear(ffn_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform (batch, sequence, hidden) position by position."""
        transformed: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return transformed


class CachedAttention:
    """One layer's attention to everything that it was given since it last forgot."""

    def __init__(self, attention: CausalAttention, keys: Tensor, values: Tensor) -> None:
        """Take room for keys and values: (batch, heads, longest sequence, size) each."""
        self._attention = attention
        self._keys = keys
        self._values = values
        self._length = 0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend over a whole prompt, or for the one place after what is remembered."""
        start, self._length = self._length, self._length + key.shape[2]
        self._keys[:, :, start : self._length] = key
        self._values[:, :, start : self._length] = value
        return self._attention(
            query, self._keys[:, :, : self._length], self._values[:, :, : self._length]
        )

    def forget(self) -> None:
        """Be ready for other sequences."""
        self._length = 0


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
        """Return weights that add up to 1 and expert numbers, each (tokens, experts per token).

        Scores are in fp32 whatever the tokens are: close ones should not swap in rounding.
        """
        weight: Tensor = self.weight
        if isinstance(
            weight, DTensor
        ):  # every slice holds it whole, and gives a part of its gradient
            whole = weight.redistribute(placements=[Replicate()])
            assert isinstance(whole, DTensor)
            weight = whole.to_local(grad_placements=[Partial()])
        scores = F.linear(tokens.float(), weight.float())
        best, chosen = scores.topk(self.experts_per_token, dim=-1)
        return best.softmax(dim=-1).to(tokens.dtype), chosen


def _products(rows: Tensor, matrices: Tensor, *, offs: Tensor) -> Tensor:
    """Multiply each group of rows by its matrix, one after the other."""
    groups = rows.tensor_split(offs[:-1].tolist())
    return torch.cat([group @ matrix for group, matrix in zip(groups, matrices, strict=True)])


# Torch before 2.10 has none for every device.
_grouped_mm = getattr(F, "grouped_mm", _products)


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
        opened = F.silu(_grouped_mm(rows, gate, offs=offsets))
        return _grouped_mm(opened * _grouped_mm(rows, up, offs=offsets), down, offs=offsets)

    def _weight(self, weight: nn.Parameter) -> Tensor:
        """Return the matrices of the experts here, (experts, columns in, columns out).

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
        """Return the rows for this rank's experts, in the order of experts, then of peers."""
        arrived = all_to_all_single_autograd(rows, self._arriving, self._departing, self._peers)
        return arrived.index_select(0, self._order)

    def back(self, rows: Tensor) -> Tensor:
        """Return this rank's own rows in the order in which they were before `out`."""
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
    """Return the permutation that undoes another."""
    numbers = torch.arange(order.numel(), device=order.device)
    return torch.empty_like(order).scatter_(0, order, numbers)


_NORM_EPSILON = 1e-5
_ROTARY_BASE = 10_000.0
INIT_DEVIATION = 0.02
DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16}
_SEED_STRIDE = 1_000_003


@dataclass(frozen=True, slots=True)
class Stage:
    """One of the equal parts, in order, into which a pipeline cuts the layers."""

    number: int
    count: int

    @property
    def is_first(self) -> bool:
        """Whether it takes tokens."""
        return self.number == 0

    @property
    def is_last(self) -> bool:
        """Whether it gives logits."""
        return self.number == self.count - 1

    def layers(self, layer_count: int) -> range:
        """The numbers of its layers in the whole model."""
        size = layer_count // self.count
        return range(self.number * size, (self.number + 1) * size)


class Attention(nn.Module):
    """Causal self-attention with rotary positions and grouped keys and values.

    The head counts follow from the projections' outputs, so a rank that holds a share of the
    heads computes with that share.
    """

    cosine: Tensor
    sine: Tensor

    def __init__(self, workload: Workload, cosine: Tensor, sine: Tensor) -> None:
        super().__init__()
        self.head_size = workload.head_width
        self.attend: Attend = CausalAttention(AttentionBackend.AUTO)
        self.places = slice(None)  # of the next call's sequence among all that the tables hold
        kv_size = workload.kv_head_count * self.head_size
        self.query = nn.Linear(workload.hidden_size, workload.attention_width, bias=False)
        self.key = nn.Linear(workload.hidden_size, kv_size, bias=False)
        self.value = nn.Linear(workload.hidden_size, kv_size, bias=False)
        self.output = nn.Linear(workload.attention_width, workload.hidden_size, bias=False)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attend over (batch, sequence, hidden)."""
        query = self._rotate(self._heads(self.query(x)))
        key = self._rotate(self._heads(self.key(x)))
        value = self._heads(self.value(x))
        mixed = self.attend(query, key, value)
        projected: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return projected

    def _heads(self, x: Tensor) -> Tensor:
        """Split (batch, sequence, heads × size) into (batch, heads, sequence, size)."""
        return x.view(*x.shape[:-1], -1, self.head_size).transpose(1, 2)

    def _rotate(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return (
            x * self.cosine[self.places]
            + torch.cat((-second, first), dim=-1) * self.sine[self.places]
        )


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, workload: Workload, layer: int, cosine: Tensor, sine: Tensor) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(workload.hidden_size, eps=_NORM_EPSILON)
        self.attention = Attention(workload, cosine, sine)
        self.feed_forward_norm = nn.RMSNorm(workload.hidden_size, eps=_NORM_EPSILON)
        self.feed_forward = (
            ExpertLayer(workload)
            if workload.expert_count and layer >= workload.dense_layer_count
            else FeedForward(workload.hidden_size, workload.ffn_size)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Add attention and feed-forward to (batch, sequence, hidden)."""
        x = x + self.attention(self.attention_norm(x))
        added: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return added


class Decoder(nn.Module):
    """Token numbers to logits, or the part of that way which one stage holds.

    A stage other than the first has no embedding and takes hidden states; a stage other than
    the last has neither norm nor head and gives hidden states.
    """

    def __init__(self, workload: Workload, stage: Stage, positions: Tensor) -> None:
        super().__init__()
        hidden_size = workload.hidden_size
        cosine, sine = _rotary_tables(workload.head_width, positions)
        self.embedding = nn.Embedding(workload.vocab_size, hidden_size) if stage.is_first else None
        self.blocks = nn.ModuleList(
            Block(workload, layer, cosine, sine) for layer in stage.layers(workload.layer_count)
        )
        self.norm = nn.RMSNorm(hidden_size, eps=_NORM_EPSILON) if stage.is_last else None
        self.head = nn.Linear(hidden_size, workload.vocab_size, bias=False) if self.norm else None
        self.autocasts = False

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, sequence) tokens or (batch, sequence, hidden) states onwards."""
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.autocasts):
            if self.embedding is not None:
                x = self.embedding(x)
            for block in self.blocks:
                x = block(x)
            if self.norm is not None and self.head is not None:
                x = self.head(self.norm(x))
        return x


def build_decoder(
    workload: Workload, stage: Stage, positions: Tensor, *, device: torch.device, dtype: torch.dtype
) -> Decoder:
    """Build one stage with the numbers that it has in every configuration of one seed.

    `positions` says which places of a sequence the model sees, in order.
    """
    with device:
        model = Decoder(workload, stage, positions.to(device))
    layers = stage.layers(workload.layer_count)
    _fill(model.embedding, workload.seed, device)
    for layer, block in zip(layers, model.blocks, strict=True):
        _fill(block, workload.seed + (1 + layer) * _SEED_STRIDE, device)
    _fill(model.head, workload.seed + (1 + workload.layer_count) * _SEED_STRIDE, device)
    return model.to(dtype)


def _fill(part: nn.Module | None, seed: int, device: torch.device) -> None:
    """Draw every matrix of one part; what has fewer dimensions stays as it was made."""
    generator = torch.Generator(device).manual_seed(seed)
    for parameter in part.parameters() if part is not None else ():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=INIT_DEVIATION, generator=generator)


def _rotary_tables(head_size: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine, each (positions, head size)."""
    frequencies = _ROTARY_BASE ** (-torch.arange(0, head_size, 2) / head_size)
    angles = torch.outer(positions, frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


class MicroBatchLoss:
    """One micro-batch's part of the mean loss: parts add up to the mean over all tokens."""

    def __init__(self, micro_batch_count: int, vocabulary: DeviceMesh | None) -> None:
        """Take the ranks that each hold a slice of the vocabulary; `None` if it is whole."""
        self.micro_batch_count = micro_batch_count
        self._vocabulary = vocabulary

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Take logits (sequences, length, vocabulary or this rank's slice of it)."""
        logits = logits.flatten(0, 1).float()
        if self._vocabulary is None:
            return F.cross_entropy(logits, targets.flatten()) / self.micro_batch_count
        whole = DTensor.from_local(logits, self._vocabulary, [Shard(1)], run_check=False)
        loss = F.cross_entropy(whole, targets.flatten())
        assert isinstance(loss, DTensor)
        # Divided last: a schedule that splits backward passes detaches it, which no view allows.
        return loss.full_tensor() / self.micro_batch_count

    def sliced(self) -> AbstractContextManager[None]:
        """Keep the vocabulary sliced within the block, which spans forward and backward."""
        return nullcontext() if self._vocabulary is None else loss_parallel()
