"""A Llama-style decoder, whole or as the consecutive layers that one pipeline stage holds."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evaluator.rank.job import Workload

_NORM_EPSILON = 1e-5
_ROTARY_BASE = 10_000.0
_INIT_DEVIATION = 0.02


class Attention(nn.Module):
    """Causal self-attention with rotary positions and grouped keys and values.

    The head counts follow from the projections' outputs, so a rank that holds a share of the
    heads computes with that share.
    """

    cosine: Tensor
    sine: Tensor

    def __init__(self, workload: Workload, cosine: Tensor, sine: Tensor) -> None:
        super().__init__()
        self.head_size = workload.hidden_size // workload.head_count
        self.shares_keys = workload.kv_head_count < workload.head_count
        kv_size = workload.kv_head_count * self.head_size
        self.query = nn.Linear(workload.hidden_size, workload.hidden_size, bias=False)
        self.key = nn.Linear(workload.hidden_size, kv_size, bias=False)
        self.value = nn.Linear(workload.hidden_size, kv_size, bias=False)
        self.output = nn.Linear(workload.hidden_size, workload.hidden_size, bias=False)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attend over (batch, sequence, hidden)."""
        query = self._rotate(self._heads(self.query(x)))
        key = self._rotate(self._heads(self.key(x)))
        value = self._heads(self.value(x))
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=self.shares_keys
        )
        projected: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return projected

    def _heads(self, x: Tensor) -> Tensor:
        """Split (batch, sequence, heads × size) into (batch, heads, sequence, size)."""
        return x.view(*x.shape[:-1], -1, self.head_size).transpose(1, 2)

    def _rotate(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * self.cosine + torch.cat((-second, first), dim=-1) * self.sine


class FeedForward(nn.Module):
    """The gated feed-forward layer (SwiGLU)."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.gate = nn.Linear(workload.hidden_size, workload.ffn_size, bias=False)
        self.up = nn.Linear(workload.hidden_size, workload.ffn_size, bias=False)
        self.down = nn.Linear(workload.ffn_size, workload.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform (batch, sequence, hidden) position by position."""
        transformed: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return transformed


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, workload: Workload, cosine: Tensor, sine: Tensor) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(workload.hidden_size, eps=_NORM_EPSILON)
        self.attention = Attention(workload, cosine, sine)
        self.feed_forward_norm = nn.RMSNorm(workload.hidden_size, eps=_NORM_EPSILON)
        self.feed_forward = FeedForward(workload)

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

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        cosine, sine = _rotary_tables(workload)
        self.embedding: nn.Embedding | None = nn.Embedding(
            workload.vocab_size, workload.hidden_size
        )
        self.blocks = nn.ModuleList(
            Block(workload, cosine, sine) for _ in range(workload.layer_count)
        )
        self.norm: nn.RMSNorm | None = nn.RMSNorm(workload.hidden_size, eps=_NORM_EPSILON)
        self.head: nn.Linear | None = nn.Linear(
            workload.hidden_size, workload.vocab_size, bias=False
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, sequence) tokens or (batch, sequence, hidden) states onwards."""
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x

    def keep_stage(self, stage: int, stage_count: int) -> None:
        """Drop everything that the given pipeline stage does not hold."""
        layers_per_stage = len(self.blocks) // stage_count
        first = stage * layers_per_stage
        self.blocks = self.blocks[first : first + layers_per_stage]
        if stage > 0:
            self.embedding = None
        if stage < stage_count - 1:
            self.norm = None
            self.head = None


def build_decoder(workload: Workload) -> Decoder:
    """Build the whole model in fp32 on the host, the same on every rank for one seed."""
    torch.manual_seed(workload.seed)
    model = Decoder(workload)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=_INIT_DEVIATION)
    return model


def _rotary_tables(workload: Workload) -> tuple[Tensor, Tensor]:
    """Cosine and sine, each (sequence, head size)."""
    head_size = workload.hidden_size // workload.head_count
    frequencies = _ROTARY_BASE ** (-torch.arange(0, head_size, 2) / head_size)
    angles = torch.outer(torch.arange(workload.sequence_length), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()
