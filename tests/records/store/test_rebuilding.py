"""A database is built again from the journals, whatever has become of it, by opening the store."""

import sqlite3
from contextlib import closing

import pytest

from records.errors import StoreBusy, StoreError
from records.store import writer
from records.store.database import open_database
from records.store.locks import hold_writer
from records.store.store import Store
from records.store.writer import Progress, StoreWriter, rebuild
from tests.support.records import fill, rows_of, rows_of_journals, study, trial


def rebuilt(root):
    return rebuild(root, lambda _study: None)


def journal(root, study_id="one"):
    return root / "journal" / f"{study_id}.jsonl"


@pytest.fixture
def filled(tmp_path):
    """A store with two studies, and all of its rows."""
    fill(tmp_path, "one")
    fill(tmp_path, "two")
    return tmp_path, rows_of(tmp_path)


def truncated(database):
    database.write_bytes(database.read_bytes()[:20_000])


def garbled(database):
    content = bytearray(database.read_bytes())
    content[100:] = bytes(len(content) - 100)
    database.write_bytes(content)


def no_database(database):
    database.write_bytes(b"not a database, but text\n" * 100)


def newer(database):
    with closing(sqlite3.connect(database)) as db, db:
        db.execute("pragma user_version=1000")


def a_folder(database):
    database.unlink()
    database.mkdir()


@pytest.mark.parametrize("damage", [truncated, garbled, a_folder])
def test_what_was_damaged_is_there_again_and_the_old_database_is_kept(filled, damage):
    root, rows = filled
    damage(root / "cclsearch.db")
    found = rebuilt(root)
    assert rows_of(root) == rows
    assert [(one.study_id, one.trials, one.unread) for one in found.studies] == [
        ("one", 2, ()),
        ("two", 2, ()),
    ]
    assert found.kept == root / "cclsearch.db.old"
    assert found.kept.exists()


@pytest.mark.parametrize("damage", [no_database, newer])
def test_an_opening_replaces_a_database_that_it_cannot_use(filled, damage, caplog):
    root, rows = filled
    damage(root / "cclsearch.db")
    with closing(Store(root)) as store:
        assert len(store.history("one")) == 2
    assert rows_of(root) == rows
    (said,) = caplog.messages
    assert "\n" not in said
    assert said.endswith(f"it is built again from the journals; old: {root}/cclsearch.db.old")


def test_a_replaced_database_is_named_where_only_it_has_a_study(filled, caplog):
    root, _ = filled
    journal(root).unlink()
    newer(root / "cclsearch.db")
    with closing(Store(root)) as store:
        assert [row.id for row in store.studies()] == ["two"]
    assert caplog.messages[0].endswith("(only it has one: their journals are missing)")
    with closing(sqlite3.connect(root / "cclsearch.db.old")) as old:
        assert old.execute("select count(*) from trials where study_id = 'one'").fetchone() == (2,)


def test_damage_that_an_opening_does_not_meet_is_one_line_that_ends_with_what_to_do(filled):
    root, _ = filled
    with closing(sqlite3.connect(root / "cclsearch.db")) as db:
        ((page,),) = db.execute("select rootpage from sqlite_master where name = 'trials'")
        ((page_bytes,),) = db.execute("pragma page_size")
    with (root / "cclsearch.db").open("rb+") as file:
        file.seek((page - 1) * page_bytes)
        file.write(bytes(page_bytes))
    with closing(Store(root)) as store, pytest.raises(StoreError) as refused:
        store.history("one")
    said = str(refused.value)
    assert "\n" not in said
    assert said.endswith(f"rebuild it with `cclsearch doctor --rebuild --store {root}`")


@pytest.mark.parametrize("content", [None, b""])
def test_a_database_that_is_gone_is_built_again_by_whoever_opens_the_store(filled, content):
    root, rows = filled
    (root / "cclsearch.db").unlink()
    if content is not None:
        (root / "cclsearch.db").write_bytes(content)
    with closing(Store(root)) as store:
        assert len(store.history("one")) == 2
    assert rows_of(root) == rows


def test_a_store_is_read_while_another_process_builds_its_database(filled, caplog):
    root, rows = filled
    (root / "cclsearch.db").unlink()
    with hold_writer(root):
        with closing(open_database(root)) as db:
            StoreWriter(root, db, 0).read("two", Progress(root, 1))
        with closing(Store(root)) as reader:
            assert [row.id for row in reader.studies()] == ["two"]
    assert caplog.messages == [
        f"{root}: another process is reading the journals; studies that cannot be shown yet: 1"
    ]
    with closing(Store(root)):
        assert rows_of(root) == rows


def test_a_store_that_is_open_goes_on_with_the_new_database_once_it_is_complete(filled):
    root, _ = filled
    with closing(Store(root)) as store:
        before = store.history("one")
        (root / "cclsearch.db").unlink()
        with hold_writer(root), closing(open_database(root)) as db:
            StoreWriter(root, db, 0).read("two", Progress(root, 1))
            assert store.history("one") is before
            assert len(store.studies()) == 2
        with closing(Store(root)) as other:
            other.finish("one", trial(2, 0.5))
            assert [each.ordinal for each in store.history("one")] == [0, 1, 2]
        store.finish("one", trial(3, 0.5))
    assert rows_of(root) == rows_of_journals(root, root / "again")


def test_reading_long_journals_is_reported(filled, caplog, monkeypatch):
    root, _ = filled
    monkeypatch.setattr(writer, "REPORT_EVERY_S", 0.0)
    (root / "cclsearch.db").unlink()
    Store(root).close()
    assert caplog.messages[-1] == f"reading the journals of {root}: 100 %"


def test_a_write_ahead_log_is_kept_with_its_database_and_never_read_into_the_new_one(filled):
    root, _ = filled
    with closing(Store(root)) as reader:
        reader.create("three", study(), "1")
        for part in ("", "-wal"):
            content = (root / f"cclsearch.db{part}").read_bytes()
            (root / f"copy{part}").write_bytes(content)
    for part in ("", "-wal"):
        (root / f"copy{part}").replace(root / f"cclsearch.db{part}")
    newer(root / "cclsearch.db")
    assert rebuilt(root).kept.exists()
    with closing(Store(root)) as store:
        assert len(store.studies()) == 3


def test_lines_that_cannot_be_used_are_told_and_the_others_are_used(filled):
    root, _ = filled
    lines = journal(root).read_bytes().splitlines(keepends=True)
    begun = next(n for n, line in enumerate(lines) if b"trial_finished" in line)
    lines[begun] = lines[begun].replace(b"0.5", b"0.6")
    lines.insert(begun + 1, b"\xff not a line\n")
    journal(root).write_bytes(b"".join(lines) + b'{"crc32":')
    (root / "cclsearch.db").unlink()
    one, two = rebuilt(root).studies
    assert one.unread == (
        f"line {begun + 1}: its checksum does not fit",
        f"line {begun + 2}: its checksum does not fit",
    )
    assert (one.entries, one.trials) == (len(lines) - 2, 1)
    assert two.unread == ()
    with closing(Store(root)) as store:
        store.finish("one", trial(2, 0.5))
        assert [each.ordinal for each in store.history("one")] == [1, 2]
    assert rebuilt(root).studies[0].trials == 2


def test_a_study_of_which_nobody_knows_what_was_asked_is_told_and_left_out(filled):
    root, _ = filled
    lines = journal(root).read_bytes().splitlines(keepends=True)
    journal(root).write_bytes(b"{}\n" + b"".join(lines[1:]))
    (root / "cclsearch.db").unlink()
    one, two = rebuilt(root).studies
    assert (one.entries, one.trials) == (0, 0)
    assert one.unread[:2] == (
        "line 1: its checksum does not fit",
        "line 2: the line that creates the study is lost",
    )
    assert two.trials == 2
    assert journal(root).read_bytes() == b"{}\n" + b"".join(lines[1:])


def test_a_study_that_only_the_old_database_knows_is_told_and_every_old_one_kept(filled):
    root, _ = filled
    journal(root, "two").unlink()
    found = rebuilt(root)
    assert found.without_journal == ("two",)
    assert [one.study_id for one in found.studies] == ["one"]
    kept = [rebuilt(root).kept.name for _ in range(2)]
    assert kept == ["cclsearch.db.old2", "cclsearch.db.old3"]


def test_a_study_that_is_being_run_is_not_rebuilt_under_its_search(filled):
    root, _ = filled
    before = (root / "cclsearch.db").read_bytes()
    with closing(Store(root)) as store, store.lock("one"), pytest.raises(StoreBusy, match="one"):
        rebuilt(root)
    assert (root / "cclsearch.db").read_bytes() == before


def test_without_journals_nothing_is_touched(tmp_path):
    (tmp_path / "cclsearch.db").write_bytes(b"not a database")
    for root in (tmp_path, tmp_path / "none"):
        with pytest.raises(StoreError, match="no journals in"):
            rebuilt(root)
    assert (tmp_path / "cclsearch.db").read_bytes() == b"not a database"
    assert [path.name for path in tmp_path.iterdir()] == ["cclsearch.db"]
