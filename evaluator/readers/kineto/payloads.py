"""How large a collective is and who takes part, from the arguments of Kineto events."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from evaluator.readers.kernels import collective_kind
from evaluator.readers.kineto.events import OperatorArguments, ProcessGroup, WorkArguments
from evaluator.traces.collectives import CollectiveKind, Group

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
    """What the collective of a kernel does, and its bytes S as nccl-tests count them; 0: not told.

    What a rank puts in is the whole buffer of an all-reduce, reduce-scatter or all-to-all (of one
    with lists of sizes, too). Else that is the larger of both sides: what an all-gather gets, and
    what a root has, or the message of a transfer, which has one side alone.
    """
    kind = collective_kind(arguments.collective or "") or collective_kind(kernel_name)
    puts, gets = arguments.input_count, arguments.output_count
    count = puts if kind in WHOLE_IS_PUT_IN and puts > 0 else max(puts, gets)
    return kind, _sane(count * type_bytes(arguments.dtype))


def operand_bytes(arguments: OperatorArguments) -> tuple[int, int]:
    """Bytes of all tensors that an operator is given, and of the largest; 0 where not told."""
    try:
        shapes = _SHAPES.decode(arguments.shapes)
    except (msgspec.DecodeError, RecursionError):
        return 0, 0
    sizes = [
        _element_count(shape) * type_bytes(name)
        for shape, name in zip(shapes, arguments.types, strict=False)
    ]
    return _sane(sum(sizes)), _sane(max(sizes, default=0))


def _element_count(shape: Sequence[int | list[int]]) -> int:
    """Elements of a tensor, or of all tensors of a list."""
    tensors = [part for part in shape if isinstance(part, list)]
    if tensors:
        return sum(math.prod(tensor) for tensor in tensors)
    return math.prod(part for part in shape if isinstance(part, int))


def group_of(key: GroupKey, known: Mapping[str, ProcessGroup]) -> Group:
    """The group as far as event and header tell; a list of ranks cut short counts as none."""
    name, ranks_text, size = key
    told = known.get(name, ProcessGroup())
    size = _group_size(size) or _group_size(told.size)
    ranks = _ranks(ranks_text, size) or _ranks(str(told.ranks), size)
    return Group(name, ranks, len(ranks) if ranks else size)


def only_group(known: Mapping[str, ProcessGroup]) -> GroupKey:
    """The one set of ranks that communicates, if there is but one; else one without a name."""
    several = [group for group in known.values() if group.size != 1]
    sets = {str(group.ranks): group for group in reversed(several)}
    if len(sets) != 1:
        return "", "", None
    (group,) = sets.values()
    return group.name, "", _group_size(group.size)


def _group_size(told: int | None) -> int | None:
    return told if told is not None and 0 < told <= _LARGEST_GROUP else None


def _ranks(text: str, size: int | None) -> tuple[int, ...] | None:
    if not _RANKS.fullmatch(text):
        return None
    ranks = tuple(int(rank) for rank in text[1:-1].split(","))
    return ranks if size in (None, len(ranks)) else None


def _sane(byte_count: int) -> int:
    return byte_count if 0 <= byte_count < _LARGEST_BYTES else 0
