"""Numbers that only another tool's record tells: never computed here, and named `published_...`."""

from typing import Final

from evaluator.metrics.base import Absent, Evidence, Formula

PREFIX: Final = "published_"
SCORE: Final = f"{PREFIX}score"
"""What another tool called the score of a trial; which way it is better, the study says."""


def published(name: str) -> Formula:
    """The metric of a published number, which no evidence of ours can answer."""
    return Formula(
        name=name,
        label=name.replace("_", " ").capitalize(),
        unit="",
        better="lower",
        sources=frozenset({"samples"}),
        description="A number out of another tool's record, as it was published.",
        formula=_not_computed,
    )


def _not_computed(_: Evidence) -> Absent:
    return Absent("it is only told by records of other tools")
