"""The job document of a rank: its values with the default of every knob, parsed from JSON."""

import json
import math
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import TypeVar, get_args, get_origin, get_type_hints

if sys.version_info >= (3, 11):
    from enum import StrEnum as StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """Text constants, as Python 3.11 has them."""

        __str__ = str.__str__


_Value = TypeVar("_Value")


class JobError(ValueError):
    """A job that cannot be run as written; the message is one line that says which part."""


def parse(kind: type[_Value], text: str) -> _Value:
    """Read a value of a frozen class from JSON; raises `JobError` for any departure from it.

    Of tuples those of any length and one kind are known. Whole numbers are at least 1 unless the
    field's metadata has another `least`.
    """
    try:
        document: object = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise JobError(f"not JSON: {error}") from error
    return _build(kind, document, "job")


def _build(kind: type[_Value], document: object, name: str) -> _Value:
    if not isinstance(document, dict):
        raise _wrong(name, "an object", document)
    known = _known(kind)
    unknown = sorted(document.keys() - known.keys())
    if unknown:
        raise JobError(f"{name}: unknown {', '.join(unknown)}")
    missing = [f.name for f in known.values() if f.default is MISSING and f.name not in document]
    if missing:
        raise JobError(f"{name}: {missing[0]} is missing")
    hints = get_type_hints(kind)
    given = {
        key: _convert(hints[key], value, f"{name}: {key}", known[key].metadata.get("least", 1))
        for key, value in document.items()
    }
    return kind(**given)


def _known(kind: type) -> Mapping[str, Field[object]]:
    if not is_dataclass(kind):
        raise TypeError(f"{kind} has no fields")
    return {field.name: field for field in fields(kind)}


def _convert(hint: object, value: object, name: str, least: int) -> object:
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        hint = next(option for option in get_args(hint) if option is not types.NoneType)
    if get_origin(hint) is tuple:
        return _convert_all(get_args(hint)[0], value, name, least)
    if hint is bool:
        return _expected(isinstance(value, bool), name, "true or false", value)
    if hint is int:
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
        return _expected(whole, name, f"a whole number of at least {least}", value)
    if hint is float:
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else 0
        return _expected(0 < number < math.inf, name, "a number above 0", value)
    if hint is str:
        return _expected(isinstance(value, str) and value != "", name, "a text", value)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        choices = list(hint)
        _expected(value in choices, name, " or ".join(choices), value)
        return hint(str(value))
    if isinstance(hint, type):
        return _build(hint, value, name.rpartition(": ")[2])
    raise TypeError(f"{name}: no JSON for {hint}")


def _convert_all(hint: object, value: object, name: str, least: int) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise _wrong(name, "a list", value)
    return tuple(_convert(hint, each, f"{name}[{i}]", least) for i, each in enumerate(value))


def _expected(holds: bool, name: str, expected: str, value: object) -> object:
    if not holds:
        raise _wrong(name, expected, value)
    return value


def _wrong(name: str, expected: str, value: object) -> JobError:
    return JobError(f"{name} must be {expected}, got {json.dumps(value)}")


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


ONE_STAGE = (Schedule.GPIPE, Schedule.ONE_F_ONE_B)
FOLDED = (Schedule.ZBV, Schedule.DUAL_PIPE_V)
"""Schedules in which a rank holds two stages, one from either end."""
SPLIT_BACKWARD = (Schedule.INTERLEAVED_ZERO_BUBBLE, *FOLDED)
"""Schedules that compute gradients of weights separately from those of inputs, to fill gaps."""
LOOPED_STAGES = 2
"""Stages of a rank in looped schedules, where none are given."""


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


class ComputePrecision(StrEnum):
    """The number format in which matrices are multiplied, where parameters are in fp32.

    `bf16` is autocast: products and attention are in bf16; parameters, gradients and optimizer
    state stay in fp32.
    """

    PARAMETER = "parameter"
    TF32 = "tf32"
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
    compute_precision: ComputePrecision = ComputePrecision.PARAMETER
    optimizer_loop: OptimizerLoop = OptimizerLoop.FOREACH
    attention_backend: AttentionBackend = AttentionBackend.AUTO
    threads_per_rank: int = 1

    @property
    def dp(self) -> int:
        """Ranks that see different sequences: replicas times shards."""
        return self.dp_replicate * self.dp_shard

    @property
    def autocasts(self) -> bool:
        """Whether matrices in fp32 are multiplied in bf16."""
        return self.compute_precision is ComputePrecision.BF16

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of weights are computed separately from those of inputs."""
        return self.pp > 1 and self.pipeline_schedule in SPLIT_BACKWARD

    @property
    def stage_count(self) -> int:
        """Stages of the whole pipeline."""
        return self.pp * self.stages_per_rank

    def stages_at(self, place: int) -> tuple[int, ...]:
        """Return the stages of the rank at a place: every pp-th, or one from either end."""
        if self.pp > 1 and self.pipeline_schedule in FOLDED:
            return place, self.stage_count - 1 - place
        return tuple(range(place, self.stage_count, self.pp))

    @property
    def reshards(self) -> bool:
        """Whether sharded parameters are dropped after each forward pass.

        In a pipeline, gathering them for every micro-batch would cost more than the memory is
        worth; where a schedule splits backward passes, torch would even train something else.
        """
        auto = self.fsdp_reshard is Reshard.AUTO and self.pp == 1
        return auto or self.fsdp_reshard is Reshard.ALWAYS

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
class AnyJob(ABC):
    """What every job gives a rank, except its number; the rest is between recipe and entry.

    `entry` is what makes the work, as `package.module:function`. The module's `JOB`, if it has one,
    is the class of the jobs that the function takes; without it they are of the class `Job`. Ranks
    meet at `init_method`, as torch.distributed takes it; `file://` alone leaves it to the rank.
    """

    entry: str
    world_size: int
    device: DeviceKind
    init_method: str
    measure: Measure
    memory_budget_bytes: int | None = None

    @property
    @abstractmethod
    def threads_per_rank(self) -> int:
        """How many threads, and cores, each rank has for its computing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(AnyJob):
    """Everything one rank of the training and inference workloads is given, except its number.

    The recipe has checked the configuration against its constraints.
    """

    workload: Workload
    config: Config

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
