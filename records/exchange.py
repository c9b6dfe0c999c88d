"""One conversation with a language model: what was asked, what came back, what it cost."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens billed for one exchange, summed over its requests."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A finished exchange; `request` and `reply` are JSON texts without credentials.

    `result` is `submitted`, or the reason why no policy came of it.
    """

    model: str
    request: str
    reply: str
    result: str
    usage: Usage
    latency_s: float
    request_count: int
