"""A cache of values that are computed again once their version changes."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class VersionedCache(Generic[T]):
    """The most recently used values by key; each is computed by one thread while others wait."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._entries: OrderedDict[Hashable, _Entry[T]] = OrderedDict()

    def get(self, key: Hashable, version: Hashable, compute: Callable[[], T]) -> T:
        """Return the value of this version, computed now unless it is cached."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)
        with entry.lock:
            if entry.cached is None or entry.cached[0] != version:
                entry.cached = version, compute()
            return entry.cached[1]


@dataclass(slots=True)
class _Entry(Generic[T]):
    lock: Lock = field(default_factory=Lock)
    cached: tuple[Hashable, T] | None = None
