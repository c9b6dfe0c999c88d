"""Which studies to show, as SQL."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from records.connection import Database
from records.database import refusals
from records.rows import StudyRow, to_study


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyQuery:
    """A page of studies, newest first.

    `text` is looked for in their ids, names and objectives. With a `status` only those that have
    it: on record, unless another place knows better: it has them `among` or `except_for`.
    """

    text: str | None = None
    status: str | None = None
    among: Sequence[str] = ()
    except_for: Sequence[str] = ()
    limit: int = 50
    offset: int = 0

    def where(self) -> tuple[str, list[str | int]]:
        """A condition on `studies`, and its arguments."""
        parts, arguments = ["1"], list[str | int]()
        if self.text:
            places = ("id", "name", "objective")
            parts.append(f"({' or '.join(f'instr(lower({place}), ?)' for place in places)})")
            arguments += [self.text.lower()] * len(places)
        if self.status is not None:
            parts.append(
                "(id in (select value from json_each(?))"
                " or (status = ? and id not in (select value from json_each(?))))"
            )
            arguments += [json.dumps([*self.among]), self.status, json.dumps([*self.except_for])]
        return " and ".join(parts), arguments


class ListedStudies:
    """The read side of a store, as far as it lists studies."""

    root: Path
    _db: Database

    def study_page(self, query: StudyQuery) -> tuple[tuple[StudyRow, ...], int]:
        """Some of the studies, and how many there are of that kind."""
        where, values = query.where()
        with refusals(self.root, "read"):
            (total,) = self._db.execute(
                f"select count(*) from studies where {where}", values
            ).fetchone()
            rows = self._db.query(
                f"select * from studies where {where} order by created_at desc, id desc"
                " limit ? offset ?",
                (*values, query.limit, query.offset),
            )
            return tuple(map(to_study, rows)), int(total)

    def statuses(self, study_ids: Sequence[str]) -> dict[str, str]:
        """The recorded status of each of these studies that is there."""
        with refusals(self.root, "read"):
            rows = self._db.execute(
                "select id, status from studies where id in (select value from json_each(?))",
                (json.dumps([*study_ids]),),
            )
            return {str(study_id): str(status) for study_id, status in rows}

    def begun_studies(self) -> tuple[str, ...]:
        """Studies whose search began and never ended, be it that its process was killed."""
        with refusals(self.root, "read"):
            rows = self._db.execute("select id from studies where status = 'running' order by id")
            return tuple(str(study_id) for (study_id,) in rows)
