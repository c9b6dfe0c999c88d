"""The service without HTTP: studies are submitted, cancelled, resumed and read.

A submission chooses among what the operator configured.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from evaluator.launchers.cluster.nodes import check_launcher
from evaluator.machine import local_environment
from evaluator.objective import limit, scoring
from policies.contract import seed_names
from records.codec import utc_now
from records.errors import StudyError, shown, suggestion
from records.store.rows import NOTES_CHARS, TAG_CHARS, Labels, StudyRow
from records.store.store import Store
from records.study import Dimension, Objective, Study, choices_of, digest
from search.compose import (
    check_environment,
    new_study_id,
    require_feasible,
    resolve_strategy,
)
from search.loop.budget import extend_budget, with_price
from search.loop.ports import scrubbed_study
from search.loop.running import TimeLeft
from search.service.auth import (
    Caller,
    KnownToken,
    Rates,
    Sessions,
    Slots,
    TooManyError,
    write_privately,
)
from search.service.config import Limits, OfferedEnvironment, ServiceConfig
from search.service.data import (
    ChartData,
    LeaderboardCache,
    StudyCache,
    StudyWriter,
    VersionedCache,
    disturbed_study,
    study_time_left,
)
from search.service.events import Feeds
from search.service.models import StudyShort
from search.service.queue import RunTable, State, Submitted
from search.service.runner import EVENTS, WRITE_WAIT_S, Scheduler, run_folder, table_path
from search.service.webhooks import WebhookSender
from search.settings import installed_version, scrubber, status
from search.strategies.earlier import with_earlier
from search.strategies.proposers import race_study, record_race
from search.study.spaces import completed, prepare
from search.study.study_file import builtin_study, read_study_file
from search.views.machine import Disturbed

MOST_SHORTS = 2000
MOST_EXPORTS_EACH, MOST_EXPORTS = 2, 4
MOST_PARSED = 1000
"""Trials of a study that a thread keeps for its next request."""
SUBMIT_WAIT_S = 10.0
PRINTED = r"^[^\x00-\x1f\x7f-\x9f]*$"
Text = Annotated[str, Field(min_length=1, max_length=1000)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Scalar = bool | int | float | Annotated[str, Field(max_length=200)]
Size = Literal["global_batch", "sequence_length", "output_length"]


class NewStudy(BaseModel):
    """A study to search: one of the configured environments, and the question about it."""

    model_config = ConfigDict(extra="forbid")

    environment: Text = "builtin"
    name: Annotated[str, Field(max_length=200, pattern=PRINTED)] | None = None
    objectives: Annotated[list[Text], Field(max_length=8)] = Field(default_factory=list)
    direction: Literal["minimize", "maximize"] | None = None
    limits: Annotated[list[Text], Field(max_length=16)] = Field(default_factory=list)
    strategy: Annotated[str, Field(max_length=40)] = "auto"
    transfer: bool = Field(
        True, description="Try the best of earlier studies of like work on the same machine first."
    )
    trials: Count | None = None
    patience: Count | None = None
    max_wall_s: Annotated[float, Field(ge=1, le=1e8, allow_inf_nan=False)] | None = None
    max_node_hours: Annotated[float, Field(gt=0, le=1e8, allow_inf_nan=False)] | None = None
    max_tokens: Annotated[int, Field(ge=0, le=10**12)] | None = None
    max_cost_usd: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = None
    parallel: Annotated[int, Field(ge=1, le=1024)] | None = None
    seed_policy: Annotated[str, Field(max_length=100)] | None = None
    seed_source: Annotated[str, Field(max_length=100_000)] | None = None
    workload: dict[Size, Count | None] = Field(
        default_factory=dict,
        description="Sizes of the workload that differ from the environment's own study.",
    )
    choices: Annotated[
        dict[Annotated[str, Field(max_length=100)], Annotated[list[Scalar], Field(max_length=100)]],
        Field(max_length=50),
    ] = Field(default_factory=dict)


class LabelChanges(BaseModel):
    """New labels of a study; what is null or left out stays."""

    model_config = ConfigDict(extra="forbid")

    tags: list[Annotated[str, Field(max_length=TAG_CHARS)]] | None = None
    notes: Annotated[str, Field(max_length=NOTES_CHARS)] | None = None
    archived: bool | None = None


class RefusedError(StudyError):
    """Fields that were refused, each with its reason."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        super().__init__("; ".join(faults.values()))
        self.faults = faults


class ConflictError(StudyError):
    """The request does not fit the current state."""


class ForbiddenError(StudyError):
    """The caller may not do that."""


class MissingError(StudyError):
    """There is nothing of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """All that the service does, without HTTP; safe in several threads."""

    config: ServiceConfig
    folder: Path
    """The folder of the configuration, to which its paths are relative."""
    store: Path
    tokens: Sequence[KnownToken]
    scheduler: Scheduler
    sessions: Sessions = field(default_factory=Sessions)
    wrong_tokens: Rates = field(default_factory=lambda: Rates(per_s=0.2, burst=10))
    """Unknown tokens, by the address that sent them."""
    explored: ChartData = field(default_factory=ChartData)
    shorts: VersionedCache[StudyShort] = field(default_factory=lambda: VersionedCache(MOST_SHORTS))
    disturbed: StudyCache[[], Disturbed | None] = field(
        default_factory=lambda: StudyCache(disturbed_study)
    )
    time_left: StudyCache[[], TimeLeft | None] = field(
        default_factory=lambda: StudyCache(study_time_left)
    )
    boards: LeaderboardCache = field(default_factory=LeaderboardCache)
    writing: StudyWriter = field(default_factory=StudyWriter)
    streams: Slots = field(init=False)
    """Open streams of events."""
    downloads: Slots = field(init=False)
    """Files of trials that are being downloaded."""
    exports: Slots = field(
        default_factory=lambda: Slots(
            "too many exports are being made or downloaded; wait for one to end",
            each=MOST_EXPORTS_EACH,
            most=MOST_EXPORTS,
        )
    )
    """Exports that are being made or downloaded, and are on the disk until then."""
    feeds: Feeds = field(default_factory=Feeds)
    """Events of the studies that have readers; used by the event loop alone."""
    webhooks: WebhookSender | None = None
    """Reports ended studies, where that is configured."""
    started_s: float = field(default_factory=time.time)
    _opened: "_Opened" = field(default_factory=lambda: _Opened(), repr=False)

    def __post_init__(self) -> None:
        limits = self.config.limits
        streams = Slots("too many open event streams; close some", each=limits.event_streams)
        many = "too many files are being downloaded; wait for one to end"
        object.__setattr__(self, "streams", streams)
        object.__setattr__(self, "downloads", Slots(many, each=limits.downloads))

    def start(self) -> None:
        """Start the scheduler and the webhooks."""
        self.scheduler.start()
        if self.webhooks is not None:
            self.webhooks.start()

    def close(self) -> None:
        """Stop both; running searches continue."""
        self.scheduler.close()
        if self.webhooks is not None:
            self.webhooks.close()

    @property
    def records(self) -> Store:
        """The records, opened once per thread."""
        if self._opened.records is None:
            self._opened.records = Store(self.store, wait_s=WRITE_WAIT_S, most_parsed=MOST_PARSED)
        return self._opened.records

    @property
    def table(self) -> RunTable:
        """The queue, opened once per thread."""
        if self._opened.table is None:
            self._opened.table = RunTable(table_path(self.store))
        return self._opened.table

    def study(self, study_id: str) -> StudyRow:
        """Return the study with exactly this id; raise `MissingError`."""
        try:
            row = self.records.find(study_id)
        except StudyError:
            row = None
        if row is None or row.id != study_id:
            raise MissingError(f"no study {shown(study_id)}")
        return row

    def status(self, row: StudyRow) -> str:
        """Return the status of a study, from the queue while it is there, else as recorded."""
        submitted, recorded = self.table.find(row.id), status(row, self.records)
        return status_from(None if submitted is None else submitted.state, recorded)

    def events(self, study_id: str) -> Path:
        """Return the file of a study's events."""
        return run_folder(self.store, study_id) / EVENTS

    def is_over(self, study_id: str) -> bool:
        """Return whether a study has no more events unless it is resumed."""
        submitted = self.table.find(study_id)
        return submitted is None or submitted.state.is_over

    def submit(self, asked: NewStudy, caller: Caller, key: tuple[str, str] | None) -> str:
        """Put a study into the queue and return its id.

        `key` is an idempotency key and the digest of the request: both together make one study.
        Raise `StudyError` for what cannot be searched, `ConflictError`, `TooManyError`.
        """
        # One at a time, so that two equal requests in parallel make one study.
        with self._submitting():
            if key is not None and (earlier := self.table.submitted_with(caller.name, key[0])):
                if earlier[0] != key[1]:
                    raise ConflictError("this idempotency key was used for another request")
                return earlier[1]
            self._require_room()
            offered = self.config.environment.get(asked.environment)
            if offered is None:
                known = ", ".join(sorted(self.config.environment))
                words = f"environment {asked.environment!r} is not offered; known are {known}"
                raise RefusedError({"environment": words})
            base, policies = offered_study(offered, self.folder), self.store / "service/policies"
            study = scrubbed_study(study_of(asked, base, self.config, policies), scrubber())
            if asked.transfer:
                study = with_earlier(study, self.records)

            def record(study_id: str) -> None:
                self.records.create(study_id, study, installed_version(), status="queued")

            named = None if key is None else (caller.name, *key)
            study_id = self._queue(asked.environment, caller, named, record)
        self.scheduler.wake()
        return study_id

    def race(self, study_id: str, ordinals: tuple[int, int], caller: Caller) -> str:
        """Queue a new study that races two trials of a study, and return its id.

        It is searched where that study was. Raise `StudyError` where they cannot race,
        `ConflictError`, `TooManyError`.
        """
        row, (a, b) = self.study(study_id), ordinals
        submitted = self.table.find(study_id)
        if submitted is None:
            raise ConflictError(
                f"study {study_id} was not submitted here; use `cclsearch race {study_id} {a} {b}`"
            )
        if submitted.environment not in self.config.environment:
            raise ConflictError(f"environment {submitted.environment!r} is not offered any more")
        study = race_study(row, ordinals, self.records)

        def record(new_id: str) -> None:
            record_race(new_id, study, ordinals, installed_version(), "queued", self.records)

        with self._submitting():
            self._require_room()
            new_id = self._queue(submitted.environment, caller, None, record)
        self.scheduler.wake()
        return new_id

    def _queue(
        self,
        environment: str,
        caller: Caller,
        key: tuple[str, str, str] | None,
        record: Callable[[str], None],
    ) -> str:
        """Put a new study, which `record` records, into the queue."""
        offered, study_id = self.config.environment[environment], new_study_id()
        submitted = Submitted(
            study_id=study_id,
            environment=environment,
            devices=offered.devices,
            parallel_studies=offered.parallel_studies,
            submitted_by=caller.name,
        )
        # Added to the queue first: the next start recovers from a kill in between.
        self.table.add(submitted, key)
        try:
            record(study_id)
        except BaseException:
            self.table.forget(study_id)
            raise
        self.table.change_from(study_id, State.PENDING, State.QUEUED)
        return study_id

    @contextmanager
    def _submitting(self) -> Iterator[None]:
        if not self.scheduler.submitting.acquire(timeout=SUBMIT_WAIT_S):
            raise TooManyError("other studies are being submitted; try again later")
        try:
            yield
        finally:
            self.scheduler.submitting.release()

    def _require_room(self) -> None:
        if len(self.table.under_way()) >= self.config.limits.queued_studies:
            raise TooManyError("the queue is full; wait for a study to end, or cancel one")

    def label(self, study_id: str, changes: LabelChanges, caller: Caller) -> Labels:
        """Change the tags, the notes or the archive mark of a study; return all of them.

        Raise `ForbiddenError` for a study of another.
        """
        row = self.study(study_id)
        submitted = self.table.find(study_id)
        if submitted is not None and not caller.may_change(submitted.submitted_by):
            raise ForbiddenError(
                f"study {study_id} was submitted by {submitted.submitted_by}; only they and "
                "admins may label it"
            )
        scrub = scrubber().text
        labels = row.labels.change(
            tags=None if changes.tags is None else map(scrub, changes.tags),
            notes=None if changes.notes is None else scrub(changes.notes),
            archived=changes.archived,
        )
        if labels != row.labels:
            self.records.label(study_id, labels)
        return labels

    def cancel(self, study_id: str, caller: Caller) -> Submitted:
        """Cancel a study that is queued or runs; what it measured stays.

        Raise `ForbiddenError` for a study of another, `ConflictError`.
        """
        submitted = self._own(study_id, caller)
        if submitted.state.is_over:
            raise ConflictError(f"study {study_id} is {submitted.state}; nothing runs")
        state = State.CANCELLED if submitted.state is State.QUEUED else State.CANCELLING
        if not self.table.change_from(study_id, submitted.state, state):
            raise ConflictError(f"study {study_id} has just changed; try again")
        self.scheduler.wake()
        return replace(submitted, state=state)

    def resume(self, study_id: str, more_trials: int | None, caller: Caller) -> Submitted:
        """Put a study that ended back into the queue.

        Raise `ForbiddenError` for a study of another, `ConflictError`, `TooManyError`.
        """
        submitted = self._own(study_id, caller)
        if not submitted.state.is_over:
            raise ConflictError(f"study {study_id} is {submitted.state}; it continues by itself")
        if submitted.state is State.FINISHED and more_trials is None:
            raise ConflictError(f"study {study_id} is finished; give more_trials to continue")
        with self._submitting():
            self._require_room()
            if not self.table.change_from(study_id, submitted.state, State.PENDING):
                raise ConflictError(f"study {study_id} has just changed; try again")
            try:
                self._extend(study_id, more_trials)
            except BaseException:
                self.table.change_from(study_id, State.PENDING, submitted.state)
                raise
            self.table.change_from(
                study_id, State.PENDING, State.QUEUED, crashes=0, message=None, queued_at=utc_now()
            )
        self.scheduler.wake()
        return replace(submitted, state=State.QUEUED)

    def _extend(self, study_id: str, more_trials: int | None) -> None:
        if (process := self.records.holder(study_id)) is not None:
            raise ConflictError(f"study {study_id} is searched by process {process} already")
        if more_trials is not None:
            extend_budget(study_id, more_trials, self.records, self.config.limits.trials)
        self.records.update(study_id, status="queued")

    def _own(self, study_id: str, caller: Caller) -> Submitted:
        self.study(study_id)
        submitted = self.table.find(study_id)
        if submitted is None:
            raise ConflictError(f"study {study_id} was started on the command line; use that")
        if not caller.may_change(submitted.submitted_by):
            raise ForbiddenError(
                f"study {study_id} was submitted by {submitted.submitted_by}; only they and "
                "admins may cancel or resume it"
            )
        return submitted


class _Opened(threading.local):
    """What one thread has opened."""

    records: Store | None = None
    table: RunTable | None = None


def status_from(state: State | None, recorded: str) -> str:
    """Return the status of a study from its state in the queue, if any, and its record."""
    if state is not None and not state.is_over:
        return (State.QUEUED if state is State.PENDING else state).value
    # A search continued on the command line takes precedence.
    if state is None or recorded in {"running", "finished"}:
        return recorded
    return state.value


def offered_study(offered: OfferedEnvironment, folder: Path) -> Study:
    """Return the study that an environment starts from; read its file next to the configuration."""
    base = builtin_study(local_environment())
    study = base if offered.study is None else read_study_file(folder / offered.study, base)
    launch = replace(study.launch, launcher=offered.launcher or study.launch.launcher)
    return replace(study, launch=launch, cluster=offered.cluster or study.cluster)


def check_offered(config: ServiceConfig, folder: Path) -> None:
    """Raise `StudyError` at the start for an environment whose study could not be searched."""
    for name, offered in config.environment.items():
        try:
            check_launcher(offered_study(offered, folder))
        except StudyError as error:
            raise StudyError(f"[environment.{name}] {error}") from error


def study_of(asked: NewStudy, base: Study, config: ServiceConfig, policies: Path) -> Study:
    """Return the study that is asked for; raise `StudyError` where it cannot be searched.

    The source code of a seed policy is stored in `policies` under its digest.
    """
    faults = faults_in(asked, base, config.limits)
    if faults:
        raise RefusedError(faults)
    study = replace(
        _with_work(asked, base),
        name=asked.name or base.name,
        objective=_objective(asked, base),
        more_objectives=tuple(Objective(expression=text) for text in asked.objectives[1:])
        or (base.more_objectives if not asked.objectives else ()),
        limits=tuple(asked.limits) or base.limits,
    )
    study = completed(study)  # the choices of each knob are known only now
    space = replace(study.space, dimensions=_dimensions(asked.choices, study))
    seed = asked.seed_policy
    if asked.seed_source is not None:
        seed = str(policies / f"{digest(asked.seed_source)}.py")
    study = replace(
        _with_budget(replace(study, space=space), asked, config.limits),
        strategy=_strategy(asked),
        llm=with_price(study.llm),
        seed_policy=seed or study.seed_policy,
    )
    _check(study)
    if asked.seed_source is not None:
        policies.mkdir(parents=True, exist_ok=True)
        content = asked.seed_source.encode("utf-8", "surrogatepass")
        write_privately(Path(study.seed_policy), content)
    return study


def faults_in(asked: NewStudy, base: Study, most: Limits) -> dict[str, str]:
    """Return the faults by field; each field is checked independently of the others."""
    more = [Objective(expression=text) for text in asked.objectives[1:]]
    checks: Sequence[tuple[str, Callable[[], object]]] = [
        ("objective", partial(scoring, _objective(asked, base))),
        *(("more_objectives", partial(scoring, one)) for one in more),
        *(("limits", partial(limit, text)) for text in asked.limits),
        ("choices", partial(_narrowed, asked, base)),
        ("strategy", partial(_strategy, asked)),
        ("trials", partial(_trials, asked, base, most)),
        ("max_cost_usd", partial(_cost_usd, asked, base, most)),
        ("seed_policy", partial(_require_seed, asked)),
    ]
    found: dict[str, list[str]] = {}
    for name, check in checks:
        try:
            check()
        except StudyError as error:
            found.setdefault(name, []).append(str(error))
    return {name: "; ".join(words) for name, words in found.items()}


def _with_work(asked: NewStudy, base: Study) -> Study:
    sizes = asked.model_dump(include={"workload"})["workload"]
    given = {size: count for size, count in sizes.items() if count is not None}
    workload = replace(base.workload, **given)
    return replace(base, workload=workload, parallel=asked.parallel or base.parallel)


def _narrowed(asked: NewStudy, base: Study) -> None:
    if asked.choices:
        _dimensions(asked.choices, completed(_with_work(asked, base)))


def _strategy(asked: NewStudy) -> str:
    strategy, _ = resolve_strategy(asked.strategy)
    if strategy == "replay":
        raise StudyError("strategy 'replay' is not offered here; it needs --from")
    return strategy


def _objective(asked: NewStudy, base: Study) -> Objective:
    chosen = Objective(expression=asked.objectives[0]) if asked.objectives else base.objective
    return chosen if asked.direction is None else replace(chosen, direction=asked.direction)


def _dimensions(choices: Mapping[str, list[Scalar]], base: Study) -> tuple[Dimension, ...]:
    """Return the knobs restricted to these choices; none can be added."""
    known = {dimension.name: dimension for dimension in base.space.dimensions}
    for name, values in choices.items():
        if name not in known:
            raise StudyError(f"choices: no knob {name!r}; {suggestion(name, [*known])}")
        offered = choices_of(known[name])
        if not values:
            raise StudyError(f"choices: none are given for {name!r}; leave it out, or give some")
        kinds = {(type(value), value) for value in offered}
        foreign = [value for value in values if (type(value), value) not in kinds]
        if foreign:
            words = ", ".join(map(str, offered))
            raise StudyError(f"choices: {foreign[0]!r} is none of {name!r}; those are {words}")
    return tuple(
        replace(each, choices=tuple(choices[name]), range=None) if name in choices else each
        for name, each in known.items()
    )


LIMITS_ASKED = {"patience", "max_wall_s", "max_node_hours", "max_tokens"}


def _with_budget(study: Study, asked: NewStudy, most: Limits) -> Study:
    budget = replace(
        study.budget,
        **asked.model_dump(include=LIMITS_ASKED, exclude_none=True),
        trials=_trials(asked, study, most),
        max_cost_usd=_cost_usd(asked, study, most),
    )
    return replace(study, budget=budget)


def _trials(asked: NewStudy, base: Study, most: Limits) -> int:
    trials = base.budget.trials if asked.trials is None else asked.trials
    if trials > most.trials:
        raise StudyError(f"trials is {trials}; at most {most.trials} are allowed here")
    return trials


def _cost_usd(asked: NewStudy, base: Study, most: Limits) -> float | None:
    cost_usd = base.budget.max_cost_usd if asked.max_cost_usd is None else asked.max_cost_usd
    if most.cost_usd is None:
        return cost_usd
    if cost_usd is None:
        return most.cost_usd
    if cost_usd > most.cost_usd:
        raise StudyError(f"max_cost_usd is {cost_usd:g}; at most {most.cost_usd:g} is allowed")
    return cost_usd


def _require_seed(asked: NewStudy) -> None:
    if asked.seed_policy is None:
        return
    if asked.seed_source is not None:
        raise StudyError("seed_policy and seed_source exclude each other; give one of them")
    if asked.seed_policy not in seed_names():
        known = suggestion(asked.seed_policy, list(seed_names()))
        raise StudyError(f"no built-in seed policy {asked.seed_policy!r}; {known}")


def _check(study: Study) -> None:
    """Raise what would stop a search before its first launch."""
    prepared = prepare(study)
    check_environment(prepared)
    require_feasible(prepared.space)
