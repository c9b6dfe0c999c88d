"""The best trial of each study on record as a submission."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from evaluator.metrics.base import Metric
from evaluator.metrics.published import PREFIX
from evaluator.metrics.registry import ALIASES
from evaluator.timing.spread import Spread
from records.codec import from_json
from records.rows import StudyRow
from records.store import Store
from records.trial import Measured, MetricValue, Trial
from search.auditing.audit import audit
from search.finding import Finding, best_result, leader_of
from search.leaderboard.published import column_of, unit_and_better
from search.leaderboard.submission import Mark, Reading, Submission
from search.leaderboard.work import Work
from search.words.config import flags
from search.words.trial import remarks

MOST_AUDITED: Final = 5000
"""Trials; a history of more is not read for a line of a table."""


def study_submission(row: StudyRow, store: Store, known: Mapping[str, Metric]) -> Submission | None:
    """The best trial of a study; None where none was measured within its limits.

    `known` are the metrics of today by name. A history that was recorded elsewhere is audited.
    """
    finding = from_json(Finding, row.summary) if row.summary else None
    trial = leader_of(row, store)
    if trial is None or not isinstance(trial.outcome, Measured):
        return None
    confirmed = finding is not None and finding.winner == trial.ordinal
    values = store.metric_values(row.id, trial.ordinal).get(trial.ordinal, ())
    readings, result = _readings(row, trial.outcome, values, known), best_result(row, trial, store)
    readings |= _objective(row, result, readings)
    measurement = trial.outcome.measurement
    ranks = len(measurement.step_times_s) or None
    return Submission(
        name=row.id,
        source=row.study.name,
        work=Work.of(row.study.workload, measurement.tokens_per_step),
        machine=row.study.environment.accelerator,
        rank_count=ranks,
        software=measurement.torch_version or "",
        settings=flags(trial.config) if trial.config is not None else "",
        readings=readings,
        launch_count=1 if result is None else result.launch_count,
        ties=tuple(f"trial {n}" for n in finding.ties) if finding is not None and confirmed else (),
        marks=tuple(_marks(row, trial, store, values, known)),
    )


def _readings(
    row: StudyRow,
    outcome: Measured,
    values: Iterable[MetricValue],
    known: Mapping[str, Metric],
) -> dict[str, Reading]:
    """What was measured or computed, and why other metrics have no value."""
    told = {each.name: _reading(each) for each in values}
    for name, why in outcome.absent.items():
        if name not in told and name in known:
            told[name] = Reading(unit=known[name].unit, better=known[name].better, absent=why)
    return {_column(name): reading for name, reading in told.items() if _is_comparable(name, row)}


def _reading(value: MetricValue) -> Reading:
    unit, better = value.unit, value.better
    if value.name.startswith(PREFIX):
        unit, better = unit_and_better(column_of(value.name))
    return Reading(unit=unit, better=better, value=value.value, launch_count=1)


def _column(name: str) -> str:
    return column_of(name) if name.startswith(PREFIX) else name


def _is_comparable(name: str, row: StudyRow) -> bool:
    """Whether a metric means the same in other studies: what a tool called its score does not."""
    return name != f"{PREFIX}score" or row.study.origin is None


def _objective(
    row: StudyRow, result: Spread | None, readings: Mapping[str, Reading]
) -> dict[str, Reading]:
    """The objective by all launches that count, where it is a metric and no expression."""
    text = row.study.objective.expression.strip()
    name = text if text in readings else ALIASES.get(text, text)
    if result is None or name not in readings:
        return {}
    by_all = replace(
        readings[name],
        value=result.centre,
        absent=None,
        low=result.low,
        high=result.high,
        launch_count=result.launch_count,
    )
    return {name: by_all}


def _marks(
    row: StudyRow,
    trial: Trial,
    store: Store,
    values: Sequence[MetricValue],
    known: Mapping[str, Metric],
) -> Iterator[Mark]:
    """What an audit finds, what to keep in mind of the samples, and what is out of date."""
    if row.study.origin is not None and row.study.origin.kind != "bundle":
        if store.counts(row.id).trials > MOST_AUDITED:
            yield Mark(name="not_audited", words=f"it has more than {MOST_AUDITED} trials")
        else:
            found = audit(row.study, store.history(row.id), store.repeats(row.id))
            yield from (Mark(name=each.name, words=each.words) for each in found)
    elif row.status != "finished":
        words = "its search has not ended: the best so far was not confirmed"
        yield Mark(name="unfinished", words=words)
    yield from (Mark(name="caveat", words=words) for words in remarks(trial))
    older = [
        each
        for each in values
        if each.name in known and 0 < each.version < known[each.name].version
    ]
    if older:
        named = ", ".join(each.name for each in older)
        command = f"cclsearch metrics compute --study {row.id}"
        yield Mark(
            name="older_definition", words=f"{named}: a newer version is at hand; `{command}`"
        )
