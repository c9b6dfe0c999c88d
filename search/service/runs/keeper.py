"""Keeps the queue moving: starts what may run, finds again what runs, records how it ended."""

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event, Thread
from typing import TypeAlias

from records.errors import CclsearchError, StoreBusy
from records.store import Store
from search.service.runs.process import Known, Runner
from search.service.runs.table import RunTable, State, Submitted

MOST_CRASHES = 3
"""How often a search whose process was lost is started again."""
PATIENCE_S = 60.0
"""How long a search has to end in order once it is told to."""
LOOK_EVERY_S = 0.25

Told: TypeAlias = Callable[[Submitted], bool]
"""Tells the world that a study ended; whether that is done with."""


class Keeper:
    """One thread that looks after every submitted study; wakes up when something is submitted."""

    def __init__(self, store: Path, told: Told = lambda _submitted: True) -> None:
        self._store = store
        self._told = told
        self._runner = Runner(store)
        self._waits_s: dict[str, float] = {}
        self._wake, self._ended = Event(), Event()
        self._thread = Thread(target=self._run, name="keeper", daemon=True)
        self.fault: str | None = None

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
            self._thread.join()

    @property
    def lives(self) -> bool:
        """Whether the queue is looked after."""
        return self._thread.is_alive()

    def _run(self) -> None:
        with (
            closing(RunTable(table_path(self._store))) as table,
            closing(Store(self._store)) as records,
        ):
            while not self._ended.is_set():
                try:
                    self.look(table, records)
                    self.fault = None
                except CclsearchError as error:
                    # A full disk passes; health tells until then.
                    self.fault = str(error)
                self._wake.wait(LOOK_EVERY_S)
                self._wake.clear()

    def look(self, table: RunTable, records: Store) -> None:
        """Bring every study that is under way one step on."""
        self._runner.reap()
        under_way = table.under_way()
        running = Counter(
            submitted.devices
            for submitted in under_way
            if submitted.state is not State.QUEUED and self._follow(submitted, table, records)
        )
        for submitted in under_way:
            if submitted.state is State.QUEUED and running[submitted.devices] < submitted.at_once:
                self._start(submitted, table, records)
                running[submitted.devices] += 1
        for submitted in table.untold():
            if self._told(submitted):
                table.change(submitted.study_id, told=1)

    def _start(self, submitted: Submitted, table: RunTable, records: Store) -> None:
        """Start a search, unless a process that was started earlier has it already."""
        known = _holder(submitted.study_id, records)
        if known is None:
            try:
                known = self._runner.start(submitted.study_id, submitted.more_trials)
            except OSError as error:
                words = f"its process cannot be started: {error}"
                table.change(submitted.study_id, state=State.FAILED.value, message=words)
                return
        table.change(
            submitted.study_id,
            state=State.RUNNING.value,
            pid=known.pid,
            started_ticks=known.started_ticks,
            more_trials=None,
        )

    def _follow(self, submitted: Submitted, table: RunTable, records: Store) -> bool:
        """See how a search is doing; whether it still has the devices."""
        known = _known(submitted)
        if known is not None and known.lives:
            if submitted.state is State.CANCELLING:
                self._press(submitted.study_id, known)
            return True
        self._waits_s.pop(submitted.study_id, None)
        other = _holder(submitted.study_id, records)
        if other is not None:
            table.change(submitted.study_id, pid=other.pid, started_ticks=other.started_ticks)
            return True
        self._settle(submitted, table, records)
        return False

    def _press(self, study_id: str, known: Known) -> None:
        """Ask once to end, and end it when it does not."""
        waited_s = self._waits_s.get(study_id)
        if waited_s is None:
            known.interrupt()
        elif waited_s > PATIENCE_S:
            known.kill()
        self._waits_s[study_id] = (waited_s or 0.0) + LOOK_EVERY_S

    def _settle(self, submitted: Submitted, table: RunTable, records: Store) -> None:
        """Record how a search ended, or put it back into the queue where its process was lost."""
        ends = {"pid": None, "started_ticks": None}
        study_id = submitted.study_id
        why = self._runner.gave_up(study_id)
        if records.find(study_id).status == "finished":
            table.change(study_id, state=State.FINISHED.value, message=None, **ends)
        elif submitted.state is State.CANCELLING:
            table.change(study_id, state=State.CANCELLED.value, message=None, **ends)
        elif why is not None:
            table.change(study_id, state=State.FAILED.value, message=why, **ends)
        elif submitted.crashes >= MOST_CRASHES:
            words = self._runner.last_words(study_id) or "no last words"
            lost = f"its process was lost {submitted.crashes + 1} times: {words}"
            table.change(study_id, state=State.FAILED.value, message=lost, **ends)
        else:
            crashes = submitted.crashes + 1
            table.change(study_id, state=State.QUEUED.value, crashes=crashes, **ends)


def table_path(store: Path) -> Path:
    """Where the queue of a store lies."""
    return store / "service" / "queue.db"


def _known(submitted: Submitted) -> Known | None:
    if submitted.pid is None or submitted.started_ticks is None:
        return None
    return Known(submitted.pid, submitted.started_ticks)


def _holder(study_id: str, records: Store) -> Known | None:
    """The process that has a study's lock, whoever started it."""
    try:
        with records.lock(study_id):
            return None
    except StoreBusy:
        pid = records.holder(study_id)
        return None if pid is None else Known.of(pid)
