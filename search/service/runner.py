"""Scheduler thread and search processes.

The process that searches one study: started apart from us, found again, ended in order.

It holds a lock that it has from the moment it is born, and that goes with it however it ends: so
there is no instant at which it runs and nobody can tell. What it prints goes to a file, so it
outlives the service, and whoever comes back reads on where the file ends.

Which studies may start: the oldest first, and never more on the same devices than they bear.

Keeps the queue moving: starts what may run, finds again what runs, records how it ended.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock, Thread

from records.errors import CclsearchError, EnvironmentFault, StudyError
from records.store.store import Store
from search.service.config import Offered
from search.service.queue import Delivery, RunTable, State, Submitted
from search.settings import search_environment

EVENTS, ERRORS = "events.jsonl", "errors.txt"
LOCK, REFUSAL = "lock", "refusal.txt"
MOST_READ_BYTES = 4096
SEARCHING = ("-P", "-m", "search.cli.run")


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


@dataclass(frozen=True, slots=True)
class Place:
    """Devices, and how many studies may measure on them at once."""

    devices: str
    at_once: int


def next_up(
    queued: Sequence[Submitted],
    running: Sequence[Submitted],
    place_of: Callable[[Submitted], Place],
) -> tuple[Submitted, ...]:
    """Those of the queue, oldest first, that may start beside what runs.

    Where environments share devices, the strictest of those that run together holds. One that has
    to wait holds back those behind it on its devices, or it would wait for ever.
    """
    there: dict[str, list[int]] = {}
    for submitted in running:
        place = place_of(submitted)
        there.setdefault(place.devices, []).append(place.at_once)
    found, full = list[Submitted](), set[str]()
    for submitted in queued:
        place = place_of(submitted)
        beside = there.setdefault(place.devices, [])
        if place.devices in full or len(beside) >= min([place.at_once, *beside]):
            full.add(place.devices)
            continue
        beside.append(place.at_once)
        found.append(submitted)
    return tuple(found)


MOST_CRASHES = 3
"""How often a search is started again whose process was lost before it got anywhere."""
PATIENCE_S = 60.0
"""How long a search has to end in order once it is told to."""
WRITE_WAIT_S = 5.0
"""How long to wait for somebody else who writes to the records, before it is tried again."""
LOOK_EVERY_S, REST_S = 0.25, 2.0
"""While something is under way, and while nothing is."""


def nobody(_submitted: Submitted, _records: Store) -> Sequence[Delivery]:
    """Nobody is told."""
    return ()


class Keeper:
    """One thread that looks after every submitted study; wakes up when something is submitted.

    `offered` are the environments as they are configured now, `to_tell` makes what is to be told
    about a study that ended. Whatever holds `entering` may record studies meanwhile.
    """

    def __init__(
        self,
        store: Path,
        offered: Mapping[str, Offered] | None = None,
        to_tell: Callable[[Submitted, Store], Sequence[Delivery]] = nobody,
        runner: Runner | None = None,
    ) -> None:
        self.entering = Lock()
        self.faults: tuple[str, ...] = ()
        """Why the queue does not move as it should, in words."""
        self.waits_for: str | None = None
        """Who else searches these records, so that nothing is started; in words."""
        self._store = store
        self._offered = {} if offered is None else offered
        self._to_tell = to_tell
        self._runner = runner or Runner(store, search_environment())
        self._asked_s: dict[str, float] = {}
        self._wake, self._ended = Event(), Event()
        self._thread = Thread(target=self._run, name="keeper", daemon=True)

    def start(self) -> None:
        """Begin to look after the queue."""
        self._thread.start()

    def wake(self) -> None:
        """Look now: something was submitted or cancelled."""
        self._wake.set()

    def close(self) -> None:
        """Stop looking; searches that run go on without us."""
        self._ended.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(WRITE_WAIT_S + REST_S)

    @property
    def lives(self) -> bool:
        """Whether the queue is looked after."""
        return self._thread.is_alive()

    def place_of(self, submitted: Submitted) -> Place:
        """Where a study measures, as it is configured now, or was where it no longer is."""
        offered = self._offered.get(submitted.environment, submitted)
        return Place(offered.devices, offered.at_once)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                with (
                    closing(RunTable(table_path(self._store))) as table,
                    closing(Store(self._store, wait_s=WRITE_WAIT_S)) as records,
                ):
                    self._keep(table, records)
            except (CclsearchError, OSError) as error:
                # A full disk passes, and so does a want of files; health tells until then.
                self.faults = (str(error),)
                self._rest(REST_S)

    def _keep(self, table: RunTable, records: Store) -> None:
        while not self._ended.is_set():
            self.look(table, records)
            self._rest(LOOK_EVERY_S if table.under_way() else REST_S)

    def _rest(self, seconds: float) -> None:
        self._wake.wait(seconds)
        self._wake.clear()

    def settle_entering(self, table: RunTable, records: Store) -> None:
        """Take in what was being recorded when that failed, where it came on record.

        Whoever records a study at this moment is not disturbed.
        """
        if not self.entering.acquire(blocking=False):
            return
        try:
            for submitted in table.entering():
                study_id = submitted.study_id
                if _status(study_id, records) is None:
                    table.forget(study_id)
                else:
                    records.update(study_id, status="queued")
                    table.change_from(study_id, State.ENTERING, State.QUEUED)
        finally:
            self.entering.release()

    def look(self, table: RunTable, records: Store) -> None:
        """Bring every study that is under way one step on."""
        faults = list[str]()
        self._runner.reap()
        with _noted(faults):
            self.settle_entering(table, records)
        under_way = table.under_way()
        running = list[Submitted]()
        for submitted in under_way:
            if submitted.state is not State.QUEUED:
                with _noted(faults):
                    if self._follow(submitted, table, records):
                        running.append(submitted)
        queued = [each for each in under_way if each.state is State.QUEUED]
        with _noted(faults):
            self._start_next(queued, running, table, records)
        for submitted in table.untold():
            with _noted(faults):
                if _status(submitted.study_id, records) == "queued":
                    records.update(submitted.study_id, status="interrupted")
                table.lay_out(submitted.study_id, self._to_tell(submitted, records))
        self.faults = tuple(faults)

    def _start_next(
        self,
        queued: Sequence[Submitted],
        running: Sequence[Submitted],
        table: RunTable,
        records: Store,
    ) -> None:
        self.waits_for = None
        starting = next_up(queued, running, self.place_of)
        if starting:
            ours = {each.study_id for each in running}
            self.waits_for = _searched_by_hand(ours, records)
        if self.waits_for is None:
            for submitted in starting:
                self._start(submitted, table)

    def _start(self, submitted: Submitted, table: RunTable) -> None:
        """Start a search that nobody has cancelled meanwhile."""
        study_id = submitted.study_id
        if table.change_from(study_id, State.QUEUED, State.RUNNING, message=None):
            try:
                self._runner.start(study_id)
            except OSError as error:
                table.change_from(study_id, State.RUNNING, State.QUEUED)
                raise EnvironmentFault(
                    f"the search of {study_id} cannot be started: {error}; it is tried again"
                ) from error

    def _follow(self, submitted: Submitted, table: RunTable, records: Store) -> bool:
        """See how a search is doing; whether it still has the devices."""
        study_id = submitted.study_id
        process = self._runner.process(study_id)
        if process is None:  # somebody may have gone on with it by hand
            process = records.holder(study_id)
        if process is None:
            self._asked_s.pop(study_id, None)
            self._settle(submitted, table, records)
            return False
        if submitted.state is State.CANCELLING and process:
            self._press(study_id, process)
        return True

    def _press(self, study_id: str, process: int) -> None:
        """Ask once to end, and end it when it does not."""
        asked_s = self._asked_s.get(study_id)
        if asked_s is None:
            self._asked_s[study_id] = time.monotonic()
            ask_to_end(process)
        elif time.monotonic() - asked_s > PATIENCE_S:
            kill(process)

    def _settle(self, submitted: Submitted, table: RunTable, records: Store) -> None:
        """Record how a search ended, or put it back into the queue where its process was lost."""
        study_id, before = submitted.study_id, submitted.state
        status, why = _status(study_id, records), self._runner.gave_up(study_id)
        if status == "finished":
            table.change_from(study_id, before, State.FINISHED, message=None)
        elif before is State.CANCELLING:
            table.change_from(study_id, before, State.CANCELLED, message=None)
        elif status is None or why is not None:
            table.change_from(study_id, before, State.FAILED, message=why or "it is not on record")
        else:
            self._lost(submitted, table, records)

    def _lost(self, submitted: Submitted, table: RunTable, records: Store) -> None:
        study_id, counts = submitted.study_id, records.counts(submitted.study_id)
        launches = counts.trials + counts.repeats
        crashes = 1 if launches > submitted.launches_before else submitted.crashes + 1
        after, message = State.QUEUED, None
        if crashes > MOST_CRASHES:
            words = self._runner.last_words(study_id) or "no last words"
            after, message = State.FAILED, f"its process was lost {crashes} times: {words}"
        table.change_from(
            study_id,
            submitted.state,
            after,
            crashes=crashes,
            launches_before=launches,
            message=message,
        )


def table_path(store: Path) -> Path:
    """Where the queue of a store lies."""
    return store / "service" / "queue.db"


def _status(study_id: str, records: Store) -> str | None:
    """How far a study is by its record; None where there is none."""
    try:
        row = records.find(study_id)
    except StudyError:
        return None
    return row.status if row.id == study_id else None


def _searched_by_hand(ours: set[str], records: Store) -> str | None:
    """A search of these records that is none of ours: it may measure on any device."""
    for study_id in records.begun_studies():
        if study_id not in ours and (process := records.holder(study_id)) is not None:
            return f"study {study_id}, which process {process} searches outside of the service"
    return None


@contextmanager
def _noted(faults: list[str]) -> Iterator[None]:
    """Note what goes wrong with one study, and go on with the next."""
    try:
        yield
    except (CclsearchError, OSError) as error:
        faults.append(str(error))
