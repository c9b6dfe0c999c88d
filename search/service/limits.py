"""Limits of each caller: requests per second, and open streams, downloads and exports."""

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from ipaddress import IPv6Address, ip_address, ip_network
from threading import Lock
from typing import Self

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from records.errors import StudyError

MOST_CALLERS = 10_000


class Rates:
    """A token bucket for each of the most recent callers, refilled evenly."""

    def __init__(
        self, *, per_s: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By caller, what is left and when it was that much; the most recent last."""

    def allow(self, who: str) -> bool:
        """Count a request of this caller; return whether it is allowed."""
        now_s = self._clock()
        before, at_s = self._buckets.pop(who, (self._burst, now_s))
        left = min(self._burst, before + (now_s - at_s) * self._per_s)
        allowed = left >= 1
        self._buckets[who] = left - 1 if allowed else left, now_s
        while len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        return allowed


def address_of(scope: Scope) -> str:
    """Return where a request comes from; IPv6 addresses are grouped by their /64 network."""
    client = scope.get("client")
    try:
        address = ip_address(client[0] if client else "")
    except ValueError:
        return "unknown"
    if isinstance(address, IPv6Address):
        inside = address.ipv4_mapped
        return str(inside or ip_network((int(address), 64), strict=False))
    return str(address)


class TooManyError(StudyError):
    """A limit of the service is reached."""


class Slots:
    """A limited number of slots for each caller, and for all; safe in several threads."""

    def __init__(self, refusal: str, each: int, most: float = math.inf) -> None:
        self._refusal, self._each, self._most = refusal, each, most
        self._taken = Counter[str]()
        self._lock = Lock()

    def take(self, who: str) -> None:
        """Take a slot; raise `TooManyError` where none is free."""
        with self._lock:
            if self._taken[who] >= self._each or self._taken.total() >= self._most:
                raise TooManyError(self._refusal)
            self._taken[who] += 1

    def release(self, who: str) -> None:
        """Release a slot."""
        with self._lock:
            self._taken[who] -= 1
            if not self._taken[who]:
                del self._taken[who]

    def total(self) -> int:
        """Return how many slots are taken."""
        with self._lock:
            return self._taken.total()


class HeldResponse(StreamingResponse):
    """A streamed response that holds a slot until it ends."""

    def holding(self, slots: Slots, who: str) -> Self:
        """Return this response, which releases the slot of a caller."""
        self._release = partial(slots.release, who)
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it and release the slot."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()
