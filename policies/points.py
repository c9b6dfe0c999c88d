"""Every point of a space that its rules allow, found without visiting those they cut off."""

import math
from collections.abc import Iterator, Mapping, Sequence

from policies.knob import Knob
from records.errors import StudyError
from records.expression import Operand
from records.rule import Rule
from records.study import Value

MAX_POINTS = 200_000


class Points:
    """Goes through knobs in an order in which conditions come after what they name.

    A rule is asked as soon as all that it names is decided; a knob without effect is not varied.
    `given` are facts and the values of knobs that are left out.
    """

    def __init__(
        self, knobs: Sequence[Knob], rules: Sequence[Rule], given: Mapping[str, Operand | None]
    ) -> None:
        self._knobs = _in_order(knobs)
        self._given = given
        place = {knob.name: i for i, knob in enumerate(self._knobs)}
        self._rules: list[list[Rule]] = [[] for _ in range(len(knobs) + 1)]
        for rule in rules:
            decided = (place[name] + 1 for name in rule.expression.names if name in place)
            self._rules[max(decided, default=0)].append(rule)
        self._names: dict[str, Operand | None] = {}
        self._visited = 0

    def all(self) -> Iterator[Mapping[str, Value]]:
        """Give each point once; raises `StudyError` when there are more than can be listed."""
        self._names, self._visited = dict(self._given), 0
        if self._free_count() > MAX_POINTS:
            raise _too_many()
        if self._allowed(0):
            yield from self._from(0, {})

    def _from(self, i: int, values: dict[str, Value]) -> Iterator[Mapping[str, Value]]:
        if i == len(self._knobs):
            yield dict(values)
            return
        self._visited += 1
        if self._visited > MAX_POINTS:
            raise _too_many()
        knob = self._knobs[i]
        if not acts(knob, self._names):
            if self._allowed(i + 1):
                yield from self._from(i + 1, values)
            return
        for choice in knob.choices:
            self._names[knob.name] = values[knob.name] = choice
            if self._allowed(i + 1):
                yield from self._from(i + 1, values)
        del values[knob.name], self._names[knob.name]
        if knob.name in self._given:
            self._names[knob.name] = self._given[knob.name]

    def _allowed(self, decided_count: int) -> bool:
        return all(
            rule.expression.holds(self._names)
            for rule in self._rules[decided_count]
            if rule.expression.names <= self._names.keys()
        )

    def _free_count(self) -> int:
        """Points of the knobs that no rule and no condition is about."""
        named = {name for rules in self._rules for rule in rules for name in rule.expression.names}
        free = (knob for knob in self._knobs if knob.when is None and knob.name not in named)
        return math.prod(len(knob.choices) for knob in free)


def acts(knob: Knob, names: Mapping[str, Operand | None]) -> bool:
    """Whether a knob has an effect; a condition on a knob without value does not hold."""
    if knob.when is None:
        return True
    return knob.when.names <= names.keys() and knob.when.holds(names)


def circle(knobs: Sequence[Knob]) -> list[str]:
    """Names of knobs whose conditions wait for each other; empty where none do."""
    settled = {knob.name for knob in _in_order(knobs)}
    return [knob.name for knob in knobs if knob.name not in settled]


def _in_order(knobs: Sequence[Knob]) -> list[Knob]:
    """Knobs after those that their conditions name, else as they are; circles are left out."""
    left = list(knobs)
    ordered: list[Knob] = []
    while ready := [k for k in left if not _waits(k, left)]:
        ordered.append(ready[0])
        left.remove(ready[0])
    return ordered


def _waits(knob: Knob, left: Sequence[Knob]) -> bool:
    return knob.when is not None and any(other.name in knob.when.names for other in left)


def _too_many() -> StudyError:
    return StudyError(
        f"[space] has too many points to enumerate (at most {MAX_POINTS}); give fewer choices"
    )
