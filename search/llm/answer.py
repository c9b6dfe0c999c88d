"""What one request to a provider brought."""

from dataclasses import dataclass

_PASSING_STATUSES = frozenset({408, 409, 429})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An HTTP status and body, or why there is none."""

    text: str
    status: int | None = None
    retry_advice: bool | None = None
    retry_after_s: float | None = None

    @property
    def passing(self) -> bool:
        """Whether the fault lies with the moment, not with what was asked or who asked."""
        return self.status is None or self.status in _PASSING_STATUSES or self.status >= 500

    @property
    def worth_retrying(self) -> bool:
        """Whether to ask again at once: the provider's advice, else by the fault."""
        return self.passing if self.retry_advice is None else self.retry_advice
