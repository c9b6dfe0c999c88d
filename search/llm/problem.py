"""Why a request brought no policy, and what could help."""

from dataclasses import dataclass
from enum import StrEnum


class Cure(StrEnum):
    """What could bring a policy after all."""

    REPLY = "reply"
    """Another reply, once the model is told what is wrong with this one."""
    ROOM = "room"
    """A shorter reply, or more room for it."""
    PROMPT = "prompt"
    """A shorter prompt."""
    TIME = "time"
    """A later turn."""
    USER = "user"
    """Nothing but what a person does: no later request of this run can succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong, in one line, which tells what to do where only a user can."""

    words: str
    cure: Cure
    wait_s: float | None = None
    """How long the provider wants to be left alone, where that is longer than a turn may wait."""
