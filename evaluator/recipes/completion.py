"""A study's space with all that the built-in recipe knows about it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from evaluator.recipes.knobs import completed, defaults
from evaluator.recipes.rules import WORLD, ranks_rule, rules, study_rules
from records.choices import choices_of
from records.errors import StudyError
from records.expression import Operand
from records.rule import Rule, facts
from records.study import Constraint, SearchSpace, Study, Value

MAX_SETTINGS = 20_000
"""Settings of a rule's knobs that are tried to find out whether they can break it."""


def completed_space(study: Study) -> SearchSpace:
    """The space with defaults, and with every rule that one of its configurations could break.

    Raises `StudyError` for an unknown knob, and for a rule that is broken whatever is searched.
    """
    dimensions = tuple(completed(dimension, study) for dimension in study.space.dimensions)
    whole = replace(study.space, dimensions=dimensions, defaults=defaults(study))
    ours = tuple(_needed(replace(study, space=whole)))
    return replace(whole, constraints=(*ours, *_own(study, ours)))


def _needed(study: Study) -> Iterator[Constraint]:
    """The recipe's rules that matter here, without those that the study has its own words for."""
    own = {constraint.name: constraint for constraint in study.space.constraints}
    ranks = ranks_rule(study).constraint
    counted = own.get(ranks.name, ranks) == ranks
    searched = {d.name: choices_of(d) for d in study.space.dimensions}
    names = {**facts(study.workload, study.usable_environment), **study.space.defaults}
    for rule in rules(study):
        said = counted and rule.constraint.name == WORLD
        if not said and _can_break(rule, searched, names):
            yield rule.constraint
    for rule in study_rules(study):
        try:
            if rule.constraint.name not in own and _can_break(rule, searched, names):
                yield rule.constraint
        except StudyError as error:
            name = rule.constraint.name
            raise StudyError(
                f"{error}; search one of them, or give a constraint {name!r} of your own"
            ) from error


def _own(study: Study, ours: tuple[Constraint, ...]) -> Iterator[Constraint]:
    """The study's own constraints; raises `StudyError` for one that takes the name of a rule."""
    taken = {rule.constraint.name: rule.constraint for rule in rules(study)}
    for constraint in study.space.constraints:
        known = taken.get(constraint.name)
        if known is not None and known != constraint:
            raise StudyError(
                f"[[constraint]] {constraint.name!r} is the name of a rule of the builtin recipe "
                f"({known.expression}); give it another"
            )
        if constraint not in ours:
            yield constraint


def _can_break(
    rule: Rule, searched: Mapping[str, tuple[Value, ...]], names: Mapping[str, Operand | None]
) -> bool:
    """Whether some setting breaks a rule; raises `StudyError` if it is broken without any."""
    if not rule.expression.names <= names.keys() | searched.keys():
        return True  # it names what only a whole configuration has
    varied = sorted(rule.expression.names & searched.keys())
    if not varied:
        words = rule.broken(names)
        if words is not None:
            raise StudyError(f"[space] {words}, and none of these is searched")
        return False
    if math.prod(len(searched[name]) for name in varied) > MAX_SETTINGS:
        return True
    settings = product(*(searched[name] for name in varied))
    return any(
        not rule.expression.holds({**names, **dict(zip(varied, setting, strict=True))})
        for setting in settings
    )
