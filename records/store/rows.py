"""Convert values to rows of the store's tables and back; combine measured and computed metrics."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from records.codec import from_json, to_json
from records.llm_exchange import ExchangeSummary, ModelUse, TokenUsage
from records.store.connection import Database
from records.study import Study
from records.trial import (
    Config,
    Failed,
    Measured,
    MetricValue,
    Outcome,
    Policy,
    Prediction,
    Purpose,
    Repeat,
    Score,
    Trial,
)

Row: TypeAlias = Mapping[str, str | int | float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """A stored study as listings show it."""

    id: str
    strategy: str
    status: str
    created_at: str
    study: Study
    summary: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTrial:
    """A trial that was proposed and has not ended."""

    ordinal: int
    policy: Policy
    started_at: str
    exchange: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRun:
    """One run of a study's search: the study it ran, and what was recorded when it started.

    `begun` counts the pending trials of earlier runs.
    """

    trials: int
    repeats: int
    begun: int
    study: Study


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCounts:
    """How much is recorded of a study, without reading it.

    `launches` counts all launches, `repeats` those of them that repeat a trial.
    """

    trials: int = 0
    measured: int = 0
    launches: int = 0
    repeats: int = 0

    @property
    def failed(self) -> int:
        """Trials that went wrong."""
        return self.trials - self.measured


def to_counts(row: Row) -> StudyCounts:
    """Counts of a study."""
    return StudyCounts(
        trials=int(row["trial_count"] or 0),
        measured=int(row["measured_count"] or 0),
        launches=int(row["launch_count"] or 0),
        repeats=int(row["repeat_count"] or 0),
    )


def to_study_row(row: Row) -> StudyRow:
    """Study as listings show it."""
    return StudyRow(
        id=str(row["id"]),
        strategy=str(row["strategy"]),
        status=str(row["status"]),
        created_at=str(row["created_at"]),
        study=from_json(Study, str(row["study"])),
        summary=_text(row["summary"]),
    )


def to_run(row: Row) -> SearchRun:
    """Run of a search."""
    return SearchRun(
        trials=int(row["trials"] or 0),
        repeats=int(row["repeats"] or 0),
        begun=int(row["begun"] or 0),
        study=from_json(Study, str(row["study"])),
    )


def policy_columns(policy: Policy) -> dict[str, str | float | None]:
    """Columns that name a policy; its text is in `policies`."""
    prediction = policy.prediction
    return {
        "policy_digest": policy.digest,
        "author": policy.author,
        "parent": policy.parent,
        "rationale": policy.rationale,
        "predicted_speedup": prediction.speedup if prediction else None,
        "predicted_over": prediction.over if prediction else None,
    }


def to_policy(row: Row) -> Policy:
    """Policy from a row joined with its text."""
    return Policy(
        source=str(row["source"]),
        author=str(row["author"]),
        parent=_text(row["parent"]),
        rationale=str(row["rationale"]),
        prediction=_prediction(row),
    )


def _prediction(row: Row) -> Prediction | None:
    speedup, over = row["predicted_speedup"], row["predicted_over"]
    if speedup is None or over is None:
        return None
    return Prediction(speedup=float(speedup), over=int(over))


def to_pending_trial(row: Row) -> PendingTrial:
    """Intent from a row joined with its policy text."""
    return PendingTrial(
        ordinal=int(row["ordinal"] or 0),
        policy=to_policy(row),
        started_at=str(row["started_at"]),
        exchange=_text(row["exchange_digest"]),
    )


def trial_columns(trial: Trial) -> dict[str, object]:
    """Columns of a trial."""
    failure = trial.outcome if isinstance(trial.outcome, Failed) else None
    return {
        "ordinal": trial.ordinal,
        "status": trial.outcome.status,
        "score_value": trial.score.value if trial.score else None,
        "score_unit": trial.score.unit if trial.score else None,
        "score_cost": trial.score.cost if trial.score else None,
        "score_broken": json.dumps(trial.score.broken) if trial.score else None,
        "failure_kind": failure.kind.value if failure else None,
        "failure_stage": failure.stage.value if failure else None,
        "message": failure.message if failure else None,
        "config": json.dumps(dict(trial.config.values)) if trial.config else None,
        "config_digest": trial.config.digest if trial.config else None,
        "exchange_digest": trial.exchange,
        "attempts": trial.attempts,
        "started_at": trial.started_at,
        "ended_at": trial.ended_at,
        "outcome": to_json(trial.outcome),
        **policy_columns(trial.policy),
    }


def to_trial(row: Row) -> Trial:
    """Trial from a row joined with its policy text."""
    return Trial(
        ordinal=int(row["ordinal"] or 0),
        policy=to_policy(row),
        config=Config(json.loads(str(row["config"]))) if row["config"] else None,
        outcome=to_outcome(str(row["outcome"])),
        score=_score(row),
        started_at=str(row["started_at"]),
        ended_at=str(row["ended_at"]),
        attempts=int(row["attempts"] or 0),
        exchange=_text(row["exchange_digest"]),
    )


def _score(row: Row) -> Score | None:
    if row["score_cost"] is None or row["score_value"] is None:
        return None
    return Score(
        cost=float(row["score_cost"]),
        value=float(row["score_value"]),
        unit=str(row["score_unit"]),
        broken=tuple(json.loads(str(row["score_broken"]))) if row["score_broken"] else (),
    )


def to_repeat(row: Row) -> Repeat:
    """Re-measuring launch."""
    return Repeat(
        series=int(row["series"] or 0),
        round=int(row["round"] or 0),
        ordinal=int(row["ordinal"] or 0),
        outcome=to_outcome(str(row["outcome"])),
        purpose=Purpose(str(row["purpose"])),
        position=int(row["position"] or 0),
    )


def to_outcome(text: str) -> Outcome:
    """Outcome from its stored text."""
    return from_json(Outcome, text)  # type: ignore[arg-type]  # a union is not a type[T]


def metric_rows(study_id: str, trial: Trial) -> list[dict[str, object]]:
    """One row per metric of a measured trial."""
    metrics = trial.outcome.metrics if isinstance(trial.outcome, Measured) else ()
    return [
        {
            "study_id": study_id,
            "ordinal": trial.ordinal,
            "name": metric.name,
            "value": metric.value,
            "unit": metric.unit,
            "version": metric.version,
        }
        for metric in metrics
    ]


def artifact_rows(study_id: str, trial: Trial) -> list[dict[str, object]]:
    """One row per file that belongs to a trial."""
    return [
        {
            "study_id": study_id,
            "ordinal": trial.ordinal,
            "name": artifact.name,
            "digest": artifact.digest,
            "size_bytes": artifact.size_bytes,
        }
        for artifact in trial.outcome.artifacts
    ]


def exchange_columns(summary: ExchangeSummary) -> dict[str, object]:
    """Columns of an LLM exchange; its text is an artifact."""
    return {
        "digest": summary.digest,
        "model": summary.model,
        "result": summary.result,
        "input_tokens": summary.usage.input_tokens,
        "output_tokens": summary.usage.output_tokens,
        "cache_read_tokens": summary.usage.cache_read_tokens,
        "cache_write_tokens": summary.usage.cache_write_tokens,
        "latency_s": summary.latency_s,
        "request_count": summary.request_count,
    }


def to_exchange_summary(row: Row) -> ExchangeSummary:
    """Summary of an LLM exchange."""
    return ExchangeSummary(
        digest=str(row["digest"]),
        model=str(row["model"]),
        result=str(row["result"]),
        usage=to_usage(row),
        latency_s=float(row["latency_s"] or 0),
        request_count=int(row["request_count"] or 0),
    )


def to_model_use(row: Row) -> ModelUse:
    """Use of one model from a row of sums."""
    return ModelUse(
        model=str(row["model"]),
        turn_count=int(row["turn_count"] or 0),
        policy_count=int(row["policy_count"] or 0),
        request_count=int(row["request_count"] or 0),
        usage=to_usage(row),
        last_result=str(row["last_result"]),
    )


def to_usage(row: Row) -> TokenUsage:
    """Tokens from a row of counts."""
    return TokenUsage(
        input_tokens=int(row["input_tokens"] or 0),
        output_tokens=int(row["output_tokens"] or 0),
        cache_read_tokens=int(row["cache_read_tokens"] or 0),
        cache_write_tokens=int(row["cache_write_tokens"] or 0),
    )


def _text(value: str | int | float | None) -> str | None:
    return None if value is None else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedMetric:
    """One metric of one trial: either its `value` or why it is `absent`.

    `definition` is the SHA-256 of the source that defines the metric; None for built-in metrics,
    which their version identifies.
    """

    name: str
    version: int
    unit: str
    better: Literal["lower", "higher"]
    value: float | None
    absent: str | None
    definition: str | None
    computed_at: str

    def __post_init__(self) -> None:
        if (self.value is None) == (self.absent is None):
            raise ValueError(f"metric {self.name}: give a value, or why there is none")
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"metric {self.name}: {self.value} is not a finite number")

    @property
    def metric_value(self) -> MetricValue | None:
        """The value as trials hold it; None if it is absent."""
        if self.value is None:
            return None
        return MetricValue(
            name=self.name,
            value=self.value,
            unit=self.unit,
            better=self.better,
            version=self.version,
        )


def newest(
    measured: Iterable[MetricValue], computed: Iterable[ComputedMetric]
) -> tuple[MetricValue, ...]:
    """The newest version of each metric, by name; what a newer one finds absent is left out."""
    values, _ = _newest(measured, computed)
    return values


def with_newest(outcome: Measured, computed: Iterable[ComputedMetric]) -> Measured:
    """The outcome with the newest version of each metric, or why it is absent."""
    values, absent = _newest(outcome.metrics, computed)
    named = {value.name for value in values}
    reasons = {name: why for name, why in outcome.absent.items() if name not in named}
    return replace(outcome, metrics=values, absent={**reasons, **absent})


def _newest(
    measured: Iterable[MetricValue], computed: Iterable[ComputedMetric]
) -> tuple[tuple[MetricValue, ...], dict[str, str]]:
    found = {value.name: value for value in measured}
    latest: dict[str, ComputedMetric] = {}
    for one in sorted(computed, key=lambda each: each.version):
        if one.name not in found or found[one.name].version <= one.version:
            latest[one.name] = one
    values = {name: value for name, value in found.items() if name not in latest}
    values |= {
        name: one.metric_value for name, one in latest.items() if one.metric_value is not None
    }
    absent = {name: one.absent for name, one in latest.items() if one.absent is not None}
    return tuple(value for _, value in sorted(values.items())), absent


def computed_columns(ordinal: int, metric: ComputedMetric) -> dict[str, object]:
    """Columns of one metric of a trial that was computed afterwards."""
    return {
        "ordinal": ordinal,
        "name": metric.name,
        "version": metric.version,
        "value": metric.value,
        "absent": metric.absent,
        "unit": metric.unit,
        "better": metric.better,
        "definition": metric.definition,
        "computed_at": metric.computed_at,
    }


def computed_metrics(
    db: Database, study_id: str, ordinal: int | None = None
) -> dict[int, tuple[ComputedMetric, ...]]:
    """Metrics computed after the end of each trial, or of one: every version, by name."""
    found: dict[int, list[ComputedMetric]] = defaultdict(list)
    which, values = _where(study_id, ordinal)
    rows = db.query(
        f"select * from computed_metrics where {which} order by ordinal, name, version", values
    )
    for row in rows:
        found[int(row["ordinal"])].append(_computed(row))
    return {ordinal: tuple(metrics) for ordinal, metrics in found.items()}


def metric_values(
    db: Database, study_id: str, ordinal: int | None = None
) -> Mapping[int, tuple[MetricValue, ...]]:
    """The newest version of each metric of each trial, or of one, by its ordinal and by name."""
    measured = dict(_measured(db, study_id, ordinal))
    computed = computed_metrics(db, study_id, ordinal)
    return {
        number: newest(measured.get(number, ()), computed.get(number, ()))
        for number in sorted({*measured, *computed})
    }


def metric_definitions(db: Database) -> tuple[tuple[str, int, str], ...]:
    """Name, version and digest of every user-defined metric that was computed."""
    rows = db.query(
        "select distinct name, version, definition from computed_metrics"
        " where definition is not null order by name, version"
    )
    return tuple((str(r["name"]), int(r["version"]), str(r["definition"])) for r in rows)


def _measured(
    db: Database, study_id: str, ordinal: int | None
) -> Iterator[tuple[int, tuple[MetricValue, ...]]]:
    """What launches measured; only the outcome tells which way each metric is better."""
    which, values = _where(study_id, ordinal)
    rows = db.query(
        "select ordinal, json_extract(outcome, '$.metrics') as metrics from trials"
        f" where {which} and status = 'measured' order by ordinal",
        values,
    )
    for row in rows:
        kind = tuple[MetricValue, ...]
        yield int(row["ordinal"]), from_json(kind, str(row["metrics"] or "[]"))


def _where(study_id: str, ordinal: int | None) -> tuple[str, list[str | int]]:
    if ordinal is None:
        return "study_id = ?", [study_id]
    return "study_id = ? and ordinal = ?", [study_id, ordinal]


def _computed(row: Row) -> ComputedMetric:
    value, definition = row["value"], row["definition"]
    return ComputedMetric(
        name=str(row["name"]),
        version=int(row["version"] or 0),
        unit=str(row["unit"]),
        better=_better(row),
        value=None if value is None else float(value),
        absent=None if row["absent"] is None else str(row["absent"]),
        definition=None if definition is None else str(definition),
        computed_at=str(row["computed_at"]),
    )


def _better(row: Row) -> Literal["lower", "higher"]:
    return "higher" if row["better"] == "higher" else "lower"
