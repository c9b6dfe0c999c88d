"""Checks that values of a study share, in the words of its file."""

import math

from records.errors import StudyError


def at_least(section: str, least: int, **values: float | None) -> None:
    """Raise `StudyError` for the first value below `least`; None is not given, so it passes."""
    for name, value in values.items():
        if value is not None and not value >= least:
            raise StudyError(f"[{section}] {name} is {value}; it must be at least {least}")


def at_most(section: str, most: int, **values: float | None) -> None:
    """Raise `StudyError` for the first value above `most`; None is not given, so it passes."""
    for name, value in values.items():
        if value is not None and value > most:
            raise StudyError(f"[{section}] {name} is {value}; it must be at most {most}")


def above_zero(section: str, **values: float | None) -> None:
    """Raise `StudyError` for the first value that is not finite and above 0; None passes."""
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise StudyError(f"[{section}] {name} is {value}; it must be finite and above 0")
