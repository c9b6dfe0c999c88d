"""What every request must pass before anything is done for it, and what every answer says."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from search.service.config import ServiceConfig

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin-allow-popups",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}
MOST_CALLERS = 10_000


class Guard:
    """Refuses a foreign Host or Origin, bodies that are too large, and too many requests."""

    def __init__(
        self, app: ASGIApp, config: ServiceConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._hosts = config.listen.known_hosts
        self._body_bytes = config.limits.body_bytes
        self._rates = Rates(config.limits.requests_per_s, config.limits.burst, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sending = _with_headers(send)
        refusal = self._refusal(scope)
        if refusal is not None:
            status, words = refusal
            headers = {"retry-after": "1"} if status == 429 else None
            answer = JSONResponse({"error": words}, status_code=status, headers=headers)
            await answer(scope, receive, sending)
            return
        await self._app(scope, _bounded(receive, self._body_bytes), sending)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or _name(hosts[0]) not in self._hosts:
            return 421, (
                "this service is not called by that name; open it by its address, or name the "
                "host under [listen] hosts"
            )
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != hosts[0].lower():
            return 403, "another site asked for this; open the service itself"
        if headers.get("sec-fetch-site") == "cross-site" and scope["method"] not in SAFE_METHODS:
            return 403, "another site asked for this; open the service itself"
        length = headers.get("content-length")
        if length is not None and not (length.isdecimal() and int(length) <= self._body_bytes):
            return 413, f"the body is larger than {self._body_bytes} bytes"
        if not self._rates.allow(_who(scope, headers)):
            return 429, "too many requests; wait a second and go on more slowly"
        return None


class Rates:
    """A bucket of requests for each caller, refilled evenly; who was not seen lately is dropped."""

    def __init__(self, per_s: float, burst: int, clock: Callable[[], float]) -> None:
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


class BodyTooLargeError(Exception):
    """A body without a length went on beyond the limit."""


def _name(host: str) -> str:
    """The name in a Host header, without the port."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdecimal() and not name.endswith(":") else host.lower()


def _who(scope: Scope, headers: Headers) -> str:
    client = scope.get("client")
    credentials = headers.get("authorization") or headers.get("cookie") or ""
    return f"{client[0] if client else ''} {credentials}"


def _bounded(receive: Receive, most_bytes: int) -> Receive:
    taken = 0

    async def taking() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > most_bytes:
            raise BodyTooLargeError
        return message

    return taking


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
