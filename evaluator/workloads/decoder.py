"""A Llama-style decoder, whole or as the consecutive layers that one pipeline stage holds."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from evaluator.rank.job import AttentionBackend, Precision, Workload
from evaluator.workloads.attention import Attend, CausalAttention
from evaluator.workloads.experts import ExpertLayer
from evaluator.workloads.feed_forward import FeedForward

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

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, sequence) tokens or (batch, sequence, hidden) states onwards."""
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


def build_decoder(
    workload: Workload,
    stage: Stage,
    positions: Tensor,
    *,
    device: torch.device,
    dtype: torch.dtype,
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
