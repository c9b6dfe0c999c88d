"""Stores of every earlier version come up to date without loss, however often that is cut short.

The texts in `old_stores` are what those versions wrote, as SQLite dumps them, by the number of
migrations that there were.
"""

import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlite_utils import Database

from records.store.rows import Counts
from records.store.schema import migration_names, migrations
from records.store.store import Store
from records.trial import Failed, Measured
from tests.support.records import OF_THE_DATABASE, failed, rows_of, rows_of_journals, trial

HERE = Path(__file__).parent
OLD = sorted((HERE / "old_stores").glob("*.sql"))
SCRIPT = HERE / "store_processes.py"
STATEMENTS = range(5, 400, 25)


def old_store(root, dump):
    root.mkdir(exist_ok=True)
    with closing(sqlite3.connect(root / "cclsearch.db")) as db:
        db.executescript(dump.read_text(encoding="utf-8"))
    return root


def columns_of(root):
    """The columns of every table."""
    with closing(sqlite3.connect(root / "cclsearch.db")) as connection:
        tables = Database(connection).tables
        return {
            table.name: [column.name for column in table.columns]
            for table in tables
            if table.name not in OF_THE_DATABASE
        }


def cells_of(root, columns):
    """What is in these columns of every table."""
    with closing(sqlite3.connect(root / "cclsearch.db")) as db:
        return {
            table: sorted(db.execute(f"select {', '.join(names)} from {table}"), key=repr)
            for table, names in columns.items()
        }


def opened(root):
    return closing(Store(root))


def read(root):
    """All that a store tells: old rows lack words that mean the same as none."""
    with opened(root) as store:
        ask = (store.counts, store.pending, store.runs, store.history, store.repeats)
        return [
            (row, store.model_uses(row.id), *(question(row.id) for question in ask))
            for row in store.studies()
        ]


def read_from_journals(root, folder):
    rows_of_journals(root, folder)
    return read(folder)


@pytest.fixture(params=OLD, ids=lambda path: path.stem)
def old(request, tmp_path):
    return old_store(tmp_path / "old", request.param)


def test_nothing_that_an_old_store_held_is_lost(old):
    columns = columns_of(old)
    before = cells_of(old, columns)
    with opened(old):
        pass
    assert cells_of(old, columns) == before
    assert sum(map(len, before.values())) > 20


def test_an_old_store_is_read_as_what_it_was(old):
    with opened(old) as store:
        history = store.history("one")
        assert [each.ordinal for each in history] == [0, 1, 2, 3]
        assert [type(each.outcome) for each in history] == [Measured, Failed, Failed, Measured]
        assert history.trials[0].config.values == {"mode": "a", "on": True, "tp": 2, "x": 1.0}
        assert [each.ordinal for each in store.pending("one")] == [4]
        places = [(repeat.round, repeat.ordinal) for repeat in store.repeats("one")]
        assert sorted(places) == [(0, 0), (0, 3), (1, 0), (1, 3)]
        assert store.counts("one") == Counts(trials=4, measured=2, launches=8, repeats=4)
        assert store.best("one") == history.best
        (use,) = store.model_uses("one")
        assert (use.turn_count, use.usage.input_tokens) == (2, 6)
        assert {row.id: row.status for row in store.studies()} == {
            "one": "interrupted",
            "two": "finished",
        }


def test_an_old_store_gets_journals_that_make_its_rows(old, tmp_path):
    with opened(old) as store:
        assert sorted(path.name for path in (old / "journal").iterdir()) == [
            "one.jsonl",
            "two.jsonl",
        ]
        for started in store.pending("one"):
            store.finish("one", finished(started))
    assert read_from_journals(old, tmp_path / "again") == read(old)


def finished(started):
    """A trial that failed as soon as it was begun."""
    return replace(
        trial(started.ordinal, failed()),
        policy=started.policy,
        started_at=started.started_at,
        exchange=started.exchange,
    )


@pytest.mark.parametrize("until", migration_names()[1:])
def test_every_version_in_between_comes_up_to_date_too(tmp_path, until):
    old = old_store(tmp_path / "old", OLD[0])
    with closing(sqlite3.connect(old / "cclsearch.db")) as connection:
        migrations.apply(Database(connection), stop_before=until)
    columns = columns_of(old)
    before = cells_of(old, columns)
    with opened(old) as store:
        assert len(store.history("one")) == 4
    assert cells_of(old, columns) == before
    assert read_from_journals(old, tmp_path / "again") == read(old)


@pytest.fixture(scope="module")
def killed_upgrades(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, SCRIPT, "upgrade", folder, OLD[0], *map(str, STATEMENTS)]
    subprocess.run(command, check=True)
    return folder


def test_an_upgrade_that_was_killed_is_done_again(killed_upgrades, tmp_path):
    whole = old_store(tmp_path / "whole", OLD[0])
    with opened(whole):
        pass
    for statement in STATEMENTS:
        with opened(killed_upgrades / str(statement)):
            pass
        assert rows_of(killed_upgrades / str(statement)) == rows_of(whole)
        journals = sorted((killed_upgrades / str(statement) / "journal").iterdir())
        assert [path.name for path in journals] == ["one.jsonl", "two.jsonl"]
    again = read_from_journals(killed_upgrades / str(statement), tmp_path / "again")
    assert again == read(whole)
