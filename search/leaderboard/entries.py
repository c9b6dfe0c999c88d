"""Entries of others: rows of the public leaderboard, and CCL-Bench cards with metrics.

They are hostile input: read within bounds, no code run, and whatever is refused is told in a line.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from records.codec import from_json
from records.errors import CodecError, StudyError
from records.study import MIN_TIMED_STEPS
from records.trial import MetricValue
from search.card_file import UNSAID, Card, is_number
from search.importing.files import lines_of, text_of
from search.leaderboard.published import published_readings
from search.leaderboard.submission import Mark, Reading, Submission
from search.leaderboard.work import Work
from search.words.trial import one_line

MOST_FILES: Final = 20_000
MOST_METRICS: Final = 500
MOST_METRICS_BYTES: Final = 1 << 20
MAX_LINE_CHARS: Final = 1 << 20
TEXT_CHARS: Final = 120
DEGREES: Final = ("tp", "pp", "cp", "dp_replicate", "dp_shard")
METRICS_FILES: Final = ("record/metrics.json", "metrics.json")
_PARALLEL: Final = "Model-executor.model_plan_parallelization"


@dataclass(slots=True)
class Entries:
    """What was read, and what was refused, a line each."""

    submissions: list[Submission] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """The fields of an entry, wherever they were; texts and numbers as they were given."""

    name: object
    standard: object
    model: object
    phase: object
    precision: object
    batch: object
    sequence_length: object
    output_length: object
    machine: object
    total_count: object
    framework: object
    iteration: object
    degrees: Mapping[str, object]


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
    card, metrics = row.get("metadata"), row.get("metrics")
    if not isinstance(card, dict) or not isinstance(metrics, dict):
        raise StudyError("is no entry of a leaderboard: it lacks metadata or metrics")
    told = _Told(
        name=row.get("name") or card.get("workload_name"),
        standard=row.get("standard_workload"),
        model=card.get("model_family"),
        phase=card.get("phase"),
        precision=card.get("precision"),
        batch=card.get("batch_size"),
        sequence_length=card.get("seq_len"),
        output_length=card.get("output_len"),
        machine=card.get("hardware_model"),
        total_count=card.get("total_count"),
        framework=card.get("framework"),
        iteration=card.get("iteration"),
        degrees={name: card.get(name) for name in DEGREES},
    )
    return _submission(told, published_readings(_few(metrics)), file)


def _card_entry(file: Path) -> Submission | None:
    """A card with metrics in it, or beside it as an exported entry has them; None without any."""
    card = Card(file)
    within = card.get("metrics")
    readings: Mapping[str, Reading] = {}
    if isinstance(within, Mapping):
        readings = published_readings(_few(within))
    else:
        beside = [file.parent / name for name in METRICS_FILES]
        path = next((each for each in beside if each.is_file()), None)
        if path is None:
            return None
        readings = _beside(path)
    told = _Told(
        name=file.parent.name or file.stem,
        standard=None,
        model=card.get("workload.model.model_family"),
        phase=card.get("workload.model.phase"),
        precision=card.get("workload.model.precision"),
        batch=card.get("workload.data.batch_size"),
        sequence_length=card.get("workload.data.seq_len"),
        output_length=card.get("workload.data.output_len"),
        machine=card.get("workload.hardware.xpu_spec.model"),
        total_count=card.get("workload.hardware.xpu_spec.total_count"),
        framework=card.get("Model-executor.framework.name"),
        iteration=card.get("workload.model.iteration"),
        degrees={name: card.get(f"{_PARALLEL}.{name}") for name in DEGREES},
    )
    return _submission(told, readings, file)


def _beside(path: Path) -> Mapping[str, Reading]:
    """Metrics in a file of their own: a list of ours, or published numbers by name."""
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


def _submission(told: _Told, readings: Mapping[str, Reading], file: Path) -> Submission:
    phase = _text(told.phase) or "phase not told"
    plan = {name: _count(value) for name, value in told.degrees.items()}
    return Submission(
        name=_text(told.name) or file.stem,
        source=file.name,
        work=Work(
            model=_text(told.model),
            phase=phase,
            batch=_count(told.batch),
            sequence_length=_count(told.sequence_length),
            output_length=None if phase == "training" else _count(told.output_length),
            precision=_text(told.precision),
            standard=_text(told.standard) or None,
        ),
        machine=_text(told.machine),
        rank_count=_count(told.total_count),
        software=_text(told.framework),
        settings=" ".join(f"--{name}={degree}" for name, degree in plan.items() if degree),
        readings=readings,
        marks=tuple(_marks(told, plan, readings, phase)),
    )


def _marks(
    told: _Told, plan: Mapping[str, int | None], readings: Mapping[str, Reading], phase: str
) -> Iterator[Mark]:
    """What the protocol of the benchmark asks for and the entry has not."""
    iterations = _count(told.iteration)
    if phase == "training" and iterations is not None and iterations < MIN_TIMED_STEPS:
        words = f"{iterations} steps were run; the benchmark asks for {MIN_TIMED_STEPS}"
        yield Mark(name="few_steps", words=words)
    degrees, total = list(plan.values()), _count(told.total_count)
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
        raise StudyError("is no JSON object")
    return value


def _few(metrics: Mapping[str, object] | Mapping[object, object]) -> dict[str, object]:
    """Metrics under printable names, and not without end."""
    named = ((one_line(str(name), TEXT_CHARS), value) for name, value in metrics.items())
    return dict(list(named)[:MOST_METRICS])


def _text(value: object) -> str:
    """A text as it may be printed; empty where there is none."""
    if value is None or value in UNSAID or isinstance(value, dict | list):
        return ""
    return one_line(str(value)[: 4 * TEXT_CHARS], TEXT_CHARS)


def _count(value: object) -> int | None:
    """A positive whole number; None for anything else."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 12:
        value = int(value)
    if not is_number(value) or value < 1 or value != int(value):
        return None
    return int(value)
