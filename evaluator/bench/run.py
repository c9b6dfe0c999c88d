"""Run the plan of a collective benchmark and record its points as they arrive.

Launches run in rounds, or inside ranks that another launcher has started.
"""

import random
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, TypeAlias

from evaluator.bench.record import BenchHost, BenchRecord, LaunchPlace, bench_metrics
from evaluator.bench.request import BenchPlan
from evaluator.failures.classify import classify
from evaluator.failures.logs import read_error
from evaluator.job import Job, Launcher
from evaluator.launchers.conditions import (
    Snapshot,
    conditions_between,
    gpu_conditions,
    take_snapshot,
)
from evaluator.machine import mpirun_command, mpirun_environment, torchrun_command
from evaluator.rank.job import DeviceKind, parse
from evaluator.rank.main import RankNumbers
from evaluator.workloads.collectives import sweep as main
from evaluator.workloads.collectives.operations import (
    POINTS_NAME,
    AdapterName,
    Operation,
    PointSamples,
    PointStatus,
    SweepFacts,
    SweepRequest,
)
from evaluator.workloads.collectives.sweep import PointTimeoutError, availability, default_backend
from records.codec import to_json
from records.errors import CclsearchError, EnvironmentFault
from records.machine import Conditions
from records.trial import Failed, FailureKind, Stage

REQUEST_NAME = "sweep.json"
PROGRAM = (sys.executable, "-P", "-m", "evaluator.workloads.collectives.sweep", REQUEST_NAME)
START_LIMIT_S = 180.0
HANG_GRACE_S = 30.0
LOOK_EVERY_S = 0.5

Lines: TypeAlias = Sequence[SweepFacts | PointSamples]


def launch_job(request: SweepRequest, rank_count: int) -> Job:
    """Give the job of one launch: by mpirun for MPI, else by torchrun.

    Ranks end a point that takes too long themselves; the limits here are for ranks that cannot.
    """
    environment: Mapping[str, str] = {}
    if request.adapter is AdapterName.MPI:
        argv, environment = mpirun_command(rank_count, PROGRAM), mpirun_environment()
    else:
        argv = torchrun_command(rank_count, PROGRAM)
    return Job(
        argv=argv,
        world_size=rank_count,
        files={REQUEST_NAME: to_json(request)},
        timeout_s=START_LIMIT_S + len(request.operations) * request.timeout_s,
        hang_after_s=request.timeout_s + HANG_GRACE_S,
        maps_freely=request.device is DeviceKind.CUDA,
        environment=environment,
    )


def run_launch(
    launcher: Launcher, job: Job, workdir: Path, on_lines: Callable[[Lines], None]
) -> Failed | None:
    """Run a launch in an empty folder; gives why it failed, or None when every rank finished.

    What the ranks report is passed on soon after, from another thread, and completely
    before this returns. Raises what `on_lines` raised first, once the launch has ended.
    """
    with _following(workdir / POINTS_NAME, on_lines):
        result = launcher.run(job, workdir, lambda _phase: None)
    return classify(result)


@contextmanager
def _following(path: Path, on_lines: Callable[[Lines], None]) -> Iterator[None]:
    """Pass on lines while they are written; looks are rare, for they disturb what is measured."""
    ended, faults = threading.Event(), list[Exception]()
    file = _GrowingFile(path)

    def look() -> None:
        try:
            while not ended.wait(LOOK_EVERY_S):
                on_lines(file.new_lines())
        except Exception as fault:  # noqa: BLE001 - the thread's boundary: it is raised below
            faults.append(fault)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if faults:
        raise faults[0]
    on_lines(file.new_lines())


class _GrowingFile:
    """Reads the lines of a file that came since the last look; a line that is not whole waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0

    def new_lines(self) -> Lines:
        if not self._path.exists():
            return ()
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            whole, newline, _ = file.read().rpartition(b"\n")
        is_first = self._read_bytes == 0
        self._read_bytes += len(whole) + len(newline)
        return tuple(
            _parsed(line.decode(), is_facts=is_first and not number)
            for number, line in enumerate(whole.splitlines())
        )


def _parsed(line: str, *, is_facts: bool) -> SweepFacts | PointSamples:
    return parse(SweepFacts, line) if is_facts else parse(PointSamples, line)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchLaunch:
    """One launch of a plan: which library, and when it has its turn."""

    request: SweepRequest
    run_id: str
    launch_id: str
    round: int
    order: int


class LaunchRecorder:
    """The records of one launch; points come in the order of the request's operations.

    `owns_ranks` is false for ranks that are no processes below this one: they would pass for the
    work of others.
    """

    def __init__(
        self, plan: BenchPlan, turn: BenchLaunch, machine: BenchHost, *, owns_ranks: bool
    ) -> None:
        self._plan = plan
        self._turn = turn
        self._machine = machine
        self._owns_ranks = owns_ranks
        self._before: Snapshot = take_snapshot()
        self._facts: SweepFacts | None = None
        self._count = 0

    @property
    def in_flight(self) -> Operation | None:
        """The point that the ranks are at; None when all are done."""
        left = self._turn.request.operations[self._count :]
        return left[0] if left else None

    def facts(self, facts: SweepFacts) -> None:
        """Take what the ranks report of themselves, before the first point."""
        self._facts = facts

    def point(self, samples: PointSamples, conditions: Conditions) -> BenchRecord:
        """Give the record of the next point; conditions are those of the launch up to now."""
        self._count += 1
        measured = samples.status is PointStatus.MEASURED
        config, ranks = self._plan.config, self._plan.rank_count
        record = self._record(samples.operation, samples.started_at, conditions)
        return replace(
            record,
            metrics=bench_metrics(samples, ranks, config.bandwidth_convention)
            if measured
            else None,
            status=samples.status.value,
            reason=_one_line(samples.reason),
        )

    def broken(
        self, operation: Operation, status: Literal["failed", "timeout"], reason: str
    ) -> BenchRecord:
        """Give the record of the point at which the launch broke."""
        record = self._record(operation, datetime.now(UTC).isoformat(), self.conditions())
        return replace(record, status=status, reason=_one_line(reason))

    def conditions(self, coming: int = 1) -> Conditions:
        """What else the machine did since the launch began, up to the points that come next.

        GPUs are asked with the last of them only: their driver's tool takes its time.
        """
        is_last = self._count + coming >= len(self._turn.request.operations)
        on_gpus = self._turn.request.device is DeviceKind.CUDA
        gpus = gpu_conditions() if is_last and on_gpus else ()
        found = conditions_between(self._before, take_snapshot(), gpus)
        return found if self._owns_ranks else replace(found, others_cpu_share=None)

    def _record(self, operation: Operation, started_at: str, conditions: Conditions) -> BenchRecord:
        turn = self._turn
        return BenchRecord(
            environment=self._machine.environment(turn.request, self._facts),
            config=self._plan.config,
            params=self._plan.params(turn.request.adapter, operation),
            place=LaunchPlace(
                run_id=turn.run_id,
                launch_id=turn.launch_id,
                round=turn.round,
                order=turn.order,
                started_at=started_at,
            ),
            message_size_bytes=operation.message_bytes,
            metrics=None,
            conditions=conditions,
        )


def _one_line(text: str) -> str:
    return " ".join(text.split())


RecordListener: TypeAlias = Callable[[BenchRecord], None]
"""Receives each point when done, and one at which a launch broke; by one thread at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenLaunch:
    """A launch that failed, and why, and at which point if that is known and was not done."""

    turn: BenchLaunch
    operation: Operation | None
    failed: Failed


def run_plan(
    plan: BenchPlan,
    requests: Sequence[SweepRequest],
    *,
    launcher: Launcher,
    machine: BenchHost,
    run_id: str,
    on_record: RecordListener,
) -> BrokenLaunch | None:
    """Launch every request once a round; ends with the first launch that fails, and gives it."""
    for turn in _turns(requests, plan.config.rounds, run_id):
        recording = LaunchRecorder(plan, turn, machine, owns_ranks=True)

        def take(lines: Lines, recording: LaunchRecorder = recording) -> None:
            _record_lines(lines, recording, on_record)

        with tempfile.TemporaryDirectory(prefix="cclsearch-bench-") as folder:
            job = launch_job(turn.request, plan.rank_count)
            failed = run_launch(launcher, job, Path(folder), take)
        if failed is not None:
            return _broken(recording, turn, failed, on_record)
    return None


def run_inside_ranks(
    plan: BenchPlan,
    requests: Sequence[SweepRequest],
    *,
    numbers: RankNumbers,
    machine: BenchHost,
    run_id: str,
    on_record: RecordListener,
) -> BrokenLaunch | None:
    """Run this rank's part of every request, one after the other; only rank 0 records points.

    After a failure the caller has to end the process with `os._exit`: other ranks may wait for it.
    """
    for order, request in enumerate(requests):
        turn = BenchLaunch(
            request=request, run_id=run_id, launch_id=f"{run_id}-{order}", round=0, order=order
        )
        recording = LaunchRecorder(plan, turn, machine, owns_ranks=False)

        def on_point(samples: PointSamples, recording: LaunchRecorder = recording) -> None:
            on_record(recording.point(samples, recording.conditions()))

        try:
            main.run(request, numbers, recording.facts, on_point)
        except CclsearchError:
            raise
        except Exception as error:  # noqa: BLE001 - the rank's boundary: any failure is a value
            failed = _failure(error, numbers.rank)
            if numbers.rank:  # only the first rank knows which point it was
                return BrokenLaunch(turn=turn, operation=None, failed=failed)
            return _broken(recording, turn, failed, on_record)
    return None


def _turns(requests: Sequence[SweepRequest], rounds: int, run_id: str) -> Iterator[BenchLaunch]:
    """Every launch; in each round all requests once, in an order that the run's name decides."""
    shuffled = random.Random(run_id)
    for number in range(rounds):
        for order, request in enumerate(shuffled.sample(requests, k=len(requests))):
            yield BenchLaunch(
                request=request,
                run_id=run_id,
                launch_id=f"{run_id}-{number * len(requests) + order}",
                round=number,
                order=order,
            )


def _record_lines(lines: Lines, recording: LaunchRecorder, on_record: RecordListener) -> None:
    points = [line for line in lines if isinstance(line, PointSamples)]
    for line in lines:
        if isinstance(line, SweepFacts):
            recording.facts(line)
    if points:
        conditions = recording.conditions(len(points))
        for point in points:
            on_record(recording.point(point, conditions))


def _failure(error: Exception, rank: int) -> Failed:
    found = read_error(type(error).__name__, str(error))
    return Failed(stage=Stage.LAUNCH, kind=found.kind, message=f"rank {rank}: {found}")


def _broken(
    recording: LaunchRecorder, turn: BenchLaunch, failed: Failed, on_record: RecordListener
) -> BrokenLaunch:
    operation = recording.in_flight
    if operation is not None:
        on_record(recording.broken(operation, _status(failed), failed.message))
    return BrokenLaunch(turn=turn, operation=operation, failed=failed)


def _status(failed: Failed) -> Literal["failed", "timeout"]:
    late = failed.kind is FailureKind.HANG or PointTimeoutError.__name__ in failed.message
    return "timeout" if late else "failed"


DEFAULT_ADAPTERS: Final = (AdapterName.TORCHCOMMS, AdapterName.C10D, AdapterName.MPI)
"""Without a choice, the first of these that is usable; MPI where mpirun started the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterChoice:
    """What to measure, a request for each library, and the reason for each that is left out."""

    requests: tuple[SweepRequest, ...]
    left_out: tuple[str, ...] = ()


def choose_adapters(plan: BenchPlan, closed: Mapping[AdapterName, str]) -> AdapterChoice:
    """Choose by trying; raises `EnvironmentFault` if none of those asked for can be used.

    `closed` are libraries that the ranks cannot use, whatever is installed, each with the reason.
    """
    usable: list[AdapterName] = []
    left_out: list[str] = []
    for name in plan.adapters or DEFAULT_ADAPTERS:
        reason = closed.get(name) or availability(name)
        if reason is not None:
            left_out.append(f"{name} is left out: {reason}")
        else:
            usable.append(name)
            if not plan.adapters:
                break
    if not usable:
        raise EnvironmentFault("; ".join(left_out))
    return AdapterChoice(requests=tuple(_requests(plan, usable)), left_out=tuple(left_out))


def _requests(plan: BenchPlan, names: list[AdapterName]) -> Iterator[SweepRequest]:
    for name in names:
        yield plan.request(name, plan.backend or default_backend(name, plan.device))
