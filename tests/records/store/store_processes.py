"""Processes that use a store and end in the middle of it; `test_store_kill` says what must hold.

Run by file path: the first argument names what to do, the others are its arguments.
"""

import os
import resource
import signal
import sqlite3
import sys
from importlib import import_module
from itertools import count
from pathlib import Path

from records.errors import StoreError
from records.store import writer
from records.store.store import Store
from tests.support.records import intent, study, trial

STUDY_ID = "one"
PARENT = os.getpid()


def append_trials(root, acknowledged):
    """Append trials for ever, one byte to `acknowledged` for each that is finished."""
    store = Store(root)
    if not store.studies():
        store.create(STUDY_ID, study(), "1")
    while True:
        ordinal = len(store.history(STUDY_ID))
        if not store.pending(STUDY_ID):
            store.begin(STUDY_ID, intent(ordinal), None)
        store.finish(STUDY_ID, trial(ordinal, 0.5, {"n": ordinal}))
        os.write(acknowledged, b".")


def killed_at_statements(folder, statements):
    """For each number, a store in a folder of that name, killed before that SQL statement."""
    import_module("sqlite_utils")  # once for all that are forked
    for statement in statements:
        child = os.fork()
        if child == 0:
            _kill_before(statement)
            root = folder / str(statement)
            root.mkdir()
            append_trials(root, os.open(root / "acknowledged", os.O_WRONLY | os.O_CREAT))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def _kill_before(statement):
    connect, seen = sqlite3.connect, iter(range(1, statement))

    def count(_):
        if next(seen, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(path, timeout=5.0):
        connection = connect(path, timeout=timeout)
        connection.set_trace_callback(count)
        return connection

    sqlite3.connect = counted


def killed_at(root, point):
    """Finish trial 1 of a study, or open it without its database, and be killed at a point."""
    append, apply, write = writer.append_line, writer.apply_entry, os.write
    applied = count()

    def kill(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    match point:
        case "before the line":
            writer.append_line = kill
        case "within the line":
            os.write = lambda handle, line: kill(write(handle, line[: len(line) // 2]))
        case "after the line":
            writer.append_line = lambda path, line: kill(append(path, line))
        case "in a rebuild":
            (root / "cclsearch.db").unlink()
            writer.apply_entry = lambda *entry: kill() if next(applied) == 3 else apply(*entry)
    Store(root).finish(STUDY_ID, trial(1, 0.5))


def open_at_once(folder):
    """Open one new store after the other, each in four processes at the same time."""
    import_module("sqlite_utils")
    for number in range(5):
        children = [os.fork() for _ in range(4) if os.getpid() == PARENT]
        if os.getpid() != PARENT:
            Store(folder / str(number)).close()
            os._exit(0)
        for child in children:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def open_one(root):
    """Open a store, or say why not."""
    try:
        Store(root).close()
    except StoreError as error:
        say(str(error))


def hold(root):
    """Hold the study until the end of the input."""
    with Store(root).lock(STUDY_ID):
        say("held")
        sys.stdin.read()


def fill(root, largest_file_bytes):
    """Append large trials until the store refuses, then say how many it took and why it stopped."""
    if largest_file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file_bytes, largest_file_bytes))
    store = Store(root)
    store.create(STUDY_ID, study(), "1")
    finished = 0
    try:
        while True:
            store.begin(STUDY_ID, intent(finished), None)
            store.finish(STUDY_ID, trial(finished, 0.5, {"pad": "x" * 20_000, "n": finished}))
            finished += 1
    except StoreError as error:
        say(f"{finished} {error}")
    try:
        store.artifacts.keep_text(os.urandom(2_000_000).hex(), "trace.json")
    except StoreError as error:
        say(str(error))


def write_at_once(root):
    """Append ten trials to a study each, in three processes at the same time."""
    import_module("sqlite_utils")
    children = [os.fork() for _ in range(3) if os.getpid() == PARENT]
    if os.getpid() != PARENT:
        store, study_id = Store(root), str(len(children))
        store.create(study_id, study(), "1")
        for ordinal in range(10):
            store.finish(study_id, trial(ordinal, 0.5))
        os._exit(0)
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def keep_large(root):
    """Keep one large file."""
    say("writing")
    Store(root).artifacts.keep_text("x" * 50_000_000, "trace.json")


def say(line):
    """Tell the test, which reads line by line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    what, folder, *numbers = sys.argv[1:]
    match what:
        case "append":
            append_trials(Path(folder), sys.stdout.fileno())
        case "killed":
            killed_at_statements(Path(folder), [int(number) for number in numbers])
        case "killed-at":
            killed_at(Path(folder), *numbers)
        case "open":
            open_at_once(Path(folder))
        case "open-one":
            open_one(Path(folder))
        case "hold":
            hold(Path(folder))
        case "fill":
            fill(Path(folder), int(numbers[0]))
        case "write":
            write_at_once(Path(folder))
        case "keep":
            keep_large(Path(folder))
