"""How much of what lasts one caller may have at once: streams of events, downloads, exports."""

from collections import Counter
from collections.abc import AsyncIterable, Iterable, Mapping
from threading import Lock

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class Slots:
    """So many places for each caller, and so many for all; safe in several threads."""

    def __init__(self, each: int, most: int | None = None) -> None:
        self._each, self._most = each, most
        self._taken = Counter[str]()
        self._lock = Lock()

    def take(self, who: str) -> bool:
        """Take a place; whether there was one."""
        with self._lock:
            is_free = self._taken[who] < self._each
            if is_free and (self._most is None or self._taken.total() < self._most):
                self._taken[who] += 1
                return True
            return False

    def give_back(self, who: str) -> None:
        """Leave a place that was taken."""
        with self._lock:
            self._taken[who] -= 1
            if not self._taken[who]:
                del self._taken[who]

    def total(self) -> int:
        """How many places are taken."""
        with self._lock:
            return self._taken.total()


class HeldResponse(StreamingResponse):
    """An answer in pieces that has taken a place, and gives it back however it ends."""

    def __init__(
        self,
        content: AsyncIterable[str] | Iterable[bytes],
        slots: Slots,
        who: str,
        *,
        media_type: str,
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(content, status_code, headers, media_type)
        self._slots, self._who = slots, who

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._slots.give_back(self._who)
