"""What the tokens of a language model cost."""

from dataclasses import dataclass

from records.checks import at_least
from records.exchange import Usage
from records.strict import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """USD per million tokens; where nothing is said of a cache, its tokens cost what input does."""

    __pydantic_config__ = STRICT

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def __post_init__(self) -> None:
        at_least("llm.price", 0, input=self.input, output=self.output)
        at_least("llm.price", 0, cache_read=self.cache_read, cache_write=self.cache_write)

    def cost_usd(self, usage: Usage) -> float:
        """What these tokens cost."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        return (
            usage.input_tokens * self.input
            + usage.output_tokens * self.output
            + usage.cache_read_tokens * read
            + usage.cache_write_tokens * write
        ) / 1e6
