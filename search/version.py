"""Which version of cclsearch this is."""


def installed_version() -> str:
    """The version that is installed."""
    # Imported here: few commands need it, and all would wait for it.
    from importlib.metadata import version

    return version("cclsearch")
