"""Which version of cclsearch this is."""

from importlib.metadata import version


def installed_version() -> str:
    """The version that is installed."""
    return version("cclsearch")
