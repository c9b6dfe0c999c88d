"""From metric values to the one cost that trials are compared by."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from evaluator.direction import which_is_better
from evaluator.limits import Limit, limit
from evaluator.metrics.base import Metric
from evaluator.metrics.registry import metric_names
from evaluator.readings import AT_SEED, NOTHING, Baseline, lacking, metrics_read, readings
from records.errors import StudyError
from records.expression import Expression, ExpressionError, parse
from records.history import History
from records.study import Objective, Study
from records.trial import Failed, FailureKind, Measured, MetricValue, Outcome, Score, Stage, Trial


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

        So a seed that failed is stood in for by the first trial that was measured.
        """
        first = next((outcome for outcome in outcomes if isinstance(outcome, Measured)), None)
        seed = None if first is None else first.metrics
        return replace(
            self,
            seed=seed,
            seeds={} if first is None else _metrics_in_contexts(first),
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

        `absent` tells why metrics have none, by name.
        """
        known = readings(metrics, self.seed)
        missing, why = lacking(self.expression, known, absent)
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
        """A trial on record, scored anew; a failure where it lacks a metric."""
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
    def told_metrics(self) -> frozenset[str]:
        """Metrics that make up objectives and limits, and that the score itself does not tell."""
        named = {metric.name for one in self._read for metric in metrics_read(one).values()}
        own = metrics_read(self.expression).get(self.expression.text)
        return frozenset(named - {own.name} if own is not None else named)

    @property
    def _read(self) -> tuple[Expression, ...]:
        """Every expression over metrics that the study has."""
        objectives = (one.expression for one in self.objectives)
        return (*objectives, *(one.expression for one in self.limits))


def _metrics_in_contexts(outcome: Measured) -> dict[str, Sequence[MetricValue]]:
    return {
        one.name: one.outcome.metrics
        for one in outcome.contexts
        if isinstance(one.outcome, Measured)
    }


def scoring_of(study: Study, added: Sequence[Metric] = ()) -> Scoring:
    """Check all that a study wants; raises `StudyError` where it is unclear.

    `added` are metrics that are known beside those of every study.
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
            f"objective {objective.expression!r}: its metrics do not tell which way is better; "
            "say which way is better with --minimize or --maximize, or as direction in a study file"
        )
    return Scoring(expression=expression, lower_is_better=lower, unit=only.unit if only else "")


def _failed(message: str) -> Failed:
    return Failed(stage=Stage.SCORE, kind=FailureKind.METRIC_ERROR, message=message)
