"""Carries a plan out: launch after launch in rounds, or inside ranks that somebody else started."""

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from evaluator.bench.environment import Machine
from evaluator.bench.launch import Lines, launch_job, run_launch
from evaluator.bench.plan import Plan
from evaluator.bench.record import BenchRecord
from evaluator.bench.recording import Recording, Turn
from evaluator.failures.logs import read_error
from evaluator.ports import Launcher
from evaluator.rank.context import RankNumbers
from evaluator.workloads.collectives import main
from evaluator.workloads.collectives.operations import Operation
from evaluator.workloads.collectives.sweep_request import PointSamples, SweepFacts, SweepRequest
from evaluator.workloads.collectives.watchdog import PointTimeoutError
from records.errors import CclsearchError
from records.trial import Failed, FailureKind, Stage

RecordListener: TypeAlias = Callable[[BenchRecord], None]
"""Is told of each point as it is done, and of one at which a launch broke; by threads in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A launch that failed, and why, and at which point if that is known and was not done."""

    turn: Turn
    operation: Operation | None
    failed: Failed


def conduct(
    plan: Plan,
    requests: Sequence[SweepRequest],
    *,
    launcher: Launcher,
    machine: Machine,
    run_id: str,
    on_record: RecordListener,
) -> Broken | None:
    """Launch every request once a round; ends with the first launch that fails, and gives it."""
    for turn in _turns(requests, plan.config.rounds, run_id):
        recording = Recording(plan, turn, machine, owns_ranks=True)

        def take(lines: Lines, recording: Recording = recording) -> None:
            _take(lines, recording, on_record)

        with tempfile.TemporaryDirectory(prefix="cclsearch-bench-") as folder:
            job = launch_job(turn.request, plan.rank_count)
            failed = run_launch(launcher, job, Path(folder), take)
        if failed is not None:
            return _broken(recording, turn, failed, on_record)
    return None


def conduct_inside(
    plan: Plan,
    requests: Sequence[SweepRequest],
    *,
    numbers: RankNumbers,
    machine: Machine,
    run_id: str,
    on_record: RecordListener,
) -> Broken | None:
    """Run this rank's part of every request, one after the other; only rank 0 records points.

    After a failure the caller has to end the process with `os._exit`: other ranks may wait for it.
    """
    for order, request in enumerate(requests):
        turn = Turn(
            request=request, run_id=run_id, launch_id=f"{run_id}-{order}", round=0, order=order
        )
        recording = Recording(plan, turn, machine, owns_ranks=False)

        def on_point(samples: PointSamples, recording: Recording = recording) -> None:
            on_record(recording.point(samples, recording.conditions()))

        try:
            main.run(request, numbers, recording.facts, on_point)
        except CclsearchError:
            raise
        except Exception as error:  # noqa: BLE001 - the rank's boundary: any failure is a value
            failed = _failure(error, numbers.rank)
            if numbers.rank:  # only the first rank knows which point it was
                return Broken(turn=turn, operation=None, failed=failed)
            return _broken(recording, turn, failed, on_record)
    return None


def _turns(requests: Sequence[SweepRequest], rounds: int, run_id: str) -> Iterator[Turn]:
    """Every launch; in each round all requests once, in an order that the run's name decides."""
    shuffled = random.Random(run_id)
    for number in range(rounds):
        for order, request in enumerate(shuffled.sample(requests, k=len(requests))):
            yield Turn(
                request=request,
                run_id=run_id,
                launch_id=f"{run_id}-{number * len(requests) + order}",
                round=number,
                order=order,
            )


def _take(lines: Lines, recording: Recording, on_record: RecordListener) -> None:
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


def _broken(recording: Recording, turn: Turn, failed: Failed, on_record: RecordListener) -> Broken:
    operation = recording.in_flight
    if operation is not None:
        on_record(recording.broken(operation, _status(failed), failed.message))
    return Broken(turn=turn, operation=operation, failed=failed)


def _status(failed: Failed) -> Literal["failed", "timeout"]:
    late = failed.kind is FailureKind.HANG or PointTimeoutError.__name__ in failed.message
    return "timeout" if late else "failed"
