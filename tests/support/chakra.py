"""Reads Chakra traces as its schema has them, and runs them as a simulator without a network would.

Written from `et_def.proto` alone; a node starts when what it waits for has ended.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import xla

VARINT, SIZES = 0, {1: 8, 5: 4}
"""Types of fields; those without a size state their length."""
ATTRIBUTE = 10
METADATA, COMPUTE, SEND, RECEIVE, COLLECTIVE = 1, 4, 5, 6, 7


@dataclass
class Node:
    number: int = 0
    name: str = ""
    type: int = 0
    deps: list[int] = field(default_factory=list)
    duration_us: int = 0
    inputs: str = ""
    attributes: dict[str, object] = field(default_factory=dict)


def read_chakra(path: Path) -> tuple[str, list[Node]]:
    """The schema version of a file, and its nodes in their order."""
    metadata, *messages = _messages(path.read_bytes())
    return dict(_fields(metadata)).get(1, b"").decode(), [_node(message) for message in messages]


def without_times(content: bytes) -> bytes:
    """The same file as others write it, whose nodes do not say when they ran."""
    metadata, *messages = _messages(content)
    kept = [metadata]
    for message in messages:
        fields = [
            (number, value)
            for number, value in _fields(message)
            if not (number == ATTRIBUTE and dict(_fields(value))[1] in {b"start_ns", b"end_ns"})
        ]
        kept.append(
            b"".join(
                xla.number(field, value) if isinstance(value, int) else xla.text(field, value)
                for field, value in fields
            )
        )
    return b"".join(xla.text(1, message)[1:] for message in kept)


def run_us(ranks: dict[int, list[Node]]) -> int:
    """When all ranks have ended; a collective of several ranks starts when the last one is ready.

    Raises KeyError for a node that waits for one which is not there.
    """
    joined: dict[tuple[str, int], list[tuple[int, int]]] = {}
    of_node: dict[tuple[int, int], tuple[str, int]] = {}
    for rank, nodes in ranks.items():
        counts: dict[str, int] = {}
        for node in nodes:
            if node.type == COLLECTIVE:
                group = str(node.attributes["pg_name"])
                call = (group, counts.get(group, 0))
                counts[group] = call[1] + 1
                joined.setdefault(call, []).append((rank, node.number))
                of_node[rank, node.number] = call
    by_number = {rank: {node.number: node for node in nodes} for rank, nodes in ranks.items()}
    ended: dict[tuple[int, int], int] = {}

    def sources(place: tuple[int, int]) -> list[tuple[int, int]]:
        members = joined[of_node[place]] if place in of_node else [place]
        return [(rank, dep) for rank, number in members for dep in by_number[rank][number].deps]

    open_places = [(rank, node.number) for rank, nodes in ranks.items() for node in nodes]
    while open_places:
        place = open_places.pop()
        if place in ended:
            continue
        waiting = [source for source in sources(place) if source not in ended]
        if waiting:
            open_places += [place, *waiting]
            continue
        start_us = max((ended[source] for source in sources(place)), default=0)
        ended[place] = start_us + by_number[place[0]][place[1]].duration_us
    return max(ended.values())


def _node(message: bytes) -> Node:
    node = Node()
    for number, value in _fields(message):
        match number:
            case 1:
                node.number = value
            case 2:
                node.name = value.decode()
            case 3:
                node.type = value
            case 4 | 5:
                node.deps += _varints(value) if isinstance(value, bytes) else [value]
            case 7:
                node.duration_us = value
            case 8:
                node.inputs = dict(_fields(value)).get(1, b"").decode()
            case 10:
                (_, name), *found = _fields(value)
                node.attributes[name.decode()] = _value(*found[-1]) if found else None
    return node


def _value(number: int, value: Any) -> object:
    match number:
        case 27:
            return bool(value)
        case 28:
            return [bool(each) for each in dict(_fields(value))[1]]
        case 29:
            return value.decode()
        case _:
            return value


def _messages(content: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(content):
        size, at = _varint(content, at)
        found.append(content[at : at + size])
        at += size
    return found


def _fields(message: bytes) -> list[tuple[int, Any]]:
    """The number of each field, and its value: an int or bytes."""
    at, found = 0, []
    while at < len(message):
        key, at = _varint(message, at)
        value: Any
        if key & 7 == VARINT:
            value, at = _varint(message, at)
        else:
            size = SIZES.get(key & 7)
            if size is None:
                size, at = _varint(message, at)
            value, at = message[at : at + size], at + size
        found.append((key >> 3, value))
    return found


def _varints(content: bytes) -> list[int]:
    found, at = [], 0
    while at < len(content):
        value, at = _varint(content, at)
        found.append(value)
    return found


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if byte < 0x80:
            return value, at
