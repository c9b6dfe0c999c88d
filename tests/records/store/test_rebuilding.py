"""A database is built again from the journals, whatever has become of it."""

import sqlite3
from contextlib import closing

import pytest

from records.errors import StoreBusy, StoreError
from records.store.rebuild import rebuild
from records.store.store import Store
from tests.support.records import fill, rows_of, study, trial


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


@pytest.mark.parametrize("damage", [truncated, garbled, no_database, newer, a_folder])
def test_what_was_damaged_is_there_again_and_the_old_database_is_kept(filled, damage):
    root, rows = filled
    damage(root / "cclsearch.db")
    found = rebuilt(root)
    assert rows_of(root) == rows
    assert [(one.study_id, one.trials, one.unread) for one in found.studies] == [
        ("one", 2, ()),
        ("two", 2, ()),
    ]
    assert found.kept == root / "cclsearch.db.broken"
    assert found.kept.exists()


@pytest.mark.parametrize("damage", [truncated, garbled, no_database])
def test_a_damaged_database_is_one_line_that_ends_with_what_to_do(filled, damage):
    root, _ = filled
    damage(root / "cclsearch.db")
    with pytest.raises(StoreError) as refused, closing(Store(root)) as store:
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


def test_every_old_database_is_kept(filled):
    root, _ = filled
    kept = [rebuilt(root).kept.name for _ in range(3)]
    assert kept == ["cclsearch.db.broken", "cclsearch.db.broken2", "cclsearch.db.broken3"]


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
        f"line {len(lines) + 1}: it is cut off",
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


def test_a_study_that_only_the_old_database_knows_is_told(filled):
    root, _ = filled
    with closing(sqlite3.connect(root / "cclsearch.db")) as db, db:
        db.execute("delete from journals where study_id = 'two'")
        db.execute("update trials set outcome = '{}' where study_id = 'two'")
    journal(root, "two").unlink()
    found = rebuilt(root)
    assert found.without_journal == ("two",)
    assert [one.study_id for one in found.studies] == ["one"]


def test_a_study_that_is_being_run_is_not_rebuilt_under_its_search(filled):
    root, _ = filled
    before = (root / "cclsearch.db").read_bytes()
    with closing(Store(root)) as store, store.lock("one"), pytest.raises(StoreBusy, match="one"):
        rebuilt(root)
    assert (root / "cclsearch.db").read_bytes() == before


def test_without_journals_nothing_is_touched(tmp_path):
    (tmp_path / "cclsearch.db").write_bytes(b"not a database")
    with pytest.raises(StoreError, match="no journals in"):
        rebuilt(tmp_path)
    assert (tmp_path / "cclsearch.db").read_bytes() == b"not a database"


def test_a_folder_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(StoreError, match="no journals in"):
        rebuilt(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


def test_what_an_earlier_rebuild_left_when_it_was_killed_is_no_obstacle(filled):
    root, rows = filled
    (root / "cclsearch.db.new").write_bytes(b"half a database")
    (root / "cclsearch.db.new-journal").write_bytes(b"half a journal")
    rebuilt(root)
    assert rows_of(root) == rows
    assert not (root / "cclsearch.db.new").exists()
