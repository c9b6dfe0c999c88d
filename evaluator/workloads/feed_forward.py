"""The gated feed-forward layer (SwiGLU), of dense blocks and of experts that all tokens pass."""

from torch import Tensor, nn
from torch.nn import functional as F


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
