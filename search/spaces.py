"""A study's space as its recipe knows it, ready for use."""

from evaluator.recipes.catalog import recipe_of
from policies.space import Space
from records.study import Study


def completed(study: Study) -> Study:
    """The study with the defaults and rules of its recipe; one that has them stays as it is."""
    return recipe_of(study).complete(study)


def space_of(study: Study) -> Space:
    """The space of a completed study, with the names that its recipe derives."""
    derived = recipe_of(study).derived(study)
    return Space(study.space, study.workload, study.usable_environment, derived)
