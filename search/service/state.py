"""What all requests share: the configuration, the records, the queue."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from records.errors import StudyError, shown
from records.instants import now
from records.rows import StudyRow
from records.store import Store
from records.study import Study
from search.compose import new_study_id
from search.extending import extended
from search.reading import status
from search.scrubbed import scrubbed_study
from search.service.answers import StudyShort
from search.service.callers.rates import Rates
from search.service.callers.roles import Caller, KnownToken
from search.service.callers.sessions import Sessions
from search.service.callers.slots import Slots
from search.service.config import ServiceConfig
from search.service.events import Feeds
from search.service.facts.boards import Boards
from search.service.facts.explored import Explored
from search.service.facts.kept import Kept
from search.service.facts.written import Writing
from search.service.messenger import Messenger
from search.service.runs.keeper import WRITE_WAIT_S, Keeper, table_path
from search.service.runs.process import EVENTS, run_folder
from search.service.runs.table import RunTable, State, Submitted, entering
from search.service.submission import NewStudy, offered_study, study_of
from search.settings import scrubber
from search.version import installed_version
from search.words.condition import Disturbed

MOST_SHORTS = 2000
MOST_EXPORTS_EACH, MOST_EXPORTS = 2, 4
MOST_PARSED = 1000
"""Trials of a study that a thread keeps for the next question about it."""
ENTERING_WAIT_S = 10.0


class ConflictError(StudyError):
    """What is asked for does not fit what is there."""


class TooManyError(StudyError):
    """A limit of the service is reached."""


class ForbiddenError(StudyError):
    """The caller may not do that."""


class MissingError(StudyError):
    """There is nothing of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Everything that is asked and done over HTTP, without HTTP; safe in several threads."""

    config: ServiceConfig
    folder: Path
    """Where the configuration lies, which its paths are relative to."""
    store: Path
    tokens: Sequence[KnownToken]
    keeper: Keeper
    sessions: Sessions = field(default_factory=Sessions)
    wrong_tokens: Rates = field(default_factory=lambda: Rates(per_s=0.2, burst=10))
    """Tokens that are not known, by where they came from."""
    explored: Explored = field(default_factory=Explored)
    shorts: Kept[StudyShort] = field(default_factory=lambda: Kept(MOST_SHORTS))
    disturbed: Kept[Disturbed | None] = field(default_factory=lambda: Kept(MOST_SHORTS))
    boards: Boards = field(default_factory=Boards)
    drawings: Kept[str] = field(default_factory=lambda: Kept(MOST_SHORTS))
    """Charts of studies, by study and kind."""
    writing: Writing = field(default_factory=Writing)
    streams: Slots = field(init=False)
    """Open streams of events."""
    downloads: Slots = field(init=False)
    """Files of trials that are being taken away."""
    exports: Slots = field(default_factory=lambda: Slots(each=MOST_EXPORTS_EACH, most=MOST_EXPORTS))
    """Exports that are being made or taken away, which lie on the disk until then."""
    feeds: Feeds = field(default_factory=Feeds)
    """Events of the studies that somebody follows; used by the event loop alone."""
    messenger: Messenger | None = None
    """Tells others that studies ended, where that is configured."""
    started_s: float = field(default_factory=time.time)
    _local: threading.local = field(default_factory=threading.local, repr=False)

    def __post_init__(self) -> None:
        limits = self.config.limits
        object.__setattr__(self, "streams", Slots(each=limits.event_streams))
        object.__setattr__(self, "downloads", Slots(each=limits.downloads))

    def start(self) -> None:
        """Begin to look after what is submitted."""
        self.keeper.start()
        if self.messenger is not None:
            self.messenger.start()

    def close(self) -> None:
        """Stop that; searches that run go on without us."""
        self.keeper.close()
        if self.messenger is not None:
            self.messenger.close()

    @property
    def records(self) -> Store:
        """The records, opened once in each thread."""
        if not hasattr(self._local, "records"):
            self._local.records = Store(self.store, wait_s=WRITE_WAIT_S, most_parsed=MOST_PARSED)
        found: Store = self._local.records
        return found

    @property
    def table(self) -> RunTable:
        """The queue, opened once in each thread."""
        if not hasattr(self._local, "table"):
            self._local.table = RunTable(table_path(self.store))
        found: RunTable = self._local.table
        return found

    def study(self, study_id: str) -> StudyRow:
        """The study with exactly this id; raises `MissingError`."""
        try:
            row = self.records.find(study_id)
        except StudyError:
            row = None
        if row is None or row.id != study_id:
            raise MissingError(f"no study {shown(study_id)}")
        return row

    def status(self, row: StudyRow) -> str:
        """How far a study is, by the queue while it is in it, else by its record."""
        return self.status_of(self.table.find(row.id), row)

    def status_of(self, submitted: Submitted | None, row: StudyRow) -> str:
        """The same, for what the queue has of it."""
        return told_status(
            None if submitted is None else submitted.state, status(row, self.records)
        )

    def events(self, study_id: str) -> Path:
        """The file of a study's events."""
        return run_folder(self.store, study_id) / EVENTS

    def is_over(self, study_id: str) -> bool:
        """Whether no more events of a study will come by themselves."""
        submitted = self.table.find(study_id)
        return submitted is None or submitted.state.is_over

    def submit(self, asked: NewStudy, caller: Caller, key: tuple[str, str] | None) -> str:
        """Put a study into the queue; gives its id.

        `key` is an idempotency key and the digest of the request: one study comes of both.
        Raises `StudyError` for what cannot be searched, `ConflictError`, `TooManyError`.
        """
        # One at a time: a request that is sent twice at once makes one study, too.
        with self._entering():
            if key is not None and (earlier := self.table.submitted_with(caller.name, key[0])):
                if earlier[0] != key[1]:
                    raise ConflictError("this idempotency key was used for another request")
                return earlier[1]
            self._require_room()
            study = scrubbed_study(self._asked(asked), scrubber())
            study_id, offered = new_study_id(), self.config.environment[asked.environment]
            place = (asked.environment, offered.devices, offered.at_once)
            # Known to the queue first: a kill between here and there is settled at the next start.
            self.table.add(
                entering(study_id, *place, caller.name),
                None if key is None else (caller.name, *key),
            )
            try:
                self.records.create(study_id, study, installed_version(), status="queued")
            except BaseException:
                self.table.forget(study_id)
                raise
            self.table.change_from(study_id, State.ENTERING, State.QUEUED)
        self.keeper.wake()
        return study_id

    @contextmanager
    def _entering(self) -> Iterator[None]:
        if not self.keeper.entering.acquire(timeout=ENTERING_WAIT_S):
            raise TooManyError("others are being submitted, which takes long; ask again")
        try:
            yield
        finally:
            self.keeper.entering.release()

    def _require_room(self) -> None:
        if len(self.table.under_way()) >= self.config.limits.queued_studies:
            raise TooManyError("the queue is full; wait for a study to end, or cancel one")

    def _asked(self, asked: NewStudy) -> Study:
        offered = self.config.environment.get(asked.environment)
        if offered is None:
            known = ", ".join(sorted(self.config.environment))
            raise StudyError(f"environment {asked.environment!r} is not offered; known are {known}")
        base = offered_study(offered, self.folder)
        return study_of(asked, base, self.config, self.store / "service" / "policies")

    def cancel(self, study_id: str, caller: Caller) -> Submitted:
        """End a study that is queued or runs; what it measured stays.

        Raises `ForbiddenError` for a study of another, `ConflictError`.
        """
        submitted = self._own(study_id, caller)
        if submitted.state.is_over:
            raise ConflictError(f"study {study_id} is {submitted.state}; nothing runs")
        state = State.CANCELLED if submitted.state is State.QUEUED else State.CANCELLING
        if not self.table.change_from(study_id, submitted.state, state):
            raise ConflictError(f"study {study_id} has just changed; ask again")
        self.keeper.wake()
        return replace(submitted, state=state)

    def resume(self, study_id: str, more_trials: int | None, caller: Caller) -> Submitted:
        """Put a study that ended back into the queue.

        Raises `ForbiddenError` for a study of another, `ConflictError`, `TooManyError`.
        """
        submitted = self._own(study_id, caller)
        if not submitted.state.is_over:
            raise ConflictError(f"study {study_id} is {submitted.state}; it goes on by itself")
        if submitted.state is State.FINISHED and more_trials is None:
            raise ConflictError(f"study {study_id} is finished; give more_trials to go on")
        with self._entering():
            self._require_room()
            if not self.table.change_from(study_id, submitted.state, State.ENTERING):
                raise ConflictError(f"study {study_id} has just changed; ask again")
            try:
                self._extend(study_id, more_trials)
            except BaseException:
                self.table.change_from(study_id, State.ENTERING, submitted.state)
                raise
            self.table.change_from(
                study_id, State.ENTERING, State.QUEUED, crashes=0, message=None, queued_at=now()
            )
        self.keeper.wake()
        return replace(submitted, state=State.QUEUED)

    def _extend(self, study_id: str, more_trials: int | None) -> None:
        if (process := self.records.holder(study_id)) is not None:
            raise ConflictError(f"study {study_id} is searched by process {process} already")
        if more_trials is not None:
            extended(study_id, more_trials, self.records, self.config.limits.trials)
        self.records.update(study_id, status="queued")

    def _own(self, study_id: str, caller: Caller) -> Submitted:
        submitted = self._submitted(study_id)
        if not caller.may_change_what(submitted.submitted_by):
            raise ForbiddenError(
                f"study {study_id} was submitted by {submitted.submitted_by}; only they and "
                "admins may cancel or resume it"
            )
        return submitted

    def _submitted(self, study_id: str) -> Submitted:
        self.study(study_id)
        submitted = self.table.find(study_id)
        if submitted is None:
            raise ConflictError(
                f"study {study_id} was started on the command line; go on with it there"
            )
        return submitted


def told_status(state: State | None, recorded: str) -> str:
    """How far a study is, by its state in the queue, if it is there, and by its record."""
    if state is not None and not state.is_over:
        return (State.QUEUED if state is State.ENTERING else state).value
    # Whoever went on with it by hand has the last word.
    if state is None or recorded in {"running", "finished"}:
        return recorded
    return state.value
