"""What ranks are told that exchange a mix of messages in every step: the values of its job file."""

from dataclasses import dataclass, field
from enum import StrEnum

from evaluator.rank.job import DeviceKind, Measure
from evaluator.workloads.collectives.adapters.adapter import AdapterName
from evaluator.workloads.collectives.operations import Operation


class Compression(StrEnum):
    """The number format in which floating-point messages of an all-reduce are sent."""

    NONE = "none"
    FP16 = "fp16"
    BF16 = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """An operation that is called `count` times in a step."""

    operation: Operation
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How messages are carried: the part that a search varies and no environment variable tells.

    Every field is a knob of the recipe and holds its default. Neighbouring all-reduces of one kind
    are put together into messages of up to `fusion_bytes` (0: none), each message of an all-reduce
    is cut into `chunk_count` parts, and `in_flight` calls are started before one is waited for.
    `gloo_threads` and `gloo_interfaces` (as in `lo,lo`) count for gloo only; without interfaces
    gloo chooses.
    """

    comm_adapter: AdapterName = AdapterName.C10D
    backend: str = "gloo"
    in_flight: int = 1
    fusion_bytes: int = field(default=0, metadata={"least": 0})
    chunk_count: int = 1
    compression: Compression = Compression.NONE
    gloo_threads: int = 2
    gloo_interfaces: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeJob:
    """Everything one rank is told, apart from its number; each step exchanges every message."""

    entry: str
    world_size: int
    device: DeviceKind
    init_method: str
    messages: tuple[Repeated, ...]
    setup: Setup
    measure: Measure
    threads_per_rank: int = 1
    memory_budget_bytes: int | None = None
