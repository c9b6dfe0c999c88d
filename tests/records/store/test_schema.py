"""The tables and views of a store, as a person sees them who browses it."""

import sqlite3
from contextlib import closing
from pathlib import Path

from records.store.database import open_database
from records.store.locks import file_system
from records.store.store import Store
from tests.support.records import fill, study

GOLDEN = Path(__file__).with_name("schema.txt")


def schema_of(root):
    """A line for every table and view with its columns, and one for every index."""
    with closing(sqlite3.connect(root / "cclsearch.db")) as db:
        found = db.execute("select type, name, tbl_name from sqlite_master order by type, name")
        for kind, name, table in found.fetchall():
            asked = "index_info" if kind == "index" else "table_info"
            columns = [
                row[2 if kind == "index" else 1] for row in db.execute(f"pragma {asked}([{name}])")
            ]
            if not name.startswith(("sqlite_", "_sqlite", "idx_")):
                of = f" of {table}" if kind == "index" else ""
                yield f"{kind} {name}{of}: {' '.join(column or '(text)' for column in columns)}"


def test_tables_and_views_are_these(tmp_path):
    fill(tmp_path)
    assert list(schema_of(tmp_path)) == GOLDEN.read_text(encoding="utf-8").splitlines()


def test_every_view_can_be_read_and_names_its_study(tmp_path):
    fill(tmp_path)
    with closing(sqlite3.connect(tmp_path / "cclsearch.db")) as db:
        for (view,) in db.execute("select name from sqlite_master where type = 'view'").fetchall():
            found = db.execute(f"select * from {view}")
            names = {column[0] for column in found.description}
            assert "study_id" in names
            assert "study_name" in names or view == "newest_metrics"
            assert found.fetchall()


def test_views_tell_the_best_what_failed_and_how_long_it_took(tmp_path):
    fill(tmp_path)
    with closing(sqlite3.connect(tmp_path / "cclsearch.db")) as db:
        ask = lambda sql: db.execute(sql).fetchall()  # noqa: E731
        assert ask("select trial, score, score_unit from best_trials") == [(0, 0.5, "s")]
        assert ask("select trial, duration_seconds from all_trials") == [(0, 1.0), (1, 1.0)]
        assert ask("select failure, failed_at, trials, first_message from failures_by_kind") == [
            ("crash", "launch", 1, "it broke")
        ]
        assert ask("select trials, failed, launches, best_score from all_studies") == [
            (2, 1, 3, 0.5)
        ]


def test_where_sqlite_keeps_no_write_ahead_log_a_store_works_and_says_so(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("records.store.database.file_system", lambda _folder: "nfs4")
    with closing(Store(tmp_path)) as store:
        store.create("one", study(), "1")
        assert [row.id for row in store.studies()] == ["one"]
    assert "is on nfs4, where SQLite keeps no write-ahead log" in caplog.text
    assert not (tmp_path / "cclsearch.db-wal").exists()


def test_a_file_system_that_refuses_a_write_ahead_log_is_no_obstacle(tmp_path, monkeypatch, caplog):
    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3,
        "connect",
        lambda path, **options: connect(f"file:{path}?vfs=unix-dotfile", uri=True, **options),
    )
    (tmp_path / "locks").mkdir()
    with closing(open_database(tmp_path)) as db:
        assert db.execute("pragma journal_mode").fetchone() == ("delete",)
    assert "keeps no write-ahead log" in caplog.text


def test_an_unknown_mount_table_is_no_error(tmp_path):
    assert file_system(tmp_path, tmp_path / "none") == "unknown"
