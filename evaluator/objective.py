"""From metric values to the one cost that trials are compared by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from evaluator.metrics.registry import metric, metric_names
from records.errors import StudyError
from records.expression import Expression, ExpressionError, parse
from records.study import Objective
from records.trial import Failed, FailureKind, MetricValue, Score, Stage

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Scoring:
    """An objective ready for use: `lower_is_better` already settled."""

    expression: Expression
    lower_is_better: bool
    unit: str

    def score(
        self, metrics: Sequence[MetricValue], absent: Mapping[str, str] = NOTHING
    ) -> Score | Failed:
        """Score a measured trial; a failure when a metric it needs has no answer.

        `absent` tells why metrics have none, by name.
        """
        values: Mapping[str, float] = {value.name: value.value for value in metrics}
        missing = sorted(self.expression.names - values.keys())
        if missing:
            why = "; ".join(f"{name}: {absent[name]}" for name in missing if name in absent)
            needs = f"the objective needs {', '.join(missing)}, which this trial has not"
            return _failed(f"{needs} ({why})" if why else needs)
        try:
            value = self.expression.number(values)
        except ExpressionError as error:
            return _failed(str(error))
        cost = value if self.lower_is_better else -value
        return Score(cost=cost, value=value, unit=self.unit)


def scoring(objective: Objective) -> Scoring:
    """Check an objective; raises `StudyError` for an unknown metric or an open direction."""
    expression = parse(objective.expression)
    metrics = {name: metric(name) for name in sorted(expression.names)}
    if not metrics:
        names = ", ".join(metric_names())
        raise StudyError(f"objective {objective.expression!r} names no metric; metrics are {names}")
    only = metrics.get(expression.text.strip())
    if objective.direction is not None:
        lower = objective.direction == "minimize"
    elif only is not None:
        lower = only.better == "lower"
    else:
        raise StudyError(
            f"objective {objective.expression!r} is an expression: say which way is better "
            "with --minimize or --maximize"
        )
    return Scoring(expression, lower, only.unit if only else "")


def _failed(message: str) -> Failed:
    return Failed(stage=Stage.SCORE, kind=FailureKind.METRIC_ERROR, message=message)
