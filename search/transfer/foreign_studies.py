"""What all importers share: bounded readers, the shapes of foreign rows, and studies out of them.

Files of other tools may hold anything: reading is bounded, and what cannot be read is refused in
one line.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Final, Literal, TypeVar

from pydantic import ValidationError

from evaluator.failures.logs import Weight, read_log
from evaluator.metrics.base import PUBLISHED_PREFIX, PUBLISHED_SCORE, Evidence, Metric
from evaluator.metrics.registry import measure_each, metric
from evaluator.objective import Scoring, scoring_of
from records.codec import first_problem, from_document, to_json
from records.errors import StudyError
from records.expression import Rule, facts
from records.files import read_text
from records.store.journal import Entry
from records.study import (
    Budget,
    Command,
    Constraint,
    Dimension,
    Environment,
    Launch,
    Objective,
    Origin,
    SearchSpace,
    Study,
    Value,
    digest,
)
from records.trial import (
    Artifact,
    Config,
    Failed,
    FailureKind,
    History,
    Measured,
    Measurement,
    MetricValue,
    Outcome,
    Policy,
    Repeat,
    Score,
    Stage,
    Trial,
)
from records.workload import Workload
from search.loop.leader import find_leader
from search.loop.study_result import find
from search.views.format import one_line

MAX_FILE_BYTES: Final = 256 << 20
MAX_LINE_CHARS: Final = 1 << 20
MAX_ROWS: Final = 200_000
MOST_TOLD: Final = 20

T = TypeVar("T")
K = TypeVar("K")


@dataclass(slots=True)
class BadRows:
    """What to do with a row that cannot be read: end with it, or leave it out and tell.

    `told` are the first that were left out, `advice` ends the error of one that may not be.
    """

    skip: bool = False
    advice: str = ""
    count: int = 0
    told: list[str] = field(default_factory=list)

    def refuse(self, words: str) -> None:
        """Leave out what these words are about; raises `StudyError` where nothing may be."""
        if not self.skip:
            raise StudyError(f"{words}{self.advice}")
        self.count += 1
        if len(self.told) < MOST_TOLD:
            self.told.append(words)

    def taken(self) -> tuple[str, ...]:
        """Give what was told since the last time, and how many more there were."""
        more = self.count - len(self.told)
        words = (*self.told, f"and {more} more") if more else tuple(self.told)
        self.told, self.count = [], 0
        return words


def text_of(path: Path, most_bytes: int = MAX_FILE_BYTES) -> str:
    """Text of a file; raises `StudyError` where it is too long, or none."""
    try:
        return read_text(path, most_bytes).removeprefix("\ufeff")
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{path}: cannot be read: {error}") from error


def read_rows(places: Iterable[tuple[str, K]], read: Callable[[K], T], bad: BadRows) -> list[T]:
    """What is read of each of these, which come with their places; `bad` takes the others."""
    found: list[T] = []
    for where, each in places:
        try:
            found.append(read(each))
        except StudyError as error:
            bad.refuse(f"{where}: {error}")
    return found


def json_value(text: str) -> object:
    """What JSON text holds, unchecked."""
    if len(text) > MAX_LINE_CHARS:
        raise StudyError(f"over {MAX_LINE_CHARS} characters")
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StudyError(f"not JSON: {error}") from error
    return value


def checked_value(document: object, kind: type[T]) -> T:
    """A value out of what a record holds; raises `StudyError` with the first fault."""
    try:
        return from_document(kind, document)
    except ValidationError as error:
        raise StudyError(first_problem(error)) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise StudyError(str(error)) from error


def content_digest(path: Path) -> str:
    """SHA-256 of a file's text."""
    return digest(text_of(path))


ID_CHARS: Final = 60
DIGEST_CHARS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A study that ended elsewhere, with all its trials, and `id` to record it under.

    The id is the same whenever the same history is read, so that nothing is recorded twice.
    `files` are what the trials cite, each a file of its own, there until the next one is asked for
    or the reading ends. `entries` are given where another store of ours had the study: then these
    are its records, to the letter, and the rest only tells of them.
    """

    id: str
    study: Study
    trials: Sequence[Trial]
    repeats: Sequence[Repeat] = ()
    summary: str | None = None
    files: Iterable[Path] = ()
    entries: Sequence[Entry] = ()


def stable_id(name: str, content: str) -> str:
    """A readable id that follows from a name and from the text that the study was read from."""
    plain = re.sub("[^A-Za-z0-9_.]+", "-", name).strip("-.")[:ID_CHARS] or "study"
    return f"{plain}-{digest(content)[:DIGEST_CHARS]}"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a record tells of one trial; None where it tells nothing.

    `text` is the record's own, from which the study's id follows. `score` may be anything a float
    can be; below `least_score` it stands for none. `step_s` is seconds, `tokens` what a step
    processed. `failure` is where and how it failed, if the record says so. `from_cache` is whether
    the result was given again instead of a launch; where nobody says, it is found by the same
    result.
    """

    text: str
    config: Mapping[str, Value]
    succeeded: bool
    score: float | None
    least_score: float = 0
    step_s: float | None = None
    ranks: int | None = None
    tokens: int | None = None
    tokens_declared: bool = False
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    error: str = ""
    failure: tuple[Stage, FailureKind] | None = None
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
        if not all(self.config) or any(len(text) > MOST_TEXT_CHARS for text in texts):
            raise StudyError(f"a setting is empty or over {MOST_TEXT_CHARS} characters")
        try:
            "".join([*texts, self.program or "", self.text]).encode()
        except UnicodeEncodeError as error:
            raise StudyError("holds text that is not Unicode") from error

    def same_result(self, other: "Row") -> bool:
        """Whether both tell the same to the last digit, or the last letter."""
        if self.succeeded != other.succeeded:
            return False
        if not self.succeeded:
            return bool(self.error) and self.error == other.error
        return self.score is not None and self.score == other.score


def trial_of(
    ordinal: int, row: Row, alike: Sequence[tuple[int, Row]], study: Study, scoring: Scoring
) -> Trial:
    """The trial that a row becomes; `alike` are the earlier rows of its configuration."""
    outcome: Outcome = _outcome(row, alike, study)
    scored = scoring.of(outcome) if isinstance(outcome, Measured) else None
    if isinstance(scored, Failed):
        outcome = replace(scored, artifacts=row.artifacts)
    return Trial(
        ordinal=ordinal,
        policy=Policy(
            source=_constant(row.config) if row.program is None else row.program,
            author=row.author or (AUTHOR if ordinal else "seed"),
            rationale=row.rationale,
        ),
        config=Config(row.config) if row.config else None,
        outcome=outcome,
        score=scored if isinstance(scored, Score) else None,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def _constant(config: Mapping[str, Value]) -> str:
    """Return a policy that decides the recorded configuration, if its own text is not recorded."""
    if not config:
        return "# The text of this policy is not recorded.\n"
    return f"def generate_config(workload, environment):\n    return {dict(config)!r}\n"


def _outcome(row: Row, alike: Sequence[tuple[int, Row]], study: Study) -> Outcome:
    first = _first_told(row, alike)
    if first is not None:
        stage, kind = Stage.CHECK, FailureKind.DUPLICATE
        words = f"the result of trial {first}, of the same configuration, was given again; "
        words += "nothing was launched"
    elif not row.succeeded:
        stage, kind, words = _failure(row)
    elif row.score is None or not row.least_score <= row.score < math.inf:
        stage, kind = Stage.SCORE, FailureKind.METRIC_ERROR
        told = "no score" if row.score is None else f"the score {row.score}"
        words = f"recorded as a success with {told}"
    else:
        return _measured(row, row.score, study)
    return Failed(stage=stage, kind=kind, message=words, artifacts=row.artifacts)


def _first_told(row: Row, alike: Sequence[tuple[int, Row]]) -> int | None:
    """The trial whose result a row gives again; None where it was launched."""
    if row.from_cache is False or not row.config:
        return None
    first = next((n for n, other in alike if other.same_result(row)), None)
    if first is None and row.from_cache:
        return next((n for n, _ in alike), None)
    return first


def _failure(row: Row) -> tuple[Stage, FailureKind, str]:
    finding = read_log(row.error)
    words = one_line(str(finding or row.error), MESSAGE_CHARS) or "no reason is recorded"
    if row.failure is not None:
        return (*row.failure, words)
    # A lost peer is a symptom: what ended it is not recorded.
    if finding is None or finding.weight is not Weight.CAUSE:
        return Stage.LAUNCH, FailureKind.CRASH, words
    is_policy = finding.kind is FailureKind.POLICY_ERROR
    return Stage.DECIDE if is_policy else Stage.LAUNCH, finding.kind, words


def _measured(row: Row, score: float, study: Study) -> Measured:
    is_timed = row.step_s is not None and 0 < row.step_s < math.inf
    steps_s = (row.step_s,) if row.step_s is not None and is_timed else ()
    measures = measure_each(
        _from_step(),
        Evidence(step_times_s=steps_s, tokens_per_step=row.tokens or 0, rank_count=row.ranks),
    )
    told = {
        PUBLISHED_SCORE: score,
        **{f"{PUBLISHED_PREFIX}{name}": value for name, value in published_of(row.metrics).items()},
    }
    is_maximized = study.origin is not None and study.origin.direction == "maximize"
    better: Literal["lower", "higher"] = "higher" if is_maximized else "lower"
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


MOST_RANKS_IN_ALL: Final = 10_000_000
ENDED: Final = "it ended elsewhere, and was read from a record of it"


def imported_study(study: Study, rows: Sequence[Row]) -> Imported:
    """The study with all its trials; raises `StudyError` where nothing was tried.

    Its space is what was tried, with those of its constraints that name nothing else.
    """
    if not rows:
        raise StudyError(f"study {study.name!r} has no trial")
    if sum(row.ranks or 1 for row in rows) > MOST_RANKS_IN_ALL:
        raise StudyError(f"study {study.name!r} has over {MOST_RANKS_IN_ALL} ranks in all trials")
    study = replace(
        study,
        space=_space(study, rows),
        budget=Budget(trials=len(rows), launches=len(rows)),
    )
    scoring = scoring_of(study)
    trials: list[Trial] = []
    alike: dict[Config, list[tuple[int, Row]]] = defaultdict(list)
    for ordinal, row in enumerate(rows):
        same = alike[Config(row.config)]
        trials.append(trial_of(ordinal, row, same, study, scoring))
        same.append((ordinal, row))
    led = find_leader(History(tuple(trials)), (), scoring, study.measure)
    finding = find(led, (), scoring, study.measure, ENDED)
    content = "\n".join(row.text for row in rows)
    return Imported(
        id=stable_id(study.name, content),
        study=study,
        trials=trials,
        summary=to_json(finding),
    )


def _space(study: Study, rows: Sequence[Row]) -> SearchSpace:
    tried: dict[str, set[tuple[str, Value]]] = defaultdict(set)
    for row in rows:
        for knob, value in row.config.items():
            tried[knob].add((type(value).__name__, value))
    if len(tried) > MOST_KNOBS:
        raise StudyError(f"study {study.name!r} has {len(tried)} knobs; at most {MOST_KNOBS}")
    known = tried.keys() | facts(study.workload, study.environment).keys()
    return SearchSpace(
        dimensions=tuple(
            Dimension(name=knob, choices=tuple(value for _, value in sorted(values, key=_rank)))
            for knob, values in tried.items()
        ),
        constraints=tuple(
            constraint
            for constraint in study.space.constraints
            if Rule.of(constraint).expression.names <= known
        ),
    )


def _rank(typed: tuple[str, Value]) -> tuple[str, float, str]:
    kind, value = typed
    return kind, 0.0 if isinstance(value, str) else float(value), str(value)


def elsewhere(device: Literal["cpu", "cuda"], ranks: int) -> Environment:
    """A machine of which the record says nothing but how many ranks ran on it."""
    return Environment(
        name="elsewhere",
        device=device,
        accelerator="not recorded",
        world_size=ranks,
        ranks_per_node=ranks,
    )


AUTHOR: Final = "ccl-search"
RANKS: Final = ("tp", "dp", "pp", "cp")
MOST_PUBLISHED: Final = 200
SCORED: Final = ("avg_step_time", "gpu_step_score")
MOST_NAME_CHARS: Final = 100
SCRIPT: Final = Command(run=("recorded",))
"""These ran a script, which is not in the record."""


def study_of(
    *,
    name: str,
    objective: Objective,
    workload: Workload,
    environment: Environment,
    origin: Origin,
    rules: tuple[Constraint, ...] = (),
    inferences: tuple[str, ...] = (),
) -> Study:
    """A study of an imported search, without what was tried in it."""
    return Study(
        name=name[:MOST_NAME_CHARS],
        workload=workload,
        environment=environment,
        space=SearchSpace(dimensions=(Dimension(name="tried", choices=(0,)),), constraints=rules),
        objective=objective,
        seed_policy="recorded",
        launch=Launch(recipe="command"),
        command=SCRIPT,
        strategy=AUTHOR,
        origin=replace(origin, direction=objective.direction),
        inferences=inferences,
    )


def rank_count(config: Mapping[str, object]) -> int | None:
    """Devices that a configuration takes by its degrees of parallelism, if it names any."""
    degrees = [config[name] for name in RANKS if name in config]
    whole = [one for one in degrees if isinstance(one, int) and one > 0]
    return math.prod(whole) if degrees and len(whole) == len(degrees) else None


def published_of(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Numbers of the record that an expression can name; the score and the step time are apart."""
    told = {
        name: float(value)
        for name, value in metrics.items()
        if value is not None and math.isfinite(value)
        if name not in SCORED and name.isidentifier() and len(name) <= MOST_NAME_CHARS
    }
    return dict(list(told.items())[:MOST_PUBLISHED])
