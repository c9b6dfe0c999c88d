"""Trials in outline, out of their columns: enough to draw a hundred thousand, none of them parsed.

What is asked of all trials is answered by the database, so that only what is drawn becomes values.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from records.connection import Database
from records.database import refusals
from records.rows import Row
from records.trial import Config, FailureKind
from records.trial_pages import score_cost
from records.views import ADMISSIBLE

PICKS = 4
"""Trials of a run at most: its best, its worst, one that breaks a limit, one that failed."""
_OF_RUNS = (
    f"select ordinal, min(score_cost) from trials where study_id = ? and {ADMISSIBLE}",
    f"select ordinal, max(score_cost) from trials where study_id = ? and {ADMISSIBLE}",
    "select min(ordinal), 0 from trials where study_id = ? and failure_kind is not null",
)
_LIMITED = (
    "select min(ordinal), 0 from trials where study_id = ? and score_cost is not null"
    " and coalesce(score_broken, '[]') != '[]'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """A trial without what was measured in it: `value` is its score, None where it failed.

    It is that of its first launch unless whoever reads it replaces it; then `launch_count` says so.
    """

    ordinal: int
    author: str
    config: Config | None
    value: float | None
    cost: float | None
    unit: str
    is_limited: bool
    failure: FailureKind | None
    started_at: str
    launch_count: int = 1

    @property
    def leads(self) -> bool:
        """Whether it may lead: it was measured and breaks no limit."""
        return self.cost is not None and not self.is_limited


@dataclass(frozen=True, slots=True)
class NamedValue:
    """A metric of a trial, without its definition."""

    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class Scored:
    """What a trial scored; `leads` where it breaks no limit, so that it may lead."""

    value: float
    leads: bool


class OutlinedRecords:
    """The read side of a store, as far as it is asked about all trials of a study at once."""

    root: Path
    _db: Database

    def stamp(self, study_id: str) -> tuple[int, int]:
        """What changes with every change of a study's records: entries and bytes of its journal."""
        with refusals(self.root, "read"):
            row = self._db.execute(
                "select entry_count, byte_count from journals where study_id = ?", (study_id,)
            ).fetchone()
        return (0, 0) if row is None else (int(row[0]), int(row[1]))

    def stamp_of_all(self) -> tuple[int, int, int]:
        """What changes with every change of any study: how many, their entries and bytes."""
        with refusals(self.root, "read"):
            row = self._db.execute(
                "select count(*), coalesce(sum(entry_count), 0), coalesce(sum(byte_count), 0)"
                " from journals"
            ).fetchone()
        return int(row[0]), int(row[1]), int(row[2])

    def file_bytes(self, study_id: str) -> int:
        """How much the kept files of a study's trials take, before they are packed."""
        with refusals(self.root, "read"):
            row = self._db.execute(
                "select coalesce(sum(size_bytes), 0) from artifacts where study_id = ?",
                (study_id,),
            ).fetchone()
        return int(row[0])

    def ordinals(self, study_id: str, limit: int, offset: int) -> tuple[int, ...]:
        """Ordinals of some of the finished trials, in their order."""
        with refusals(self.root, "read"):
            rows = self._db.execute(
                "select ordinal from trials where study_id = ? order by ordinal limit ? offset ?",
                (study_id, limit, offset),
            )
            return tuple(int(ordinal) for (ordinal,) in rows)

    def telling(self, study_id: str, most: int, *, limited: bool = True) -> tuple[int, ...]:
        """Ordinals of about so many trials that keep the shape of all, oldest first.

        Of every run of trials that share a mark the best, the worst and a failure stay, so that the
        best so far looks as it is; and the first and the last of all. `limited` is whether the
        study has limits that trials may break.
        """
        with refusals(self.root, "read"):
            ends = "select min(ordinal), max(ordinal) from trials where study_id = ?"
            first, last = self._db.execute(ends, (study_id,)).fetchone()
            if first is None:
                return ()
            width = -(-(last + 1) * PICKS // most)
            found = {int(first), int(last)}
            for select in (*_OF_RUNS, *([_LIMITED] if limited else [])):
                rows = self._db.execute(f"{select} group by ordinal / ?", (study_id, width))
                found.update(int(ordinal) for ordinal, _ in rows)
        return tuple(sorted(found))

    def outlines(self, study_id: str, ordinals: Iterable[int] | None = None) -> tuple[Outline, ...]:
        """Finished trials of a study in outline, oldest first: these, or all."""
        which, arguments = "study_id = ?", [study_id]
        if ordinals is not None:
            which += " and ordinal in (select value from json_each(?))"
            arguments.append(json.dumps([*ordinals]))
        with refusals(self.root, "read"):
            rows = self._db.query(
                "select ordinal, author, config, score_value, score_cost, score_unit,"
                f" score_broken, failure_kind, started_at from trials where {which}"
                " order by ordinal",
                arguments,
            )
            return tuple(map(_outline, rows))

    def scores(self, study_id: str) -> Mapping[int, Scored]:
        """The score of every measured trial, by its ordinal."""
        with refusals(self.root, "read"):
            rows = self._db.execute(
                "select ordinal, score_value, coalesce(score_broken, '[]') = '[]' from trials"
                " where study_id = ? and score_cost is not null order by ordinal",
                (study_id,),
            )
            return {int(n): Scored(float(value), bool(leads)) for n, value, leads in rows}

    def ranks(
        self, study_id: str, ordinals: Iterable[int], costs: Mapping[int, float]
    ) -> Mapping[int, int]:
        """The place of each of these trials among all that may lead, 0 for the best.

        `costs` are those of trials that were launched again. Equals are in the order of their
        trials.
        """
        cost, arguments = score_cost(costs)
        with refusals(self.root, "read"):
            rows = self._db.execute(
                "select ordinal, place from (select t.ordinal, row_number() over"
                f" (order by {cost}, t.ordinal) - 1 as place from trials t where t.study_id = ?"
                f" and {ADMISSIBLE}) where ordinal in (select value from json_each(?))",
                (*arguments, study_id, json.dumps([*ordinals])),
            )
            return {int(ordinal): int(place) for ordinal, place in rows}

    def named_values(
        self, study_id: str, names: Sequence[str]
    ) -> Mapping[int, Mapping[str, NamedValue]]:
        """The newest values of these metrics of every measured trial that has any of them."""
        found: dict[int, dict[str, NamedValue]] = {}
        with refusals(self.root, "read"):
            for name in names:
                for ordinal, value in self._values_of(study_id, name).items():
                    found.setdefault(ordinal, {})[name] = value
        return found

    def _values_of(self, study_id: str, name: str) -> Mapping[int, NamedValue]:
        """What launches measured, and over it what was computed afterwards by a newer version."""
        where, which = "where study_id = ? and name = ?", (study_id, name)
        versions: dict[int, int] = {}
        found: dict[int, NamedValue] = {}
        for ordinal, value, unit, version in self._db.execute(
            f"select ordinal, value, unit, version from metrics {where}", which
        ):
            versions[ordinal], found[ordinal] = version, NamedValue(float(value), str(unit))
        for ordinal, value, unit, version in self._db.execute(
            f"select ordinal, value, unit, version from computed_metrics {where} order by version",
            which,
        ):
            if version >= versions.get(ordinal, version):
                found.pop(ordinal, None)
                if value is not None:
                    found[ordinal] = NamedValue(float(value), str(unit))
        return found


def _outline(row: Row) -> Outline:
    kind, value, cost = row["failure_kind"], row["score_value"], row["score_cost"]
    return Outline(
        ordinal=int(row["ordinal"] or 0),
        author=str(row["author"]),
        config=Config(json.loads(str(row["config"]))) if row["config"] else None,
        value=None if value is None else float(value),
        cost=None if cost is None else float(cost),
        unit=str(row["score_unit"] or ""),
        is_limited=str(row["score_broken"] or "[]") != "[]",
        failure=None if kind is None else FailureKind(str(kind)),
        started_at=str(row["started_at"]),
    )
