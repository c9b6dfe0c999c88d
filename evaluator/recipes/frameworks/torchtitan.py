"""TorchTitan."""

from evaluator.recipes.frameworks.framework import FrameworkRecipe


class TorchTitan(FrameworkRecipe):
    """Starts `torchtitan.train` under torchrun."""

    name = "torchtitan"
