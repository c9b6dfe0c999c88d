"""The published searches of CCL-Search, from JSON lines, as launches and as studies.

Of the fields of a line only what matters here is read.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, TypeVar

from pydantic import ConfigDict, Field

from evaluator.metrics.base import PUBLISHED_SCORE
from evaluator.objective import scoring
from records.codec import from_document
from records.errors import StudyError
from records.study import Constraint, Environment, Objective, Origin, Value
from records.trial import FailureKind, Stage
from records.workload import Workload, model_named
from search.transfer.ccl_search import RULES
from search.transfer.foreign_studies import (
    BadRows,
    Imported,
    Row,
    checked_value,
    content_digest,
    imported_study,
    json_value,
    rank_count,
    read_rows,
    study_of,
    text_of,
)

LOOSE: Final = ConfigDict(extra="ignore", allow_inf_nan=False)
Anything = Annotated[float, Field(allow_inf_nan=True)]
"""A float as a record has it, which may be none."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedWork:
    """What a recorded run had to do, as far as it matters here."""

    __pydantic_config__ = LOOSE

    model: str = ""
    seq_len: int
    batch_size: int | None = None
    card_batch_size: int | None = None
    actual_global_batch_rule: str | None = None
    phase: str = "training"
    precision: str = "bf16"

    def workload(self, name: str) -> Workload:
        """The work as it was declared; sizes of a model that is well known are added."""
        model = model_named(self.model) if self.model else None
        document: dict[str, object] = {
            **(model.sizes if model is not None else {}),
            "name": name,
            "model": self.model or None,
            "global_batch": self.card_batch_size or self.batch_size or 1,
            "sequence_length": self.seq_len,
            "precision": self.precision,
            "phase": "inference" if self.phase == "inference" else "training",
        }
        return from_document(Workload, document)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMachine:
    """What a recorded search ran on."""

    __pydantic_config__ = LOOSE

    accelerator: str = "not recorded"
    gpus_available: int | None = None
    gpus_per_node: int | None = None
    cluster: str = "elsewhere"

    def environment(self, ranks: int) -> Environment:
        """Return it as the environment of a search; `ranks` ran on it in one trial."""
        size = self.gpus_available or ranks
        return Environment(
            name=self.cluster,
            device="cuda",
            accelerator=self.accelerator,
            world_size=size,
            ranks_per_node=self.gpus_per_node or size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What a recorded search was to reach: in its formula T is a step's seconds, G its devices."""

    __pydantic_config__ = LOOSE

    direction: str
    formula: str

    @property
    def objective(self) -> Objective:
        """The same over our metrics; where they cannot express it, the published score."""
        ours = Objective(
            expression=_NAME.sub(lambda name: NAMES.get(name[0], name[0]), self.formula),
            direction="maximize" if self.direction == "maximize" else "minimize",
        )
        try:
            scoring(ours)
        except StudyError:
            return replace(ours, expression=PUBLISHED_SCORE)
        return ours


NAMES: Final[Mapping[str, str]] = {"avg_step_time": "step_time", "T": "step_time", "G": "gpus"}
"""Their names of our metrics."""
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRow:
    """One trial of a recorded search, or of those that a workload card lists."""

    __pydantic_config__ = LOOSE

    framework: str
    workload: RecordedWork
    config: Mapping[str, Value]
    status: str
    error_class: str | None
    inferred_cause: str | None
    inferred_why: str | None
    served_from_cache: bool
    step_seconds: float | None
    tokens_per_second: float | None
    activation_checkpointing_effective: bool
    gpus_used: int | None
    search_id: str = ""
    hardware: RecordedMachine = field(default_factory=RecordedMachine)
    objective: Aim | None = None
    metrics: Mapping[str, Anything | None] = field(default_factory=dict)
    score: Anything | None = None
    error_excerpt: str | None = None
    tokens_per_step: int | None = None


KINDS: Final[Mapping[str, tuple[Stage, FailureKind]]] = {
    "infra": (Stage.LAUNCH, FailureKind.INFRASTRUCTURE),
    "policy": (Stage.DECIDE, FailureKind.POLICY_ERROR),
    "oom": (Stage.LAUNCH, FailureKind.OUT_OF_MEMORY),
    "invalid": (Stage.CHECK, FailureKind.INVALID_CONFIG),
    "no_metric": (Stage.MEASURE, FailureKind.METRIC_ERROR),
}
"""How the classes of failures begin that the records name."""
DEAD_KNOB: Final = "activation_checkpointing"
FIXED_BATCH: Final = re.compile(r"fixed (\d+)")
BATCH_RULE: Final = Constraint(
    name="batch", expression="global_batch % (dp * micro_batch_size) == 0"
)


def rows_of(path: Path, kind: type[T]) -> list[T]:
    """Every line of a file; raises `StudyError` for one that cannot be read."""
    lines = enumerate(text_of(path).splitlines(), start=1)
    places = ((f"{path}:{number}", line) for number, line in lines if line.strip())
    return read_rows(places, lambda line: checked_value(json_value(line), kind), BadRows())


def searches_of(path: Path) -> Iterator[Imported]:
    """Every search of a file as a study with its trials."""
    found: dict[tuple[str, Aim | None], list[SearchRow]] = defaultdict(list)
    for line in rows_of(path, SearchRow):
        found[line.search_id, line.objective].append(line)
    for (name, aim), lines in found.items():
        first, rows = lines[0], [_row(line) for line in lines]
        is_fixed = FIXED_BATCH.search(first.workload.actual_global_batch_rule or "") is not None
        has_effect = any(line.activation_checkpointing_effective for line in lines)
        objective = Objective(expression=PUBLISHED_SCORE, direction="minimize")
        study = study_of(
            name=name,
            objective=objective if aim is None else aim.objective,
            workload=first.workload.workload(first.workload.model or name),
            environment=first.hardware.environment(max(row.ranks or 1 for row in rows)),
            origin=Origin(
                kind="jsonl",
                source=path.name,
                digests={path.name: content_digest(path)},
                framework=first.framework,
                dead_knobs=() if has_effect else (DEAD_KNOB,),
            ),
            rules=(*RULES, BATCH_RULE) if is_fixed else RULES,
        )
        yield imported_study(study, rows)


def _row(line: SearchRow) -> Row:
    known = (KINDS[start] for start in KINDS if (line.error_class or "").startswith(start))
    is_late = "timeout" in (line.error_class or "")
    return Row(
        text=repr(line),
        config=line.config,
        succeeded=line.status == "success",
        score=line.score,
        step_s=line.step_seconds,
        ranks=line.gpus_used if line.gpus_used is not None else rank_count(line.config),
        tokens=line.tokens_per_step,
        metrics=line.metrics,
        error=line.error_excerpt or line.error_class or "",
        failure=next(known, (Stage.LAUNCH, FailureKind.HANG) if is_late else None),
        from_cache=line.served_from_cache,
    )
