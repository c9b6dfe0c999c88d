"""The values of one job file: what a rank is asked to run, with the default of every knob."""

from dataclasses import dataclass, field
from enum import StrEnum

from evaluator.rank.job_file import JobError


class DeviceKind(StrEnum):
    """Where the ranks compute."""

    CPU = "cpu"
    CUDA = "cuda"


class Precision(StrEnum):
    """The number format of parameters, gradients, optimizer state and what is sent."""

    FP32 = "fp32"
    BF16 = "bf16"


class Checkpointing(StrEnum):
    """What the backward pass computes again instead of having kept it."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Schedule(StrEnum):
    """The order in which a pipeline's stages take their micro-batches."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved_1f1b"
    LOOPED_BFS = "looped_bfs"
    INTERLEAVED_ZERO_BUBBLE = "interleaved_zero_bubble"
    ZBV = "zbv_zero_bubble"
    DUAL_PIPE_V = "dualpipev"


class ContextMethod(StrEnum):
    """How ranks that hold parts of a sequence attend to the other parts."""

    RING = "ring"
    ALL_GATHER = "all_gather"
    ULYSSES = "ulysses"


class CommHook(StrEnum):
    """What DistributedDataParallel does to a bucket of gradients on its way."""

    NONE = "none"
    FP16 = "fp16"
    BF16 = "bf16"
    POWER_SGD = "power_sgd"


class Reshard(StrEnum):
    """Whether sharded parameters are dropped between forward and backward pass.

    `auto` drops them, except in a pipeline, where every micro-batch would gather them again.
    """

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Reduction(StrEnum):
    """The number format in which gradients of sharded parameters are added up."""

    PARAMETER = "parameter"
    FP32 = "fp32"
    BF16 = "bf16"


class OptimizerLoop(StrEnum):
    """How the optimizer goes over the parameters."""

    FOR_LOOP = "for_loop"
    FOREACH = "foreach"
    FUSED = "fused"


class AttentionBackend(StrEnum):
    """Which kernel computes attention; `auto` leaves it to torch."""

    AUTO = "auto"
    MATH = "math"
    FLASH = "flash"
    EFFICIENT = "efficient"
    CUDNN = "cudnn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The model and the batch: the work of one step, the same in every configuration.

    A model with experts has `expert_count` of them in each layer after the first
    `dense_layer_count`; in inference each of `global_batch` sequences of `sequence_length` tokens
    is answered with `output_length` tokens. `text_file` replaces the synthetic tokens by bytes.
    Without a `head_size` heads share the hidden size.
    """

    layer_count: int
    hidden_size: int
    head_count: int
    kv_head_count: int
    ffn_size: int
    vocab_size: int
    sequence_length: int
    global_batch: int
    precision: Precision
    seed: int = field(metadata={"least": 0})
    expert_count: int = field(default=0, metadata={"least": 0})
    experts_per_token: int = field(default=0, metadata={"least": 0})
    shared_expert_count: int = field(default=0, metadata={"least": 0})
    expert_ffn_size: int = field(default=0, metadata={"least": 0})
    dense_layer_count: int = field(default=0, metadata={"least": 0})
    output_length: int = field(default=0, metadata={"least": 0})
    head_size: int = field(default=0, metadata={"least": 0})
    text_file: str | None = None

    @property
    def head_width(self) -> int:
        """Numbers of one head's query, key or value."""
        return self.head_size or self.hidden_size // self.head_count

    @property
    def attention_width(self) -> int:
        """Numbers of all heads' queries of one token."""
        return self.head_count * self.head_width


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How the work is spread over the ranks, and how each does its part.

    Every field is a knob of the built-in recipe and holds the knob's default.
    """

    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1
    micro_batch: int = 1
    activation_checkpointing: Checkpointing = Checkpointing.NONE
    sequence_parallel: bool = True
    loss_parallel: bool = True
    pipeline_schedule: Schedule = Schedule.ONE_F_ONE_B
    stages_per_rank: int = 1
    context_method: ContextMethod = ContextMethod.RING
    compile: bool = False
    ddp_bucket_mib: int = 25
    ddp_bucket_view: bool = True
    ddp_static_graph: bool = False
    ddp_comm_hook: CommHook = CommHook.NONE
    fsdp_reshard: Reshard = Reshard.AUTO
    fsdp_prefetch: int = field(default=0, metadata={"least": 0})
    fsdp_reduction: Reduction = Reduction.PARAMETER
    optimizer_loop: OptimizerLoop = OptimizerLoop.FOREACH
    attention_backend: AttentionBackend = AttentionBackend.AUTO
    threads_per_rank: int = 1

    @property
    def dp(self) -> int:
        """Ranks that see different sequences: replicas times shards."""
        return self.dp_replicate * self.dp_shard

    @property
    def world_size(self) -> int:
        """Ranks that the layout takes; experts are spread over ranks of the other axes."""
        return self.dp * self.tp * self.cp * self.pp


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """How many steps are run before, under and after the clock.

    At least `timed_steps` are timed, then more, `max_timed_steps` at most, until the 95 % interval
    of their median is within `step_precision` of it; none once they are clearly above
    `stop_above_s`.
    """

    warmup_steps: int = field(metadata={"least": 0})
    timed_steps: int
    profiled_steps: int = field(metadata={"least": 0})
    max_timed_steps: int | None = None
    step_precision: float = 0.03
    stop_above_s: float | None = None

    @property
    def most_timed_steps(self) -> int:
        """The most steps that may be timed."""
        return max(self.timed_steps, self.max_timed_steps or 0)

    @property
    def is_fixed(self) -> bool:
        """Whether the number of timed steps is known beforehand."""
        return self.most_timed_steps == self.timed_steps and self.stop_above_s is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything one rank of the training and inference workloads is told, apart from its number.

    The recipe has checked the configuration against its constraints.
    """

    entry: str
    world_size: int
    device: DeviceKind
    init_method: str
    workload: Workload
    config: Config
    measure: Measure
    memory_budget_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.config.world_size != self.world_size:
            raise JobError(
                f"config: its degrees make {self.config.world_size} ranks, but world_size is"
                f" {self.world_size}"
            )

    @property
    def threads_per_rank(self) -> int:
        """How many threads, and cores, each rank has for its computing."""
        return self.config.threads_per_rank

    @property
    def micro_batch_count(self) -> int:
        """Forward passes per rank and step."""
        return self.workload.global_batch // (self.config.dp * self.config.micro_batch)
