"""What a published result claims, and whether it holds where it was launched again."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from records.trial import Outcome, Trial


class Holds(StrEnum):
    """Whether a claim, or a whole result, holds here."""

    CONFIRMED = "confirmed"
    NOT_CONFIRMED = "not confirmed"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim with its verdict; `why` gives the numbers, `decides` what would settle it.

    `ratio` is here over then, or the candidate over the seed, lower is better, with its interval;
    None where nothing could be compared.
    """

    name: str
    holds: Holds
    why: str
    decides: str | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What came of one trial on record; `again` is how its first launch here ended."""

    trial: Trial
    again: Outcome
    claims: tuple[Claim, ...]
    launch_count: int

    @property
    def holds(self) -> Holds:
        """Confirmed where every claim holds, not confirmed where one surely does not."""
        return all_hold(claim.holds for claim in self.claims)


def all_hold(each: Iterable[Holds]) -> Holds:
    """Confirmed where all are, not confirmed where one is not; nothing decides nothing."""
    found = set(each)
    if Holds.NOT_CONFIRMED in found:
        return Holds.NOT_CONFIRMED
    return Holds.CONFIRMED if found == {Holds.CONFIRMED} else Holds.UNDECIDED
