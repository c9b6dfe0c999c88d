"""Every recipe by its name, as `[launch] recipe` gives it."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches

from evaluator.ports import Recipe
from evaluator.recipes.builtin import BuiltinRecipe
from evaluator.recipes.collectives.recipe import CollectivesRecipe
from evaluator.recipes.command import CommandRecipe
from records.errors import StudyError
from records.study import Study

RECIPES: Mapping[str, Callable[[], Recipe]] = {
    "builtin": BuiltinRecipe,
    "command": CommandRecipe,
    "collectives": CollectivesRecipe,
}


def recipe_of(study: Study) -> Recipe:
    """The recipe that a study names; raises `StudyError` when there is none of that name."""
    name = study.launch.recipe
    if name not in RECIPES:
        near = get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(RECIPES)}"
        raise StudyError(f"[launch] recipe {name!r} is unknown; {hint}")
    return RECIPES[name]()
