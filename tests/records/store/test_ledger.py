"""Journal and database come to be the same, wherever a process was killed or a disk was full."""

import math
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from records.errors import CodecError, StoreError, WriterBusy
from records.store.journal import StudyChanged, to_line
from records.store.locks import hold_writer
from records.store.store import Store
from records.trial import Repeat
from tests.support.records import fill, measured, rows_of, rows_of_journals, study, trial

SCRIPT = Path(__file__).with_name("store_processes.py")


def journal(root, study_id="one"):
    return root / "journal" / f"{study_id}.jsonl"


def ordinals(root, study_id="one"):
    with closing(Store(root)) as store:
        return [each.ordinal for each in store.history(study_id)]


@contextmanager
def killed_before_the_commit(root):
    """The database as it was, with the journal as it is afterwards."""
    database = root / "cclsearch.db"
    shutil.copy(database, root / "before")
    yield
    (root / "before").replace(database)


def test_the_journal_makes_the_very_same_rows(tmp_path):
    fill(tmp_path / "one")
    assert rows_of_journals(tmp_path / "one", tmp_path / "two") == rows_of(tmp_path / "one")
    assert all(rows_of(tmp_path / "one")[table] for table in ("runs", "exchanges", "repeats"))


def test_an_opening_applies_what_a_killed_process_only_wrote_to_the_journal(tmp_path):
    fill(tmp_path)
    with killed_before_the_commit(tmp_path), closing(Store(tmp_path)) as store:
        store.finish("one", trial(2, 0.5))
    assert ordinals(tmp_path) == [0, 1, 2]
    assert ordinals(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize("next_step", ["lock", "write"])
def test_a_store_that_is_open_applies_it_too(tmp_path, next_step):
    fill(tmp_path)
    with closing(Store(tmp_path)) as ahead:
        shutil.copytree(tmp_path, tmp_path / "copy")
        with closing(Store(tmp_path / "copy")) as store:
            ahead.finish("one", trial(2, 0.5))
            shutil.copy(journal(tmp_path), journal(tmp_path / "copy"))
            if next_step == "write":
                store.finish("one", trial(3, 0.5))
            with store.lock("one"):
                assert [each.ordinal for each in store.history("one")][:3] == [0, 1, 2]


@pytest.mark.parametrize("torn", [b"{", b'{"crc32":"00000000","number":3}\n', b"\0" * 5000])
def test_a_line_that_was_not_written_to_its_end_is_cut(tmp_path, torn):
    fill(tmp_path)
    whole = journal(tmp_path).read_bytes()
    with journal(tmp_path).open("ab") as file:
        file.write(torn)
    with closing(Store(tmp_path)) as store:
        assert journal(tmp_path).read_bytes() == whole
        store.finish("one", trial(2, 0.5))
    assert rows_of_journals(tmp_path, tmp_path / "again") == rows_of(tmp_path)


def test_a_bad_line_before_good_ones_is_named_and_left_as_it_is(tmp_path, caplog):
    fill(tmp_path)
    with killed_before_the_commit(tmp_path), closing(Store(tmp_path)) as store:
        store.finish("one", trial(2, 0.5))
        store.finish("one", trial(3, 0.5))
    lines = journal(tmp_path).read_bytes().splitlines(keepends=True)
    lines[-2] = lines[-2].replace(b"try 2", b"try 9")
    journal(tmp_path).write_bytes(b"".join(lines))
    with closing(Store(tmp_path)) as store:
        said = caplog.messages[-1]
        with pytest.raises(StoreError) as refused:
            store.finish("one", trial(4, 0.5))
        store.create("two", study(), "1")
    assert str(refused.value) == said
    assert said.startswith(f"{journal(tmp_path)}, line {len(lines) - 1}: its checksum does not fit")
    assert said.endswith(f"`cclsearch doctor --rebuild --store {tmp_path}`")
    assert journal(tmp_path).read_bytes() == b"".join(lines)


def test_an_entry_of_a_newer_version_is_never_cut(tmp_path, monkeypatch):
    fill(tmp_path)
    whole = journal(tmp_path).read_bytes()
    monkeypatch.setattr(StudyChanged, "kind", "study_forgotten")
    line = to_line(StudyChanged.kind, whole.count(b"\n") + 1, '{"status":"forgotten"}')
    journal(tmp_path).write_bytes(whole + line)
    with closing(Store(tmp_path)) as store, pytest.raises(StoreError, match="a newer cclsearch"):
        store.finish("one", trial(2, 0.5))
    assert journal(tmp_path).read_bytes() == whole + line


@pytest.mark.parametrize("lost", ["all of it", "its end"])
def test_a_study_that_has_lost_its_journal_can_be_read_and_not_changed(tmp_path, caplog, lost):
    fill(tmp_path)
    fill(tmp_path, "two")
    rows = rows_of(tmp_path)
    lines = journal(tmp_path).read_bytes().splitlines(keepends=True)
    if lost == "all of it":
        journal(tmp_path).unlink()
    else:
        journal(tmp_path).write_bytes(b"".join(lines[:4]))
    with closing(Store(tmp_path)) as store:
        (said,) = caplog.messages
        assert len(store.history("one")) == 2
        with pytest.raises(StoreError) as refused:
            store.finish("one", trial(2, 0.5))
        with pytest.raises(StoreError), store.lock("one"):
            pass
        assert str(refused.value) == said
    assert said.startswith(f"{tmp_path / 'journal'} lacks one.jsonl, or their last lines: ")
    assert said.endswith(f"`cclsearch doctor --rebuild --store {tmp_path}`")
    assert rows_of(tmp_path) == rows
    journal(tmp_path).write_bytes(b"".join(lines))
    with closing(Store(tmp_path)) as store:
        store.finish("one", trial(2, 0.5))


def test_what_the_database_refuses_is_not_in_the_journal(tmp_path):
    fill(tmp_path)
    before = journal(tmp_path).read_bytes()
    with closing(Store(tmp_path)) as store:
        for wrong in (
            lambda: store.finish("one", trial(1, 0.5)),
            lambda: store.create("one", study(), "1"),
        ):
            with pytest.raises(StoreError, match="UNIQUE"):
                wrong()
        with pytest.raises(StoreError, match="no study 'two'"):
            store.finish("two", trial(0, 0.5))
        with pytest.raises(StoreError, match="too large"):
            store.finish("one", trial(1 << 70, 0.5))
        with pytest.raises(CodecError):
            store.repeat("one", Repeat(series=9, round=0, ordinal=0, outcome=measured(math.nan)))
    assert journal(tmp_path).read_bytes() == before
    assert not journal(tmp_path, "two").exists()


@pytest.mark.parametrize(
    "name",
    [
        *("", "../two", "a/b", ".writing", "x" * 300, "a\0b", "a;touch X;#", "$(x)", "-rf"),
        *("a b", "\x1b[2J", "a\n"),
    ],
)
def test_an_id_that_names_no_file_is_refused(tmp_path, name):
    with closing(Store(tmp_path / "store")) as store:
        with pytest.raises(StoreError, match="cannot name a file"):
            store.create(name, study(), "1")
        with pytest.raises(StoreError, match="cannot name a file"), store.lock(name):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_study_is_added_whole_or_not_at_all(tmp_path):
    def broken_off():
        yield trial(0, 0.5)
        raise StoreError("the file ends here")

    twice = [trial(0, 0.5), trial(0, 0.25)]
    with closing(Store(tmp_path)) as store:
        for trials, why in ((broken_off(), "ends here"), (twice, "UNIQUE")):
            with pytest.raises(StoreError, match=why):
                store.add_study("one", study(), "1", trials)
            assert store.studies() == ()
            assert list((tmp_path / "journal").iterdir()) == []
        store.add_study("one", study(), "1", (trial(n, 0.5) for n in range(3)), summary=None)
        with pytest.raises(StoreError, match="is already in"):
            store.add_study("one", study(), "1", [])
        assert store.find("one").status == "finished"
        assert len(store.history("one")) == 3
    assert rows_of_journals(tmp_path, tmp_path / "again") == rows_of(tmp_path)


def test_processes_that_write_different_studies_at_once_all_succeed(tmp_path):
    subprocess.run([sys.executable, SCRIPT, "write", tmp_path], check=True)
    with closing(Store(tmp_path)) as store:
        written = [store.history(row.id).trials for row in store.studies()]
    assert [[each.ordinal for each in trials] for trials in written] == [list(range(10))] * 3
    assert rows_of_journals(tmp_path, tmp_path / "again") == rows_of(tmp_path)


def test_what_another_process_adds_to_a_study_that_is_run_is_seen(tmp_path):
    fill(tmp_path)
    with closing(Store(tmp_path)) as running, closing(Store(tmp_path)) as other:
        with running.lock("one"):
            other.repeat("one", Repeat(series=2, round=1, ordinal=0, outcome=measured(0.75)))
            running.finish("one", trial(2, 0.5))
            other.repeat("one", Repeat(series=3, round=0, ordinal=2, outcome=measured(0.25)))
            assert running.repeats("one") == other.repeats("one")
        assert len(running.repeats("one")) == 3
    assert rows_of_journals(tmp_path, tmp_path / "again") == rows_of(tmp_path)


def test_who_waits_too_long_for_another_writer_is_told_so(tmp_path):
    with (
        closing(Store(tmp_path, wait_s=0.01)) as store,
        hold_writer(store.root),
        pytest.raises(WriterBusy, match=r"another process has been writing to .* for 0.01 s"),
    ):
        store.create("one", study(), "1")
    with closing(sqlite3.connect(tmp_path / "cclsearch.db")) as writer, hold_writer(tmp_path):
        writer.execute("begin immediate")
        with closing(Store(tmp_path)) as store:  # opening and reading never wait
            assert store.study_count() == 0
