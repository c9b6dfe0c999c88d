"""What the records say of kept files: which cites which, and which were removed on purpose."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from records.connection import Database
from records.database import refusals
from records.journal import FOLDER, SUFFIX

_DIGEST_CHARS = 64
_DIGEST = re.compile(rb"[0-9a-f]{%d}" % _DIGEST_CHARS)
_PIECE_BYTES = 8 << 20
_CITATIONS = """
with ends as (select study_id, max(ended_at) as ended_at from trials group by study_id)
select a.study_id, a.ordinal, a.name, a.digest, a.size_bytes, t.ended_at
  from artifacts a join trials t on t.study_id = a.study_id and t.ordinal = a.ordinal
union all
select c.study_id, c.ordinal, json_extract(j.value, '$.name'), json_extract(j.value, '$.digest'),
       json_extract(j.value, '$.size_bytes'), ends.ended_at
  from confirmations c left join ends on ends.study_id = c.study_id,
       json_each(c.outcome, '$.artifacts') j
union all
select e.study_id, e.ordinal, 'exchange.json', e.digest, null, t.ended_at
  from exchanges e left join trials t on t.study_id = e.study_id and t.ordinal = e.ordinal
union all
select study_id, ordinal, 'machine.json', json_extract(outcome, '$.launched.machine'), null,
       ended_at
  from trials where json_extract(outcome, '$.launched.machine') is not null
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """A file that a trial, a repeated launch of it or its conversation left, or its machine.

    `ended_at` is when, for a repeated launch when the last trial of its study ended; None of a
    trial that did not end. Sizes of conversations and machines are not on record.
    """

    study_id: str
    ordinal: int
    name: str
    digest: str
    size_bytes: int | None
    ended_at: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A file of a study was removed for its space: when, and by which rule."""

    study_id: str
    digest: str
    removed_at: str
    rule: str


class Citations:
    """Reads what the records of a store say of kept files; raises `StoreError` where they do not.

    Changes nothing.
    """

    def __init__(self, root: Path, db: Database) -> None:
        self._root = root
        self._db = db

    def all(self) -> Iterator[Citation]:
        """Every file that a record cites, once for each record."""
        with refusals(self._root, "read"):
            for row in self._db.query(_CITATIONS):
                yield Citation(**row)

    def uncited(self, digests: set[str]) -> set[str]:
        """Those of the digests that no record has, in whatever place of tables and journals."""
        left = {digest.encode() for digest in digests}
        with refusals(self._root, "read"):
            for text in self._long_texts():
                if not left:
                    break
                left.difference_update(_DIGEST.findall(text))
        return {digest.decode() for digest in left}

    def removal(self, study_id: str, digest: str) -> Removal | None:
        """Whether a file of a study was removed on purpose, the last time if it was twice."""
        found = self._removals("where study_id = ? and digest = ?", study_id, digest)
        return next(found, None)

    def removals(self) -> Iterator[Removal]:
        """Every file that was removed on purpose, once for each study that cites it."""
        return self._removals("order by study_id")

    def _removals(self, which: str, *arguments: str) -> Iterator[Removal]:
        with refusals(self._root, "read"):
            for row in self._db.query(f"select * from removed_files {which}", arguments):
                yield Removal(**row)

    def _long_texts(self) -> Iterator[bytes]:
        """Whatever is long enough to hold a digest."""
        columns = self._db.execute(
            "select t.name, c.name from sqlite_master t join pragma_table_info(t.name) c"
            " where t.type = 'table'"
        )
        for table, column in columns.fetchall():
            texts = self._db.execute(
                f"select cast([{column}] as blob) from [{table}] where length([{column}]) >= ?",
                [_DIGEST_CHARS],
            )
            yield from (text for (text,) in texts)
        for path in (self._root / FOLDER).glob(f"*{SUFFIX}"):
            yield from _overlapping(path)


def _overlapping(path: Path) -> Iterator[bytes]:
    """A file in pieces that overlap, so that no digest is cut in two."""
    end = b""
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield end + piece
            end = piece[1 - _DIGEST_CHARS :]
