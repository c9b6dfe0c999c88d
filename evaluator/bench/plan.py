"""What a benchmark was asked to measure, once every word of the question was understood."""

from collections.abc import Sequence
from dataclasses import dataclass

from evaluator.bench.csv_files import file_name
from evaluator.bench.record import BenchConfig, BenchParams
from evaluator.rank.job import DeviceKind
from evaluator.workloads.collectives.adapters.adapter import AdapterName
from evaluator.workloads.collectives.operations import Operation, ReduceOp
from evaluator.workloads.collectives.sweep_request import SweepRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How each point is sampled; `timeout_s` is for one point."""

    warmup_iterations: int
    measure_iterations: int
    sync_interval: int
    async_op: bool
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every point of a benchmark, and how each is measured.

    Without `adapters` nobody chose one. `rank_count` is of all ranks, whoever starts them.
    """

    adapters: tuple[AdapterName, ...]
    backend: str | None
    device: DeviceKind
    rank_count: int
    operations: tuple[Operation, ...]
    sampling: Sampling
    config: BenchConfig

    def request(self, adapter: AdapterName, backend: str) -> SweepRequest:
        """What the ranks of one launch are told."""
        return SweepRequest(
            adapter=adapter,
            backend=backend,
            device=self.device,
            operations=self.operations,
            warmup_iterations=self.sampling.warmup_iterations,
            measure_iterations=self.sampling.measure_iterations,
            sync_interval=self.sampling.sync_interval,
            async_op=self.sampling.async_op,
            timeout_s=self.sampling.timeout_s,
        )

    def params(self, adapter: AdapterName, operation: Operation) -> BenchParams:
        """How one point of a launch is measured."""
        return BenchParams(
            comm_adapter=adapter.value,
            collective_name=operation.collective.value,
            num_ranks=self.rank_count,
            dtype=operation.dtype.value,
            reduce_op=operation.reduce_op.value if operation.reduces else None,
            async_op=self.sampling.async_op,
            warmup_iterations=self.sampling.warmup_iterations,
            measure_iterations=self.sampling.measure_iterations,
            sync_interval=self.sampling.sync_interval,
        )

    @property
    def left_out(self) -> Sequence[str]:
        """What of an `all` has no meaning here, in words."""
        reductions = {operation.reduce_op for operation in self.operations}
        if self.config.run_all_reduce_ops and ReduceOp.AVG not in reductions:
            return ("avg is left out: whole numbers have none",)
        return ()

    @property
    def file_names(self) -> Sequence[str]:
        """Every CSV file that it fills."""
        swept = self.config.run_all_reduce_ops
        return tuple(
            dict.fromkeys(
                file_name(each.collective, each.reduce_op if each.reduces else None, swept=swept)
                for each in self.operations
            )
        )
