"""What one probe of the machine found."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How good that is: `warn` works, but worse than it could."""

    OK = "ok"
    WARN = "warn"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found, and what to do where something is missing.

    `needed` is whether a search on this machine cannot run without it.
    """

    subject: str
    state: State
    told: str
    remedy: str | None = None
    needed: bool = False
