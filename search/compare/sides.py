"""The two sides of a comparison: what a name on the command line refers to."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeAlias

from evaluator.timing.bench_csv import BenchRow, read_bench
from evaluator.timing.timing import Timing
from evaluator.traces.readers.files import ReadLimits, read_bytes
from records.codec import from_json
from records.errors import CodecError, StoreError, StudyError, TraceError, shown
from records.files import check_value_count
from records.store.rows import StudyRow
from records.store.store import Store
from records.trial import Outcome, Repeat, Trial
from search.loop.leader import counted
from search.loop.study_result import leader_of
from search.settings import open_store

LIMITS = ReadLimits(file_bytes=256 << 20, decompressed_bytes=256 << 20)
TRIAL, BEST = "trial", "best"
SIDES = (
    "a trial (trial:3, trial:STUDY:3), the best of a study (best, best:STUDY), a JSON file of "
    "timings, or a file or folder of benchmark CSV or nvbench JSON"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSide:
    """A trial of a study, with all launches by which trials of that study were re-measured.

    `seed` is the outcome of the first measured trial, which an objective may name.
    """

    kind: ClassVar[str] = "a trial"

    row: StudyRow
    trial: Trial
    repeats: tuple[Repeat, ...]
    seed: tuple[Outcome, ...] = ()

    @property
    def name(self) -> str:
        """How the command line calls it."""
        return f"trial:{self.row.id}:{self.trial.ordinal}"

    @property
    def settings(self) -> str:
        """Its configuration."""
        return "" if self.trial.config is None else str(self.trial.config)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingsSide:
    """Stored timings of statements."""

    kind: ClassVar[str] = "stored timings"

    name: str
    timings: tuple[Timing, ...]
    settings: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSide:
    """The results of a collective benchmark."""

    kind: ClassVar[str] = "benchmark CSV"

    name: str
    rows: tuple[BenchRow, ...]

    @property
    def settings(self) -> str:
        """The communication library, as far as the first row states it."""
        columns = self.rows[0].columns
        names = ("CommAdapter", "CommBackend", "CommBackendVersion")
        return " ".join(columns[name] for name in names if name in columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class NvbenchSide:
    """A JSON file of nvbench, or a folder of them, which the comparison reads."""

    kind: ClassVar[str] = "nvbench results"

    name: str
    path: Path


Side: TypeAlias = TrialSide | TimingsSide | BenchSide | NvbenchSide


def side(name: str, store: Path | None) -> Side:
    """What a name refers to; raises `StudyError` where it refers to nothing."""
    word, _, rest = name.partition(":")
    if word == TRIAL:
        return _trial(rest, store)
    if word == BEST:
        return _best(rest, store)
    path = Path(name)
    if path.is_dir():
        return _folder(name, path)
    if not path.is_file():
        raise StudyError(f"{name}: there is no such file or folder; a side is {SIDES}")
    return (
        _stored(name, path)
        if path.suffix == ".json"
        else BenchSide(name=name, rows=read_bench(path))
    )


def _folder(name: str, path: Path) -> Side:
    kinds = {file.suffix for file in path.iterdir()} & {".csv", ".json"}
    if kinds == {".csv"}:
        return BenchSide(name=name, rows=read_bench(path))
    if kinds == {".json"}:
        return NvbenchSide(name=name, path=path)
    raise StudyError(
        f"{name}: holds {'both CSV and JSON files' if kinds else 'no CSV or JSON file'}; "
        "give a folder of benchmark CSV files, or one of nvbench JSON files"
    )


def _stored(name: str, path: Path) -> Side:
    """What a JSON file holds, by its keys."""
    try:
        content = read_bytes(path, LIMITS)
        check_value_count(content)
        document = json.loads(content.decode())
        keys = set(document) if isinstance(document, dict) else set()
        if "benchmarks" in keys:
            return NvbenchSide(name=name, path=path)
        several = document if isinstance(document, list) else [document]
        timings = tuple(from_json(Timing, json.dumps(each)) for each in several)
    except (TraceError, ValueError, RecursionError, CodecError) as error:
        raise StudyError(
            f"{name}: holds no timings or nvbench results ({error}); a side is {SIDES}"
        ) from error
    if not timings:
        raise StudyError(f"{name}: holds no timings; store one or more")
    return TimingsSide(name=name, timings=timings)


def _trial(which: str, store: Path | None) -> TrialSide:
    study_id, _, number = which.rpartition(":")
    if not (number.isascii() and number.isdecimal()):
        raise StudyError(f"{shown(which)} names no trial; write trial:3 or trial:STUDY:3")
    with open_store(store) as records:
        return trial_side(records.find(study_id), int(number), records)


def _best(study_id: str, store: Path | None) -> TrialSide:
    with open_store(store) as records:
        row = records.find(study_id)
        best = leader_of(row, records)
        if best is None:
            raise StoreError(f"study {row.id} has no measured trial; see `cclsearch show {row.id}`")
        return _on_record(row, best, records)


def trial_side(row: StudyRow, ordinal: int, records: Store) -> TrialSide:
    """A trial of a study as a side; raises `StudyError` where there is none."""
    trial = records.trial(row.id, ordinal)
    if trial is None:
        raise StudyError(
            f"study {row.id} has no trial {ordinal}; it has {records.counts(row.id).trials}, "
            f"see `cclsearch show {row.id}`"
        )
    return _on_record(row, trial, records)


def _on_record(row: StudyRow, trial: Trial, records: Store) -> TrialSide:
    first = records.first_measured(row.id)
    return TrialSide(
        row=row,
        trial=trial,
        repeats=counted(records.repeats(row.id), row.study.measure),
        seed=() if first is None else (first.outcome,),
    )
