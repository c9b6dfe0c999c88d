"""Events and header of Kineto JSON in every era of the format, and what each event means.

An event is recognised by category and name; its arguments give the size and ranks of a
collective.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import msgspec
import numpy as np

from evaluator.traces.model import CollectiveKind, RankGroup
from evaluator.traces.readers.chrome import repair_text
from evaluator.traces.readers.marks import collective_kind, communicates
from records.errors import TraceError

T = TypeVar("T")

Number: TypeAlias = int | float | str
"""Some profilers write numbers as strings."""
Whole: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""What fits int64."""

_LARGEST_BASE_NS = 1 << 62


class EventPhase(StrEnum):
    """Sorts of Chrome events. Decoding makes members of what is listed, at no cost."""

    COMPLETE = "X"
    METADATA = "M"
    INSTANT = "i"
    FLOW_START = "s"
    FLOW_STEP = "t"
    FLOW_END = "f"
    OTHER = ""

    @classmethod
    def _missing_(cls, _value: object) -> "EventPhase":
        return cls.OTHER


class Category(StrEnum):
    """Categories of Kineto events: those that matter, those of 2021, and frequent ones."""

    KERNEL = "kernel"
    COPY = "gpu_memcpy"
    FILL = "gpu_memset"
    DEVICE_ANNOTATION = "gpu_user_annotation"
    HOST_ANNOTATION = "user_annotation"
    HOST_OP = "cpu_op"
    RUNTIME = "cuda_runtime"
    DRIVER = "cuda_driver"
    FRAME = "python_function"
    MTIA_KERNEL = "mtia_ccp_events"
    OLD_KERNEL = "Kernel"
    OLD_COPY = "Memcpy"
    OLD_FILL = "Memset"
    OLD_HOST_OP = "Operator"
    OLD_RUNTIME = "Runtime"
    OLD_FRAME = "Python"
    LINK = "ac2g"
    BACKWARD_LINK = "fwdbwd"
    OLD_LINK = "async"
    SYNC = "cuda_sync"
    OVERHEAD = "overhead"
    INSTANT = "cpu_instant_event"
    OTHER = ""

    @classmethod
    def _missing_(cls, _value: object) -> "Category":
        return cls.OTHER


class KinetoEvent(msgspec.Struct, gc=False):
    """One trace event; `ts` and `dur` in microseconds, None where the event has none.

    Arguments are decoded only for the events that need them, with one of the types below.
    """

    ph: EventPhase = EventPhase.OTHER
    cat: Category = Category.OTHER
    name: str = ""
    pid: Number | None = None
    tid: Number | None = None
    ts: Number | None = None
    dur: Number | None = None
    args: msgspec.Raw = msgspec.Raw(b"{}")


class WorkArguments(msgspec.Struct, gc=False):
    """Arguments of device work and of the host's calls into the driver, in their usual order."""

    correlation: Number = 0
    blocks_per_sm: Number = msgspec.field(name="blocks per SM", default=float("nan"))
    occupancy_percent: Number = msgspec.field(
        name="est. achieved occupancy %", default=float("nan")
    )
    bytes: Number = 0
    collective: str | None = msgspec.field(name="Collective name", default=None)
    input_count: Whole = msgspec.field(name="In msg nelems", default=0)
    output_count: Whole = msgspec.field(name="Out msg nelems", default=0)
    group_size: Whole | None = msgspec.field(name="Group size", default=None)
    dtype: str = ""
    group_name: str = msgspec.field(name="Process Group Name", default="")
    group_ranks: str = msgspec.field(name="Process Group Ranks", default="")
    sequence: Whole = msgspec.field(name="Seq", default=-1)


class OperatorArguments(msgspec.Struct, gc=False):
    """Arguments of operators and annotations of the host."""

    function_id: Whole = msgspec.field(name="Record function id", default=-1)
    types: list[str] = msgspec.field(name="Input type", default_factory=list)
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b"[]"))


class MemoryArguments(msgspec.Struct, gc=False):
    """Arguments of what the allocator reports; -1 where it does not say how much is out."""

    device_type: Number = msgspec.field(name="Device Type", default=0)
    allocated_bytes: Number = msgspec.field(name="Total Allocated", default=-1)


class ThreadArguments(msgspec.Struct, gc=False):
    """Arguments of what names a thread."""

    name: str | None = None


_FLOATS = ("blocks per SM", "est. achieved occupancy %")


def sound_arguments(args: msgspec.Raw, shape: type[msgspec.Struct]) -> msgspec.Raw | None:
    """Those arguments of an event that can be read as the shape has them; None where all can."""
    text = repair_text(bytes(args))
    try:
        given = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        given = {}
    wanted = {field.encode_name: field.type for field in msgspec.structs.fields(shape)}
    sound = {
        name: value
        for name, value in given.items()
        if name in wanted and _fits(value, wanted[name], is_float=name in _FLOATS)
    }
    dropped = any(name in wanted and name not in sound for name in given)
    unchanged = text == bytes(args) and given and not dropped
    return None if unchanged or bytes(args) == b"{}" else msgspec.Raw(msgspec.json.encode(sound))


def _fits(text: msgspec.Raw, shape: object, *, is_float: bool) -> bool:
    try:
        value: object = msgspec.json.decode(text, type=shape)
        if shape == Number:
            np.array([value], np.float64 if is_float else np.int64)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, OverflowError):
        return False
    return True


class ProcessGroup(msgspec.Struct):
    """A group that the process was in when the trace was written."""

    name: str = msgspec.field(name="pg_name", default="")
    backend: str = msgspec.field(name="backend_config", default="")
    size: int | None = msgspec.field(name="pg_size", default=None)
    ranks: list[int] | str | None = None


class DistributedInfo(msgspec.Struct):
    """What the process group said about itself."""

    backend: str | None = None
    rank: int | None = None
    world_size: int | None = None
    groups: list[ProcessGroup] = msgspec.field(name="pg_config", default_factory=list)


class DeviceProperties(msgspec.Struct):
    """An accelerator that the process saw, profiled or not."""

    id: int = 0
    name: str = ""
    multiprocessor_count: int | None = msgspec.field(name="numSms", default=None)
    memory_bytes: int | None = msgspec.field(name="totalGlobalMem", default=None)


class KinetoHeader(msgspec.Struct, kw_only=True):
    """The fields around the events; None or empty where the trace has none."""

    base_ns: int = 0
    distributed: DistributedInfo = msgspec.field(default_factory=DistributedInfo)
    devices: list[DeviceProperties] = msgspec.field(default_factory=list)
    is_rocm: bool = False

    @property
    def ran_on_devices(self) -> bool:
        """Whether the job surely computed on accelerators, whatever was profiled."""
        backend = self.distributed.backend or ""
        return "gloo" not in backend and ("nccl" in backend or bool(self.devices))


def header_of(path: Path, fields: Mapping[str, msgspec.Raw]) -> KinetoHeader:
    """The header as far as it has been read. Raises TraceError when it is of another shape."""

    def field(name: str, shape: type[T], default: T) -> T:
        if name not in fields or bytes(fields[name]) == b"null":
            return default
        try:
            return msgspec.json.decode(fields[name], type=shape)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TraceError(path, f"is not a Kineto trace: its {name}: {error}") from error

    base_ns = field("baseTimeNanoseconds", int, 0)
    if not 0 <= base_ns < _LARGEST_BASE_NS:
        raise TraceError(path, f"has an absurd base time: {base_ns}")
    return KinetoHeader(
        base_ns=base_ns,
        distributed=field("distributedInfo", DistributedInfo, DistributedInfo()),
        devices=field("deviceProperties", list[DeviceProperties], []),
        is_rocm=bool(fields.keys() & {"roctracer_version", "hip_runtime_version"}),
    )


class EventKind(IntEnum):
    """What an event is, before the whole file has shown on which side the work was done.

    Up to FILL it is work of the device, up to SYNC it has the arguments of such.
    """

    KERNEL = 0
    COLLECTIVE_KERNEL = 1
    COPY = 2
    FILL = 3
    LAUNCH = 4
    SYNC = 5
    HOST_OP = 6
    HOST_WAIT = 7
    HOST_COLLECTIVE = 8
    """A collective that the host itself carries out."""
    DEVICE_COLLECTIVE_CALL = 9
    """The host's call of a collective that a kernel carries out."""
    DEVICE_STEP = 10
    HOST_STEP = 11
    ENGINE_STEP = 12
    """A step of an inference engine that says how much it reads and writes."""
    ITERATION = 13
    """A step of an inference engine that says only whether it reads or writes."""
    FRAME_STEP = 14
    """A call of the function that is one step of an inference engine."""
    IGNORED = 15
    INSTANT = 16
    METADATA = 17


PROFILER_STEP = re.compile(r"ProfilerStep#(\d{1,18})")
ENGINE_STEP = re.compile(r"execute_(?:\d+_)?context_(\d+)\(.*\)_generation_(\d+)\(.*\)")
ITERATION = re.compile(r"step\[(\w+)(?: .*)?\]")
# By the function, never by its line; the outermost of each engine.
_FRAME_STEP = re.compile(
    r"(?:.*[/$])?(?:vllm/v1/engine/core\.py\(\d+\): _process_engine_step"
    r"|sglang/srt/managers/scheduler\.py\(\d+\): _?run_batch(?:_inner)?)"
)
_LAUNCH = re.compile(r"(?:cuda|cu|hip)\w*?(?:Launch(?!Host)|Memcpy|Memset)\w*")
_SYNC = re.compile(r"(?:cuda|cu|hip)\w*Synchronize\w*")
# At the start of a word: `fwdmatmul` is no DMA.
_MTIA_WAIT = re.compile(r"(?<![A-Za-z])wait|Wait|WAIT")
_MTIA_COPY = re.compile(r"(?<![A-Za-z])(?:dma|Dma|DMA)(?![a-z])|[Mm]em(?:cpy|Cpy)")
_MTIA_FILL = re.compile(r"[Mm]em(?:set|Set)")
_WAIT = re.compile(r"c10d::|_?c10d_functional")
_ANY = re.compile("").match

_Rule: TypeAlias = tuple[Callable[[str], object], EventKind]
"""A test of names, and what an event is whose name is the first to pass it."""
_KERNELS: tuple[_Rule, ...] = (
    (communicates, EventKind.COLLECTIVE_KERNEL),
    (_ANY, EventKind.KERNEL),
)
_ANNOTATIONS: tuple[_Rule, ...] = (
    (re.compile("gloo:").match, EventKind.HOST_COLLECTIVE),
    (re.compile("nccl:").match, EventKind.DEVICE_COLLECTIVE_CALL),
    (PROFILER_STEP.fullmatch, EventKind.HOST_STEP),
    (ENGINE_STEP.fullmatch, EventKind.ENGINE_STEP),
    (ITERATION.fullmatch, EventKind.ITERATION),
)
# MTIA has one category for all that its command processors do: they wait and copy, too.
_MTIA: tuple[_Rule, ...] = (
    (communicates, EventKind.COLLECTIVE_KERNEL),
    (_MTIA_WAIT.search, EventKind.IGNORED),
    (_MTIA_FILL.search, EventKind.FILL),
    (_MTIA_COPY.search, EventKind.COPY),
    (_ANY, EventKind.KERNEL),
)
_CALLS: tuple[_Rule, ...] = (
    (_SYNC.fullmatch, EventKind.SYNC),
    (_LAUNCH.fullmatch, EventKind.LAUNCH),
)
# Only ATen operators compute; what they enclose may still wait for a collective.
_HOST_OPS: tuple[_Rule, ...] = (
    (re.compile("aten::").match, EventKind.HOST_OP),
    # vLLM's collectives on CPUs go through shared memory.
    (re.compile("_C::shm_all").match, EventKind.HOST_COLLECTIVE),
    (_WAIT.match, EventKind.HOST_WAIT),
    *_ANNOTATIONS,
)
_RULES: Mapping[Category, tuple[_Rule, ...]] = {
    Category.MTIA_KERNEL: _MTIA,
    Category.DEVICE_ANNOTATION: ((PROFILER_STEP.fullmatch, EventKind.DEVICE_STEP),),
    Category.HOST_ANNOTATION: _ANNOTATIONS,
    **dict.fromkeys((Category.KERNEL, Category.OLD_KERNEL), _KERNELS),
    **dict.fromkeys((Category.COPY, Category.OLD_COPY), ((_ANY, EventKind.COPY),)),
    **dict.fromkeys((Category.FILL, Category.OLD_FILL), ((_ANY, EventKind.FILL),)),
    **dict.fromkeys((Category.RUNTIME, Category.DRIVER, Category.OLD_RUNTIME), _CALLS),
    **dict.fromkeys((Category.HOST_OP, Category.OLD_HOST_OP), _HOST_OPS),
    **dict.fromkeys(
        (Category.FRAME, Category.OLD_FRAME), ((_FRAME_STEP.fullmatch, EventKind.FRAME_STEP),)
    ),
}


class KindOfName(dict[str, int]):
    """Kinds of the names of one category, each looked at a single time.

    Plain numbers: making an array of enumeration members takes ten times as long.
    """

    def __init__(self, category: Category) -> None:
        super().__init__()
        self._rules = _RULES.get(category, ())

    def __missing__(self, name: str) -> int:
        kinds = (kind for passes, kind in self._rules if passes(name))
        self[name] = int(next(kinds, EventKind.IGNORED))
        return self[name]


def lane_text(identity: Number | None) -> str:
    """How a process or thread is called."""
    return "" if identity is None else str(identity)


GroupKey: TypeAlias = tuple[str, str, int | None]
"""Name, ranks as they are written, and size of a group."""

# So that the bytes of a message times the size of a group fit int64.
_LARGEST_BYTES = 1 << 38
_LARGEST_GROUP = 1 << 24
_RANKS = re.compile(r"\[\s*\d{1,9}(?:\s*,\s*\d{1,9})*\s*\]")
_TYPES_OF_SIZE = {
    1: "byte char bool uint8 int8 unsignedchar signedchar",
    2: "half bfloat16 short float16 int16 shortint c10::half c10::bfloat16",
    4: "float int float32 int32 complexhalf c10::complex<c10::half>",
    8: "double long float64 int64 longint complexfloat c10::complex<float>",
    16: "complexdouble c10::complex<double>",
}
_SIZE_OF_TYPE = {name: size for size, names in _TYPES_OF_SIZE.items() for name in names.split()}
WHOLE_IS_PUT_IN = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)
_SHAPES = msgspec.json.Decoder(list[list[int | list[int]]])


def type_bytes(dtype: str) -> int:
    """Bytes of one element of a type, by its names in torch and C++; 0 for a name unknown."""
    plain = dtype.lower().replace(" ", "")
    return 1 if "float8_" in plain else _SIZE_OF_TYPE.get(plain, 0)


def message(kernel_name: str, arguments: WorkArguments) -> tuple[CollectiveKind, int]:
    """What the collective of a kernel does, and its bytes S as nccl-tests count them; 0: unknown.

    What a rank puts in is the whole buffer of an all-reduce, reduce-scatter or all-to-all (of one
    with lists of sizes, too). Else that is the larger of both sides: what an all-gather gets, and
    what a root has, or the message of a transfer, which has one side alone.
    """
    kind = collective_kind(arguments.collective or "") or collective_kind(kernel_name)
    puts, gets = arguments.input_count, arguments.output_count
    count = puts if kind in WHOLE_IS_PUT_IN and puts > 0 else max(puts, gets)
    return kind, sane_bytes(count * type_bytes(arguments.dtype))


def operand_bytes(arguments: OperatorArguments) -> tuple[int, int]:
    """Bytes of all tensors that an operator is given, and of the largest; 0 where unknown."""
    sizes = operand_sizes(arguments.types, operand_shapes(arguments.shapes))
    return sane_bytes(sum(sizes)), sane_bytes(max(sizes, default=0))


Shape: TypeAlias = Sequence[int | list[int]]
"""Of a tensor, or the shapes of a list of tensors."""


def operand_shapes(text: msgspec.Raw) -> Sequence[Shape]:
    """The shapes of the operands; none where they cannot be read."""
    try:
        return _SHAPES.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return []


def operand_sizes(types: Sequence[str], shapes: Sequence[Shape]) -> list[int]:
    """Bytes of each operand; 0 where its type has no size that is known."""
    return [
        _element_count(shape) * type_bytes(name) for shape, name in zip(shapes, types, strict=False)
    ]


def _element_count(shape: Shape) -> int:
    """Elements of a tensor, or of all tensors of a list."""
    tensors = [part for part in shape if isinstance(part, list)]
    if tensors:
        return sum(math.prod(tensor) for tensor in tensors)
    return math.prod(part for part in shape if isinstance(part, int))


def group_of(key: GroupKey, known: Mapping[str, ProcessGroup]) -> RankGroup:
    """The group as far as event and header say; a list of ranks cut short counts as none."""
    name, ranks_text, size = key
    described = known.get(name, ProcessGroup())
    size = _group_size(size) or _group_size(described.size)
    ranks = _ranks(ranks_text, size) or _ranks(str(described.ranks), size)
    return RankGroup(name, ranks, len(ranks) if ranks else size)


def only_group(known: Mapping[str, ProcessGroup]) -> GroupKey:
    """The one set of ranks that communicates, if there is but one; else one without a name."""
    several = [group for group in known.values() if group.size != 1]
    sets = {str(group.ranks): group for group in reversed(several)}
    if len(sets) != 1:
        return "", "", None
    (group,) = sets.values()
    return group.name, "", _group_size(group.size)


def _group_size(size: int | None) -> int | None:
    return size if size is not None and 0 < size <= _LARGEST_GROUP else None


def _ranks(text: str, size: int | None) -> tuple[int, ...] | None:
    if not _RANKS.fullmatch(text):
        return None
    ranks = tuple(int(rank) for rank in text[1:-1].split(","))
    return ranks if size in (None, len(ranks)) else None


def sane_bytes(byte_count: int) -> int:
    """A count of bytes that is possible; 0 for another."""
    return byte_count if 0 <= byte_count < _LARGEST_BYTES else 0
