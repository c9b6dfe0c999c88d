"""Launches of a policy in several contexts, one after the other, as one outcome."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from evaluator.work import other_work
from records.study import Study
from records.trial import Config, Failed, InContext, Measured, MetricValue, Outcome
from search.contexts import in_context, parts
from search.ports import Evaluator

FOLDER = "contexts"
"""Where, beside the files of the study's own context, those of the others lie, by their names."""


@dataclass(frozen=True, slots=True)
class ContextEvaluator:
    """Launches a joined configuration in every context, each by the evaluator that it is given.

    A failure in one is the failure of all. Otherwise each metric is the geometric mean over the
    contexts: then the ratio of two trials is the mean of their ratios. Samples, breakdown and
    diagnosis are those of the study's own context.
    """

    each: Evaluator

    def evaluate(self, study: Study, config: Config, workdir: Path) -> Outcome:
        """Launch in `workdir`, an empty folder; where the study has no contexts, as ever."""
        if not study.contexts:
            return self.each.evaluate(study, config, workdir)
        ended: list[tuple[str, Measured]] = []
        for number, part in enumerate(parts(study, config)):
            folder = workdir / FOLDER / part.name if number else workdir
            folder.mkdir(parents=True, exist_ok=True)
            outcome = self.each.evaluate(part.study, part.config, folder)
            if isinstance(outcome, Failed):
                failed = in_context(outcome, part.name)
                return replace(failed, contexts=_named([*ended, (part.name, outcome)]))
            ended.append((part.name, outcome))
        return mean_outcome(ended)

    def evaluate_together(
        self, study: Study, configs: Sequence[Config], workdirs: Sequence[Path], seed: int
    ) -> tuple[Outcome, ...]:
        """Launch all at once; raises `ValueError` for a study with several contexts."""
        if study.contexts:
            raise ValueError("launches in several contexts do not take turns")
        return self.each.evaluate_together(study, configs, workdirs, seed)


def mean_outcome(ended: Sequence[tuple[str, Measured]]) -> Measured:
    """The outcome of the first, with the geometric means over all for metrics."""
    own = ended[0][1]
    metrics = tuple(_means(ended))
    return replace(
        own,
        metrics=metrics,
        absent=_absent(ended, {metric.name for metric in metrics}),
        contexts=_named(ended),
    )


def other_work_anywhere(measured: Measured, reference: Measured, study: Study) -> Failed | None:
    """Give a failure when the losses of any context differ from those of the reference trial."""
    if not study.contexts:
        return other_work(measured.measurement, reference.measurement, study)
    expected = dict(_measured(reference))
    contexts = {context.name: context for context in study.contexts}
    for name, outcome in _measured(measured):
        context = contexts.get(name)
        inside = study if context is None else replace(study, workload=context.workload)
        difference = other_work(outcome.measurement, expected[name].measurement, inside)
        if difference is not None:
            return replace(in_context(difference, name), contexts=measured.contexts)
    return None


def in_one(outcome: Outcome, name: str) -> Outcome | None:
    """How the launch in the context of this name ended; None where there was none."""
    return next((one.outcome for one in outcome.contexts if one.name == name), None)


def _named(ended: Sequence[tuple[str, Outcome]]) -> tuple[InContext, ...]:
    return tuple(InContext(name=name, outcome=outcome) for name, outcome in ended)


def _measured(outcome: Measured) -> Iterator[tuple[str, Measured]]:
    for one in outcome.contexts:
        if isinstance(one.outcome, Measured):
            yield one.name, one.outcome


def _means(ended: Sequence[tuple[str, Measured]]) -> Iterator[MetricValue]:
    """The metrics that are above 0 in every context."""
    for metric in ended[0][1].metrics:
        values = [outcome.metric(metric.name) for _, outcome in ended]
        known = [value for value in values if value is not None and value > 0]
        if len(known) == len(values):
            yield replace(metric, value=math.exp(fmean(map(math.log, known))))


def _absent(ended: Sequence[tuple[str, Measured]], present: set[str]) -> Mapping[str, str]:
    """Why each other metric has no mean: the first context in which it has no value above 0."""
    reasons: dict[str, str] = {}
    for name, outcome in ended:
        for metric in outcome.metrics:
            if metric.value <= 0 and metric.name not in present:
                why = f"{metric.value:g} in context {name}, and only values above 0 have a mean"
                reasons.setdefault(metric.name, why)
        for absent, why in outcome.absent.items():
            if absent not in present:
                reasons.setdefault(absent, f"in context {name}: {why}")
    return reasons
