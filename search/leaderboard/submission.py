"""A line of a leaderboard: who, with what, what came of it, and how sure that is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from search.leaderboard.work import Work

Better: TypeAlias = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A metric of a submission: its value, with any `doubt` of it, or why it is `absent`.

    `low` and `high` are the ends of its interval, None where one launch is all there was.
    """

    unit: str
    better: Better
    value: float | None = None
    absent: str | None = None
    low: float | None = None
    high: float | None = None
    launch_count: int | None = None
    doubt: str | None = None

    @property
    def ends(self) -> tuple[float, float] | None:
        """The interval, or the value twice where none is known; None without a value."""
        if self.value is None:
            return None
        if self.low is None or self.high is None:
            return self.value, self.value
        return min(self.low, self.value), max(self.high, self.value)

    @property
    def has_interval(self) -> bool:
        """Whether it is known how far the value may be off, so that it can be ranked."""
        return self.value is not None and self.low is not None and self.high is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something to know about a submission before it is believed: its name, and words."""

    name: str
    words: str

    @property
    def title(self) -> str:
        """Its name as people read it."""
        return self.name.replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One entry; `launch_count` is None where nobody says how often it was launched.

    `ties` are what could not be told apart from it where it comes from.
    """

    name: str
    source: str
    work: Work
    machine: str
    rank_count: int | None
    software: str
    settings: str
    readings: Mapping[str, Reading]
    launch_count: int | None = None
    ties: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = field(default=())
