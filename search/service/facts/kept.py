"""What is kept of things made that cost something, until what they depend on has changed."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import Lock
from typing import Generic, TypeVar

from records.rows import StudyRow
from records.store import Store
from search.service.facts.front import StudyFront, study_front
from search.service.facts.history import StudyHistory, study_history
from search.service.facts.knobs import StudyKnobs, study_knobs

T = TypeVar("T")

MOST_DRAWN = 16


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


class Explored:
    """What charts need of studies, made once for each state of their records."""

    def __init__(self) -> None:
        self._histories = Kept[StudyHistory](MOST_DRAWN)
        self._fronts = Kept[StudyFront](MOST_DRAWN)
        self._knobs = Kept[StudyKnobs](MOST_DRAWN)

    def history(self, row: StudyRow, records: Store) -> StudyHistory:
        """See `study_history`."""
        stamp = records.stamp(row.id)
        return self._histories.get(row.id, stamp, lambda: study_history(row, records))

    def front(self, row: StudyRow, records: Store, against: str | None = None) -> StudyFront:
        """See `study_front`."""
        stamp, key = records.stamp(row.id), (row.id, against)
        return self._fronts.get(key, stamp, lambda: study_front(row, records, against))

    def knobs(self, row: StudyRow, records: Store) -> StudyKnobs:
        """See `study_knobs`."""
        return self._knobs.get(row.id, records.stamp(row.id), lambda: study_knobs(row, records))
