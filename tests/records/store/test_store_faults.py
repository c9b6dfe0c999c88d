"""A store that cannot be used says so in one line, and keeps what it has."""

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from records.errors import StoreError
from records.store.journal import journal_path
from records.store.store import Store
from tests.support.records import rows_of, rows_of_journals, study, trial

SCRIPT = Path(__file__).with_name("store_processes.py")
DISK_BYTES = 1 << 20


def succeeds(*command):
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@contextmanager
def small_disk(folder):
    """A disk of a megabyte where one may be mounted; else what one file may grow to, in bytes."""
    folder.mkdir()
    size = f"size={DISK_BYTES}"
    if os.geteuid() == 0 and succeeds("mount", "-t", "tmpfs", "-o", size, "tmpfs", folder):
        try:
            yield 0
        finally:
            subprocess.run(["umount", "-l", folder], check=True)
    else:
        yield DISK_BYTES


@contextmanager
def read_only(folder):
    """The folder and all that is in it without write permission."""
    paths = [folder, *folder.rglob("*")]
    modes = [path.stat().st_mode for path in paths]
    for path, mode in zip(paths, modes, strict=True):
        path.chmod(mode & ~0o222)
    try:
        yield
    finally:
        for path, mode in zip(paths, modes, strict=True):
            path.chmod(mode)


def refusal_in_a_process(root):
    """What a process says that permissions bind, which for root takes giving up capabilities."""
    bound = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    command = [sys.executable, SCRIPT, "open-one", root]
    said = subprocess.run(
        bound + command if os.geteuid() == 0 else command,
        check=True,
        capture_output=True,
        text=True,
    )
    return said.stdout


def assert_is_a_refusal(message, root):
    assert message.startswith(f"cannot open the store {root}: ")
    assert message.endswith("it, or give another with --store")
    assert "\n" not in message


def assert_refused(root):
    with pytest.raises(StoreError) as refused:
        Store(root)
    assert_is_a_refusal(str(refused.value), root)


@pytest.fixture(scope="module")
def full_store(tmp_path_factory):
    """Whatever a writer said before its disk was full, and a copy of what it left."""
    folder = tmp_path_factory.mktemp("full")
    with small_disk(folder / "disk") as largest_file_bytes:
        command = [sys.executable, SCRIPT, "fill", folder / "disk" / "s", str(largest_file_bytes)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        shutil.copytree(folder / "disk" / "s", folder / "copy")
    return said.splitlines(), folder / "copy"


def test_what_was_stored_before_the_disk_was_full_is_intact_and_the_refusals_are_lines(full_store):
    (said, unkept), root = full_store
    finished, message = said.split(" ", maxsplit=1)
    finished = int(finished)
    assert finished > 3
    assert message.startswith("cannot write to the store ")
    assert message.endswith("free or unlock it, or give another with --store")
    assert unkept.startswith("cannot keep trace.json under ")
    assert [path for path in (root / "artifacts").rglob("*") if path.is_file()] == []
    assert journal_path(root, "one").read_bytes().endswith(b"\n")
    with closing(Store(root)) as store:
        trials = store.history("one").trials
        # One more may be in the journal that did not fit into the database.
        assert len(trials) in (finished, finished + 1)
        assert trials == tuple(
            trial(n, 0.5, {"pad": "x" * 20_000, "n": n}) for n in range(len(trials))
        )
        assert [intent.ordinal for intent in store.pending("one")] in ([], [len(trials)])
        store.finish("one", trial(len(trials), 0.5))
    with closing(sqlite3.connect(root / "cclsearch.db")) as database:
        assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
    assert rows_of_journals(root, root / "again") == rows_of(root)


def test_a_read_only_folder_cannot_hold_a_new_store(tmp_path):
    with read_only(tmp_path):
        for root in (tmp_path, tmp_path / "below"):
            assert_is_a_refusal(refusal_in_a_process(root).removesuffix("\n"), root)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_became_read_only_is_refused_and_intact(tmp_path):
    with closing(Store(tmp_path)) as store:
        store.create("one", study(), "1")
        store.finish("one", trial(0, 0.5))
    with read_only(tmp_path):
        assert_is_a_refusal(refusal_in_a_process(tmp_path).removesuffix("\n"), tmp_path)
    assert refusal_in_a_process(tmp_path) == ""
    with closing(Store(tmp_path)) as store:
        assert store.history("one").trials == (trial(0, 0.5),)


@pytest.mark.parametrize("content", [b"not a database, but text\n" * 100, b"\0" * 4096])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path, content):
    (tmp_path / "cclsearch.db").write_bytes(content)
    assert_refused(tmp_path)
    assert (tmp_path / "cclsearch.db").read_bytes() == content


def test_a_store_cannot_lie_under_a_file_or_in_place_of_one(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder" / "cclsearch.db").mkdir(parents=True)
    assert_refused(tmp_path / "folder")
    assert_refused(tmp_path / "file")
    assert_refused(tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_damaged_record_is_an_error_of_ours(tmp_path):
    with closing(Store(tmp_path)) as store:
        store.create("one", study(), "1")
        store.finish("one", trial(0, 0.5))
        with closing(sqlite3.connect(tmp_path / "cclsearch.db")) as database, database:
            database.execute("update trials set trial = '{}'")
        with pytest.raises(Exception, match="Field required") as refused:
            store.history("one")
        assert type(refused.value).__module__ == "records.errors"


@pytest.mark.parametrize("version", [0, 1000])
def test_a_store_is_left_alone_by_opening_it_and_refused_if_of_another_version(tmp_path, version):
    with closing(Store(tmp_path)):
        pass
    database = tmp_path / "cclsearch.db"
    created = database.read_bytes()
    with closing(Store(tmp_path)) as store:
        assert store.studies() == ()
    assert database.read_bytes() == created
    with closing(sqlite3.connect(database)) as db, db:
        db.execute(f"pragma user_version={version}")
    before = database.read_bytes()
    with pytest.raises(StoreError, match=r"another version .* there are no journals to build it"):
        Store(tmp_path)
    assert database.read_bytes() == before
