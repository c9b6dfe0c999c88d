"""What the service returns, as documented shapes; what does not exist is null."""

import json
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue

from evaluator.timing.decision import Spread
from records.codec import to_json
from records.study import Value
from records.trial import Config, MetricValue, Trial
from search.report.explored import Interval, StudyHistory
from search.views.format import caveats
from search.views.machine import Disturbed, disturbed_words
from search.views.trial import (
    NUMBERS,
    RESULT_KEYS,
    absences,
    knob_values,
    trial_facts,
)

Scalar = bool | int | float | str
T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    """A page of a list: `total` items exist, these begin at `offset`."""

    items: list[T]
    total: int
    offset: int


class Result(BaseModel):
    """How good something is, by the objective; `caveats` go wherever the value goes.

    It is over all `launches` that count; `low` and `high` bound its 95 % interval. Two launches
    have none: `both` are their values.
    """

    value: float
    unit: str
    caveats: list[str]
    low: float | None = None
    high: float | None = None
    launches: int = 1
    both: tuple[float, float] | None = None


class Disturbance(BaseModel):
    """Launches that something else on the machine may have slowed, and why the last one was."""

    launches: int
    of: int
    last_cause: str
    words: str


class StudyLabels(BaseModel):
    """What people added to a study."""

    tags: list[str]
    notes: str
    archived: bool


class StudyShort(StudyLabels):
    """A study in a list.

    `started_at` of an imported one is when its own search began, null where its record does not
    say; `created_at` is then the time of import.
    """

    id: str
    name: str
    status: str
    strategy: str
    objective: str
    more_objectives: list[str]
    limits: list[str]
    created_at: str
    started_at: str | None
    trials: int
    failed: int
    most_trials: int
    best_trial: int | None
    best_config: dict[str, Scalar] | None
    best: Result | None
    environment: str | None
    submitted_by: str | None
    message: str | None
    imported_from: str | None


class StudyFull(StudyShort):
    """A study with its question and its finding, both as they are stored.

    `undecided` says why its best is not shown to be better than the seed; null where it is.
    """

    study: dict[str, JsonValue]
    finding: dict[str, JsonValue] | None
    launches: int
    failures: dict[str, int]
    pending: list[dict[str, JsonValue]]
    disturbed: Disturbance | None
    undecided: str | None


class LaunchProgress(BaseModel):
    """A launch that runs: what its first rank entered last, and the last lines of its log.

    `trial` is null for a launch that repeats a trial. `step` counts from 1 over all phases;
    `most_steps` are those that a launch of the study has at most. Secrets are left out of the log.
    """

    trial: int | None
    phase: str | None
    step: int | None
    most_steps: int | None
    elapsed_s: float
    words: str
    log_name: str | None
    log: str


class Remaining(BaseModel):
    """What a search may still launch, and its time if launches take as long as those so far.

    `least_s` is for the trials alone, `most_s` for all repeats too; `launch_s` is the mean of
    `launches`.
    """

    trials: int
    most_repeats: int
    launch_s: float
    launches: int
    least_s: float
    most_s: float
    words: str
    basis: str


class StudyProgress(BaseModel):
    """The launches of a study that run now; `left` is null where it is not known."""

    launches: list[LaunchProgress]
    left: Remaining | None


class MetricDefinition(BaseModel):
    """The name, unit and meaning of a metric."""

    name: str
    label: str
    unit: str
    better: str
    sources: list[str]
    version: int
    description: str
    differs: str | None


class TrialMetrics(BaseModel):
    """The metrics of a trial."""

    ordinal: int
    metrics: tuple[MetricValue, ...]


def _document_facts(schema: dict[str, JsonValue]) -> None:
    """Add the numbers that every trial has, and no field names."""
    properties = schema["properties"]
    assert isinstance(properties, dict)
    for fact in NUMBERS:
        kinds: list[JsonValue] = [{"type": "number"}, {"type": "null"}]
        properties[fact.key] = {"anyOf": kinds, "title": f"{fact.label}, {fact.unit}"}


class TrialShort(BaseModel):
    """A trial in a list."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_document_facts)

    ordinal: int
    author: str
    status: str
    config: dict[str, Scalar] | None
    score: Result | None
    broken_limits: list[str]
    failure_kind: str | None
    failure_stage: str | None
    message: str | None
    metrics: dict[str, float]
    policy: str
    started_at: str
    ended_at: str
    disturbed: Disturbance | None = None


class TrialFull(TrialShort):
    """A trial in full; `outcome` is of its first launch, `first_launch` its score by it."""

    rationale: str
    expected_speedup: float | None = None
    expected_over: int | None = None
    parent: str | None
    attempts: int
    lost_launches: list[str]
    first_launch: float | None
    metric_values: tuple[MetricValue, ...]
    absent: dict[str, str]
    outcome: dict[str, JsonValue]
    exchange: str | None


class PolicyShort(BaseModel):
    """A policy that a study tried; `trials` are the first of its `trial_count` trials."""

    digest: str
    author: str
    parent: str | None
    rationale: str
    trials: list[int]
    trial_count: int


class PolicyFull(PolicyShort):
    """A policy with its text, and what changed against another one, as a unified diff."""

    source: str
    against: str | None
    diff: list[str]


class QueuedStudy(BaseModel):
    """A study in the queue."""

    id: str
    status: str


class Environment(BaseModel):
    """An environment that studies may be submitted for."""

    name: str
    description: str
    parallel_studies: int
    devices: str


class File(BaseModel):
    """A stored file of a trial."""

    name: str
    size_bytes: int
    sha256: str
    url: str


class Transcript(BaseModel):
    """The conversation about one trial as it is stored, with its tokens and cost."""

    ordinal: int
    exchange: dict[str, JsonValue]


class ComparisonSide(BaseModel):
    """One side of a comparison: its name, and what it sets that the other does not."""

    name: str
    settings: str


class MeasuredValue(BaseModel):
    """What one side was measured at, over its launches."""

    centre: float
    low: float | None
    high: float | None
    launch_count: int
    step_count: int | None


class Round(BaseModel):
    """The values of both sides in one interleaved round."""

    round: str
    a: float
    b: float


class ComparisonRow(BaseModel):
    """A verdict on B against A; a ratio is what B takes over what A takes, below 1 is better."""

    name: str
    verdict: str
    reason: str
    words: str
    why: str
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    round_count: int
    change: float | None
    a: MeasuredValue | None
    b: MeasuredValue | None
    rounds: list[Round]


class Comparison(BaseModel):
    """A comparison of two sides, as `cclsearch compare --json` prints it."""

    a: ComparisonSide
    b: ComparisonSide
    quantity: str
    unit: str
    lower_is_better: bool
    margin: float
    alpha: float
    rows: list[ComparisonRow]
    counts: dict[str, int]
    only_a: list[str]
    only_b: list[str]
    caveats: list[str]
    next: list[str]


class KnobPair(BaseModel):
    """What a knob is set to on each side, null where a side does not set it."""

    knob: str
    a: Value | None
    b: Value | None
    differs: bool


class TrialsCompared(BaseModel):
    """Trial B against trial A."""

    comparison: Comparison
    settings: list[KnobPair]


class StudySide(BaseModel):
    """A study as one side: its best trial, what that reached, and how the search went."""

    study: str
    best: int | None
    value: Interval | None
    unit: str
    caveats: list[str]
    history: StudyHistory


class StudiesCompared(BaseModel):
    """The best of study B against the best of study A; without a comparison `why` says why."""

    comparison: Comparison | None
    why: str | None
    a: StudySide
    b: StudySide
    settings: list[KnobPair]


class GroupWorkload(BaseModel):
    """The workload of all submissions of a group."""

    title: str
    model: str | None


class ComparedValue(BaseModel):
    """A metric of a submission, or why it is absent."""

    unit: str
    better: str
    value: float | None
    absent: str | None
    low: float | None
    high: float | None
    launch_count: int | None


class Mark(BaseModel):
    """Something to know about a submission before it is believed."""

    name: str
    words: str


class Submission(BaseModel):
    """A row of a leaderboard; submissions that cannot be distinguished share a rank."""

    rank: int | None
    name: str
    source: str
    machine: str
    devices: int | None
    software: str
    settings: str
    launches: int | None
    ties: list[str]
    marks: list[Mark]
    metrics: dict[str, ComparedValue]


class Group(BaseModel):
    """Submissions of one workload, best first; `total` of them exist."""

    work: GroupWorkload
    ranked_by: str | None
    submissions: list[Submission]
    total: int


class Column(BaseModel):
    """A metric with its unit."""

    name: str
    unit: str
    better: str


class Board(Page[Group]):
    """A page of the groups of a leaderboard, the largest first; `total` of them exist."""

    columns: list[Column]
    rule: str
    marks: dict[str, str]
    notes: list[str]


def disturbance_of(found: Disturbed | None) -> Disturbance | None:
    """Return how many launches were disturbed, as it is answered."""
    if found is None:
        return None
    return Disturbance(
        launches=found.launch_count,
        of=found.watched_count,
        last_cause=found.last_cause,
        words=disturbed_words(found),
    )


def trial_short(trial: Trial, reached: Spread | None, disturbed: Disturbed | None) -> TrialShort:
    """Return a trial as it is in a list."""
    return TrialShort.model_validate(_trial_facts(trial, reached, disturbed, detail=False))


def trial_full(
    trial: Trial,
    reached: Spread | None,
    disturbed: Disturbed | None,
    values: tuple[MetricValue, ...],
) -> TrialFull:
    """Return a trial in full, with `values` of all its metrics, also those computed later."""
    return TrialFull.model_validate(
        {
            **_trial_facts(trial, reached, disturbed, detail=True),
            "metric_values": values,
            "absent": absences(trial),
            "outcome": json.loads(to_json(trial.outcome)),
        }
    )


def _trial_facts(
    trial: Trial, reached: Spread | None, disturbed: Disturbed | None, *, detail: bool
) -> dict[str, object]:
    facts = trial_facts(trial, reached, detail=detail)
    return {
        **{key: value for key, value in facts.items() if key not in (*RESULT_KEYS, "caveats")},
        "score": result_of(trial, reached),
        "metrics": facts["metrics"] or {},
        "disturbed": disturbance_of(disturbed),
    }


def result_of(trial: Trial, reached: Spread | None) -> Result | None:
    """Return how good a trial is; None without a score."""
    if reached is None or trial.score is None:
        return None
    return Result(
        value=reached.centre,
        unit=trial.score.unit,
        caveats=list(caveats(trial.outcome)),
        low=reached.low,
        high=reached.high,
        launches=reached.launch_count,
        both=reached.both,
    )


def knob_pairs(a: Config | None, b: Config | None) -> list[KnobPair]:
    """Return every knob of either side, in alphabetical order."""
    pairs = knob_values([a, b]).items()
    return [KnobPair(knob=knob, a=x, b=y, differs=x != y) for knob, (x, y) in pairs]
