"""What one request to a provider brought."""

from dataclasses import dataclass

_PASSING_STATUSES = frozenset({408, 409, 429})
MAX_WAIT_S = 60.0
"""The longest wait before one more attempt in the same turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An HTTP status and body; without a status, what the provider did, as in `broke off`."""

    text: str
    status: int | None = None
    retry_advice: bool | None = None
    retry_after_s: float | None = None

    @property
    def long_wait_s(self) -> float | None:
        """What the provider asks to wait, where that is longer than a turn may."""
        wait_s = self.retry_after_s
        return wait_s if wait_s is not None and wait_s > MAX_WAIT_S else None

    @property
    def passing(self) -> bool:
        """Whether the fault lies with the moment, not with what was asked or who asked."""
        return self.status is None or self.status in _PASSING_STATUSES or self.status >= 500

    @property
    def worth_retrying(self) -> bool:
        """Whether to ask again in this turn: the provider's advice, else by the fault."""
        if self.long_wait_s is not None:
            return False
        return self.passing if self.retry_advice is None else self.retry_advice
