"""The error of a language-model provider that cannot be reached as set up."""

from records.errors import CclsearchError


class ProviderError(CclsearchError):
    """The key or the address cannot be used; nothing was sent."""
