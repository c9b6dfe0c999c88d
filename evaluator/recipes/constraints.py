"""Which rules of a recipe a space needs, and which names its own constraints may take."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from records.choices import choices_of
from records.errors import StudyError
from records.expression import Operand
from records.rule import Rule, facts
from records.study import Constraint, Study, Value

MAX_SETTINGS = 20_000
"""Settings of a rule's knobs that are tried to find out whether they can break it."""


def new_rule(name: str, expression: str, reason: str) -> Rule:
    """A rule of a recipe; raises `StudyError` when its expression is none."""
    return Rule.of(Constraint(name=name, expression=expression, reason=reason))


def can_break(rule: Rule, study: Study) -> bool:
    """Whether some setting of the space breaks a rule.

    The space has its choices and defaults. Raises `StudyError` if the rule is broken without any.
    """
    searched = {d.name: choices_of(d) for d in study.space.dimensions}
    names = {**facts(study.workload, study.usable_environment), **study.space.defaults}
    return _can_break(rule, searched, names)


def own_constraints(
    study: Study, known: Sequence[Rule], needed: Sequence[Constraint]
) -> Iterator[Constraint]:
    """The study's own constraints; raises `StudyError` for one that takes the name of a rule."""
    taken = {rule.constraint.name: rule.constraint for rule in known}
    for constraint in study.space.constraints:
        rule = taken.get(constraint.name)
        if rule is not None and rule != constraint:
            raise StudyError(
                f"[[constraint]] {constraint.name!r} is the name of a rule of the "
                f"{study.launch.recipe} recipe ({rule.expression}); give it another"
            )
        if constraint not in needed:
            yield constraint


def broken(rules: Sequence[Rule], names: Mapping[str, Operand | None]) -> list[str]:
    """How a configuration breaks rules, in words."""
    found = (rule.broken(names) for rule in rules)
    return [words for words in found if words is not None]


def _can_break(
    rule: Rule, searched: Mapping[str, tuple[Value, ...]], names: Mapping[str, Operand | None]
) -> bool:
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
