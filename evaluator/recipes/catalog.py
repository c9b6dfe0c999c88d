"""Every recipe by its name, as `[launch] recipe` gives it."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches

from evaluator.job import Recipe
from records.errors import StudyError
from records.study import Study


def _builtin() -> Recipe:
    from evaluator.recipes.builtin import BuiltinRecipe

    return BuiltinRecipe()


def _command() -> Recipe:
    from evaluator.recipes.command import CommandRecipe

    return CommandRecipe()


def _collectives() -> Recipe:
    from evaluator.recipes.collectives import CollectivesRecipe

    return CollectivesRecipe()


# Each is loaded when it is needed: they bring the readers of traces with them.
RECIPES: Mapping[str, Callable[[], Recipe]] = {
    "builtin": _builtin,
    "command": _command,
    "collectives": _collectives,
}


def recipe_of(study: Study) -> Recipe:
    """The recipe that a study names; raises `StudyError` when there is none of that name."""
    name = study.launch.recipe
    if name not in RECIPES:
        near = get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(RECIPES)}"
        raise StudyError(f"[launch] recipe {name!r} is unknown; {hint}")
    return RECIPES[name]()
