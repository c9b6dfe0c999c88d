"""What all requests share: the configuration, the records, the queue."""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from records.errors import StudyError, shown
from records.rows import StudyRow
from records.store import Store
from records.study import Study
from search.compose import new_study_id
from search.reading import status
from search.scrubbed import scrubbed_study
from search.service.config import ServiceConfig
from search.service.roles import Caller, KnownToken
from search.service.runs.keeper import Keeper, table_path
from search.service.runs.process import EVENTS, Runner
from search.service.runs.table import RunTable, State, Submitted, queued
from search.service.submission import NewStudy, offered_study, study_of
from search.settings import scrubber
from search.version import installed_version


class ConflictError(StudyError):
    """What is asked for does not fit what is there."""


class TooManyError(StudyError):
    """A limit of the service is reached."""


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
    cookie_name: str = "cclsearch_token"
    streams: Counter[str] = field(default_factory=Counter)
    """Open streams of events of each caller; changed by the event loop alone."""
    _local: threading.local = field(default_factory=threading.local, repr=False)
    _submitting: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def records(self) -> Store:
        """The records, opened once in each thread."""
        if not hasattr(self._local, "records"):
            self._local.records = Store(self.store)
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
        """How far a study is, by the queue where it is in it, else by its record."""
        submitted = self.table.find(row.id)
        if submitted is None:
            return status(row, self.records)
        return submitted.state.value

    def events(self, study_id: str) -> Path:
        """The file of a study's events."""
        return Runner(self.store).folder(study_id) / EVENTS

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
        with self._submitting:
            if key is not None and (earlier := self.table.submitted_with(caller.name, key[0])):
                if earlier[0] != key[1]:
                    raise ConflictError("this idempotency key was used for another request")
                return earlier[1]
            study = scrubbed_study(self._asked(asked), scrubber())
            if len(self.table.under_way()) >= self.config.limits.queued_studies:
                raise TooManyError("the queue is full; wait for a study to end, or cancel one")
            study_id = new_study_id()
            self.records.create(study_id, study, installed_version())
            self.records.update(study_id, status="queued")
            offered = self.config.environment[asked.environment]
            entered = queued(
                study_id, asked.environment, offered.devices, offered.at_once, caller.name
            )
            self.table.add(entered, None if key is None else (caller.name, *key))
        self.keeper.wake()
        return study_id

    def _asked(self, asked: NewStudy) -> Study:
        offered = self.config.environment.get(asked.environment)
        if offered is None:
            known = ", ".join(sorted(self.config.environment))
            raise StudyError(f"environment {asked.environment!r} is not offered; known are {known}")
        base = offered_study(offered, self.folder)
        return study_of(asked, base, self.config, self.store / "service" / "policies")

    def cancel(self, study_id: str) -> Submitted:
        """End a study that is queued or runs; what it measured stays. Raises `ConflictError`."""
        submitted = self._submitted(study_id)
        if submitted.state.is_over:
            raise ConflictError(f"study {study_id} is {submitted.state}; nothing runs")
        queued_only = submitted.state is State.QUEUED
        state = State.CANCELLED if queued_only else State.CANCELLING
        if not self.table.change_from(study_id, submitted.state, state):
            raise ConflictError(f"study {study_id} has just changed; ask again")
        if queued_only:
            self.records.update(study_id, status="interrupted")
        self.keeper.wake()
        return replace(submitted, state=state)

    def resume(self, study_id: str, more_trials: int | None) -> Submitted:
        """Put a study that ended back into the queue. Raises `ConflictError`, `TooManyError`."""
        submitted = self._submitted(study_id)
        if not submitted.state.is_over:
            raise ConflictError(f"study {study_id} is {submitted.state}; it goes on by itself")
        if submitted.state is State.FINISHED and more_trials is None:
            raise ConflictError(f"study {study_id} is finished; give more_trials to go on")
        most = self.config.limits.trials
        if more_trials is not None and more_trials > most:
            raise StudyError(f"more_trials is {more_trials}; at most {most} are allowed here")
        with self._submitting:
            if len(self.table.under_way()) >= self.config.limits.queued_studies:
                raise TooManyError("the queue is full; wait for a study to end, or cancel one")
            changed = self.table.change_from(
                study_id, submitted.state, State.QUEUED, crashes=0, more_trials=more_trials, told=0
            )
        if not changed:
            raise ConflictError(f"study {study_id} has just changed; ask again")
        self.keeper.wake()
        return replace(submitted, state=State.QUEUED)

    def _submitted(self, study_id: str) -> Submitted:
        self.study(study_id)
        submitted = self.table.find(study_id)
        if submitted is None:
            raise ConflictError(
                f"study {study_id} was started on the command line; go on with it there"
            )
        return submitted
