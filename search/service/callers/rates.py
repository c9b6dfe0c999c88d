"""How often each caller may ask; remembers only the latest, so that it never grows."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network

from starlette.types import Scope

MOST_CALLERS = 10_000


class Rates:
    """A bucket of requests for each caller, refilled evenly; who was not seen lately is dropped."""

    def __init__(
        self, *, per_s: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def allow(self, who: str) -> bool:
        """Whether one more request of this caller is allowed now."""
        now_s = self._clock()
        bucket = self._buckets.pop(who, None) or _Bucket(float(self._burst), now_s)
        left = min(self._burst, bucket.left + (now_s - bucket.at_s) * self._per_s)
        allowed = left >= 1
        self._buckets[who] = _Bucket(left - 1 if allowed else left, now_s)
        while len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        return allowed


@dataclass(frozen=True, slots=True)
class _Bucket:
    left: float
    at_s: float


def address_of(scope: Scope) -> str:
    """Where a request comes from; whoever has an IPv6 address has a whole network of them."""
    client = scope.get("client")
    try:
        address = ip_address(client[0] if client else "")
    except ValueError:
        return "unknown"
    if isinstance(address, IPv6Address):
        inside = address.ipv4_mapped
        return str(inside or ip_network((int(address), 64), strict=False))
    return str(address)
