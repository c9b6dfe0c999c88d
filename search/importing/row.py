"""One trial as another tool's record tells it, and the trial of ours that it becomes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final, Literal

from evaluator.failures.logs import read_log
from evaluator.failures.texts import Tells
from evaluator.metrics.base import Evidence, Metric
from evaluator.metrics.published import PREFIX, SCORE
from evaluator.metrics.registry import measure_each, metric
from evaluator.objective import Scoring
from records.errors import StudyError
from records.study import Study, Value
from records.trial import (
    Artifact,
    Config,
    Failed,
    FailureKind,
    Measured,
    Measurement,
    MetricValue,
    Outcome,
    Policy,
    Score,
    Stage,
    Trial,
)
from search.words.trial import one_line

MOST_RANKS: Final = 16_384
MOST_TOKENS: Final = 10**15
MOST_KNOBS: Final = 200
MOST_TEXT_CHARS: Final = 1000
MESSAGE_CHARS: Final = 400
FOREIGN: Final = 0
"""Version of a number that no definition of ours made."""
FROM_STEP: Final = (
    *("step_time", "tokens_per_s", "rank_count", "rank_seconds"),
    *("rank_seconds_per_token", "tokens_per_s_per_rank"),
)
"""Metrics that follow from a step time, its ranks and its tokens."""
KINDS: Final[Mapping[str, tuple[Stage, FailureKind]]] = {
    "infra": (Stage.LAUNCH, FailureKind.INFRASTRUCTURE),
    "policy": (Stage.DECIDE, FailureKind.POLICY_ERROR),
    "oom": (Stage.LAUNCH, FailureKind.OUT_OF_MEMORY),
    "invalid": (Stage.CHECK, FailureKind.INVALID_CONFIG),
    "no_metric": (Stage.MEASURE, FailureKind.METRIC_ERROR),
    "pruned": (Stage.MEASURE, FailureKind.METRIC_ERROR),
}
"""How the classes of failures begin that records name."""
TIMEOUT: Final = "timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a record tells of one trial; None where it tells nothing.

    `text` is the record's own, from which the study's id follows. `score` may be anything a float
    can be; below `least_score` it stands for none. `step_s` is seconds, `tokens` what a step
    processed. `error_class` is the record's word for a failure, `guess` what somebody took its
    cause for. `from_cache` is whether the result was given again instead of a launch; where nobody
    says, it is found by the same result.
    """

    text: str
    config: Mapping[str, Value]
    succeeded: bool
    score: float | None
    least_score: float = -math.inf
    step_s: float | None = None
    ranks: int | None = None
    tokens: int | None = None
    tokens_declared: bool = False
    published: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    error_class: str = ""
    guess: str = ""
    from_cache: bool | None = None
    program: str | None = None
    author: str = ""
    rationale: str = ""
    started_at: str = ""
    ended_at: str = ""
    artifacts: tuple[Artifact, ...] = ()

    def __post_init__(self) -> None:
        if self.ranks is not None and not 1 <= self.ranks <= MOST_RANKS:
            raise StudyError(f"{self.ranks} ranks; a trial has 1 to {MOST_RANKS}")
        if self.tokens is not None and not 0 <= self.tokens <= MOST_TOKENS:
            raise StudyError(f"{self.tokens} tokens in a step, which cannot be")
        if len(self.config) > MOST_KNOBS:
            raise StudyError(f"{len(self.config)} settings; at most {MOST_KNOBS}")
        for knob, value in self.config.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise StudyError(f"{knob} is {value}, which nothing can be set to")
        texts = [*self.config, *(v for v in self.config.values() if isinstance(v, str))]
        if not all(len(knob) > 0 for knob in self.config) or any(map(_is_long, texts)):
            raise StudyError(f"a setting is empty or over {MOST_TEXT_CHARS} characters")
        try:
            "".join([*texts, self.program or "", self.text]).encode()
        except UnicodeEncodeError as error:
            raise StudyError("holds text that is no Unicode") from error

    def same_result(self, other: "Row") -> bool:
        """Whether both tell the same to the last digit, or the last letter."""
        if self.succeeded != other.succeeded:
            return False
        if not self.succeeded:
            return bool(self.error) and self.error == other.error
        return self.score is not None and self.score == other.score


def _is_long(text: str) -> bool:
    return len(text) > MOST_TEXT_CHARS


def trial_of(
    ordinal: int, row: Row, alike: Sequence[tuple[int, Row]], study: Study, scoring: Scoring
) -> Trial:
    """The trial that a row becomes; `alike` are the earlier rows of its configuration."""
    outcome: Outcome = _outcome(row, alike, study)
    score: Score | None = None
    if isinstance(outcome, Measured):
        scored = scoring.of(outcome)
        if isinstance(scored, Failed):
            outcome = replace(scored, artifacts=row.artifacts)
        else:
            score = scored
    return Trial(
        ordinal=ordinal,
        policy=Policy(
            source=row.program if row.program is not None else _constant(row.config),
            author=row.author,
            rationale=row.rationale,
        ),
        config=Config(row.config) if row.config else None,
        outcome=outcome,
        score=score,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def _constant(config: Mapping[str, Value]) -> str:
    """A policy that decides what is on record, where its own text is not."""
    if not config:
        return "# The text of this policy is not on record.\n"
    return f"def generate_config(workload, environment):\n    return {dict(config)!r}\n"


def _outcome(row: Row, alike: Sequence[tuple[int, Row]], study: Study) -> Outcome:
    first = _first_told(row, alike)
    if first is not None:
        return Failed(
            stage=Stage.CHECK,
            kind=FailureKind.DUPLICATE,
            message=f"the result of trial {first}, of the same configuration, was given again; "
            "nothing was launched",
            artifacts=row.artifacts,
        )
    if not row.succeeded:
        return _failed(row)
    if row.score is None or not row.least_score <= row.score < math.inf:
        told = "no score" if row.score is None else f"the score {row.score}"
        return Failed(
            stage=Stage.SCORE,
            kind=FailureKind.METRIC_ERROR,
            message=f"recorded as a success with {told}",
            artifacts=row.artifacts,
        )
    return _measured(row, row.score, study)


def _first_told(row: Row, alike: Sequence[tuple[int, Row]]) -> int | None:
    """The trial whose result a row gives again; None where it was launched."""
    if row.from_cache is False or not row.config:
        return None
    first = next((n for n, other in alike if other.same_result(row)), None)
    if first is None and row.from_cache:
        return next((n for n, _ in alike), None)
    return first


def _failed(row: Row) -> Failed:
    finding = read_log(row.error)
    stage, kind = Stage.LAUNCH, FailureKind.CRASH
    known = next((KINDS[start] for start in KINDS if row.error_class.startswith(start)), None)
    if known is not None:
        stage, kind = known
    elif TIMEOUT in row.error_class:
        kind = FailureKind.HANG
    # A lost peer is a symptom: whose doing its end was is not on record.
    elif finding is not None and finding.tells is Tells.CAUSE:
        kind = finding.kind
        stage = Stage.DECIDE if kind is FailureKind.POLICY_ERROR else stage
    said = str(finding) if finding is not None else row.error
    words = one_line(said, MESSAGE_CHARS) or row.error_class or "no reason is on record"
    guess = f" (its cause was guessed: {one_line(row.guess, MESSAGE_CHARS)})" if row.guess else ""
    return Failed(stage=stage, kind=kind, message=f"{words}{guess}", artifacts=row.artifacts)


def _measured(row: Row, score: float, study: Study) -> Measured:
    steps_s = () if row.step_s is None else (row.step_s,)
    measures = measure_each(
        _from_step(),
        Evidence(step_times_s=steps_s, tokens_per_step=row.tokens or 0, rank_count=row.ranks),
    )
    told = {SCORE: score, **{f"{PREFIX}{name}": value for name, value in row.published.items()}}
    better = _better(study)
    return Measured(
        measurement=Measurement(
            step_times_s=(steps_s,) * (row.ranks or 1) if steps_s else (),
            warmup_times_s=(),
            losses=(),
            tokens_per_step=row.tokens or 0,
            peak_memory_bytes=(),
            wall_s=None,
            device=study.environment.device,
            torch_version=None,
            tokens_verified=not row.tokens_declared,
            imported=True,
        ),
        metrics=(
            *(replace(value, version=FOREIGN) for value in measures.values),
            *(
                MetricValue(name=name, value=value, unit="", better=better, version=FOREIGN)
                for name, value in told.items()
                if math.isfinite(value)
            ),
        ),
        absent=dict(measures.absent),
        artifacts=row.artifacts,
    )


@cache
def _from_step() -> tuple[Metric, ...]:
    """Looked up once: a search may have trials by the thousand."""
    return tuple(metric(name) for name in FROM_STEP)


def _better(study: Study) -> Literal["lower", "higher"]:
    origin = study.origin
    return "higher" if origin is not None and origin.direction == "maximize" else "lower"
