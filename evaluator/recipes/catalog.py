"""Every recipe by its name, as `[launch] recipe` gives it."""

from difflib import get_close_matches

from evaluator.job import Recipe
from records.errors import StudyError
from records.study import Study

RECIPES = ("builtin", "command", "collectives")


def recipe_of(study: Study) -> Recipe:
    """Return the recipe that a study names; raises `StudyError` when there is none of that name."""
    # Each is loaded when it is needed: they bring the readers of traces with them.
    match name := study.launch.recipe:
        case "builtin":
            from evaluator.recipes.builtin import BuiltinRecipe

            return BuiltinRecipe()
        case "command":
            from evaluator.recipes.command import CommandRecipe

            return CommandRecipe()
        case "collectives":
            from evaluator.recipes.collectives import CollectivesRecipe

            return CollectivesRecipe()
    near = get_close_matches(name, RECIPES, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(RECIPES)}"
    raise StudyError(f"[launch] recipe {name!r} is unknown; {hint}")
