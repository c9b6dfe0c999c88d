"""Trials as JSON lines, CSV and Parquet: one typed row each, with units in the headings."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, Final, TypeAlias

from records.codec import to_json
from records.errors import EnvironmentFault
from records.store.journal import Entry, RepeatsFinished, TrialFinished
from records.store.rows import PendingTrial, StudyRow
from records.trial import MetricValue, Outcome, Policy, Repeat, Trial
from search.views.format import remarks
from search.views.trial import NUMBERS, RESULT_KEYS, absences, trial_facts


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


NO_TRACES: Final = (
    *("steps.json", "progress.jsonl", "job.json", "launch.json"),
    *("metrics.json", "trial.json", "checks.json"),
)
"""What the names of files end in that a trial and its entry have besides traces."""


def is_trace(name: str) -> bool:
    """Whether a file of a trial or an entry is what a profiler wrote, by its name."""
    traces = (".json", ".json.gz", ".json.zst", ".sqlite", ".nsys-rep", ".pb")
    return name.endswith(traces) and not name.endswith(NO_TRACES)


FORMAT: Final = "cclsearch.trial/1"


def trial_documents(found: StudyExport) -> list[dict[str, object]]:
    """One object per trial, oldest first; what does not exist is null, never NaN."""
    return [_trial_document(trial, found) for trial in found.trials]


EXPORTED = {"policy": "policy_digest", "parent": "policy_parent", "message": "failure_message"}
"""What a document calls a fact, where that is not its key."""


def _trial_document(trial: Trial, found: StudyExport) -> dict[str, object]:
    study = found.row.study
    facts = {
        EXPORTED.get(key, key): value
        for key, value in trial_facts(trial, detail=True).items()
        if key not in RESULT_KEYS
    }
    return {
        "format": FORMAT,
        "study_id": found.row.id,
        "study_name": study.name,
        "objective": study.objective.expression,
        **facts,
        "policy_source": trial.policy.source,
        "config_digest": trial.config.digest if trial.config else None,
        "score": json.loads(to_json(trial.score)) if trial.score else None,
        "caveats": list(remarks(trial)),
        "metrics": [json.loads(to_json(value)) for value in found.metrics[trial.ordinal]],
        "absent_metrics": absences(trial),
        "outcome": json.loads(to_json(trial.outcome)),
        "repeats": [
            json.loads(to_json(each)) for each in found.repeats if each.ordinal == trial.ordinal
        ],
    }


Cell: TypeAlias = bool | int | float | str | None
Document: TypeAlias = Mapping[str, object]
_PLAIN = ("study_id", "study_name", "ordinal", "author", "status")
_AFTER = (
    *("failure_stage", "failure_kind", "failure_message", "attempts"),
    *("policy_digest", "config_digest", "started_at", "ended_at"),
)
_NUMBER_HEADINGS = tuple(fact.heading for fact in NUMBERS)
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\n")


def columns_of(documents: Sequence[Document]) -> dict[str, list[Cell]]:
    """The cells of these trials by heading, in an order that follows from the headings alone.

    All cells of a column are of one type or None.
    """
    rows = [_row(document) for document in documents]
    found = sorted({heading for row in rows for heading in row})
    scores, knobs, metrics = (
        [heading for heading in found if heading.startswith(prefix)]
        for prefix in ("score", "config.", "metric.")
    )
    headings = (*_PLAIN, *scores, "caveats", *knobs, *metrics, *_NUMBER_HEADINGS, *_AFTER)
    return {heading: _alike(heading, [row.get(heading) for row in rows]) for heading in headings}


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


def _is_measured(heading: str) -> bool:
    return heading in _NUMBER_HEADINGS or heading.startswith(("score", "metric."))


def _alike(heading: str, cells: Sequence[object]) -> list[Cell]:
    """Cells of the narrowest type that holds them all; texts where types are mixed."""
    kinds = {type(cell) for cell in cells if cell is not None}
    if _is_measured(heading) or {float} <= kinds <= {int, float}:
        return [float(cell) if isinstance(cell, int | float) else None for cell in cells]
    if kinds == {bool} or (kinds == {int} and all(map(_fits, cells))):
        return [cell if isinstance(cell, int) else None for cell in cells]
    return [None if cell is None else str(cell) for cell in cells]


def _fits(cell: object) -> bool:
    """Whether a whole number has a place in 64 bits."""
    return not isinstance(cell, int) or -(2**63) <= cell < 2**63


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
    rows.writerow(map(defused, columns))
    rows.writerows(map(defused, row) for row in zip(*columns.values(), strict=True))
    text.flush()
    text.detach()


def defused(cell: Cell) -> Cell:
    """A text that no program runs, and with one kind of line ends, which is quoted."""
    if not isinstance(cell, str):
        return cell
    text = "\n".join(cell.splitlines()) if "\r" in cell else cell
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


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
    columns = columns_of(documents)
    arrays = []
    for heading, cells in columns.items():
        array = pyarrow.array(map(_unicode, cells))
        if array.type == pyarrow.null():
            array = array.cast(pyarrow.float64() if _is_measured(heading) else pyarrow.string())
        arrays.append(array)
    pyarrow.parquet.write_table(pyarrow.table(arrays, names=[*columns]), out)


def _unicode(cell: Cell) -> Cell:
    """A text without what is not Unicode, which Parquet does not hold."""
    return cell.encode("utf-8", "backslashreplace").decode() if isinstance(cell, str) else cell
