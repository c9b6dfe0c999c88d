"""A study's space with all that the built-in recipe knows about it."""

from collections.abc import Iterator
from dataclasses import replace

from evaluator.recipes.constraints import can_break, own_constraints
from evaluator.recipes.knobs import completed, defaults
from evaluator.recipes.rules import WORLD, ranks_rule, rules, study_rules
from records.errors import StudyError
from records.study import Constraint, SearchSpace, Study


def completed_space(study: Study) -> SearchSpace:
    """The space with defaults, and with every rule that one of its configurations could break.

    Raises `StudyError` for an unknown knob, and for a rule that is broken whatever is searched.
    """
    dimensions = tuple(completed(dimension, study) for dimension in study.space.dimensions)
    whole = replace(study.space, dimensions=dimensions, defaults=defaults(study))
    ours = tuple(_needed(replace(study, space=whole)))
    return replace(whole, constraints=(*ours, *own_constraints(study, rules(study), ours)))


def _needed(study: Study) -> Iterator[Constraint]:
    """The recipe's rules that matter here, without those that the study has its own words for."""
    own = {constraint.name: constraint for constraint in study.space.constraints}
    ranks = ranks_rule(study).constraint
    counted = own.get(ranks.name, ranks) == ranks
    for rule in rules(study):
        said = counted and rule.constraint.name == WORLD
        if not said and can_break(rule, study):
            yield rule.constraint
    for rule in study_rules(study):
        try:
            if rule.constraint.name not in own and can_break(rule, study):
                yield rule.constraint
        except StudyError as error:
            name = rule.constraint.name
            raise StudyError(
                f"{error}; search one of them, or give a constraint {name!r} of your own"
            ) from error
