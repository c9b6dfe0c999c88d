"""Every recipe by its name, as `[launch] recipe` gives it."""

from importlib import import_module
from typing import TYPE_CHECKING

from evaluator.ports import Recipe
from records.errors import StudyError, suggestion
from records.study import Study

if TYPE_CHECKING:
    from evaluator.recipes.frameworks.framework import FrameworkRecipe

FRAMEWORKS = {
    "torchtitan": "TorchTitan",
    "maxtext": "MaxText",
    "megatron": "Megatron",
    "sglang": "SGLang",
    "vllm": "Vllm",
    "transformers": "Transformers",
    "deepspeed": "DeepSpeed",
}
"""The class of each framework, by the name of its recipe and module."""
RECIPES = ("builtin", "command", "collectives", *FRAMEWORKS)


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
        case _ if name in FRAMEWORKS:
            return framework_recipe(name)
    raise StudyError(f"[launch] recipe {name!r} is unknown; {suggestion(name, RECIPES)}")


def framework_recipe(name: str) -> "FrameworkRecipe":
    """Return the recipe of a framework; raises `StudyError` when there is none of that name."""
    if name not in FRAMEWORKS:
        raise StudyError(f"--recipe {name!r} is no framework; {suggestion(name, FRAMEWORKS)}")
    module = import_module(f"evaluator.recipes.frameworks.{name}")
    recipe: FrameworkRecipe = getattr(module, FRAMEWORKS[name])()
    return recipe
