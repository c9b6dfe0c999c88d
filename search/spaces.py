"""A study's space as its recipe knows it, ready for use."""

from dataclasses import replace

from evaluator.recipes.catalog import recipe_of
from policies.space import Space
from records.study import Context, Study
from search.joined import JoinedSpace


def completed(study: Study) -> Study:
    """The study with the defaults and rules of its recipe; one that has them stays as it is.

    Raises `StudyError` where nothing can be feasible, in its own context or another.
    """
    recipe = recipe_of(study)
    # What is searched in a context follows from its own sizes, so from the space as it was given.
    contexts = tuple(
        context
        if context.space is not None
        else replace(context, space=recipe.complete(study_in(study, context)).space)
        for context in study.contexts
    )
    return replace(recipe.complete(study), contexts=contexts)


def study_in(study: Study, context: Context) -> Study:
    """The study as one of its contexts has it, which is then its own and only one."""
    return replace(
        study,
        name=context.name,
        workload=context.workload,
        environment=context.environment,
        space=context.space or study.space,
        contexts=(),
    )


def space_of(study: Study) -> Space:
    """The space of a completed study, with the names that its recipe derives.

    Where the study has contexts, its configurations are joined.
    """
    derived = recipe_of(study).derived(study)
    if not study.contexts:
        return Space(study.space, study.workload, study.usable_environment, derived)
    others = {context.name: space_of(study_in(study, context)) for context in study.contexts}
    held_out = {context.name for context in study.contexts if context.held_out}
    return JoinedSpace(study, derived, others, held_out)
