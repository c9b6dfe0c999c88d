"""What an HLO instruction does, how large its result is and who takes part, told by its text."""

import re
from dataclasses import dataclass
from math import prod

import numpy as np

from evaluator.readers.kernels import collective_kind
from evaluator.traces.collectives import CollectiveKind
from evaluator.traces.spans import Activity

# XLA's own names with `-`, and the primitives after which newer JAX names operations, with `_`.
_COLLECTIVE = re.compile(
    r"all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?to[-_]?all|collective|nccl|rccl"
    r"|psum|ppermute|p(?:max|min)\b|(?:^|[^a-z])(?:send|recv)\b"
)
_PRIMITIVES = (
    ("all-reduce-scatter", CollectiveKind.REDUCE_SCATTER),
    ("psum_scatter", CollectiveKind.REDUCE_SCATTER),
    ("psum", CollectiveKind.ALL_REDUCE),
    ("pmax", CollectiveKind.ALL_REDUCE),
    ("pmin", CollectiveKind.ALL_REDUCE),
    ("permute", CollectiveKind.SEND_RECV),
)
# What only contains other operations, each with a span of its own.
_CONTAINER = re.compile(r"(?:while|conditional|call)(?:[.\d]*)")
_COPY = re.compile(r"(?:copy|slice|dynamic-slice|dynamic-update-slice)-(?:start|done)")
_HOST_COPIES = {"infeed", "outfeed", "host send", "host recv"}
_ENDS = re.compile(r"(?P<what>.+?)-(?P<end>start|done)(?P<number>[.\d]*)")
_ITS_START = re.compile(r"-done\([^%]*%(?P<start>[\w.-]+)")
_SHAPE = re.compile(r"\b(?P<type>\w+)\[(?P<sides>[\d,]*)\]")
_BITS = re.compile(r"[a-z]+(?P<bits>\d{1,4})")
_EXPLICIT = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{} ]*\})\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LARGEST_BYTES = 1 << 50
_MOST_RANKS = 1 << 16


@dataclass(frozen=True, slots=True)
class Half:
    """Start or done of an asynchronous operation, and the name of the start that it belongs to."""

    start: str
    is_start: bool


def activity_of(name: str, category: str, text: str) -> Activity | None:
    """What an operation does; None where it only contains others.

    `category` is `hlo_category`, empty where there is none; then the name decides.
    """
    what = category or name.lower()
    if _CONTAINER.fullmatch(what):
        return None
    if what in _HOST_COPIES or "is_host_transfer=true" in text:
        return Activity.COPY
    if category in {"async-start", "async-done"}:
        # It wraps anything: the name of the instruction says what, or the computation's.
        wrapped = f"{name} {text.rpartition('calls=')[2]}" if "calls=" in text else name
        return Activity.COMMUNICATION if _COLLECTIVE.search(wrapped) else Activity.COPY
    if _COLLECTIVE.search(what):
        return Activity.COMMUNICATION
    return Activity.COPY if _COPY.match(what) else Activity.COMPUTE


def kind_of(name: str, category: str) -> CollectiveKind:
    """What a communicating operation does."""
    for what in (category, name.lower()):
        for primitive, kind in _PRIMITIVES:
            if primitive in what:
                return kind
        if what and (kind := collective_kind(what)) != CollectiveKind.OTHER:
            return kind
    return CollectiveKind.OTHER


def half_of(name: str, text: str) -> Half | None:
    """Which half of an asynchronous operation this is, if it is one."""
    match = _ENDS.fullmatch(name)
    if not match:
        return None
    if match["end"] == "start":
        return Half(name, True)
    told = _ITS_START.match(text, max(text.find("-done("), 0))  # found once: texts may be large
    return Half(told["start"] if told else f"{match['what']}-start{match['number']}", False)


def result_bytes(text: str) -> int:
    """Size of what an instruction gives, `%name = type operation(...)`; 0 where it is not told."""
    result = _result_type(text.partition(" = ")[2])
    total_bits = 0
    for shape in _SHAPE.finditer(result):
        sides = [int(side[:19]) for side in shape["sides"].split(",") if side]
        total_bits += prod(sides[:16]) * _bits(shape["type"])
    return min((total_bits + 7) // 8, _LARGEST_BYTES)


def buffer_bytes(kind: CollectiveKind, text: str, rank_count: int | None) -> int:
    """S of a collective from its result: that is the part of one rank of a reduce-scatter."""
    size = result_bytes(text)
    if kind == CollectiveKind.REDUCE_SCATTER:
        size *= rank_count or 0
    return min(size, _LARGEST_BYTES)


def taking_part(text: str, device: int) -> tuple[int, ...] | None:
    """The devices, in order, that an instruction makes communicate, this one among them.

    None where the text does not say, as where all devices of the job take part.
    """
    told = _EXPLICIT.search(text)
    if told:
        groups = [
            [int(number[:9]) for number in re.findall(r"\d+", group)]
            for group in told[1].split("}")
        ]
        if "source_target_pairs" in told[0]:
            groups = [[device for pair in groups for device in pair]]
    else:
        groups = _iota_groups(text, device)
    return next((tuple(sorted(set(group))) for group in groups if device in group), None)


def _iota_groups(text: str, device: int) -> list[list[int]]:
    """A device's group. `[2,4]<=[4,2]T(1,0)`: 0 to 7 as 4 x 2, transposed, as 2 groups of 4."""
    told = _IOTA.search(text)
    if not told:
        return []
    shape, sides, order = (
        [int(number[:9]) for number in (numbers or "").split(",") if number]
        for numbers in told.groups()
    )
    if not 0 < prod(sides) <= _MOST_RANKS or prod(shape) != prod(sides) or len(shape) != 2:
        return []
    if order and sorted(order) != list(range(len(sides))):
        return []
    devices = np.arange(prod(sides)).reshape(sides).transpose(order or None).reshape(shape)
    groups: list[list[int]] = devices[np.any(devices == device, axis=1)].tolist()
    return groups


def _result_type(text: str) -> str:
    """The type at the beginning, `f32[2,3]{1,0}` or `(f32[2], (u32[], s32[4]))`."""
    if not text.startswith("("):
        return text.partition(" ")[0]
    depth = 0
    for bracket in re.finditer(r"[()]", text):
        depth += 1 if bracket[0] == "(" else -1
        if not depth:
            return text[: bracket.end()]
    return text


def _bits(type_name: str) -> int:
    """Bits of one element: the number in the name; a truth value takes a byte, a token nothing."""
    if type_name == "pred":
        return 8
    number = _BITS.match(type_name)
    return min(int(number["bits"]), 128) if number else 0
