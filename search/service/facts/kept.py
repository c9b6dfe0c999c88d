"""What is kept of things made that cost something, until what they depend on has changed."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """The latest values by key, each made by one thread while the others wait for it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._slots: OrderedDict[Hashable, _Slot[T]] = OrderedDict()

    def get(self, key: Hashable, version: Hashable, make: Callable[[], T]) -> T:
        """The value of this version, made now unless it is there."""
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
            while len(self._slots) > self._most:
                self._slots.popitem(last=False)
        with slot.lock:
            if slot.made is None or slot.made[0] != version:
                slot.made = version, make()
            return slot.made[1]


@dataclass(slots=True)
class _Slot(Generic[T]):
    lock: Lock = field(default_factory=Lock)
    made: tuple[Hashable, T] | None = None
