"""A search space made ready for use: canonical configurations, violations in words, enumeration.

Knows nothing of policies' texts or of how a configuration is launched.
"""

import difflib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from random import Random

from records.errors import SHOWN_CHARS, StudyError, shown
from records.expression import Expression, Operand, parse
from records.study import Constraint, Dimension, Environment, Range, SearchSpace, Value, Workload
from records.trial import Config

MAX_CHOICES = 4096
MAX_POINTS = 5_000_000
MAX_NUMBER = 2**63


@dataclass(frozen=True, slots=True)
class Knob:
    """A dimension with its choices listed and its condition parsed."""

    dimension: Dimension
    choices: tuple[Value, ...]
    when: Expression | None

    @property
    def name(self) -> str:
        """Name of the knob."""
        return self.dimension.name

    def canonical(self, value: object) -> Value | None:
        """The choice that `value` means (4.0 means 4, never True), or None."""
        if isinstance(value, float) and value.is_integer() and not self._has_floats:
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and self._has_floats:
            # An integer is compared as it is: one beyond the floats cannot be converted.
            return next((c for c in self.choices if c == value), None)
        same = (c for c in self.choices if type(c) is type(value) and c == value)
        return next(same, None)

    @property
    def _has_floats(self) -> bool:
        return isinstance(self.choices[0], float)


@dataclass(frozen=True, slots=True)
class Rule:
    """A constraint with its expression parsed."""

    constraint: Constraint
    expression: Expression

    @property
    def words(self) -> str:
        """Name, expression and reason, as one sentence."""
        reason = f" ({self.constraint.reason})" if self.constraint.reason else ""
        return f"{self.constraint.name}: {self.constraint.expression}{reason}"


class Space:
    """A space bound to a workload and an environment; raises `StudyError` when it is malformed."""

    def __init__(self, space: SearchSpace, workload: Workload, environment: Environment) -> None:
        self._facts = facts(workload, environment)
        self.knobs = tuple(_knob(dimension) for dimension in space.dimensions)
        self.rules = tuple(Rule(c, parse(c.expression)) for c in space.constraints)
        self._check_names()
        self._check_circles()

    @cached_property
    def size(self) -> int:
        """Points before constraints and conditions."""
        return math.prod(len(knob.choices) for knob in self.knobs)

    @cached_property
    def feasible(self) -> tuple[Config, ...]:
        """Every distinct configuration that satisfies the constraints, in knob order."""
        if self.size > MAX_POINTS:
            raise StudyError(
                f"[space] has {self.size} points, too many to enumerate (at most {MAX_POINTS}); "
                "give fewer choices"
            )
        seen = dict.fromkeys(self._valid_points())
        return tuple(seen)

    def check(self, candidate: Mapping[str, object]) -> Config | tuple[str, ...]:
        """Give the canonical configuration, or what is wrong with it, one sentence per fault."""
        values, faults = self._settings(candidate)
        if faults:
            return faults
        config = self._live(values)
        missing = tuple(_missing(knob) for knob in self.knobs if self._is_missed(knob, config))
        return missing or self.violations(config) or config

    def violations(self, config: Config) -> tuple[str, ...]:
        """The constraints this configuration breaks, in words with the numbers filled in."""
        names = self._names(config.values)
        return tuple(
            f"breaks {rule.words} with {_settings_text(rule.expression, names)}"
            for rule in self.rules
            if rule.expression.names <= names.keys() and not rule.expression.holds(names)
        )

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
        """The space as a person or a model reads it: knobs with choices, then constraints."""
        lines = ["Knobs:"]
        for knob in self.knobs:
            when = f"; only when {knob.when.text}" if knob.when else ""
            about = f": {knob.dimension.description}" if knob.dimension.description else ""
            choices = ", ".join(repr(choice) for choice in knob.choices)
            lines.append(f"- {knob.name} in [{choices}]{when}{about}")
        lines.append("Constraints, all of which must hold:")
        lines.extend(f"- {rule.words}" for rule in self.rules)
        return "\n".join(lines)

    def _settings(
        self, candidate: Mapping[str, object]
    ) -> tuple[dict[str, Value], tuple[str, ...]]:
        known = {knob.name: knob for knob in self.knobs}
        faults = [_unknown(name, list(known)) for name in candidate if name not in known]
        values: dict[str, Value] = {}
        for name, knob in known.items():
            if name not in candidate:
                if knob.when is None:
                    faults.append(_missing(knob))
                continue
            value = knob.canonical(candidate[name])
            if value is None:
                given = f"{shown(candidate[name])} ({type(candidate[name]).__name__})"
                faults.append(f"knob {name} is {given}, not one of {_list(knob.choices)}")
            else:
                values[name] = value
        return values, tuple(faults)

    def _live(self, values: Mapping[str, Value]) -> Config:
        """Drop the knobs that have no effect in this configuration."""
        live = dict(values)
        # Dropping a knob can leave another, whose condition names it, without effect too.
        while dead := [k.name for k in self.knobs if k.name in live and not self._acts(k, live)]:
            for name in dead:
                del live[name]
        return Config(live)

    def _acts(self, knob: Knob, values: Mapping[str, Value]) -> bool:
        """Whether a knob has an effect; a condition on a knob without effect does not hold."""
        if knob.when is None:
            return True
        names = self._names(values)
        return knob.when.names <= names.keys() and knob.when.holds(names)

    def _is_missed(self, knob: Knob, config: Config) -> bool:
        return knob.name not in config.values and self._acts(knob, config.values)

    def _valid_points(self) -> Iterator[Config]:
        names = [knob.name for knob in self.knobs]
        for point in itertools.product(*(knob.choices for knob in self.knobs)):
            config = self._live(dict(zip(names, point, strict=True)))
            if not self.violations(config):
                yield config

    def _names(self, values: Mapping[str, Value]) -> dict[str, Operand | None]:
        return {**self._facts, **values}

    def _check_names(self) -> None:
        knobs = [knob.name for knob in self.knobs]
        for name in knobs:
            if knobs.count(name) > 1:
                raise StudyError(f"[space] knob {name!r} is defined twice")
            if name in self._facts:
                raise StudyError(f"[space] knob {name!r} is also a workload or environment field")
        known = [*knobs, *self._facts]
        for where, expression in self._expressions():
            for name in sorted(expression.names):
                if name not in known:
                    raise StudyError(f"[space] {where}: {_unknown(name, known)}")
                if name in self._facts and self._facts[name] is None:
                    raise StudyError(f"[space] {where} needs {name}, which the study does not give")

    def _check_circles(self) -> None:
        left = {k.name: k.when.names if k.when else frozenset() for k in self.knobs}
        while settled := [name for name, needed in left.items() if not needed & left.keys()]:
            for name in settled:
                del left[name]
        if left:
            raise StudyError(f"[space] conditions go round in a circle: {', '.join(left)}")

    def _expressions(self) -> Iterator[tuple[str, Expression]]:
        for rule in self.rules:
            yield f"constraint {rule.constraint.name!r}", rule.expression
        for knob in self.knobs:
            if knob.when:
                yield f"condition of {knob.name!r}", knob.when


def facts(workload: Workload, environment: Environment) -> dict[str, Value | None]:
    """Workload and environment fields that expressions may name."""
    return {
        "global_batch": workload.global_batch,
        "sequence_length": workload.sequence_length,
        "layer_count": workload.layer_count,
        "hidden_size": workload.hidden_size,
        "head_count": workload.head_count,
        "kv_head_count": workload.kv_head_count,
        "ffn_size": workload.ffn_size,
        "vocab_size": workload.vocab_size,
        "expert_count": workload.expert_count,
        "world_size": environment.world_size,
        "ranks_per_node": environment.ranks_per_node,
        "memory_bytes": environment.memory_bytes,
    }


def _knob(dimension: Dimension) -> Knob:
    where = f"[space] {dimension.name!r}"
    if (dimension.choices is None) == (dimension.range is None):
        raise StudyError(f"{where}: give either choices or a range")
    choices = dimension.choices if dimension.range is None else _listed(dimension.range, where)
    if not choices:
        raise StudyError(f"{where} lists no choices; give at least one")
    if all(type(choice) in {int, float} for choice in choices) and any(
        isinstance(choice, float) for choice in choices
    ):
        choices = tuple(float(choice) for choice in choices)
    if len({type(choice) for choice in choices}) > 1:
        raise StudyError(f"{where} mixes types in {_list(choices)}; use one type")
    if len(set(choices)) < len(choices):
        raise StudyError(f"{where} repeats a choice in {_list(choices)}")
    return Knob(dimension, choices, parse(dimension.when) if dimension.when else None)


def _listed(span: Range, where: str) -> tuple[Value, ...]:
    if not all(abs(end) < MAX_NUMBER for end in (span.low, span.high)):
        raise StudyError(f"{where}: a range lies within 64 bits, not {span.low} to {span.high}")
    if span.low > span.high:
        raise StudyError(f"{where}: range low {span.low} is above high {span.high}")
    step = 1 if span.step is None else span.step
    if not 0 < step < MAX_NUMBER:
        raise StudyError(f"{where}: range step {step} is not positive and finite")
    if span.scale == "doubling" and (span.low <= 0 or span.step is not None):
        raise StudyError(f"{where}: a doubling range needs low > 0 and takes no step")
    # As the range is written, not as floats add up: three steps of 0.1 are 0.3.
    low, high, apart = (Fraction(repr(n)) for n in (span.low, span.high, step))
    numbers = (
        low * 2**i if span.scale == "doubling" else low + apart * i for i in itertools.count()
    )
    listed = tuple(
        itertools.islice(itertools.takewhile(lambda n: n <= high, numbers), MAX_CHOICES + 1)
    )
    if len(listed) > MAX_CHOICES:
        raise StudyError(f"{where}: range has more than {MAX_CHOICES} values; give a larger step")
    whole = isinstance(span.low, int) and isinstance(step, int)
    return tuple(int(number) if whole else float(number) for number in listed)


def _missing(knob: Knob) -> str:
    return f"knob {knob.name} is missing; choose one of {_list(knob.choices)}"


def _unknown(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(str(name)[:SHOWN_CHARS], known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
    return f"{shown(name)} is unknown; {hint}"


def _settings_text(expression: Expression, names: Mapping[str, Operand | None]) -> str:
    return ", ".join(f"{name}={names[name]}" for name in sorted(expression.names))


def _list(choices: Sequence[Value]) -> str:
    shown = ", ".join(repr(choice) for choice in choices[:20])
    return f"[{shown}{', ...' if len(choices) > 20 else ''}]"
