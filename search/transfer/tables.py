"""Trials as JSON lines, CSV and Parquet: one typed row each, with units in the headings."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, TypeAlias

from records.errors import EnvironmentFault
from records.store.journal import Entry, RepeatsFinished, TrialFinished
from records.store.rows import PendingTrial, StudyRow
from records.trial import MetricValue, Outcome, Policy, Repeat, Trial
from search.views.trial import NUMBERS


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyExport:
    """A study as it is exported: some or all of its trials, less what was to be left out.

    `metrics` are the newest values of each trial, those that were computed later included.
    """

    row: StudyRow
    trials: tuple[Trial, ...]
    repeats: tuple[Repeat, ...]
    metrics: Mapping[int, tuple[MetricValue, ...]]
    entries: tuple[Entry, ...] = ()
    """All changes that make up its records, where they are asked for."""

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes of all trials and of their further launches."""
        return [trial.outcome for trial in self.trials] + [each.outcome for each in self.repeats]

    def changed(
        self,
        outcome: Callable[[Outcome], Outcome],
        policy: Callable[[Policy], Policy] = lambda policy: policy,
        *,
        exchanges: bool = True,
    ) -> "StudyExport":
        """The study with changed outcomes, those of contexts too, and changed policies.

        Without `exchanges` conversations with a model are left out.
        """

        def of_outcome(one: Outcome) -> Outcome:
            contexts = (replace(each, outcome=of_outcome(each.outcome)) for each in one.contexts)
            return replace(outcome(one), contexts=tuple(contexts))

        def of_trial(trial: Trial) -> Trial:
            return replace(
                trial,
                outcome=of_outcome(trial.outcome),
                policy=policy(trial.policy),
                exchange=trial.exchange if exchanges else None,
            )

        def of_repeats(repeats: tuple[Repeat, ...]) -> tuple[Repeat, ...]:
            return tuple(replace(each, outcome=of_outcome(each.outcome)) for each in repeats)

        def of_entry(entry: Entry) -> Entry:
            match entry:
                case TrialFinished(trial=trial):
                    return TrialFinished(trial=of_trial(trial))
                case PendingTrial() if not exchanges:
                    begun = replace(entry, exchange=None, exchange_summary=None)
                    return replace(begun, policy=policy(entry.policy))
                case RepeatsFinished(repeats=repeats):
                    return RepeatsFinished(repeats=of_repeats(repeats))
                case _:
                    return entry

        return replace(
            self,
            trials=tuple(map(of_trial, self.trials)),
            repeats=of_repeats(self.repeats),
            entries=tuple(map(of_entry, self.entries)),
        )


def is_trace(name: str) -> bool:
    """Whether a file of a trial is what a profiler wrote, by its name."""
    if name.endswith(("steps.json", "progress.jsonl", "job.json", "launch.json")):
        return False
    return name.endswith((".json", ".json.gz", ".json.zst", ".sqlite", ".nsys-rep", ".pb"))


Cell: TypeAlias = bool | int | float | str | None
Document: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """A column with its heading; all cells are of this type or None."""

    heading: str
    kind: type[bool] | type[int] | type[float] | type[str]
    cells: tuple[Cell, ...]


MOST = 2**63
"""What a whole number of 64 bits stays below."""

_PLAIN = ("study_id", "study_name", "ordinal", "author", "status")
_AFTER = (
    *("failure_stage", "failure_kind", "failure_message", "attempts"),
    *("policy_digest", "config_digest", "started_at", "ended_at"),
)


def columns_of(documents: Sequence[Document]) -> list[Typed]:
    """The columns of these trials, in an order that follows from their names alone."""
    rows = [_row(document) for document in documents]
    found = sorted({heading for row in rows for heading in row})
    scores, knobs, metrics = (
        [heading for heading in found if heading.startswith(prefix)]
        for prefix in ("score", "config.", "metric.")
    )
    numbers = [fact.heading for fact in NUMBERS]
    headings = (*_PLAIN, *scores, "caveats", *knobs, *metrics, *numbers, *_AFTER)
    return [_typed(heading, [row.get(heading) for row in rows]) for heading in headings]


def _row(document: Document) -> dict[str, object]:
    """The cells of a trial by heading; a number has a column for each of its units."""
    row = {name: document[name] for name in (*_PLAIN, *_AFTER)}
    row |= {fact.heading: document.get(fact.key) for fact in NUMBERS}
    caveats = document["caveats"]
    row["caveats"] = "; ".join(map(str, caveats)) or None if isinstance(caveats, list) else None
    for config in _objects(document["config"]):
        row |= {f"config.{name}": value for name, value in config.items()}
    row |= {_heading("score", score): score["value"] for score in _objects(document["score"])}
    row |= {
        _heading(f"metric.{value['name']}", value): value["value"]
        for value in _objects(document["metrics"])
    }
    return row


def _objects(value: object) -> Sequence[Mapping[str, object]]:
    """One object, the objects of a list, or none."""
    if isinstance(value, Mapping):
        return [value]
    return value if isinstance(value, list) else []


def _heading(name: str, value: Mapping[str, object]) -> str:
    return f"{name} [{value['unit']}]" if value["unit"] else name


def _typed(heading: str, cells: Sequence[object]) -> Typed:
    """A column of the narrowest type that holds every cell; texts where types are mixed."""
    found = {type(cell) for cell in cells if cell is not None}
    kind: type[bool] | type[int] | type[float] | type[str] = str
    numbers = {fact.heading for fact in NUMBERS}
    if (
        heading in numbers
        or heading.startswith(("score", "metric."))
        or {float} <= found <= {int, float}
    ):
        kind = float
    elif found == {bool}:
        kind = bool
    elif found == {int} and all(_fits(cell) for cell in cells):
        kind = int
    return Typed(heading=heading, kind=kind, cells=tuple(_cell_of(cell, kind) for cell in cells))


def _fits(cell: object) -> bool:
    return cell is None or (isinstance(cell, int) and -MOST <= cell < MOST)


def _cell_of(cell: object, kind: type) -> Cell:
    match cell:
        case None:
            return None
        case bool() | int() | float() if kind is not str:
            return float(cell) if kind is float else cell
        case _:
            return str(cell)


_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\n")
_NUMBERS = (bool, int, float)


def write_jsonl(documents: Sequence[Document], out: BinaryIO) -> None:
    """Write one object on each line."""
    for document in documents:
        text = json.dumps(document, allow_nan=False, ensure_ascii=False)
        out.write(f"{text}\n".encode("utf-8", "backslashreplace"))


def write_csv(documents: Sequence[Document], out: BinaryIO) -> None:
    """Write a heading and a row for each trial; what does not exist is an empty cell.

    A text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    text = io.TextIOWrapper(out, encoding="utf-8", errors="backslashreplace", newline="")
    columns = columns_of(documents)
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([_defused(column.heading) for column in columns])
    for row in zip(*(column.cells for column in columns), strict=True):
        rows.writerow([_cell(cell) for cell in row])
    text.flush()
    text.detach()


def write_parquet(documents: Sequence[Document], out: BinaryIO) -> None:
    """Write the columns of the CSV with their types; raises `EnvironmentFault` without pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise EnvironmentFault(
            "Parquet is written by pyarrow, which is not installed: "
            'pip install "cclsearch[parquet]", or use --format csv'
        ) from error
    kinds = {
        bool: pyarrow.bool_(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        str: pyarrow.string(),
    }
    columns = columns_of(documents)
    table = pyarrow.table(
        [pyarrow.array(_plain(column.cells), kinds[column.kind]) for column in columns],
        names=[column.heading for column in columns],
    )
    pyarrow.parquet.write_table(table, out)


def _plain(cells: Sequence[Cell]) -> list[Cell]:
    """Texts without what is no Unicode, which Parquet does not hold."""
    return [
        cell.encode("utf-8", "backslashreplace").decode() if isinstance(cell, str) else cell
        for cell in cells
    ]


def _cell(cell: Cell) -> str:
    if cell is None:
        return ""
    return repr(cell) if isinstance(cell, _NUMBERS) else _defused(cell)


def _defused(text: str) -> str:
    """A text that no program runs, and with one kind of line ends, which is quoted."""
    text = "\n".join(text.splitlines()) if "\r" in text else text
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
