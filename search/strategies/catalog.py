"""The offline strategies by name."""

from collections.abc import Callable, Mapping

from policies.space import Space
from records.errors import StudyError
from search.strategies.base import Chooser, Estimates
from search.strategies.offline import HybridChooser
from search.strategies.simple import CoordinateChooser, GridChooser, RandomChooser, RankedChooser
from search.strategies.tpe import TpeChooser

CHOOSERS: Mapping[str, Callable[[Space, Estimates], Chooser]] = {
    "offline": HybridChooser,
    "ranked": RankedChooser,
    "coordinate": lambda space, _: CoordinateChooser(space),
    "grid": lambda space, _: GridChooser(space),
    "random": lambda space, _: RandomChooser(space),
    "tpe": lambda space, _: TpeChooser(space),
}


def chooser_named(name: str, space: Space, estimates: Estimates) -> Chooser:
    """The strategy of this name for a space; `estimates` say what a step should take."""
    if name not in CHOOSERS:
        raise StudyError(f"offline strategy {name!r} is unknown; known are {', '.join(CHOOSERS)}")
    return CHOOSERS[name](space, estimates)
