"""Stores with a row in every table, and all rows of a store, for the tests of what writes them."""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from records.database import NAME
from records.exchange import SUBMITTED, Exchange, Usage
from records.journal import FOLDER
from records.rebuilding import rebuild
from records.rows import Intent
from records.store import Store
from records.testing import START, failed, measured, study, trial
from records.trial import Artifact, Repeat

OF_THE_DATABASE = ("journals", "_sqlite_migrations")
"""Tables that hold no records."""
EXCHANGE = Exchange(
    model="m",
    request="{}",
    reply="{}",
    result=SUBMITTED,
    usage=Usage(input_tokens=3),
    latency_s=1,
    request_count=1,
)


def rows_of(root: Path) -> dict[str, list[tuple[object, ...]]]:
    """Rows of every table of a store that is sound, by its name."""
    with closing(sqlite3.connect(root / NAME)) as db:
        (found,) = db.execute("pragma integrity_check").fetchall()
        if found != ("ok",):
            raise ValueError(f"{root}: {found}")
        tables = db.execute("select name from sqlite_master where type = 'table'").fetchall()
        return {
            table: sorted(db.execute(f"select * from {table}").fetchall(), key=repr)
            for (table,) in tables
            if table not in OF_THE_DATABASE
        }


def rows_of_journals(root: Path, folder: Path) -> dict[str, list[tuple[object, ...]]]:
    """The rows that the journals of a store make, in a folder that is new."""
    shutil.copytree(root / FOLDER, folder / FOLDER)
    rebuild(folder, lambda _study: None)
    return rows_of(folder)


def intent(ordinal: int) -> Intent:
    """A trial that is about to begin."""
    policy = trial(ordinal, 0.5).policy
    return Intent(ordinal=ordinal, policy=policy, started_at=START, exchange=None)


def fill(root: Path, study_id: str = "one") -> None:
    """Write a study with trials 0 and 1 and one that was begun, through the store's own methods."""
    with closing(Store(root)) as store:
        store.create(study_id, study(), "1")
        store.start_run(study_id, study())
        asked = store.begin(study_id, intent(0), EXCHANGE)
        files = (Artifact(name="log", digest="0" * 64, size_bytes=3),)
        done = trial(0, replace(measured(), artifacts=files), {"n": 0})
        store.finish(study_id, replace(done, exchange=asked.exchange))
        store.begin(study_id, intent(1), None)
        store.finish(study_id, trial(1, failed()))
        store.repeat(study_id, Repeat(series=2, round=0, ordinal=0, outcome=measured(0.25)))
        store.begin(study_id, intent(2), EXCHANGE)
        store.update(study_id, status="interrupted", summary="{}")
