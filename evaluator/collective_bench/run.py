"""Run the plan of a collective benchmark and record its points as they arrive.

Launches run in rounds, or inside ranks that another launcher has started.
"""

import random
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, repeat
from pathlib import Path
from typing import Final, TypeAlias

from evaluator.collective_bench.record import BenchMetrics, BenchRecord, LaunchPlace, bench_metrics
from evaluator.collective_bench.request import BenchPlan
from evaluator.failures.classify import classify
from evaluator.failures.logs import read_error
from evaluator.job_python import torch_version
from evaluator.launchers.watch import GrowingFile
from evaluator.machine import (
    Host,
    Snapshot,
    conditions_between,
    gpu_conditions,
    mpirun_command,
    mpirun_environment,
    take_snapshot,
    torchrun_command,
)
from evaluator.ports import Job, Launcher
from evaluator.rank.job import DeviceKind, parse
from evaluator.rank.protocol import RankNumbers
from evaluator.rank.start import command
from evaluator.recipes.collectives import SWEEP
from evaluator.workloads.collectives.operations import (
    POINTS_NAME,
    AdapterName,
    Operation,
    PointSamples,
    PointStatus,
    PointTimeoutError,
    SweepFacts,
    SweepRequest,
    default_backend,
)
from records.codec import to_json
from records.errors import CclsearchError, EnvironmentFault
from records.machine import Conditions
from records.trial import Failed, FailureKind, Stage

REQUEST_NAME = "sweep.json"
START_LIMIT_S = 180.0
HANG_GRACE_S = 30.0
LOOK_EVERY_S = 0.5

Lines: TypeAlias = Sequence[SweepFacts | PointSamples]


def launch_job(request: SweepRequest, rank_count: int, python: str | None = None) -> Job:
    """Give the job of one launch: by mpirun for MPI, else by torchrun.

    Ranks run in our Python, or in the one that is named. They end a point that takes too long
    themselves; the limits here are for ranks that cannot.
    """
    environment: Mapping[str, str] = {}
    program = (*command(SWEEP, python), REQUEST_NAME)
    if request.adapter is AdapterName.MPI:
        argv, environment = mpirun_command(rank_count, program), mpirun_environment()
    else:
        argv = torchrun_command(rank_count, program)
    return Job(
        argv=argv,
        world_size=rank_count,
        files={REQUEST_NAME: to_json(request)},
        timeout_s=START_LIMIT_S + len(request.operations) * request.timeout_s,
        hang_after_s=request.timeout_s + HANG_GRACE_S,
        maps_freely=request.device is DeviceKind.CUDA,
        environment=environment,
    )


@contextmanager
def _following(path: Path, on_lines: Callable[[Lines], None]) -> Iterator[None]:
    """Pass on what ranks report, soon and from another thread, and completely before the end.

    Looks are rare, for they disturb what is measured. Raises what `on_lines` raised first, once the
    launch has ended.
    """
    ended, file = threading.Event(), GrowingFile(path)
    kinds = chain([SweepFacts], repeat(PointSamples))

    def pass_on() -> None:
        lines = zip(file.new_lines(), kinds, strict=False)
        on_lines([parse(kind, line.decode()) for line, kind in lines])

    def look() -> None:
        while not ended.wait(LOOK_EVERY_S):
            pass_on()

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield
        finally:
            ended.set()
        looking.result()
    pass_on()


RecordListener: TypeAlias = Callable[[BenchRecord], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenLaunch:
    """A launch that failed, and why, and at which point if that is known and was not done."""

    adapter: AdapterName
    operation: Operation | None
    failed: Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    """The launches of a plan.

    `on_record` receives each point when done, and the one at which a launch broke; it is called by
    one thread at a time.
    """

    plan: BenchPlan
    requests: Sequence[SweepRequest]
    machine: Host
    run_id: str
    on_record: RecordListener

    def launch_ranks(self, launcher: Launcher) -> BrokenLaunch | None:
        """Launch every request once a round; return the first launch that fails, which ends it.

        In each round all requests are launched in an order that the name of the run decides.
        """
        shuffled, count = random.Random(self.run_id), len(self.requests)
        for round_number in range(self.plan.options.rounds):
            for order, request in enumerate(shuffled.sample(self.requests, k=count)):
                place = self._place(round_number * count + order, round_number, order)
                recorder = LaunchRecorder(self, request, place, owns_ranks=True)
                with tempfile.TemporaryDirectory(prefix="cclsearch-bench-") as folder:
                    job = launch_job(request, self.plan.rank_count, self.plan.options.python)
                    workdir = Path(folder)
                    with _following(workdir / POINTS_NAME, recorder.add):
                        result = launcher.run(job, workdir, lambda _phase: None)
                    failed = classify(result)
                if failed is not None:
                    return recorder.end_broken(failed)
        return None

    def run_inside_ranks(self, numbers: RankNumbers) -> BrokenLaunch | None:
        """Run this rank's part of every request in turn; only rank 0 records points.

        After a failure the caller has to end the process with `os._exit`: other ranks may wait.
        """
        # Imported here, as this process is then a rank: it loads torch.
        from evaluator.workloads.collectives import sweep

        for order, request in enumerate(self.requests):
            recorder = LaunchRecorder(self, request, self._place(order, 0, order), owns_ranks=False)

            def add(line: SweepFacts | PointSamples, recorder: LaunchRecorder = recorder) -> None:
                recorder.add([line])

            try:
                sweep.run(request, numbers, add)
            except CclsearchError:
                raise
            except Exception as error:  # noqa: BLE001 - the rank's boundary: any failure is a value
                found = read_error(type(error).__name__, str(error))
                message = f"rank {numbers.rank}: {found}"
                failed = Failed(stage=Stage.LAUNCH, kind=found.kind, message=message)
                if numbers.rank:  # only the first rank knows which point it was
                    return BrokenLaunch(adapter=request.adapter, operation=None, failed=failed)
                return recorder.end_broken(failed)
        return None

    def _place(self, number: int, round_number: int, order: int) -> LaunchPlace:
        return LaunchPlace(
            run_id=self.run_id,
            launch_id=f"{self.run_id}-{number}",
            round=round_number,
            round_count=self.plan.options.rounds,
            order=order,
        )


class LaunchRecorder:
    """Records one launch; points come in the order of the request's operations.

    `owns_ranks` is false for ranks that are not processes below this one: they would pass for the
    work of others.
    """

    def __init__(
        self, run: BenchRun, request: SweepRequest, place: LaunchPlace, *, owns_ranks: bool
    ) -> None:
        self._run = run
        self._request = request
        self._place = place
        self._owns_ranks = owns_ranks
        self._before: Snapshot = take_snapshot()
        # What is known of the library until its ranks report.
        self._facts = SweepFacts(
            device_name=None,
            torch_version=torch_version(run.plan.options.python) or "unknown",
            torchcomms_version=None,
            backend_name=request.backend,
            backend_version=None,
        )
        self._count = 0

    def add(self, lines: Lines) -> None:
        """Record new points, with conditions of the launch up to now."""
        points = [line for line in lines if isinstance(line, PointSamples)]
        for line in lines:
            if isinstance(line, SweepFacts):
                self._facts = line
        if not points:
            return
        conditions, plan = self._conditions(len(points)), self._run.plan
        for point in points:
            self._count += 1
            metrics = None
            if point.status is PointStatus.MEASURED:
                convention = plan.options.bw_convention
                metrics = bench_metrics(point, plan.rank_count, convention)
            self._record(point, conditions, metrics)

    def end_broken(self, failed: Failed) -> BrokenLaunch:
        """Record the point that the ranks were at when the launch broke, if one was left."""
        left = self._request.operations[self._count :]
        if left:
            late = failed.kind is FailureKind.HANG or PointTimeoutError.__name__ in failed.message
            point = PointSamples(
                operation=left[0],
                status=PointStatus.TIMEOUT if late else PointStatus.FAILED,
                started_at=datetime.now(UTC).isoformat(),
                reason=failed.message,
            )
            self._record(point, self._conditions(1))
        return BrokenLaunch(
            adapter=self._request.adapter, operation=left[0] if left else None, failed=failed
        )

    def _conditions(self, coming: int) -> Conditions:
        """What else the machine did since the launch began, up to the points that come next.

        GPUs are queried with the last of them only: their driver's tool takes its time.
        """
        is_last = self._count + coming >= len(self._request.operations)
        on_gpus = self._request.device is DeviceKind.CUDA
        gpus = gpu_conditions() if is_last and on_gpus else ()
        found = conditions_between(self._before, take_snapshot(), gpus)
        return found if self._owns_ranks else replace(found, others_cpu_share=None)

    def _record(
        self, point: PointSamples, conditions: Conditions, metrics: BenchMetrics | None = None
    ) -> None:
        run = self._run
        run.on_record(
            BenchRecord(
                host=run.machine,
                facts=self._facts,
                params=run.plan.params(self._request.adapter),
                place=self._place,
                point=replace(point, reason=" ".join(point.reason.split())),
                metrics=metrics,
                conditions=conditions,
            )
        )


DEFAULT_ADAPTERS: Final = (AdapterName.TORCHCOMMS, AdapterName.C10D, AdapterName.MPI)
"""Without a choice, the first of these that is usable; MPI where mpirun started the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterChoice:
    """What to measure, a request for each library, and the reason for each that is left out."""

    requests: tuple[SweepRequest, ...]
    left_out: tuple[str, ...] = ()


def choose_adapters(
    plan: BenchPlan, closed: Mapping[AdapterName, str], absence: Callable[[AdapterName], str | None]
) -> AdapterChoice:
    """Choose by trying; raises `EnvironmentFault` if none of those asked for can be used.

    `closed` are libraries that the ranks cannot use, whatever is installed, each with the reason;
    `absence` says why another cannot be used.
    """
    usable: list[AdapterName] = []
    left_out: list[str] = []
    for name in plan.adapters or DEFAULT_ADAPTERS:
        reason = closed.get(name) or absence(name)
        if reason is not None:
            left_out.append(f"{name} is left out: {reason}")
        else:
            usable.append(name)
            if not plan.adapters:
                break
    if not usable:
        raise EnvironmentFault("; ".join(left_out))
    return AdapterChoice(
        requests=tuple(
            plan.request(name, plan.options.backend or default_backend(name, plan.device))
            for name in usable
        ),
        left_out=tuple(left_out),
    )
