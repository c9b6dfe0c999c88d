"""From metric values to the one cost that trials are compared by: objectives, limits, the seed.

A limit is what a measured trial must satisfy to lead, as in `peak_memory < 30 GiB`. A name such as
`step_time@seed` stands for what the seed measured.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Self, TypeAlias

from evaluator.metrics.base import Better, Metric
from evaluator.metrics.registry import ALIASES, is_built_in, metric, metric_names
from records.errors import StudyError
from records.expression import Expression, ExpressionError, parse, seed_name
from records.study import Objective, Study
from records.trial import (
    Failed,
    FailureKind,
    History,
    Measured,
    MetricValue,
    Outcome,
    Score,
    Stage,
    Trial,
)

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
AT_SEED: Final = "@seed"

PER_TOKEN: Final = frozenset(
    {
        *("tokens_per_s", "tokens_per_s_per_rank", "rank_seconds_per_token"),
        *("cost_per_million_tokens", "mfu", "achieved_tflops", "output_tokens_per_s"),
    }
)
"""Metrics that are fair to trials which do more in a step."""
_OF_NO_STEP: Final = frozenset({"rank_count", "peak_memory", *ALIASES})

Baseline: TypeAlias = Sequence[MetricValue] | None
"""Metrics of the seed; None while nothing was measured."""


def metrics_read(expression: Expression, added: Sequence[Metric] = ()) -> Mapping[str, Metric]:
    """The metric behind each name in an expression. Raises `MetricError` for an unknown one."""
    return {name: metric(name.removesuffix(AT_SEED), added) for name in sorted(expression.names)}


def readings(metrics: Sequence[MetricValue], seed: Baseline) -> Mapping[str, float]:
    """Values by every name that an expression may use."""
    at_seed = {f"{name}{AT_SEED}": value for name, value in _by_name(seed or ()).items()}
    return {**_by_name(metrics), **at_seed}


def missing_names(
    expression: Expression, known: Mapping[str, float], absent: Mapping[str, str]
) -> tuple[tuple[str, ...], str]:
    """Return the names that have no value, and in parentheses why, from `absent` by metric."""
    missing = tuple(sorted(expression.names - known.keys()))
    reasons = {
        name: "the seed has no value of it"
        if name.endswith(AT_SEED)
        else absent.get(name) or absent.get(ALIASES.get(name, name))
        for name in missing
    }
    why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason)
    return missing, f" ({why})" if why else ""


def _by_name(metrics: Sequence[MetricValue]) -> dict[str, float]:
    values = {value.name: value.value for value in metrics}
    aliased = {alias: values[name] for alias, name in ALIASES.items() if name in values}
    return {**aliased, **values}


UNITS: Final[Mapping[str, tuple[str, float]]] = {
    "B": ("size", 1.0),
    "KiB": ("size", 2.0**10),
    "MiB": ("size", 2.0**20),
    "GiB": ("size", 2.0**30),
    "TiB": ("size", 2.0**40),
    "kB": ("size", 1e3),
    "MB": ("size", 1e6),
    "GB": ("size", 1e9),
    "TB": ("size", 1e12),
    "us": ("time", 1e-6),
    "ms": ("time", 1e-3),
    "s": ("time", 1.0),
    "%": ("share", 0.01),
}
"""What a unit that numbers may have measures, and its size."""

_METRIC_UNITS: Final[Mapping[str, tuple[str, float]]] = {
    **UNITS,
    "bytes": ("size", 1.0),
    "fraction": ("share", 1.0),
    "ratio": ("share", 1.0),
}
_COMPARING = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq)
_WITH_UNIT = re.compile(
    r"(?<![\w.])((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z]+\b|%(?!\s*[\w(.]))"
)
"""A number and its unit; a % before another operand is the remainder."""

EXAMPLE: Final = "write it as in 'peak_memory < 30 GiB'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One limit, ready for use; `units` are those in which its metrics are shown, by name."""

    text: str
    expression: Expression
    units: Mapping[str, tuple[str, float]]

    def broken(self, known: Mapping[str, float], absent: Mapping[str, str]) -> str | None:
        """Return how a trial breaks it, as text with numbers; None where it holds.

        What cannot be checked counts as broken.
        """
        missing, why = missing_names(self.expression, known, absent)
        if missing:
            return f"{self.text} cannot be checked without {', '.join(missing)}{why}"
        try:
            if self.expression.holds(known):
                return None
        except ExpressionError as error:
            return f"{self.text} cannot be checked: {error}"
        values = (f"{name} is {self._words(name, known[name])}" for name in sorted(self.units))
        return f"{self.text} is broken: {', '.join(values)}"

    def _words(self, name: str, value: float) -> str:
        unit, size = self.units[name]
        return f"{value / size:.6g}{'' if unit == '%' else ' '}{unit}"


def limit(text: str, added: Sequence[Metric] = ()) -> Limit:
    """Check a limit; raises `StudyError` for an unknown metric or unit, or where it has none."""
    text = " ".join(text.split())
    try:
        return _check_limit(text, added)
    except StudyError as error:
        raise StudyError(f"limit {text!r}: {error}") from error


def _check_limit(text: str, added: Sequence[Metric]) -> Limit:
    units = {unit for _, unit in _WITH_UNIT.findall(text)}
    unknown = sorted(units - UNITS.keys())
    if unknown:
        raise StudyError(f"{unknown[0]!r} is not a unit; known are {', '.join(UNITS)}")
    metrics = metrics_read(parse(_WITH_UNIT.sub(r"\1", text)), added)
    sizes = {unit: _size(unit, metrics) for unit in units}
    expression = parse(_WITH_UNIT.sub(lambda n: repr(float(n[1]) * sizes[n[2]]), text))
    match expression.body:
        case ast.Compare(ops=ops) if all(isinstance(op, _COMPARING) for op in ops):
            pass
        case _:
            raise StudyError(f"it compares nothing with <, <=, >, >= or ==; {EXAMPLE}")
    if not metrics:
        raise StudyError(f"it names no metric; {EXAMPLE}")
    shown = {name: _written_unit(metric, units) for name, metric in metrics.items()}
    return Limit(text=text, expression=expression, units=shown)


def _size(unit: str, metrics: Mapping[str, Metric]) -> float:
    """How much of the metrics' own unit one of this unit is."""
    measures, size = UNITS[unit]
    own = [_METRIC_UNITS.get(metric.unit) for metric in metrics.values()]
    sizes = {each[1] for each in own if each is not None and each[0] == measures}
    if not sizes:
        own_units = ", ".join(f"{name} is in {metric.unit}" for name, metric in metrics.items())
        raise StudyError(f"{unit} is a unit of {measures}, but {own_units or 'no metric is named'}")
    if len(sizes) > 1:
        raise StudyError(f"its metrics have different units of {measures}; compare one at a time")
    return size / sizes.pop()


def _written_unit(metric: Metric, units: set[str]) -> tuple[str, float]:
    """The unit that was written for such a metric, and how much of the metric's own one is."""
    own = _METRIC_UNITS.get(metric.unit)
    for unit in sorted(units):
        if own is not None and UNITS[unit][0] == own[0]:
            return unit, UNITS[unit][1] / own[1]
    return metric.unit, 1.0


_OTHER: Final[Mapping[Better, Better]] = {"lower": "higher", "higher": "lower"}


def which_is_better(body: ast.expr, metrics: Mapping[str, Metric]) -> Better | None:
    """Return lower or higher where all metrics of the expression agree, else None."""
    if isinstance(body, ast.Name):
        return metrics[body.id].better
    if not all(is_built_in(metric.name) for metric in metrics.values()):
        return None  # others may be negative
    ways = set(_ways(body, metrics, inverse=False))
    return ways.pop() if len(ways) == 1 else None


def _ways(
    node: ast.expr, metrics: Mapping[str, Metric], *, inverse: bool
) -> Iterator[Better | None]:
    """Yield which way is better for each metric, None for what may rise and fall."""
    match node:
        case ast.Name(id=name):
            yield _OTHER[metrics[name].better] if inverse else metrics[name].better
        case ast.BinOp(left=left, op=ast.Add() | ast.Mult() | ast.Div() as op, right=right):
            yield from _ways(left, metrics, inverse=inverse)
            yield from _ways(right, metrics, inverse=inverse != isinstance(op, ast.Div))
        case ast.Call(func=ast.Name(id="min" | "max"), args=args):
            for argument in args:
                yield from _ways(argument, metrics, inverse=inverse)
        case ast.Constant():
            pass
        case _ if seed_name(node) is None:
            yield None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """An objective ready for use: `lower_is_better` already settled.

    `limits` are what a trial must satisfy to lead, `more` the other objectives of the study.
    `seed` are the metrics that names like `step_time@seed` stand for.
    """

    expression: Expression
    lower_is_better: bool
    unit: str
    limits: tuple[Limit, ...] = ()
    more: tuple["Scoring", ...] = ()
    seed: Baseline = None
    seeds: Mapping[str, Sequence[MetricValue]] = field(default_factory=dict)
    """The same metrics in each context, by its name, where a study has several."""

    def against(self, outcomes: Iterable[Outcome]) -> Self:
        """The same with the first measured of these outcomes, oldest first, as the seed.

        A seed that failed is replaced by the first trial that was measured.
        """
        first = next((outcome for outcome in outcomes if isinstance(outcome, Measured)), None)
        seed = None if first is None else first.metrics
        contexts = () if first is None else first.contexts
        return replace(
            self,
            seed=seed,
            seeds={c.name: c.outcome.metrics for c in contexts if isinstance(c.outcome, Measured)},
            more=tuple(replace(one, seed=seed) for one in self.more),
        )

    def inside(self, context: str) -> Self:
        """The same for what was measured in one of several contexts of a study."""
        return replace(self, seed=self.seeds.get(context))

    def over(self, history: History) -> Self:
        """The same for the trials of a history and launches that repeat them."""
        return self.against(trial.outcome for trial in history)

    def score(
        self, metrics: Sequence[MetricValue], absent: Mapping[str, str] = NOTHING
    ) -> Score | Failed:
        """Score a measured trial; a failure when a metric it needs has no answer.

        `absent` gives the reason by metric.
        """
        known = readings(metrics, self.seed)
        missing, why = missing_names(self.expression, known, absent)
        if missing:
            return _failed(
                f"the objective needs {', '.join(missing)}, which this trial has not{why}"
            )
        try:
            value = self.expression.number(known)
        except ExpressionError as error:
            return _failed(str(error))
        broken = (one.broken(known, absent) for one in self.limits)
        return Score(
            cost=self.sign * value,
            value=value,
            unit=self.unit,
            broken=tuple(words for words in broken if words is not None),
        )

    def of(self, outcome: Measured) -> Score | Failed:
        """Score what a trial measured; where a study has contexts, a limit has to hold in each."""
        score = self.score(outcome.metrics, outcome.absent)
        if isinstance(score, Failed):
            return replace(
                score,
                artifacts=outcome.artifacts,
                contexts=outcome.contexts,
                launched=outcome.launched,
            )
        if not outcome.contexts:
            return score
        return replace(score, broken=tuple(self._broken_in_contexts(outcome)))

    def _broken_in_contexts(self, outcome: Measured) -> Iterator[str]:
        for one in outcome.contexts:
            if isinstance(one.outcome, Measured):
                known = readings(one.outcome.metrics, self.seeds.get(one.name))
                for each in self.limits:
                    words = each.broken(known, one.outcome.absent)
                    if words is not None:
                        yield f"in context {one.name}: {words}"

    def scored(self, trial: Trial) -> Trial:
        """Score a recorded trial again; a failure where it lacks a metric."""
        if not isinstance(trial.outcome, Measured):
            return trial
        score = self.of(trial.outcome)
        if isinstance(score, Failed):
            return replace(trial, outcome=score, score=None)
        return replace(trial, score=score)

    @property
    def objectives(self) -> tuple["Scoring", ...]:
        """All objectives, the main one first."""
        return (self, *self.more)

    @property
    def sign(self) -> int:
        """What a value is multiplied by to be a cost."""
        return 1 if self.lower_is_better else -1

    @property
    def needs_seed(self) -> bool:
        """Whether an objective or a limit names what the seed had."""
        return any(name.endswith(AT_SEED) for one in self._read for name in one.names)

    @property
    def shown_metrics(self) -> frozenset[str]:
        """Metrics that make up objectives and limits, and that the score itself does not show."""
        named = {metric.name for one in self._read for metric in metrics_read(one).values()}
        own = metrics_read(self.expression).get(self.expression.text)
        return frozenset(named - {own.name} if own is not None else named)

    @property
    def _read(self) -> tuple[Expression, ...]:
        """Every expression over metrics that the study has."""
        objectives = (one.expression for one in self.objectives)
        return (*objectives, *(one.expression for one in self.limits))


def scoring_of(study: Study, added: Sequence[Metric] = ()) -> Scoring:
    """Check all that a study wants; raises `StudyError` where it is unclear.

    `added` are metrics in addition to those of every study.
    """
    return replace(
        scoring(study.objective, added),
        limits=tuple(limit(text, added) for text in study.limits),
        more=tuple(scoring(one, added) for one in study.more_objectives),
    )


def scoring(objective: Objective, added: Sequence[Metric] = ()) -> Scoring:
    """Check an objective; raises `StudyError` for an unknown metric or an open direction."""
    expression = parse(objective.expression)
    metrics = metrics_read(expression, added)
    if all(name.endswith(AT_SEED) for name in metrics):
        names = ", ".join(metric_names(added))
        raise StudyError(f"objective {objective.expression!r} names no metric; metrics are {names}")
    only = metrics.get(expression.text)
    inferred = which_is_better(expression.body, metrics)
    if objective.direction is not None:
        lower = objective.direction == "minimize"
    elif inferred is not None:
        lower = inferred == "lower"
    else:
        raise StudyError(
            f"objective {objective.expression!r}: its metrics do not agree on which way is better; "
            "say which way is better with --minimize or --maximize, or as direction in a study file"
        )
    return Scoring(expression=expression, lower_is_better=lower, unit=only.unit if only else "")


def may_vary_work(study: Study) -> bool:
    """Return whether a script's steps may process different numbers of tokens.

    They may where each objective counts per token, so that a larger step has no advantage.
    """
    objectives = (study.objective, *study.more_objectives)
    names = [
        {name.removesuffix(AT_SEED) for name in parse(objective.expression).names}
        for objective in objectives
    ]
    is_script = study.command is not None
    return (
        is_script and bool(names[0] & PER_TOKEN) and set().union(*names) <= PER_TOKEN | _OF_NO_STEP
    )


def _failed(message: str) -> Failed:
    return Failed(stage=Stage.SCORE, kind=FailureKind.METRIC_ERROR, message=message)
