"""What an event of a Kineto trace is, told by its category and name."""

import re
from collections.abc import Callable, Mapping
from enum import IntEnum

from evaluator.readers.kernels import communicates
from evaluator.readers.kineto.events import Category


class EventKind(IntEnum):
    """What an event is, before the whole file has told on which side the work was done.

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
_WAITS = ("c10d::", "c10d_functional", "_c10d_functional")


def _kernel(name: str) -> EventKind:
    return EventKind.COLLECTIVE_KERNEL if communicates(name) else EventKind.KERNEL


def _mtia_kernel(name: str) -> EventKind:
    """MTIA has one category for all that its command processors do: they wait and copy, too."""
    if communicates(name):
        return EventKind.COLLECTIVE_KERNEL
    if _MTIA_WAIT.search(name):
        return EventKind.IGNORED
    if _MTIA_FILL.search(name):
        return EventKind.FILL
    return EventKind.COPY if _MTIA_COPY.search(name) else EventKind.KERNEL


def _call(name: str) -> EventKind:
    if _SYNC.fullmatch(name):
        return EventKind.SYNC
    return EventKind.LAUNCH if _LAUNCH.fullmatch(name) else EventKind.IGNORED


def _device_annotation(name: str) -> EventKind:
    return EventKind.DEVICE_STEP if PROFILER_STEP.fullmatch(name) else EventKind.IGNORED


def _host_annotation(name: str) -> EventKind:
    if name.startswith("gloo:"):
        return EventKind.HOST_COLLECTIVE
    if name.startswith("nccl:"):
        return EventKind.DEVICE_COLLECTIVE_CALL
    if PROFILER_STEP.fullmatch(name):
        return EventKind.HOST_STEP
    if ENGINE_STEP.fullmatch(name):
        return EventKind.ENGINE_STEP
    return EventKind.ITERATION if ITERATION.fullmatch(name) else EventKind.IGNORED


def _host_op(name: str) -> EventKind:
    """Only ATen operators compute; what they enclose may still wait for a collective."""
    if name.startswith("aten::"):
        return EventKind.HOST_OP
    return EventKind.HOST_WAIT if name.startswith(_WAITS) else _host_annotation(name)


def _frame(name: str) -> EventKind:
    return EventKind.FRAME_STEP if _FRAME_STEP.fullmatch(name) else EventKind.IGNORED


def _copy(_name: str) -> EventKind:
    return EventKind.COPY


def _fill(_name: str) -> EventKind:
    return EventKind.FILL


def _nothing(_name: str) -> EventKind:
    return EventKind.IGNORED


_KIND_OF_NAME: Mapping[Category, Callable[[str], EventKind]] = {
    Category.KERNEL: _kernel,
    Category.OLD_KERNEL: _kernel,
    Category.MTIA_KERNEL: _mtia_kernel,
    Category.COPY: _copy,
    Category.OLD_COPY: _copy,
    Category.FILL: _fill,
    Category.OLD_FILL: _fill,
    Category.RUNTIME: _call,
    Category.DRIVER: _call,
    Category.OLD_RUNTIME: _call,
    Category.DEVICE_ANNOTATION: _device_annotation,
    Category.HOST_ANNOTATION: _host_annotation,
    Category.HOST_OP: _host_op,
    Category.OLD_HOST_OP: _host_op,
    Category.FRAME: _frame,
    Category.OLD_FRAME: _frame,
}


class KindOfName(dict[str, int]):
    """Kinds of the names of one category, each looked at once.

    Plain numbers: making an array of enumeration members takes ten times as long.
    """

    def __init__(self, category: Category) -> None:
        super().__init__()
        self._kind_of = _KIND_OF_NAME.get(category, _nothing)

    def __missing__(self, name: str) -> int:
        self[name] = int(self._kind_of(name))
        return self[name]
