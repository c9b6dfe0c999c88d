"""The offline strategies by name."""

from collections.abc import Mapping

from policies.space import Space
from records.errors import StudyError
from search.strategies.base import Chooser, Estimates
from search.strategies.offline import (
    CoordinateChooser,
    GridChooser,
    HybridChooser,
    RandomChooser,
    RankedChooser,
)
from search.strategies.tpe import TpeChooser

CHOOSERS: Mapping[str, type[Chooser]] = {
    kind.name: kind
    for kind in (
        HybridChooser,
        RankedChooser,
        CoordinateChooser,
        GridChooser,
        RandomChooser,
        TpeChooser,
    )
}


def chooser_named(name: str, space: Space, estimates: Estimates) -> Chooser:
    """The strategy of this name for a space; `estimates` say what a step should take."""
    if name not in CHOOSERS:
        raise StudyError(f"offline strategy {name!r} is unknown; known are {', '.join(CHOOSERS)}")
    return CHOOSERS[name](space, estimates)
