"""The error of a language-model provider that no retry and no other prompt can cure."""

from records.errors import CclsearchError
from records.exchange import Exchange


class ProviderError(CclsearchError):
    """The provider cannot be used as set up; `exchange` is what was said, if anything was."""

    def __init__(self, message: str, exchange: Exchange | None = None) -> None:
        super().__init__(message)
        self.exchange = exchange
