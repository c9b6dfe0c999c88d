"""Leaderboard submissions: what they are, and reading published rows and CCL-Bench cards.

Published metrics have other definitions than ours, so their columns are `published_...`, separate
from ours. The files are hostile input: they are read within limits and no code in them runs.
"""

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeAlias

from evaluator.metrics.base import PUBLISHED_PREFIX, Better
from records.codec import from_json
from records.errors import CodecError, StudyError
from records.study import MIN_TIMED_STEPS
from records.trial import MetricValue
from records.workload import Workload
from search.transfer.foreign_studies import lines_of, text_of
from search.views.format import message_words, one_line

NAME_CHARS = 80
_PARTS = re.compile(r"[a-z]+|\d+(?:\.\d+)?")


# Not slotted: the key is computed once and read thousands of times.
@dataclass(frozen=True, kw_only=True)
class Work:
    """Model, phase, batch, lengths and precision as an entry states them; None where it does not.

    `sizes` distinguish models without a name. `tokens_per_step` is what was processed where that
    is known to differ from batch and lengths. `standard` is a benchmark's name for this work.
    """

    model: str
    phase: str
    batch: int | None
    sequence_length: int | None
    output_length: int | None
    precision: str
    sizes: tuple[int | None, ...] = ()
    messages: tuple[str, ...] = ()
    tokens_per_step: int | None = None
    standard: str | None = None

    @classmethod
    def of(cls, workload: Workload, tokens_per_step: int | None) -> Self:
        """That of a study; `tokens_per_step` is what its trial processed in each step."""
        did_other = tokens_per_step not in (None, 0, workload.tokens_per_step)
        named = workload.model or workload.family
        sizes = (workload.layer_count, workload.hidden_size, workload.vocab_size)
        return cls(
            model=named or workload.name,
            phase=workload.phase,
            batch=workload.global_batch,
            sequence_length=workload.sequence_length,
            output_length=workload.output_length if workload.phase == "inference" else None,
            precision=workload.precision,
            sizes=() if named else sizes,
            messages=tuple(map(message_words, workload.messages)),
            tokens_per_step=tokens_per_step if did_other else None,
        )

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for the same work, however the model's name is spelled."""
        return (
            tuple(_PARTS.findall(self.model.casefold())),
            self.phase.casefold(),
            self.batch,
            self.sequence_length,
            self.output_length,
            self.precision.casefold(),
            self.sizes,
            self.messages,
            self.tokens_per_step,
        )

    @property
    def title(self) -> str:
        """A line that describes it."""
        if self.messages:
            return one_line(", ".join(self.messages), 3 * NAME_CHARS)
        counts = (
            (self.batch, "batch {}"),
            (self.sequence_length, "{} tokens each"),
            (self.output_length, "{} of answer"),
        )
        words = [
            one_line(self.model, NAME_CHARS) or "unnamed model",
            self.phase,
            *(text.format(count) for count, text in counts if count is not None),
            self.precision,
        ]
        if self.tokens_per_step is not None:
            words.append(f"but {self.tokens_per_step} tokens were processed per step")
        title = ", ".join(word for word in words if word)
        return f"{title} ({self.standard})" if self.standard else title

    def is_called(self, name: str) -> bool:
        """Whether a name that a person typed means this work: its standard name, or part of it."""
        wanted = name.casefold()
        if self.standard is not None and self.standard.casefold() == wanted:
            return True
        model, parts = _PARTS.findall(self.model.casefold()), _PARTS.findall(wanted)
        starts = range(len(model) - len(parts) + 1)
        spelled = any(model[start : start + len(parts)] == parts for start in starts)
        return (bool(parts) and spelled) or wanted in self.title.casefold()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A metric of a submission: its value, with any `doubt` about it, or why it is `absent`.

    `low` and `high` are the ends of its interval, None where there was only one launch.
    """

    unit: str
    better: Better
    value: float | None = None
    absent: str | None = None
    low: float | None = None
    high: float | None = None
    launch_count: int | None = None
    doubt: str | None = None

    @property
    def ends(self) -> tuple[float, float] | None:
        """The interval, or the value twice where none is known; None without a value."""
        if self.value is None:
            return None
        if self.low is None or self.high is None:
            return self.value, self.value
        return min(self.low, self.value), max(self.high, self.value)

    @property
    def has_interval(self) -> bool:
        """Whether the value has an interval, so that it can be ranked."""
        return self.value is not None and self.low is not None and self.high is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A reservation about a submission: its name, and an explanation."""

    name: str
    words: str

    @property
    def title(self) -> str:
        """Its name as people read it."""
        return self.name.replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One entry; `launch_count` is None where the number of launches is unknown.

    `ties` are other trials of its study that are not shown to be worse.
    """

    name: str
    source: str
    work: Work
    machine: str
    rank_count: int | None
    software: str
    settings: str
    readings: Mapping[str, Reading]
    launch_count: int | None = None
    ties: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = field(default=())


NOT_GIVEN: Final = "the entry gives none"
SENTINEL: Final = "-1 stands for nothing found"
NO_FILES: Final = "0 is what its tool says where it finds no file by the name that it expects"
_VOLUMES: Final = ("allreduce", "allgather", "reducescatter", "alltoall", "total")
_BANDWIDTHS: Final = ("allreduce", "allgather", "reducescatter", "alltoall", "peertopeer")
_ALIASES: Final[Mapping[str, str]] = {
    **{f"bandwidth_utilization_{name}_group_6": f"bw_{name}" for name in _BANDWIDTHS},
    "memory_transfer_overhead_group_9": "memory_transfer_overhead",
}


def column_of(name: str) -> str:
    """The column of a published metric, by either of its names."""
    plain = name.removeprefix(PUBLISHED_PREFIX)
    return f"{PUBLISHED_PREFIX}{_ALIASES.get(plain, plain)}"


class _Published(NamedTuple):
    unit: str
    better: Better
    defect: str | None = None


@cache
def _published() -> Mapping[str, _Published]:
    text = (files("search.leaderboard") / "published_metrics.toml").read_text(encoding="utf-8")
    return {name: _Published(**row) for name, row in tomllib.loads(text).items()}


def definition_of(column: str) -> tuple[str, Better, str | None]:
    """Unit, better direction and defect of a published metric, as far as they are known."""
    return _published().get(column.removeprefix(PUBLISHED_PREFIX)) or ("", "lower", None)


def published_readings(values: Mapping[str, object]) -> dict[str, Reading]:
    """The metrics of an entry by column; a stand-in for no value is none."""
    found = {column_of(name): _reading(column_of(name), value) for name, value in values.items()}
    numbers = {name: each.value for name, each in found.items() if each.value is not None}
    doubts = {name: replace(found[name], doubt=words) for name, words in _doubts(numbers)}
    return found | doubts


def _reading(column: str, value: object) -> Reading:
    from search.study.card_reader import is_number

    unit, better, _ = definition_of(column)
    number = float(value) if is_number(value) else None
    absent = _absent(column, value, number)
    value_or_none = number if absent is None else None
    return Reading(unit=unit, better=better, value=value_or_none, absent=absent)


def _absent(column: str, value: object, number: float | None) -> str | None:
    """Why there is no value; None where there is one."""
    if value is None or value == "":
        return NOT_GIVEN
    if number is None:
        return "what the entry gives is not a finite number"
    if number == -1:
        return SENTINEL
    if number < 0:
        return f"{number:g} cannot be: nothing that it measures is below 0"
    if number == 0 and column == f"{PUBLISHED_PREFIX}straggler":
        return NO_FILES
    return None


def _doubts(values: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Values that cannot be what they are called."""
    step_s = values.get(f"{PUBLISHED_PREFIX}avg_step_time")
    communication_s = values.get(f"{PUBLISHED_PREFIX}total_communication_time")
    if step_s is not None and communication_s is not None and communication_s > step_s:
        yield (
            f"{PUBLISHED_PREFIX}total_communication_time",
            f"{communication_s:.4g} s is more than the step of {step_s:.4g} s that it is part of",
        )
    for name, value in values.items():
        if definition_of(name)[0] == "%" and value > 100:
            yield name, f"{value:.4g} % is more than all"


MOST_FILES: Final = 20_000
MOST_METRICS: Final = 500
MOST_METRICS_BYTES: Final = 1 << 20
MAX_LINE_CHARS: Final = 1 << 20
TEXT_CHARS: Final = 120
METRICS_FILES: Final = ("record/metrics.json", "metrics.json")
DEGREES: Final = ("tp", "pp", "cp", "dp_replicate", "dp_shard")
CARD_PATHS: Final = {
    "model_family": "workload.model.model_family",
    "phase": "workload.model.phase",
    "precision": "workload.model.precision",
    "iteration": "workload.model.iteration",
    "batch_size": "workload.data.batch_size",
    "seq_len": "workload.data.seq_len",
    "output_len": "workload.data.output_len",
    "hardware_model": "workload.hardware.xpu_spec.model",
    "total_count": "workload.hardware.xpu_spec.total_count",
    "framework": "Model-executor.framework.name",
    **{name: f"Model-executor.model_plan_parallelization.{name}" for name in DEGREES},
}
"""Where a card has what the rows of the public leaderboard have under these names."""

Metadata: TypeAlias = Mapping[str, object]
"""What an entry states, by the names of the public leaderboard; untrusted."""


@dataclass(slots=True)
class Entries:
    """What was read, and what was refused, a line each."""

    submissions: list[Submission] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def read_entries(paths: Sequence[Path]) -> Entries:
    """Every entry in these files and folders; raises `StudyError` where nothing is there."""
    found = Entries()
    for path in paths:
        if not path.exists():
            raise StudyError(f"{path}: there is no such file or folder of entries")
        for file in _files(path):
            try:
                _read(file, found)
            except StudyError as error:
                found.refused.append(str(error))
        if path.is_file() and not found.submissions and found.refused:
            raise StudyError(found.refused[-1])
    return found


def _files(path: Path) -> Iterator[Path]:
    """The file itself, or all in a folder that may hold entries, in the order of their names."""
    if path.is_file():
        yield path
        return
    kinds = {".jsonl", ".yaml", ".yml"}
    inside = (file for file in path.rglob("*") if file.suffix in kinds and file.is_file())
    for count, file in enumerate(sorted(file for file in inside if not file.is_symlink())):
        if count == MOST_FILES:
            raise StudyError(f"{path}: over {MOST_FILES} files; name folders within it")
        yield file


def _read(file: Path, found: Entries) -> None:
    if file.suffix in {".yaml", ".yml"}:
        entry = _card_entry(file)
        if entry is not None:
            found.submissions.append(entry)
        return
    for line_number, line in lines_of(file):
        try:
            found.submissions.append(_row_entry(line, file))
        except StudyError as error:
            found.refused.append(f"{file}:{line_number}: {error}")


def _row_entry(line: str, file: Path) -> Submission:
    """A row of the public leaderboard."""
    row = _object(line)
    metadata, metrics = row.get("metadata"), row.get("metrics")
    if not isinstance(metadata, dict) or not isinstance(metrics, dict):
        raise StudyError("is not an entry of a leaderboard: it lacks metadata or metrics")
    about = {
        **metadata,
        "name": row.get("name") or metadata.get("workload_name"),
        "standard": row.get("standard_workload"),
    }
    return _submission(about, published_readings(_few(metrics)), file)


def _card_entry(file: Path) -> Submission | None:
    """A card with metrics in it, or in a file next to it, as exported entries have them."""
    from search.study.card_reader import Card

    card = Card(file)
    within = card.get("metrics")
    if isinstance(within, Mapping):
        readings: Mapping[str, Reading] = published_readings(_few(within))
    else:
        paths = [file.parent / name for name in METRICS_FILES]
        path = next((each for each in paths if each.is_file()), None)
        if path is None:
            return None
        readings = _readings_in(path)
    about = {name: card.get(path) for name, path in CARD_PATHS.items()}
    return _submission({**about, "name": file.parent.name or file.stem}, readings, file)


def _readings_in(path: Path) -> Mapping[str, Reading]:
    """Metrics in a separate file: a list of ours, or published numbers by name."""
    text = text_of(path, MOST_METRICS_BYTES)
    try:
        values = from_json(tuple[MetricValue, ...], text)
    except CodecError:
        return published_readings(_few(_object(text)))
    return {
        each.name: Reading(unit=each.unit, better=each.better, value=each.value)
        for each in values[:MOST_METRICS]
        if math.isfinite(each.value)
    }


def _submission(about: Metadata, readings: Mapping[str, Reading], file: Path) -> Submission:
    text = {name: _text(value) for name, value in about.items() if name not in DEGREES}
    phase = text.get("phase") or "phase unknown"
    plan = {name: _count(about.get(name)) for name in DEGREES}
    return Submission(
        name=text.get("name") or file.stem,
        source=file.name,
        work=Work(
            model=text.get("model_family", ""),
            phase=phase,
            batch=_count(about.get("batch_size")),
            sequence_length=_count(about.get("seq_len")),
            output_length=None if phase == "training" else _count(about.get("output_len")),
            precision=text.get("precision", ""),
            standard=text.get("standard") or None,
        ),
        machine=text.get("hardware_model", ""),
        rank_count=_count(about.get("total_count")),
        software=text.get("framework", ""),
        settings=" ".join(f"--{name}={degree}" for name, degree in plan.items() if degree),
        readings=readings,
        marks=tuple(_marks(about, plan, readings, phase)),
    )


def _marks(
    about: Metadata, plan: Mapping[str, int | None], readings: Mapping[str, Reading], phase: str
) -> Iterator[Mark]:
    """What the protocol of the benchmark requires and the entry lacks."""
    iterations = _count(about.get("iteration"))
    if phase == "training" and iterations is not None and iterations < MIN_TIMED_STEPS:
        words = f"{iterations} steps were run; the benchmark asks for {MIN_TIMED_STEPS}"
        yield Mark(name="few_steps", words=words)
    degrees, total = list(plan.values()), _count(about.get("total_count"))
    known = [degree for degree in degrees if degree is not None]
    if total is not None and len(known) == len(degrees) and math.prod(known) != total:
        words = (
            f"its plan takes {math.prod(known)} devices, its card says {total}: what is divided by "
            "the devices (mfu) is wrong"
        )
        yield Mark(name="other_device_count", words=words)
    for name, reading in readings.items():
        if reading.doubt is not None:
            yield Mark(name="impossible_value", words=f"{name}: {reading.doubt}")


def _object(text: str) -> dict[str, object]:
    """A JSON object with texts for names; raises `StudyError` for anything else."""
    if len(text) > MAX_LINE_CHARS:
        raise StudyError(f"has over {MAX_LINE_CHARS} characters")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StudyError(f"is not JSON: {one_line(str(error), TEXT_CHARS)}") from error
    if not isinstance(value, dict):
        raise StudyError("is not a JSON object")
    return value


def _few(metrics: Mapping[str, object] | Mapping[object, object]) -> dict[str, object]:
    """Metrics under printable names, and not without end."""
    named = ((one_line(str(name), TEXT_CHARS), value) for name, value in metrics.items())
    return dict(list(named)[:MOST_METRICS])


def _text(value: object) -> str:
    """A text as it may be printed; empty where there is none."""
    from search.study.card_reader import UNSAID

    if value is None or value in UNSAID or isinstance(value, dict | list):
        return ""
    return one_line(str(value)[: 4 * TEXT_CHARS], TEXT_CHARS)


def _count(value: object) -> int | None:
    """A positive whole number; None for anything else."""
    from search.study.card_reader import is_number

    if isinstance(value, str) and value.isdecimal() and len(value) < 12:
        value = int(value)
    if not is_number(value) or value < 1 or value != int(value):
        return None
    return int(value)
