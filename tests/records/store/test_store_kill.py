"""SIGKILL at any point loses no finished trial and leaves at most one to repeat."""

import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from records.errors import StoreBusy
from records.store import locks
from records.store.artifacts import Artifacts
from records.store.store import Store
from tests.support.records import intent, rows_of, rows_of_journals, study, trial

SCRIPT = Path(__file__).with_name("store_processes.py")
STATEMENTS = (*range(1, 140, 45), *range(140, 300, 8))
"""From before the first table is there to somewhere in one of the first trials."""


def process(*arguments):
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def killed(one):
    one.kill()
    with one:
        pass
    assert one.returncode == -signal.SIGKILL


def opened(root):
    return closing(Store(root))


def assert_sound(root, acknowledged):
    """Every acknowledged trial is there and equal, at most one was begun, and it goes on."""
    with opened(root) as store:
        trials = store.history("one").trials if store.studies() else ()
        assert acknowledged <= len(trials) <= acknowledged + 1
        assert trials == tuple(trial(n, 0.5, {"n": n}) for n in range(len(trials)))
        pending = store.pending("one")
        assert pending in {(), (intent(len(trials)),)}
    with closing(sqlite3.connect(root / "cclsearch.db")) as database:
        assert database.execute("pragma integrity_check").fetchall() == [("ok",)]


def test_a_kill_before_any_statement_loses_nothing(tmp_path):
    subprocess.run([sys.executable, SCRIPT, "killed", tmp_path, *map(str, STATEMENTS)], check=True)

    finished, begun = set(), set()
    for statement in STATEMENTS:
        root = tmp_path / str(statement)
        assert_sound(root, (root / "acknowledged").stat().st_size)
        with opened(root) as store:
            finished.add(len(store.history("one")))
            begun.add(store.pending("one"))
    # The kills fell before, between and within trials.
    assert finished >= {0, 1, 2}
    assert begun >= {(), (intent(0),), (intent(1),), (intent(2),)}


@pytest.mark.parametrize(
    ("point", "finished"),
    [("before the line", 1), ("within the line", 1), ("after the line", 2), ("in a rebuild", 1)],
)
def test_a_trial_is_finished_exactly_when_its_line_is_in_the_journal(tmp_path, point, finished):
    root = tmp_path / "store"
    with opened(root) as store:
        store.create("one", study(), "1")
        store.start_run("one", study())
        store.finish("one", trial(0, 0.5))
        store.begin("one", intent(1), None)
    killed_process = process("killed-at", root, point)
    killed_process.communicate()
    assert killed_process.returncode == -signal.SIGKILL
    with opened(root) as store:
        assert [each.ordinal for each in store.history("one")] == [*range(finished)]
        assert len(store.pending("one")) == 2 - finished
        store.finish("one", trial(2, 0.5))
    assert rows_of(root) == rows_of_journals(root, tmp_path / "again")


def test_a_store_that_is_killed_again_and_again_keeps_everything(tmp_path):
    acknowledged = 0
    for round_number in range(3):
        writer = process("append", tmp_path)
        for _ in range(5):
            acknowledged += len(writer.stdout.read(1))
        time.sleep(0.0017 * round_number)
        writer.kill()
        acknowledged += len(writer.stdout.read())
        killed(writer)
        assert_sound(tmp_path, acknowledged)
        with opened(tmp_path) as store:
            acknowledged = len(store.history("one"))


def test_what_was_begun_is_pending_until_it_is_finished_in_whatever_order(tmp_path):
    with opened(tmp_path) as store:
        store.create("one", study(), "1")
        assert store.pending("one") == ()
        for ordinal in (1, 0, 2):
            store.begin("one", intent(ordinal), None)
    with opened(tmp_path) as store:
        assert store.pending("one") == (intent(0), intent(1), intent(2))
        store.finish("one", trial(1, 0.5))
        assert store.pending("one") == (intent(0), intent(2))
        assert [each.ordinal for each in store.history("one")] == [1]
        assert store.history("one").find(0) is None
        store.finish("one", trial(0, 0.5))
        assert [each.ordinal for each in store.history("one")] == [0, 1]


def test_a_second_process_is_told_who_holds_the_study(tmp_path):
    with process("hold", tmp_path) as holder, opened(tmp_path) as store:
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(StoreBusy, match=f"study one is being run by process {holder.pid};"),
            store.lock("one"),
        ):
            pass
        with store.lock("another"):
            pass


def test_the_lock_goes_with_a_killed_holder_and_after_an_error(tmp_path):
    with opened(tmp_path) as store:
        holder = process("hold", tmp_path)
        holder.stdout.readline()
        killed(holder)
        with pytest.raises(ZeroDivisionError), store.lock("one"):
            _ = 1 / 0
        with store.lock("one"):
            pass


def test_one_process_cannot_run_a_study_twice(tmp_path):
    with (
        opened(tmp_path) as store,
        opened(tmp_path) as other,
        store.lock("one"),
        pytest.raises(StoreBusy),
        other.lock("one"),
    ):
        pass


def test_a_new_store_can_be_opened_by_several_processes_at_once(tmp_path):
    subprocess.run([sys.executable, SCRIPT, "open", tmp_path], check=True)


def test_a_kill_leaves_no_half_file_under_its_final_name(tmp_path):
    writer = process("keep", tmp_path)
    writer.stdout.readline()
    while writer.poll() is None and not list((tmp_path / "artifacts").rglob(".incoming-*")):
        time.sleep(0.001)
    writer.kill()
    with writer:
        pass
    artifacts = Artifacts(tmp_path / "artifacts")
    assert [len(artifacts.read(kept.digest)) for kept in artifacts.all()] in ([], [50_000_000])
    with opened(tmp_path) as store:
        assert store.artifacts.keep_text("x" * 50_000_000, "trace.json").size_bytes == 50_000_000


def test_whoever_looks_who_holds_a_study_keeps_nobody_from_holding_it(tmp_path):
    with closing(Store(tmp_path)) as store:
        with store.lock("one"):
            pass
        handle = os.open(tmp_path / "locks" / "one", os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_SH)  # as `holder` does, stopped for longer than anyone waits
        leaving = threading.Timer(2 * locks.PROBE_S, os.close, [handle])
        leaving.start()
        with store.lock("one"):
            assert store.holder("one") == os.getpid()
        leaving.join()
