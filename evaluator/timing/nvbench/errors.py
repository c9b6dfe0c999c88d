"""What is raised for results of nvbench that cannot be compared."""

from records.errors import CclsearchError


class NvbenchError(CclsearchError):
    """A result file cannot be read, or two of them do not belong together."""
