"""Which studies may start: the oldest first, and never more on the same devices than they bear."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from search.service.runs.table import Submitted


@dataclass(frozen=True, slots=True)
class Place:
    """Devices, and how many studies may measure on them at once."""

    devices: str
    at_once: int


def next_up(
    queued: Sequence[Submitted],
    running: Sequence[Submitted],
    place_of: Callable[[Submitted], Place],
) -> tuple[Submitted, ...]:
    """Those of the queue, oldest first, that may start beside what runs.

    Where environments share devices, the strictest of those that run together holds. One that has
    to wait holds back those behind it on its devices, or it would wait for ever.
    """
    there: dict[str, list[int]] = {}
    for submitted in running:
        place = place_of(submitted)
        there.setdefault(place.devices, []).append(place.at_once)
    found, full = list[Submitted](), set[str]()
    for submitted in queued:
        place = place_of(submitted)
        beside = there.setdefault(place.devices, [])
        if place.devices in full or len(beside) >= min([place.at_once, *beside]):
            full.add(place.devices)
            continue
        beside.append(place.at_once)
        found.append(submitted)
    return tuple(found)
