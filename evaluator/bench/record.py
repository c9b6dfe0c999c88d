"""One measured point of a collective benchmark, with all that is needed to judge it, as values."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from records.conditions import Conditions

Convention: TypeAlias = Literal["nccl-tests", "torchcomms"]
"""Whose definition of S, and of the factor that turns S / t into bus bandwidth."""
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvInfo:
    """Where a launch ran, and on what; None for what the machine does not tell."""

    device_type: str
    device_name: str | None
    torch_version: str
    torchcomms_version: str | None
    comm_adapter_name: str
    comm_backend_name: str
    comm_backend_version: str | None
    host: str
    cpu_model: str | None = None
    core_count: int | None = None
    kernel: str | None = None
    governor: str | None = None
    network_interfaces: tuple[str, ...] = ()
    commit: str | None = None
    """Of the working tree that the benchmark was started in."""
    container: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """What the command line asked for, over all points."""

    run_all_collectives: bool = False
    run_all_comm_adapters: bool = False
    run_all_reduce_ops: bool = False
    reduce_op_explicit: bool = False
    min_size: int = 4
    max_size: int = 64 << 20
    size_scaling_factor: int = 2
    csv_enabled: bool = False
    quiet: bool = False
    output_dir: str | None = None
    rounds: int = 1
    bandwidth_convention: Convention = "nccl-tests"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchParams:
    """How one point was measured; `reduce_op` is None where nothing is reduced."""

    comm_adapter: str
    collective_name: str
    num_ranks: int
    dtype: str
    reduce_op: str | None
    async_op: bool
    warmup_iterations: int
    measure_iterations: int
    sync_interval: int

    @property
    def dispatch_mode(self) -> Literal["sync", "async"]:
        """Whether calls were started and then waited for."""
        return "async" if self.async_op else "sync"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which launch measured a point: the command, its launch, and their order.

    Launches of one run that have the same `round` took turns; `order` is the place of this one in
    its round.
    """

    run_id: str
    launch_id: str
    round: int
    order: int
    started_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchMetrics:
    """What came out, in microseconds a call and decimal GB/s; raw samples are beside.

    A block of calls takes as long as on its slowest rank. `block_ns` has every rank's duration of
    every block, shaped (ranks, blocks); block b made `block_calls[b]` calls.
    """

    message_size_bytes: int
    total_time_us: float
    avg_time_us: float
    min_time_us: float
    max_time_us: float
    p25_time_us: float
    median_time_us: float
    p75_time_us: float
    p99_time_us: float
    rank0_avg_time_us: float
    mean_rank_avg_time_us: float
    fastest_rank_avg_time_us: float
    slowest_rank: int
    payload_bytes: int | None
    """S of the bandwidth's convention; None for a barrier."""
    bus_factor: float | None
    algorithm_bw_gbps: float | None
    bus_bw_gbps: float | None
    block_calls: tuple[int, ...]
    block_ns: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRecord:
    """One point of one launch: measured, or the reason why not."""

    environment: EnvInfo
    config: BenchConfig
    params: BenchParams
    place: Place
    message_size_bytes: int
    metrics: BenchMetrics | None
    status: Literal["measured", "skipped", "wrong_result", "timeout", "failed"] = "measured"
    reason: str = ""
    conditions: Conditions | None = None
    schema_version: int = field(default=SCHEMA_VERSION)
