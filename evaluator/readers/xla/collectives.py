"""The collectives of one device of an XLA trace."""

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from evaluator.readers.xla.events import MEETING, Events
from evaluator.readers.xla.hlo import buffer_bytes, kind_of, taking_part
from evaluator.readers.xla.lines import Role
from evaluator.readers.xla.operations import Operations
from evaluator.traces.collectives import CollectiveKind, Collectives, Group

_THOSE_WHO_MEET = re.compile(r"global_devices=\[([\d, ]{1,100000})\]")


class Meetings:
    """Who met inside the operations of a host that plays devices: it tells that apart from them."""

    def __init__(self, events: Events, role: NDArray[np.int64]) -> None:
        named = np.array([name == MEETING for name in events.names], bool)
        rows = np.flatnonzero(named[events.name] & (role == Role.HOST))
        rows = rows[np.lexsort((events.start_ns[rows], events.line[rows]))]
        self._line, self._start_ns = events.line[rows], events.start_ns[rows]
        self._details = events.details[rows]
        self._texts = events.all_details
        self._known: dict[int, tuple[int, ...] | None] = {}

    def inside(self, line: int, start_ns: int, end_ns: int) -> tuple[int, ...] | None:
        """The devices that met on this line during this time; None where nothing says."""
        first, behind = np.searchsorted(self._line, (line, line + 1))
        row = first + np.searchsorted(self._start_ns[first:behind], start_ns)
        if row >= behind or self._start_ns[row] >= end_ns:
            return None
        details = int(self._details[row])
        if details not in self._known:
            self._known[details] = _met(self._texts[details][1])
        return self._known[details]


def collectives_of(
    events: Events,
    operations: Operations,
    spans: NDArray[np.int64],
    meetings: Meetings,
    ranks: Mapping[int, int],
    device: int,
) -> Collectives:
    """What the communicating operations do; `spans` are their rows among all spans, rising.

    Kind, size of the result and who takes part stand in the text of an instruction. `ranks` are
    those of the devices of the same host by their numbers, `device` the number of this one.
    """
    groups: dict[Group, int] = {}
    known: dict[tuple[int, int, int], tuple[CollectiveKind, Group, int]] = {}
    told: list[tuple[int, int, int]] = []
    for event, done, start_ns, end_ns in zip(
        operations.event.tolist(),
        operations.done.tolist(),
        operations.start_ns.tolist(),
        operations.end_ns.tolist(),
        strict=True,
    ):
        key = (int(events.name[event]), int(events.details[event]), int(events.details[done]))
        if key not in known:
            known[key] = _told(events, key, ranks, device)
        kind, group, size = known[key]
        if events.is_op[event]:
            met = meetings.inside(int(events.line[event]), start_ns, end_ns)
            group = _group(met, ranks) if met else group
        told.append((kind, groups.setdefault(group, len(groups)), size))
    kinds, group_ids, sizes = np.array(told, np.int64).reshape(-1, 3).T
    return Collectives(
        span=spans,
        kind=kinds.astype(np.int8),
        group_id=group_ids.astype(np.int32),
        bytes=sizes,
        sequence=np.full(len(told), -1, np.int64),
        groups=tuple(groups),
    )


def _told(
    events: Events, key: tuple[int, int, int], ranks: Mapping[int, int], device: int
) -> tuple[CollectiveKind, Group, int]:
    name, (category, text), (_, result) = (
        events.names[key[0]],
        events.all_details[key[1]],
        events.all_details[key[2]],
    )
    kind = kind_of(name, category)
    devices = taking_part(text, device)
    group = _group(devices, ranks) if devices else Group("")
    return kind, group, buffer_bytes(kind, result, group.size)


def _group(devices: tuple[int, ...], ranks: Mapping[int, int]) -> Group:
    """Devices as ranks; by their own numbers, as a name, where the file lacks some of them."""
    if all(device in ranks for device in devices):
        return Group("", tuple(sorted(ranks[device] for device in devices)), len(devices))
    return Group(",".join(map(str, devices)), None, len(devices))


def _met(text: str) -> tuple[int, ...] | None:
    told = _THOSE_WHO_MEET.search(text)
    numbers = re.findall(r"\d+", told[1]) if told else []
    return tuple(sorted({int(number[:9]) for number in numbers})) or None
