"""The scheduler thread, and the processes that search studies.

A search process inherits a locked file when it starts and holds the lock until it exits, so a
restarted service can always tell which searches are running. It writes its events to a file, so it
outlives the service.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock, Thread

from records.errors import CclsearchError, EnvironmentFault, StudyError
from records.store.store import Store
from records.study import LOCAL
from search.service.config import OfferedEnvironment
from search.service.queue import Delivery, RunTable, State, Submitted
from search.settings import search_environment

EVENTS, ERRORS = "events.jsonl", "errors.txt"
LOCK, REFUSAL = "lock", "refusal.txt"
MOST_READ_BYTES = 4096
SEARCHING = ("-P", "-m", "search.cli.run")
MOST_CRASHES = 3
"""Lost processes in a row, without a new launch, before a study counts as failed."""
PATIENCE_S = 60.0
"""Time between the request to stop and the kill."""
WRITE_WAIT_S = 5.0
"""How long to wait for another writer of the store before the next attempt."""
POLL_EVERY_S, REST_S = 0.25, 2.0
"""Poll intervals while studies are queued or running, and while none is."""


def no_deliveries(_submitted: Submitted, _records: Store) -> Sequence[Delivery]:
    """Return no deliveries."""
    return ()


class Scheduler:
    """A thread that starts queued studies, follows running ones and records how they ended.

    `offered` are the configured environments; `deliveries_for` makes the webhook messages about a
    study that ended. A request that records a study holds `submitting` meanwhile.
    """

    def __init__(
        self,
        store: Path,
        offered: Mapping[str, OfferedEnvironment] | None = None,
        deliveries_for: Callable[[Submitted, Store], Sequence[Delivery]] = no_deliveries,
        runner: "Runner | None" = None,
    ) -> None:
        self.submitting = Lock()
        self.faults: tuple[str, ...] = ()
        """What keeps the queue from moving."""
        self.waits_for: str | None = None
        """The search outside the service that keeps studies from being started."""
        self._store = store
        self._offered = {} if offered is None else offered
        self._deliveries_for = deliveries_for
        self._runner = runner or Runner(store, search_environment())
        self._terminated_s: dict[str, float] = {}
        self._wake, self._ended = Event(), Event()
        self._thread = Thread(target=self._run, name="scheduler", daemon=True)

    def start(self) -> None:
        """Begin to tick after the queue."""
        self._thread.start()

    def wake(self) -> None:
        """Check the queue now: something was submitted or cancelled."""
        self._wake.set()

    def close(self) -> None:
        """Stop the thread; running searches continue."""
        self._ended.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(WRITE_WAIT_S + REST_S)

    @property
    def lives(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def under_way(self, table: RunTable) -> list[Submitted]:
        """Return the queued and running studies, with devices as they are configured now."""
        return [self._configured(each) for each in table.under_way()]

    def _configured(self, submitted: Submitted) -> Submitted:
        offered = self._offered.get(submitted.environment, submitted)
        return replace(
            submitted, devices=offered.devices, parallel_studies=offered.parallel_studies
        )

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                with (
                    closing(RunTable(table_path(self._store))) as table,
                    closing(Store(self._store, wait_s=WRITE_WAIT_S)) as records,
                ):
                    self._keep(table, records)
            except (CclsearchError, OSError) as error:
                # A full disk or a lack of file handles may pass; /health reports it until then.
                self.faults = (str(error),)
                self._rest(REST_S)

    def _keep(self, table: RunTable, records: Store) -> None:
        while not self._ended.is_set():
            self.tick(table, records)
            self._rest(POLL_EVERY_S if table.under_way() else REST_S)

    def _rest(self, seconds: float) -> None:
        self._wake.wait(seconds)
        self._wake.clear()

    def recover_pending(self, table: RunTable, records: Store) -> None:
        """Queue the pending submissions that were recorded, and forget the others.

        Do nothing while a request is recording a study.
        """
        if not self.submitting.acquire(blocking=False):
            return
        try:
            for submitted in table.pending():
                study_id = submitted.study_id
                if _status(study_id, records) is None:
                    table.forget(study_id)
                else:
                    records.update(study_id, status="queued")
                    table.change_from(study_id, State.PENDING, State.QUEUED)
        finally:
            self.submitting.release()

    def tick(self, table: RunTable, records: Store) -> None:
        """Advance every study that is queued or running by one step."""
        faults = list[str]()
        self._runner.reap()
        with _noted(faults):
            self.recover_pending(table, records)
        under_way = self.under_way(table)
        running = list[Submitted]()
        for submitted in under_way:
            if submitted.state is not State.QUEUED:
                with _noted(faults):
                    if self._follow(submitted, table, records):
                        running.append(submitted)
        queued = [each for each in under_way if each.state is State.QUEUED]
        with _noted(faults):
            self._start_next(queued, running, table, records)
        for submitted in table.unnotified():
            with _noted(faults):
                if _status(submitted.study_id, records) == "queued":
                    records.update(submitted.study_id, status="interrupted")
                table.enqueue(submitted.study_id, self._deliveries_for(submitted, records))
        self.faults = tuple(faults)

    def _start_next(
        self,
        queued: Sequence[Submitted],
        running: Sequence[Submitted],
        table: RunTable,
        records: Store,
    ) -> None:
        self.waits_for = None
        starting = next_up(queued, running)
        if starting:
            ours = {each.study_id for each in running}
            self.waits_for = _search_outside_service(ours, records)
        if self.waits_for is None:
            for submitted in starting:
                self._start(submitted, table)

    def _start(self, submitted: Submitted, table: RunTable) -> None:
        """Start a search unless it was cancelled meanwhile."""
        study_id = submitted.study_id
        if table.change_from(study_id, State.QUEUED, State.RUNNING, message=None):
            try:
                self._runner.start(study_id)
            except OSError as error:
                table.change_from(study_id, State.RUNNING, State.QUEUED)
                raise EnvironmentFault(
                    f"the search of {study_id} cannot be started: {error}; the service tries again"
                ) from error

    def _follow(self, submitted: Submitted, table: RunTable, records: Store) -> bool:
        """Check on a search; return whether it still occupies its devices."""
        study_id = submitted.study_id
        process = self._runner.process(study_id)
        if process is None:  # it may have been resumed on the command line
            process = records.holder(study_id)
        if process is None:
            self._terminated_s.pop(study_id, None)
            self._settle(submitted, table, records)
            return False
        if submitted.state is State.CANCELLING and process:
            self._terminate(study_id, process)
        return True

    def _terminate(self, study_id: str, process: int) -> None:
        """Ask a search to stop; kill it after `PATIENCE_S`."""
        signalled_s = self._terminated_s.get(study_id)
        if signalled_s is None:
            self._terminated_s[study_id] = time.monotonic()
            # As Ctrl-C does, but not SIGINT: processes started in the background may ignore it,
            # and their children inherit that.
            _signal(process, signal.SIGTERM)
        elif time.monotonic() - signalled_s > PATIENCE_S:
            _signal(process, signal.SIGKILL)

    def _settle(self, submitted: Submitted, table: RunTable, records: Store) -> None:
        """Record how a search ended; queue it again if its process was lost."""
        study_id, before = submitted.study_id, submitted.state
        status, why = _status(study_id, records), self._runner.refusal(study_id)
        if status == "finished":
            table.change_from(study_id, before, State.FINISHED, message=None)
        elif before is State.CANCELLING:
            table.change_from(study_id, before, State.CANCELLED, message=None)
        elif status is None or why is not None:
            table.change_from(study_id, before, State.FAILED, message=why or "it is not recorded")
        else:
            self._lost(submitted, table, records)

    def _lost(self, submitted: Submitted, table: RunTable, records: Store) -> None:
        study_id, counts = submitted.study_id, records.counts(submitted.study_id)
        launches = counts.trials + counts.repeats
        crashes = 1 if launches > submitted.launches_before else submitted.crashes + 1
        after, message = State.QUEUED, None
        if crashes > MOST_CRASHES:
            words = self._runner.last_words(study_id) or "no error message"
            after, message = State.FAILED, f"its process was lost {crashes} times: {words}"
        table.change_from(
            study_id,
            submitted.state,
            after,
            crashes=crashes,
            launches_before=launches,
            message=message,
        )


class Runner:
    """Starts searches of the studies in `store`; each writes its output to its own folder.

    `environment` holds their environment variables, `program` the arguments of Python.
    """

    def __init__(
        self, store: Path, environment: Mapping[str, str], program: Sequence[str] = SEARCHING
    ) -> None:
        self._store, self._environment, self._program = store, environment, program
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self, study_id: str) -> None:
        """Start or continue the search of a recorded study; raise `OSError`.

        Do nothing where an earlier process still searches it.
        """
        folder = run_folder(self._store, study_id)
        folder.mkdir(parents=True, exist_ok=True)
        with claim(folder / LOCK) as handle:
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
            # The process writes its id, too: the service may be killed before this line.
            os.pwrite(handle, str(process.pid).encode(), 0)

    def process(self, study_id: str) -> int | None:
        """Return the process that searches a study: None for none, 0 while its id is unknown.

        Raise `EnvironmentFault` where the lock cannot be read.
        """
        path = run_folder(self._store, study_id) / LOCK
        try:
            if not path.exists():
                return None
            with claim(path) as handle:
                if handle is not None:
                    return None
                number = path.read_text(encoding="ascii", errors="replace")
                return int(number) if number.isdecimal() else 0
        except OSError as error:
            raise EnvironmentFault(f"cannot find the process of {study_id}: {error}") from error

    def reap(self) -> None:
        """Collect the exit status of child processes that ended."""
        self._children = [process for process in self._children if process.poll() is None]

    def refusal(self, study_id: str) -> str | None:
        """Return the reason that a search gave for stopping; None without one."""
        return next(iter(self._lines(study_id, REFUSAL)), None)

    def last_words(self, study_id: str) -> str | None:
        """Return the last line that a search wrote to stderr."""
        lines = reversed(self._lines(study_id, ERRORS))
        return next((line.strip() for line in lines if line.strip()), None)

    def _lines(self, study_id: str, name: str) -> list[str]:
        try:
            with (run_folder(self._store, study_id) / name).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_READ_BYTES))
                return file.read(MOST_READ_BYTES).decode("utf-8", "replace").splitlines()
        except OSError:
            return []


def next_up(queued: Sequence[Submitted], running: Sequence[Submitted]) -> tuple[Submitted, ...]:
    """Return the queued studies, oldest first, that may start now.

    Where environments share devices, the smallest limit holds. A study that has to wait holds back
    the later ones on its devices, so that it starts eventually.
    """
    limits = defaultdict[str, list[int]](list)
    for submitted in running:
        limits[submitted.devices].append(submitted.parallel_studies)
    found, full = list[Submitted](), set[str]()
    for submitted in queued:
        devices, here = submitted.devices, limits[submitted.devices]
        if devices in full or len(here) >= min([submitted.parallel_studies, *here]):
            full.add(devices)
            continue
        here.append(submitted.parallel_studies)
        found.append(submitted)
    return tuple(found)


def table_path(store: Path) -> Path:
    """Return the database file of a store's queue."""
    return store / "service" / "queue.db"


def run_folder(store: Path, study_id: str) -> Path:
    """Return the folder with the events and errors of a study's search."""
    return store / "service" / "runs" / study_id


def _signal(process: int, number: signal.Signals) -> None:
    try:
        with suppress(ProcessLookupError):
            os.kill(process, number)
    except PermissionError as error:
        raise EnvironmentFault(
            f"process {process} belongs to another user, who must end it"
        ) from error


@contextmanager
def claim(path: Path) -> Iterator[int | None]:
    """Yield the handle of the locked file; None where another process holds the lock."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield handle
    finally:
        os.close(handle)  # a child process that inherited the handle keeps the lock


def _end_line(handle: int) -> None:
    """End a line that a killed search left incomplete."""
    size = os.fstat(handle).st_size
    if size and os.pread(handle, 1, size - 1) != b"\n":
        os.write(handle, b"\n")


def _status(study_id: str, records: Store) -> str | None:
    """Return the recorded status of a study; None where it is not recorded."""
    try:
        row = records.find(study_id)
    except StudyError:
        return None
    return row.status if row.id == study_id else None


def _search_outside_service(ours: set[str], records: Store) -> str | None:
    """Describe a search that the service did not start: on this machine it may use any device."""
    for study_id in records.begun_studies():
        if study_id in ours or records.find(study_id).study.launch.launcher != LOCAL:
            continue
        if (process := records.holder(study_id)) is not None:
            return f"study {study_id}, which process {process} searches outside the service"
    return None


@contextmanager
def _noted(faults: list[str]) -> Iterator[None]:
    """Collect the faults of one study, so that the next one is still handled."""
    try:
        yield
    except (CclsearchError, OSError) as error:
        faults.append(str(error))
