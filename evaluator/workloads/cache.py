"""What a decoder remembers of the sequences that it goes on with: their keys and values."""

from torch import Tensor

from evaluator.workloads.attention import CausalAttention


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
