"""Every recipe by its name, as `[launch] recipe` gives it."""

from evaluator.ports import Recipe
from records.errors import StudyError, suggestion
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
    raise StudyError(f"[launch] recipe {name!r} is unknown; {suggestion(name, RECIPES)}")
