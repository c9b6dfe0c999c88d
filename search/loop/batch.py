"""Trials measured in parallel: each is recorded as pending, started where it fits, then recorded.

Each launch has a thread; only the calling thread uses the store and the observer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from threading import Thread
from typing import TypeAlias

from records.store.rows import PendingTrial
from records.trial import Config, Failed, FailureKind, History, Measured, Trial
from search.loop.trial import Phases, TrialRunner

CONTENTION_FAILURES = (FailureKind.OUT_OF_MEMORY, FailureKind.HANG)
"""Failures that launches next to it may cause, where they share memory and cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How many trials may run in parallel, and on how many places; by default one trial.

    A place is a device or a core; `places_of` returns how many a configuration needs. One that
    needs more than exist runs alone. Trials `share_memory` where places are cores. `stop` ends all
    running launches and prevents new ones; `phases` receives their phases.
    """

    trial_count: int = 1
    place_count: int = 0
    places_of: Callable[[Config], int] = lambda _config: 1
    share_memory: bool = True
    stop: Callable[[], None] = lambda: None
    phases: Phases = field(default_factory=Phases)
    order: Callable[[int], str] | None = None
    """Sort key by ordinal: trials then run one after the other in the calling thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A trial of a batch to launch; `attempts` next to other trials have failed.

    `lost_launches` are those that the infrastructure ended.
    """

    pending: PendingTrial
    config: Config
    place_count: int
    attempts: int = 0
    lost_launches: tuple[FailureKind, ...] = ()

    @property
    def ordinal(self) -> int:
        return self.pending.ordinal

    @property
    def alone(self) -> bool:
        return self.attempts > 0


_Message: TypeAlias = tuple[str, int] | Trial | BaseException
"""The phase that a trial entered, a trial that ended, or an error of its thread."""


class Batch:
    """Pending trials, and the history that the next proposer receives."""

    def __init__(self, runner: TrialRunner, history: History, capacity: Capacity) -> None:
        self.history = history
        self._past = history
        self._runner = runner
        self._observer = runner.observer
        self._capacity = capacity
        self._added_count = 0
        self._waiting: list[_Member] = []
        self._under_way: dict[int, _Member] = {}
        self._neighbours: dict[int, set[int]] = {}
        self._messages: SimpleQueue[_Message] = SimpleQueue()
        self._threads: list[Thread] = []

    @property
    def has_room(self) -> bool:
        """Whether one more trial could be measured in parallel with those added.

        Trials run one by one until the first is measured, which shows that the machine works.
        """
        if not self._added_count:
            return True
        taken = sum(member.place_count for member in self._waiting)
        return (
            bool(self._past.measured)
            and self._added_count < self._capacity.trial_count
            and taken < self._capacity.place_count
        )

    def add(self, pending: PendingTrial) -> None:
        """Add a pending trial; finish it here if there is nothing to launch."""
        self._added_count += 1
        self._observer.trial_started(pending.ordinal, pending.policy)
        decided = self._runner.decide(pending, self.history)
        if isinstance(decided, Trial):
            self._finish(decided)
            return
        places = self._capacity.places_of(decided)
        self._waiting.append(_Member(pending=pending, config=decided, place_count=places))
        self.history = replace(self.history, pending=(*self.history.pending, decided))

    def run(self) -> None:
        """Measure the added trials, as many in parallel as fit; record each when it ends."""
        order = self._capacity.order
        if order is not None or len(self._waiting) < 2:
            for member in sorted(self._waiting, key=lambda m: order(m.ordinal) if order else ""):
                self._run_here(member)
            return
        try:
            while self._waiting or self._under_way:
                while self._waiting and self._fits(self._waiting[0]):
                    self._start(self._waiting.pop(0))
                self._take(self._messages.get())
        except BaseException:
            self._capacity.stop()
            # A resumed study uses the folders of these launches again.
            for thread in self._threads:
                thread.join()
            raise
        self._runner.clear()

    def _run_here(self, member: _Member) -> None:
        self._observer.config_decided(member.ordinal, member.config)
        with self._capacity.phases.listen_with(
            lambda name: self._observer.phase(name, member.ordinal)
        ):
            trial = self._runner.run(member.pending, member.config, self._past)
        self._finish(trial)

    def _fits(self, member: _Member) -> bool:
        others = self._under_way.values()
        if not others:
            return True
        if member.alone or any(other.alone for other in others):
            return False
        taken = sum(other.place_count for other in others)
        return (
            len(others) < self._capacity.trial_count
            and taken + member.place_count <= self._capacity.place_count
        )

    def _start(self, member: _Member) -> None:
        for ordinal in self._under_way:
            self._neighbours[ordinal].add(member.ordinal)
        self._neighbours[member.ordinal] = set(self._under_way)
        self._under_way[member.ordinal] = member
        self._observer.config_decided(member.ordinal, member.config)
        # A daemon: if this process is killed, so is what its launcher started.
        thread = Thread(target=self._measure, args=(member,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _measure(self, member: _Member) -> None:
        """Run one trial in this thread and send the result to the calling thread."""
        ordinal, put = member.ordinal, self._messages.put
        try:
            with self._capacity.phases.listen_with(lambda name: put((name, ordinal))):
                put(self._runner.run(member.pending, member.config, self._past, f"trial{ordinal}"))
        except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
            put(error)

    def _take(self, message: _Message) -> None:
        match message:
            case Trial():
                self._settle(message)
            case BaseException():
                raise message
            case phase, ordinal:
                self._observer.phase(phase, ordinal)

    def _settle(self, trial: Trial) -> None:
        """Record a trial that ended, unless trials next to it may have made it fail."""
        member = self._under_way.pop(trial.ordinal)
        neighbours = self._neighbours.pop(trial.ordinal)
        outcome = trial.outcome
        if (
            neighbours
            and self._capacity.share_memory
            and isinstance(outcome, Failed)
            and outcome.kind in CONTENTION_FAILURES
        ):
            lost = trial.lost_launches
            self._waiting.append(replace(member, attempts=trial.attempts, lost_launches=lost))
            return
        if isinstance(outcome, Measured):
            measurement = replace(outcome.measurement, beside_count=len(neighbours))
            outcome = replace(outcome, measurement=measurement)
        self._finish(
            replace(
                trial,
                outcome=outcome,
                attempts=member.attempts + trial.attempts,
                lost_launches=member.lost_launches + trial.lost_launches,
            )
        )

    def _finish(self, trial: Trial) -> None:
        self._runner.store.finish(self._runner.study_id, trial)
        self.history = self.history.append(trial)
        self._observer.trial_finished(trial, self.history)
