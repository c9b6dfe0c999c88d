"""Makes the records of one launch while its points arrive."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from evaluator.bench.environment import Machine
from evaluator.bench.metrics import bench_metrics
from evaluator.bench.plan import Plan
from evaluator.bench.record import BenchRecord, Place
from evaluator.conditions import Snapshot, conditions_between, gpu_conditions, take_snapshot
from evaluator.rank.job import DeviceKind
from evaluator.workloads.collectives.operations import Operation
from evaluator.workloads.collectives.sweep_request import (
    PointSamples,
    PointStatus,
    SweepFacts,
    SweepRequest,
)
from records.conditions import Conditions


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One launch of a plan: which library, and when it has its turn."""

    request: SweepRequest
    run_id: str
    launch_id: str
    round: int
    order: int


class Recording:
    """The records of one launch; points come in the order of the request's operations.

    `owns_ranks` is false for ranks that are no processes below this one: they would pass for the
    work of others.
    """

    def __init__(self, plan: Plan, turn: Turn, machine: Machine, *, owns_ranks: bool) -> None:
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
        """Take what the ranks tell of themselves, before the first point."""
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
            place=Place(
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
