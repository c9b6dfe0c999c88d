"""The error for a file that is not a measurable trace."""

from pathlib import Path

from records.errors import CclsearchError


class TraceError(CclsearchError):
    """A file is not a trace that can be measured; says which file and what is wrong with it."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
