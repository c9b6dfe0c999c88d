"""Errors that only the search raises."""

from records.errors import CclsearchError


class Interrupted(CclsearchError):
    """The search was told to stop; the message says how to go on."""
