"""Events and header fields of Kineto JSON as they lie on disk, in every era of the format."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import msgspec
import numpy as np

from evaluator.readers.chrome.text import mended
from evaluator.traces.errors import TraceError

T = TypeVar("T")

Number: TypeAlias = int | float | str
"""Some profilers write numbers as strings."""
Whole: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""What fits int64."""

_LARGEST_BASE_NS = 1 << 62


class Phase(StrEnum):
    """Sorts of Chrome events. Decoding makes members of what is listed, at no cost."""

    COMPLETE = "X"
    METADATA = "M"
    INSTANT = "i"
    FLOW_START = "s"
    FLOW_STEP = "t"
    FLOW_END = "f"
    OTHER = ""

    @classmethod
    def _missing_(cls, _value: object) -> "Phase":
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


class Event(msgspec.Struct, gc=False):
    """One trace event; `ts` and `dur` in microseconds, None where the event has none.

    Arguments are decoded only for the events that need them, with one of the types below.
    """

    ph: Phase = Phase.OTHER
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
    text = mended(bytes(args))
    try:
        told = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        told = {}
    wanted = {field.encode_name: field.type for field in msgspec.structs.fields(shape)}
    sound = {
        name: value
        for name, value in told.items()
        if name in wanted and _fits(value, wanted[name], is_float=name in _FLOATS)
    }
    dropped = any(name in wanted and name not in sound for name in told)
    unchanged = text == bytes(args) and told and not dropped
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


class Header(msgspec.Struct, kw_only=True):
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


def header_of(path: Path, fields: Mapping[str, msgspec.Raw]) -> Header:
    """The header as far as it has been read. Raises TraceError when it is of another shape."""

    def field(name: str, shape: type[T], default: T) -> T:
        if name not in fields or bytes(fields[name]) == b"null":
            return default
        try:
            return msgspec.json.decode(fields[name], type=shape)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TraceError(path, f"is no Kineto trace: its {name}: {error}") from error

    base_ns = field("baseTimeNanoseconds", int, 0)
    if not 0 <= base_ns < _LARGEST_BASE_NS:
        raise TraceError(path, f"has an absurd base time: {base_ns}")
    return Header(
        base_ns=base_ns,
        distributed=field("distributedInfo", DistributedInfo, DistributedInfo()),
        devices=field("deviceProperties", list[DeviceProperties], []),
        is_rocm=bool(fields.keys() & {"roctracer_version", "hip_runtime_version"}),
    )
