"""Trials that are measured at once: each is begun on record, started where it fits, and recorded.

Launches are waited for in threads of their own; the store and the observer are this thread's alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from threading import Thread
from typing import TypeAlias

from records.store.rows import PendingTrial
from records.store.store import Store
from records.trial import Config, Failed, FailureKind, History, Measured, Trial
from search.loop.ports import Observer
from search.loop.trial import Phases, TrialRunner

CONTENTION_FAILURES = (FailureKind.OUT_OF_MEMORY, FailureKind.HANG)
"""How a launch may fail because of those beside it, where they share memory and cores."""


def _nothing() -> None:
    """There is nothing to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How many trials may be under way at once, and in how many places; as it stands, one alone.

    A place is a device, or a core; `places_of` tells how many a configuration takes. One that takes
    more than there are runs alone. Trials `share_memory` where places are cores. `stop` ends every
    launch that other threads wait for, and lets none start after it; `phases` is told theirs.
    """

    trial_count: int = 1
    place_count: int = 0
    places_of: Callable[[Config], int] = lambda _config: 1
    share_memory: bool = True
    stop: Callable[[], None] = _nothing
    phases: Phases = field(default_factory=Phases)
    order: Callable[[int], str] | None = None
    """Where given, trials run here, one after the other, by what this gives for their ordinals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A trial of a batch that has to be launched; `attempts` were made beside others, in vain."""

    intent: PendingTrial
    config: Config
    place_count: int
    attempts: int = 0

    @property
    def ordinal(self) -> int:
        return self.intent.ordinal

    @property
    def alone(self) -> bool:
        return self.attempts > 0


@dataclass(frozen=True, slots=True)
class _Entered:
    """The launch of a trial entered a phase."""

    ordinal: int
    phase: str


_Message: TypeAlias = _Entered | Trial | BaseException


class Batch:
    """Trials that were begun and have not ended, and the history as the next proposer sees it."""

    def __init__(
        self,
        *,
        study_id: str,
        history: History,
        room: Capacity,
        turn: TrialRunner,
        store: Store,
        observer: Observer,
    ) -> None:
        self.history = history
        self._past = history
        self._study_id = study_id
        self._room = room
        self._turn = turn
        self._store = store
        self._observer = observer
        self._added_count = 0
        self._waiting: list[_Member] = []
        self._under_way: dict[int, _Member] = {}
        self._beside: dict[int, set[int]] = {}
        self._heard: SimpleQueue[_Message] = SimpleQueue()
        self._threads: list[Thread] = []

    @property
    def has_room(self) -> bool:
        """Whether one more trial could be measured beside those that were added.

        Until one was measured, nothing says that the machine works: trials go one by one.
        """
        if not self._added_count:
            return True
        taken = sum(member.place_count for member in self._waiting)
        return (
            bool(self._past.measured)
            and self._added_count < self._room.trial_count
            and taken < self._room.place_count
        )

    def add(self, intent: PendingTrial) -> None:
        """Decide a trial that is begun on record; it ends here if there is nothing to launch."""
        self._added_count += 1
        self._observer.trial_started(intent.ordinal, intent.policy)
        decided = self._turn.decide(intent, self.history)
        if isinstance(decided, Trial):
            self._finish(decided)
            return
        places = self._room.places_of(decided)
        self._waiting.append(_Member(intent=intent, config=decided, place_count=places))
        self.history = replace(self.history, pending=(*self.history.pending, decided))

    def run(self) -> None:
        """Measure what was added, as many at once as fit; record each trial as soon as it ends."""
        order = self._room.order
        if order is not None or len(self._waiting) < 2:
            for member in sorted(self._waiting, key=lambda m: order(m.ordinal) if order else ""):
                self._run_here(member)
            return
        try:
            while self._waiting or self._under_way:
                while self._waiting and self._fits(self._waiting[0]):
                    self._start(self._waiting.pop(0))
                self._take(self._heard.get())
        except BaseException:
            self._room.stop()
            self._wait()
            raise
        self._turn.clear()

    def _run_here(self, member: _Member) -> None:
        self._observer.config_decided(member.ordinal, member.config)
        with self._room.phases.listen_with(lambda name: self._observer.phase(name, member.ordinal)):
            trial = self._turn.run(member.intent, member.config, self._past)
        self._finish(trial)

    def _fits(self, member: _Member) -> bool:
        others = self._under_way.values()
        if not others:
            return True
        if member.alone or any(other.alone for other in others):
            return False
        taken = sum(other.place_count for other in others)
        return (
            len(others) < self._room.trial_count
            and taken + member.place_count <= self._room.place_count
        )

    def _start(self, member: _Member) -> None:
        for ordinal in self._under_way:
            self._beside[ordinal].add(member.ordinal)
        self._beside[member.ordinal] = set(self._under_way)
        self._under_way[member.ordinal] = member
        self._observer.config_decided(member.ordinal, member.config)
        # It waits for nobody: where we are killed, so is what its launcher started.
        thread = Thread(target=self._measure, args=(member,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _wait(self) -> None:
        """Wait until no launch uses its folder, which is its own again when the study goes on."""
        for thread in self._threads:
            thread.join()

    def _measure(self, member: _Member) -> None:
        """Run one trial in a thread of its own, and tell what comes of it."""
        ordinal = member.ordinal
        try:
            with self._room.phases.listen_with(
                lambda name: self._heard.put(_Entered(ordinal, name))
            ):
                self._heard.put(
                    self._turn.run(member.intent, member.config, self._past, f"trial{ordinal}")
                )
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self._heard.put(error)

    def _take(self, heard: _Message) -> None:
        match heard:
            case _Entered():
                self._observer.phase(heard.phase, heard.ordinal)
            case Trial():
                self._settle(heard)
            case _:
                raise heard

    def _settle(self, trial: Trial) -> None:
        """Record a trial that ended, unless others beside it may be why it failed."""
        member = self._under_way.pop(trial.ordinal)
        beside = self._beside.pop(trial.ordinal)
        if beside and self._may_be_by_neighbours(trial):
            self._waiting.append(replace(member, attempts=trial.attempts))
            return
        outcome = trial.outcome
        if isinstance(outcome, Measured):
            measurement = replace(outcome.measurement, beside_count=len(beside))
            outcome = replace(outcome, measurement=measurement)
        attempts = member.attempts + trial.attempts
        self._finish(replace(trial, outcome=outcome, attempts=attempts))

    def _may_be_by_neighbours(self, trial: Trial) -> bool:
        outcome = trial.outcome
        return (
            self._room.share_memory
            and isinstance(outcome, Failed)
            and outcome.kind in CONTENTION_FAILURES
        )

    def _finish(self, trial: Trial) -> None:
        self._store.finish(self._study_id, trial)
        self.history = self.history.append(trial)
        self._observer.trial_finished(trial, self.history)
