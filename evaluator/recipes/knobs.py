"""The knobs and rules of a recipe: read from its table, and applied to a study.

What ranks of ours share, whatever recipe starts them, is here too: their command and their device.
"""

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import TypeVar

import msgspec

from evaluator.rank import start
from evaluator.rank.job import DeviceKind
from evaluator.rank.protocol import JOB_FILE
from records.errors import StudyError
from records.expression import Operand, Rule, facts, parse
from records.scrub import expanded
from records.study import Constraint, Dimension, Environment, SearchSpace, Study, Value, choices_of
from records.trial import Config

T = TypeVar("T")
Rules = Mapping[str, tuple[str, str]]
"""Expression and reason of each rule, by its name."""

LIBRARY = "default"
"""The value that leaves a text knob to the library."""
MAX_SETTINGS = 20_000
"""Settings of a rule's knobs that are tried to find out whether they can break it."""


class Knob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One setting, and the values that it may have.

    An empty table in a study searches `choices`. Numbers may be anything from `least` on, texts
    with a `pattern` anything that it matches; others are of `choices` and `more`. A knob has an
    effect when `when` holds and, if any are listed, the mix has one of the collectives `of`; in
    inference it `serves`. `variables` are patterns of the environment variables that it sets.
    """

    description: str
    default: Value = 0
    choices: tuple[Value, ...] = ()
    choices_on_cpu: tuple[Value, ...] = ()
    more: tuple[Value, ...] = ()
    least: int | None = None
    pattern: str | None = None
    when: str | None = None
    of: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    serves: bool = False

    def for_device(self, device: str) -> "Knob":
        """Return the knob with what it can be set to on such a device."""
        own = self.choices_on_cpu
        if device != "cpu" or not own:
            return self
        default = self.default if self.default in own else own[0]
        return msgspec.structs.replace(self, choices=own, default=default)

    def fault(self, value: Value) -> str | None:
        """What is wrong with a value, as the end of a sentence; None where nothing is."""
        if self.least is not None:
            whole = isinstance(value, int) and not isinstance(value, bool)
            fits = whole and int(value) >= self.least
            wanted = f"a whole number of at least {self.least}"
        elif self.pattern is not None:
            fits = isinstance(value, str) and re.fullmatch(self.pattern, value) is not None
            wanted = f"a text such as {json.dumps(self.choices[-1])}"
        elif isinstance(self.default, bool):
            fits, wanted = isinstance(value, bool), "true or false"
        else:
            known = dict.fromkeys((*self.choices, *self.more))
            fits = any(type(value) is type(each) and value == each for each in known)
            wanted = " or ".join(map(str, known))
        return None if fits else f"must be {wanted}, got {json.dumps(value)}"


@dataclass(frozen=True, slots=True)
class KnobTable:
    """The knobs of a recipe in a study by name, those first that the conditions of others name."""

    study: Study
    knobs: Mapping[str, Knob]

    @property
    def defaults(self) -> Mapping[str, Value]:
        """What every knob is where a configuration leaves it out."""
        return {name: knob.default for name, knob in self.knobs.items()}

    def check(self, name: str, value: Value) -> None:
        """Raise `StudyError` when the recipe has no such knob, or it cannot be set to this."""
        fault = self._named(name).fault(value)
        if fault is not None:
            raise StudyError(f"[space] {name} {fault}")

    def live(self, settings: Mapping[str, Value]) -> dict[str, Value]:
        """Fill in defaults, and set every knob to its default that has no effect among these."""
        names = facts(self.study.workload, self.study.environment)
        found = {**self.defaults, **settings}
        for name, knob in self.knobs.items():
            if knob.when is not None and not parse(knob.when).holds({**names, **found}):
                found[name] = knob.default
        return found

    def settings(self, config: Config, rules: Sequence[Rule]) -> Mapping[str, Value]:
        """Return a live value of every knob; raises `StudyError` when they break a rule."""
        for name, value in config.values.items():
            self.check(name, value)
        settings = self.live(config.values)
        names = {**facts(self.study.workload, self.study.environment), **settings}
        faults = [words for rule in rules if (words := rule.broken(names)) is not None]
        if faults:
            raise StudyError(f"[space] {config}: {'; '.join(faults)}")
        return settings

    def complete(
        self, rules: Sequence[Rule], *, wishes: Sequence[Rule] = (), implied: Sequence[str] = ()
    ) -> SearchSpace:
        """Return the study's space with defaults, and all rules that a configuration could break.

        `wishes` are rules that only make a search worth its launches: one of the study with the
        same name replaces them. Rules with a name that is `implied` are left out. Raises
        `StudyError` for an unknown knob, a choice that it does not have, and a rule that is broken
        whatever is searched.
        """
        space = replace(
            self.study.space,
            dimensions=tuple(map(self._complete, self.study.space.dimensions)),
            defaults=self.defaults,
        )
        study = replace(self.study, space=space)
        wanted = (rule for rule in rules if rule.constraint.name not in implied)
        needed = [rule.constraint for rule in wanted if _can_break(rule, study)]
        needed += _needed_wishes(wishes, study)
        kept = _study_constraints(study, rules, needed)
        return replace(space, constraints=(*needed, *kept))

    def _complete(self, given: Dimension) -> Dimension:
        """A dimension of a study with what it leaves out."""
        knob = self._named(given.name)
        ends = (given.range.low, given.range.high) if given.range else ()
        for choice in (*(given.choices or ()), *ends):
            self.check(given.name, choice)
        is_listed = given.choices is not None or given.range is not None
        return replace(
            given,
            choices=given.choices if is_listed else knob.choices,
            when=given.when or knob.when,
            description=given.description or knob.description,
        )

    def _named(self, name: str) -> Knob:
        if name not in self.knobs:
            close = get_close_matches(name, self.knobs, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(self.knobs)}"
            recipe = self.study.launch.recipe
            raise StudyError(f"[space] {name!r} is not a knob of the {recipe} recipe; {hint}")
        return self.knobs[name]


def read_table(name: str, kind: type[T]) -> T:
    """Read a recipe's table, a TOML file next to this one."""
    text = (files("evaluator.recipes") / name).read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=kind)


def new_rules(rows: Rules) -> tuple[Rule, ...]:
    """Parse the rules of a table."""
    return tuple(new_rule(name, expression, reason) for name, (expression, reason) in rows.items())


def new_rule(name: str, expression: str, reason: str) -> Rule:
    """A rule of a recipe; raises `StudyError` when its expression is none."""
    return Rule.of(Constraint(name=name, expression=expression, reason=reason))


def list_literal(values: Iterable[str]) -> str:
    """Return texts as an expression lists them."""
    return f"[{', '.join(map(repr, values))}]"


def rank_device(environment: Environment) -> DeviceKind:
    """Where ranks of ours run; raises `StudyError` for a machine that they cannot run on."""
    if environment.device == "tpu":
        raise StudyError(
            "[environment] device 'tpu': ranks of cclsearch run on GPUs and CPUs; start a program "
            'of your own there, with --command and --tuning, or with recipe = "command" under '
            "[launch]"
        )
    return DeviceKind(environment.device)


def rank_python(study: Study) -> str | None:
    """Return the path of the Python that a study names for its ranks; None for ours."""
    return None if study.launch.python is None else expanded(study.launch.python)


def rank_program(study: Study, own: str = Path(sys.executable).name) -> tuple[str, ...]:
    """Return the command of one rank; without a Python of the study it names no path of ours."""
    python, module = rank_python(study), "evaluator.rank.main"
    if python is not None and not study.is_local:
        return (python, "-m", module, JOB_FILE)  # agents put our code on its path
    return (*start.command(module, python, own=own), JOB_FILE)


def _can_break(rule: Rule, study: Study) -> bool:
    """Whether some setting of the space breaks a rule.

    The space has its choices and defaults. Raises `StudyError` if the rule is broken without any.
    """
    searched = {d.name: choices_of(d) for d in study.space.dimensions}
    names: Mapping[str, Operand | None] = {
        **facts(study.workload, study.usable_environment),
        **study.space.defaults,
    }
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


def _needed_wishes(rules: Sequence[Rule], study: Study) -> Iterator[Constraint]:
    """Wishes that a configuration could break, without those that the study replaces."""
    taken = {constraint.name for constraint in study.space.constraints}
    for rule in rules:
        name = rule.constraint.name
        try:
            if name not in taken and _can_break(rule, study):
                yield rule.constraint
        except StudyError as error:
            raise StudyError(
                f"{error}; search one of them, or give a constraint {name!r} of your own"
            ) from error


def _study_constraints(
    study: Study, rules: Sequence[Rule], needed: Sequence[Constraint]
) -> Iterator[Constraint]:
    """The study's own constraints; raises `StudyError` for one that takes the name of a rule."""
    taken = {rule.constraint.name: rule.constraint for rule in rules}
    for constraint in study.space.constraints:
        rule = taken.get(constraint.name)
        if rule is not None and rule != constraint:
            raise StudyError(
                f"[[constraint]] {constraint.name!r} is the name of a rule of the "
                f"{study.launch.recipe} recipe ({rule.expression}); give it another"
            )
        if constraint not in needed:
            yield constraint
