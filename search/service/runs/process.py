"""The process that searches one study: started apart from us, found again, ended in order.

It holds a lock that it has from the moment it is born, and that goes with it however it ends: so
there is no instant at which it runs and nobody can tell. What it prints goes to a file, so it
outlives the service, and whoever comes back reads on where the file ends.
"""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from records.errors import EnvironmentFault

EVENTS, ERRORS = "events.jsonl", "errors.txt"
LOCK, REFUSAL = "lock", "refusal.txt"
MOST_READ_BYTES = 4096
SEARCHING = ("-P", "-m", "search.commands.searching")


class Runner:
    """Starts searches over the records in `store`; each has a folder for what it prints.

    `environment` is all that they see of ours, `program` what Python runs for each.
    """

    def __init__(
        self, store: Path, environment: Mapping[str, str], program: Sequence[str] = SEARCHING
    ) -> None:
        self._store, self._environment, self._program = store, environment, program
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self, study_id: str) -> None:
        """Start the search of a study on record, from where it is; raises `OSError`.

        Does nothing where a process searches it that was started here before.
        """
        folder = run_folder(self._store, study_id)
        folder.mkdir(parents=True, exist_ok=True)
        with _claimed(folder / LOCK) as handle:
            if handle is None:
                return
            os.ftruncate(handle, 0)
            (folder / REFUSAL).unlink(missing_ok=True)
            with (folder / EVENTS).open("ab+") as events, (folder / ERRORS).open("wb") as errors:
                _end_line(events.fileno())
                process = subprocess.Popen(
                    [sys.executable, *self._program, str(self._store), study_id],
                    stdin=subprocess.DEVNULL,
                    stdout=events,
                    stderr=errors,
                    env=self._environment,
                    pass_fds=(handle,),
                    start_new_session=True,
                )
            self._children.append(process)
            # It does so, too: we may be killed before we can.
            os.pwrite(handle, str(process.pid).encode(), 0)

    def process(self, study_id: str) -> int | None:
        """The process that searches a study; None where none does, 0 where it is not told yet.

        Raises `EnvironmentFault` where that cannot be told.
        """
        path = run_folder(self._store, study_id) / LOCK
        try:
            if not path.exists():
                return None
            with _claimed(path) as handle:
                if handle is not None:
                    return None
                number = path.read_text(encoding="ascii", errors="replace")
                return int(number) if number.isdecimal() else 0
        except OSError as error:
            raise EnvironmentFault(f"cannot tell who searches {study_id}: {error}") from error

    def reap(self) -> None:
        """Let processes of ours that ended go."""
        self._children = [process for process in self._children if process.poll() is None]

    def gave_up(self, study_id: str) -> str | None:
        """Why a search ended by itself, in its own words; None where it did not say."""
        return next(iter(self._lines(study_id, REFUSAL)), None)

    def last_words(self, study_id: str) -> str | None:
        """The last line that a search wrote beside its events."""
        lines = reversed(self._lines(study_id, ERRORS))
        return next((line.strip() for line in lines if line.strip()), None)

    def _lines(self, study_id: str, name: str) -> list[str]:
        try:
            with (run_folder(self._store, study_id) / name).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_READ_BYTES))
                return file.read(MOST_READ_BYTES).decode("utf-8", "replace").splitlines()
        except OSError:
            return []


def run_folder(store: Path, study_id: str) -> Path:
    """Where the events and errors of a study's search are."""
    return store / "service" / "runs" / study_id


def ask_to_end(process: int) -> None:
    """Ask a search to end in order, as Ctrl-C does; every finished trial is on record.

    Whoever is started in the background may ignore Ctrl-C itself, and those it starts do, too.
    """
    _signal(process, signal.SIGTERM)


def kill(process: int) -> None:
    """End a search at once; what it launched ends with it."""
    _signal(process, signal.SIGKILL)


def _signal(process: int, number: signal.Signals) -> None:
    try:
        with suppress(ProcessLookupError):
            os.kill(process, number)
    except PermissionError as error:
        raise EnvironmentFault(
            f"process {process} belongs to another user, who must end it"
        ) from error


@contextmanager
def _claimed(path: Path) -> Iterator[int | None]:
    """The lock file, held by us and by whom we pass it to; None where a process has it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield handle
    finally:
        os.close(handle)  # the lock itself stays with a process that we passed it to


def _end_line(handle: int) -> None:
    """End a line that a killed search has left open, so that the next event is none of it."""
    size = os.fstat(handle).st_size
    if size and os.pread(handle, 1, size - 1) != b"\n":
        os.write(handle, b"\n")
