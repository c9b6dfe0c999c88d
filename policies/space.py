"""A search space bound to a workload: canonical configurations, violations, enumeration.

Knows nothing of policies' texts or of how a configuration is launched.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Self, TypeAlias

from records.errors import StudyError, shown, suggestion
from records.expression import Expression, Operand, Rule, facts, narrow, parse
from records.study import Dimension, Environment, SearchSpace, Value, choices_of, list_words
from records.trial import Config
from records.workload import Workload


@dataclass(frozen=True, slots=True)
class Knob:
    """A dimension with its choices listed and its condition parsed.

    `default` is what it is set to where a policy leaves it out; None if it must be given.
    """

    dimension: Dimension
    choices: tuple[Value, ...]
    when: Expression | None
    default: Value | None = None

    @classmethod
    def of(cls, dimension: Dimension, default: Value | None) -> Self:
        """The knob of a dimension; raises `StudyError` when it is malformed.

        A default that is no choice holds where the knob has no effect; elsewhere the knob must be
        given.
        """
        choices = choices_of(dimension)
        when = parse(dimension.when) if dimension.when else None
        return cls(dimension, choices, when, None if default is None else meant(default, choices))

    @property
    def name(self) -> str:
        """Name of the knob."""
        return self.dimension.name

    @property
    def words(self) -> str:
        """Name, choices, condition and description, as one line."""
        default = "" if self.default is None else f"; {self.default!r} if left out"
        when = f"; only when {self.when.text}" if self.when else ""
        about = f": {self.dimension.description}" if self.dimension.description else ""
        listed = ", ".join(repr(choice) for choice in self.choices)
        return f"{self.name} in [{listed}]{default}{when}{about}"

    def canonical(self, value: object) -> Value | None:
        """The choice that `value` means (4.0 means 4, never True), or None."""
        return meant(value, self.choices)


def meant(value: object, choices: Sequence[Value]) -> Value | None:
    """The choice that `value` means (4.0 means 4, never True), or None."""
    has_floats = isinstance(choices[0], float)
    if isinstance(value, float) and value.is_integer() and not has_floats:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and has_floats:
        # An integer is compared as it is: one beyond the floats cannot be converted.
        return next((c for c in choices if c == value), None)
    return next((c for c in choices if type(c) is type(value) and c == value), None)


MAX_POINTS = 200_000
SAMPLE_COUNT, SAMPLE_TRIES = 10_000, 100_000
"""Configurations that stand for a space with more points, and how many draws may go into them."""
NEAR_TRIES = 2_000
"""Draws of neighbours of a configuration that change two knobs."""


class Points:
    """Goes through knobs in an order in which conditions come after what they name.

    A rule is checked as soon as all that it names is decided; a knob without effect is not varied.
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
        """Yield each point once; raises `StudyError` when there are more than can be listed."""
        self._names, self._visited = dict(self._given), 0
        if self._free_count() > MAX_POINTS:
            raise _too_many()
        if not self._allowed(0):
            return
        values: dict[str, Value] = {}
        levels = [self._decide(0, values)]
        while levels:
            if next(levels[-1], None) is None:
                levels.pop()
            elif len(levels) <= len(self._knobs):
                levels.append(self._decide(len(levels), values))
            else:
                yield dict(values)

    def draw(self, random: Random) -> Mapping[str, Value] | None:
        """Return a point whose values are drawn in turn; None where no rule lets one go on."""
        self._names, values = dict(self._given), dict[str, Value]()
        for i, knob in enumerate(self._knobs):
            if not self._allowed(i):
                return None
            if not acts(knob, self._names):
                continue
            for choice in random.sample(knob.choices, len(knob.choices)):
                self._names[knob.name] = values[knob.name] = choice
                if self._allowed(i + 1):
                    break
            else:
                return None
        return values if self._allowed(len(self._knobs)) else None

    def _decide(self, i: int, values: dict[str, Value]) -> Iterator[bool]:
        """Give knob `i` each of its values in turn, and yield after each that the rules allow."""
        self._visited += 1
        if self._visited > 2 * MAX_POINTS:  # those on the way to a point count too
            raise _too_many()
        if i == len(self._knobs):
            yield True
            return
        knob = self._knobs[i]
        if not acts(knob, self._names):
            if self._allowed(i + 1):
                yield True
            return
        for choice in knob.choices:
            self._names[knob.name] = values[knob.name] = choice
            if self._allowed(i + 1):
                yield True
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


Derived: TypeAlias = Mapping[str, Callable[[Mapping[str, Value]], Value]]
"""More names for rules: each value follows from a configuration with its defaults filled in."""


class Space:
    """A space bound to a workload and an environment; raises `StudyError` when it is malformed.

    A rule that names a derived value is checked last, for what satisfies all the others.
    """

    def __init__(
        self,
        space: SearchSpace,
        workload: Workload,
        environment: Environment,
        derived: Derived | None = None,
    ) -> None:
        self._facts = facts(workload, environment)
        self._defaults = space.defaults
        self._derived: Derived = derived or {}
        self.knobs = tuple(Knob.of(d, space.defaults.get(d.name)) for d in space.dimensions)
        self.rules = tuple(Rule.of(constraint) for constraint in space.constraints)
        late = self._derived.keys()
        self._plain = [rule for rule in self.rules if not rule.expression.names & late]
        self._late = [rule for rule in self.rules if rule.expression.names & late]
        self._check_names()
        if waiting := circle(self.knobs):
            raise StudyError(f"[space] conditions go round in a circle: {', '.join(waiting)}")

    @cached_property
    def size(self) -> int:
        """Points before constraints and conditions."""
        return math.prod(len(knob.choices) for knob in self.knobs)

    @cached_property
    def feasible(self) -> tuple[Config, ...]:
        """Every distinct configuration that satisfies the constraints, in knob order."""
        points = [*Points(self.knobs, self._plain, self._names({})).all()]
        found = [config for config in map(Config, points) if not self._broken_late(config)]
        return tuple(sorted(found, key=self._place))

    @cached_property
    def candidates(self) -> tuple[Config, ...]:
        """What a search chooses from: every feasible configuration, of too many a fixed sample."""
        if self.is_listable:
            return self.feasible
        points, random = Points(self.knobs, self._plain, self._names({})), Random(0)
        found: dict[Config, None] = {}
        for _ in range(SAMPLE_TRIES):
            point = points.draw(random)
            config = None if point is None else Config(point)
            if config is not None and config not in found and not self._broken_late(config):
                found[config] = None
            if len(found) == SAMPLE_COUNT:
                break
        return tuple(sorted(found, key=self._place))

    def near(self, config: Config) -> tuple[Config, ...]:
        """Return feasible neighbours: all that one changed knob gives, and many of two knobs."""
        random = Random(config.digest)
        one = [{knob.name: choice} for knob in self.knobs for choice in knob.choices]
        two = [{**random.choice(one), **random.choice(one)} for _ in range(NEAR_TRIES)]
        found = (self.check({**self.settings(config), **change}) for change in (*one, *two))
        return tuple(dict.fromkeys(each for each in found if isinstance(each, Config)))

    def obstacles(self) -> tuple[str, ...]:
        """Why nothing is feasible: each rule without which something would be, as text."""
        plain = self._plain
        first = next(Points(self.knobs, plain, self._names({})).all(), None)
        if first is not None:
            return self._broken_late(Config(first))
        without = (([other for other in plain if other is not rule], rule) for rule in plain)
        return tuple(
            rule.words
            for others, rule in without
            if next(Points(self.knobs, others, self._names({})).all(), None) is not None
        )

    @cached_property
    def is_listable(self) -> bool:
        """Whether `feasible` can be had."""
        try:
            return self.feasible is not None
        except StudyError:
            return False

    def settings(self, config: Config) -> Mapping[str, Value]:
        """The configuration with the defaults of what it leaves out."""
        return {**self._defaults, **config.values}

    def answer(self, config: Config) -> Mapping[str, Value]:
        """What a policy has to return to get this configuration."""
        return config.values

    def derived(self, config: Config) -> Mapping[str, Value]:
        """What follows from the configuration, under the names that rules may use."""
        settings = self.settings(config)
        return {name: value(settings) for name, value in self._derived.items()}

    @property
    def memory_bytes(self) -> int | None:
        """Memory that a rank may use; None where unknown."""
        limit = self._facts["memory_bytes"]
        return int(limit) if limit is not None else None

    def derived_number(self, config: Config, name: str) -> float | None:
        """One number that follows from the configuration; None where the space derives none."""
        value = self._derived[name](self.settings(config)) if name in self._derived else None
        return None if isinstance(value, str) else value

    def check(self, candidate: Mapping[str, object]) -> Config | tuple[str, ...]:
        """Return the canonical configuration, or what is wrong with it, one sentence per fault."""
        values, faults = self._settings(candidate)
        if faults:
            return faults
        config = self._live(values)
        names = self._names(config.values)
        missing = tuple(
            _missing(knob)
            for knob in self.knobs
            if knob.name not in config.values and acts(knob, names)
        )
        return missing or self.violations(config) or config

    def violations(self, config: Config) -> tuple[str, ...]:
        """The constraints this configuration breaks, as text with the numbers filled in."""
        names = self._names(config.values)
        broken = (
            rule.broken(names) for rule in self._plain if rule.expression.names <= names.keys()
        )
        return tuple(words for words in broken if words is not None) or self._broken_late(config)

    def distance(self, one: Config, other: Config) -> tuple[int, int]:
        """Knobs that differ, then how far apart their choices lie; texts have no order."""
        differing, steps = 0, 0
        for knob in self.knobs:
            a, b = one.values.get(knob.name), other.values.get(knob.name)
            if a != b:
                differing += 1
                if a is not None and b is not None:
                    apart = abs(knob.choices.index(a) - knob.choices.index(b))
                    steps += 1 if isinstance(a, str) else apart
        return differing, steps

    def sample(self, count: int, random: Random) -> tuple[Config, ...]:
        """Up to `count` different feasible configurations."""
        return tuple(random.sample(self.feasible, min(count, len(self.feasible))))

    def words(self) -> str:
        """The space as a person or a model reads it: knobs with choices, then constraints.

        Texts that are no choice here are not shown, nor rules that always hold without them.
        """
        lines = ["Knobs:", *(f"- {knob.words}" for knob in self.knobs)]
        lines.append("Constraints, all of which must hold:")
        rules = list(filter(None, map(self._narrowed, self.rules)))
        lines.extend(f"- {rule.words}" for rule in rules)
        named = frozenset[str]().union(*(each.names for each in self._shown(rules)))
        fixed = [f"{name} = {value!r}" for name, value in self.fixed.items() if name in named]
        if fixed:
            lines.append(f"Named above and not searched: {', '.join(fixed)}")
        return "\n".join(lines)

    def _shown(self, rules: Sequence[Rule]) -> Iterator[Expression]:
        yield from (rule.expression for rule in rules)
        yield from (knob.when for knob in self.knobs if knob.when)

    def _narrowed(self, rule: Rule) -> Rule | None:
        """The rule as it reads with the choices of this space; None where it always holds."""
        text = narrow(rule.expression, self._texts)
        return None if text is None else Rule.of(replace(rule.constraint, expression=text))

    @cached_property
    def _texts(self) -> Mapping[str, Set[str]]:
        """The texts that each name with such values may have."""
        values: dict[str, set[Value]] = {name: {value} for name, value in self._defaults.items()}
        for knob in self.knobs:
            values.setdefault(knob.name, set()).update(knob.choices)
        return {
            name: {value for value in found if isinstance(value, str)}
            for name, found in values.items()
            if any(isinstance(value, str) for value in found)
        }

    @cached_property
    def fixed(self) -> Mapping[str, Value]:
        """The values of knobs that are not searched but that a rule or a condition names."""
        searched = {knob.name for knob in self.knobs}
        named = {name for _, expression in self._expressions() for name in expression.names}
        return {
            name: value
            for name, value in self._defaults.items()
            if name in named and name not in searched
        }

    def _settings(
        self, candidate: Mapping[str, object]
    ) -> tuple[dict[str, Value], tuple[str, ...]]:
        known = {knob.name: knob for knob in self.knobs}
        others = (self._fixed_fault(name, candidate) for name in candidate if name not in known)
        faults = [fault for fault in others if fault is not None]
        values: dict[str, Value] = {}
        for name, knob in known.items():
            if name not in candidate:
                if knob.default is not None:
                    values[name] = knob.default
                elif knob.when is None:
                    faults.append(_missing(knob))
                continue
            value = knob.canonical(candidate[name])
            if value is None:
                given = f"{shown(candidate[name])} ({type(candidate[name]).__name__})"
                faults.append(f"knob {name} is {given}, not one of {list_words(knob.choices)}")
            else:
                values[name] = value
        return values, tuple(faults)

    def _fixed_fault(self, name: str, candidate: Mapping[str, object]) -> str | None:
        """What is wrong with a knob that is not searched; None if it has its fixed value."""
        default = self._defaults.get(name)
        if default is None:
            return _unknown(name, [knob.name for knob in self.knobs])
        if meant(candidate[name], [default]) is not None:
            return None
        return f"knob {name} is {shown(candidate[name])}, but it is not searched: it is {default!r}"

    def _live(self, values: Mapping[str, Value]) -> Config:
        """Drop the knobs that have no effect in this configuration."""
        live = dict(values)
        # Dropping a knob can leave another, whose condition names it, without effect too.
        while dead := [
            k.name for k in self.knobs if k.name in live and not acts(k, self._names(live))
        ]:
            for name in dead:
                del live[name]
        return Config(live)

    def _names(self, values: Mapping[str, Value]) -> dict[str, Operand | None]:
        return {**self._facts, **self._defaults, **values}

    def _broken_late(self, config: Config) -> tuple[str, ...]:
        """The rules about derived values that are broken."""
        if not self._late:
            return ()
        names = self._names(config.values)
        settings = self.settings(config)
        wanted = frozenset[str]().union(*(rule.expression.names for rule in self._late))
        for name in wanted & self._derived.keys():
            names[name] = self._derived[name](settings)
        broken = (
            rule.broken(names) for rule in self._late if rule.expression.names <= names.keys()
        )
        return tuple(words for words in broken if words is not None)

    def _place(self, config: Config) -> tuple[int, ...]:
        """Where a point comes in the order of the knobs; one without effect counts as its first."""
        return tuple(
            knob.choices.index(config[knob.name]) if knob.name in config.values else 0
            for knob in self.knobs
        )

    def _check_names(self) -> None:
        knobs = [knob.name for knob in self.knobs]
        for name in knobs:
            if knobs.count(name) > 1:
                raise StudyError(f"[space] knob {name!r} is defined twice")
            if name in self._facts or name in self._derived:
                raise StudyError(f"[space] knob {name!r} is also a workload or environment field")
        known = list(dict.fromkeys([*knobs, *self._facts, *self._derived, *self._defaults]))
        for where, expression in self._expressions():
            for name in sorted(expression.names):
                if name not in known:
                    raise StudyError(f"[space] {where}: {_unknown(name, known)}")
                if name in self._facts and self._facts[name] is None:
                    raise StudyError(f"[space] {where} needs {name}, which the study does not give")
        for knob in self.knobs:
            if knob.when and (late := knob.when.names & self._derived.keys()):
                raise StudyError(
                    f"[space] condition of {knob.name!r} names {min(late)}, which only "
                    "constraints may name"
                )

    def _expressions(self) -> Iterator[tuple[str, Expression]]:
        for rule in self.rules:
            yield f"constraint {rule.constraint.name!r}", rule.expression
        for knob in self.knobs:
            if knob.when:
                yield f"condition of {knob.name!r}", knob.when


def _missing(knob: Knob) -> str:
    return f"knob {knob.name} is missing; choose one of {list_words(knob.choices)}"


def _unknown(name: str, known: Sequence[str]) -> str:
    return f"{shown(name)} is unknown; {suggestion(str(name), known)}"
