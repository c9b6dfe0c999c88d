"""What evidence can say about a candidate against an anchor."""

from enum import StrEnum


class Verdict(StrEnum):
    """`UNKNOWN` is for sides that do not compare, `UNDECIDED` for evidence that is not enough."""

    FAST = "fast"
    SLOW = "slow"
    SAME = "same"
    UNDECIDED = "undecided"
    UNKNOWN = "unknown"
