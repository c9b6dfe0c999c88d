"""What the lines of an XLA trace are: of which device, and whether operations, steps or modules."""

import re
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from evaluator.readers.xla.events import Events

_DEVICE = re.compile(r"(?P<host>.*)/device:(?P<kind>[A-Za-z_]+):(?P<number>\d{1,9})")
_HOST_DEVICE = "CPU"
_MOST_DEVICES = 4096


class Role(IntEnum):
    """What the events of a line tell."""

    NOTHING = 0
    OPERATIONS = 1
    ASYNC_OPERATIONS = 2
    """Whole spans of what is started and ended on another line."""
    KERNELS = 3
    STEPS = 4
    MODULES = 5
    HOST = 6


@dataclass(frozen=True, slots=True, order=True)
class Chip:
    """A device: its host, where a file holds several hosts, and its kind and number there."""

    host: str
    kind: str
    number: int

    @property
    def is_host(self) -> bool:
        """Whether it is a part of the host that plays a device."""
        return self.kind == _HOST_DEVICE


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """For each event, shape (events,), its role and its device, an index of `chips`; -1: none."""

    role: NDArray[np.int64]
    chip: NDArray[np.int64]
    chips: tuple[Chip, ...]

    def only(self, kept: NDArray[np.bool_]) -> Self:
        """Without the other devices; `kept` has shape (chips,)."""
        renumbered = np.append(np.where(kept, np.cumsum(kept) - 1, -1), -1)
        chips = tuple(chip for chip, stays in zip(self.chips, kept, strict=True) if stays)
        return type(self)(self.role, renumbered[self.chip], chips)

    def rows(self) -> list[NDArray[np.int64]]:
        """The events of each device, in the order they stand."""
        order = np.argsort(self.chip, kind="stable")
        bounds = np.searchsorted(self.chip[order], np.arange(len(self.chips) + 1))
        return [order[first:behind] for first, behind in pairwise(bounds.tolist())]


def lines_of(events: Events) -> Lines:
    """What each event is part of.

    Devices are processes called `/device:TPU:0`. Where no device did anything, operations of the
    host are those of the devices that it plays, by their ordinal: only events that name an `hlo_op`
    are, for a Python frame may be called `all_gather` too.
    """
    found = [_line(*names) for names in events.lines]
    role = np.array([role for role, _ in found], np.int64)[events.line]
    chips = sorted({chip for _, chip in found if chip})[:_MOST_DEVICES]
    numbers = {chip: number for number, chip in enumerate(chips)}
    chip = np.array([numbers.get(chip, -1) if chip else -1 for _, chip in found], np.int64)
    chip = chip[events.line]
    working = np.unique(chip[np.isin(role, (Role.OPERATIONS, Role.KERNELS)) & (chip >= 0)])
    if working.size:
        return Lines(role, chip, tuple(chips)).only(np.isin(np.arange(len(chips)), working))
    played = events.is_op & (events.ordinal >= 0) & (role == Role.HOST)
    ordinals, place = np.unique(events.ordinal[played], return_inverse=True)
    chip = np.full(events.count, -1, np.int64)
    chip[played] = np.where(place < _MOST_DEVICES, place, -1)
    return Lines(
        np.where(played, Role.OPERATIONS, role),
        chip,
        tuple(Chip("", _HOST_DEVICE, number) for number in ordinals[:_MOST_DEVICES].tolist()),
    )


def _line(process: str, thread: str) -> tuple[Role, Chip | None]:
    match = _DEVICE.match(process)
    if not match:
        return Role.HOST, None
    chip = Chip(match["host"], match["kind"], int(match["number"]))
    if thread.startswith("XLA Modules"):
        return Role.MODULES, chip
    if thread == "Steps" or thread.startswith("Steps -"):
        return Role.STEPS, chip
    if chip.kind == "GPU":
        # Every other line of a GPU is derived from these.
        return (Role.KERNELS if thread.startswith("Stream #") else Role.NOTHING), chip
    roles = {"XLA Ops": Role.OPERATIONS, "Async XLA Ops": Role.ASYNC_OPERATIONS}
    return roles.get(thread, Role.NOTHING), chip
