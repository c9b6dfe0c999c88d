"""One conversation with a language model: what was asked, what came back, what it cost."""

from dataclasses import asdict, astuple, dataclass, fields
from typing import Self

SUBMITTED = "submitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """Tokens billed for one exchange, summed over its requests."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def tokens(self) -> int:
        """All of them, whatever they cost."""
        return sum(astuple(self))

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        own, others = asdict(self), asdict(other)
        return TokenUsage(**{name: count + others[name] for name, count in own.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmExchange:
    """A finished conversation about one turn; its texts are JSON without credentials.

    `request` lists the bodies of all requests, `reply` an object for every answer: the index of its
    `request`, the `form` of asking, the HTTP `status` or null, the `body` as text, for how many
    seconds the provider asked to be left alone, if it did, and our `answer` to a question. Of
    exchanges recorded earlier, `request` is one body and the answers name none. `result` is
    `submitted`, or the reason why no policy came of it.
    """

    model: str
    request: str
    reply: str
    result: str
    usage: TokenUsage
    latency_s: float
    request_count: int
    host: str | None = None
    """Name of the provider, which some results hold; None where it was not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSummary:
    """What is listed of an exchange with a model; the whole is the artifact with this digest."""

    digest: str
    model: str
    result: str
    usage: TokenUsage
    latency_s: float
    request_count: int

    @classmethod
    def of(cls, digest: str, exchange: LlmExchange) -> Self:
        """What is listed of an exchange that is stored under this digest."""
        names = [field.name for field in fields(cls) if field.name != "digest"]
        return cls(digest=digest, **{name: getattr(exchange, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUse:
    """What one model was asked in a study, and what it used; `last_result` is of its last turn."""

    model: str
    turn_count: int
    policy_count: int
    request_count: int
    usage: TokenUsage
    last_result: str
