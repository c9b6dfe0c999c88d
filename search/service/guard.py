"""The ASGI middleware that checks every request first and sets headers on every response."""

import asyncio

from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from search.service import access
from search.service.access import SAFE_METHODS, is_page, refusal_of, require_role, token_in
from search.service.auth import Caller, Rates, Role, address_of, find_token
from search.service.service import Service

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin-allow-popups",
    "cross-origin-resource-policy": "same-origin",
    # Without a Referer, browsers would not send the Origin of our forms either.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}
HTTPS_ONLY = {"strict-transport-security": "max-age=31536000"}
OPEN = frozenset({"/api/v1/health", "/favicon.ico", "/login", "/logout"})
"""Addresses that need no token, as do style sheets and scripts."""
OPEN_BODY_BYTES = 1 << 14
"""Limit of a body sent without a token."""
BODY_S = 30.0
"""Time limit for a whole body."""
TOO_OFTEN = "too many requests; wait a second and continue more slowly"


class Guard:
    """Refuses callers and requests before the application sees them.

    Whatever a route forgets, without a token only the open addresses are reached, and with the
    role `read` nothing that changes something.
    """

    def __init__(self, app: FastAPI, service: Service) -> None:
        self.app = app
        self._service = service
        limits = service.config.limits
        self._rates = Rates(per_s=limits.requests_per_s, burst=limits.burst)
        self._headers = HEADERS | (HTTPS_ONLY if service.config.listen.https else {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer why not."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        most_bytes = self._service.config.limits.body_bytes
        if scope["path"] in OPEN:
            most_bytes = min(most_bytes, OPEN_BODY_BYTES)
        body = _Body(scope, receive, most_bytes)
        sending = _with_headers(send, self._headers, body)
        try:
            answer = self._answer(scope)
        except HTTPException as error:
            answer = _refused(scope, error)
        if answer is None:
            if scope["method"] == "HEAD":
                scope, sending = {**scope, "method": "GET"}, _head_alone(sending)
            await self.app(scope, body.receive, sending)
            return
        if answer.status_code != 413:
            await body.drop()
        await answer(scope, receive, sending)

    def _answer(self, scope: Scope) -> Response | None:
        """Return an immediate response; None where the request may pass."""
        refusal = refusal_of(scope, self._service.config)
        if refusal is not None:
            raise refusal
        headers = Headers(scope=scope)
        caller = access.token_of(headers, self._service)
        who = address_of(scope) if caller is None else f"as {caller.name}"
        if not self._rates.allow(who):
            raise HTTPException(429, TOO_OFTEN, {"retry-after": "1"})
        scope.setdefault("state", {})["caller"] = caller
        return self._by_link(scope) or self._by_role(scope, headers, caller)

    def _by_link(self, scope: Scope) -> Response | None:
        """Sign in a browser that opens a page with a token in its address."""
        if scope["method"] != "GET" or not is_page(scope["path"]):
            return None
        shown = access.token_in_link(scope)
        if shown is None:
            return None
        token = find_token(shown, self._service.tokens)
        if token is not None:
            return access.begin_session(self._service, token, access.place_without_token(scope))
        self._count_wrong_token(scope)
        return access.redirect_to_login(scope, failed=True)

    def _by_role(self, scope: Scope, headers: Headers, caller: Caller | None) -> Response | None:
        path: str = scope["path"]
        if path in OPEN or path.startswith("/static/"):
            return None
        if caller is None:
            if token_in(headers) is not None:
                self._count_wrong_token(scope)
            if is_page(path) and scope["method"] != "OPTIONS":
                return access.redirect_to_login(scope)
        require_role(caller, Role.READ if scope["method"] in SAFE_METHODS else Role.SUBMIT)
        return None

    def _count_wrong_token(self, scope: Scope) -> None:
        if not self._service.wrong_tokens.allow(address_of(scope)):
            words = "too many wrong tokens; wait a minute"
            raise HTTPException(429, words, {"retry-after": "60"})


class _Body:
    """The body of a request as it arrives, within limits of size and time."""

    def __init__(self, scope: Scope, receive: Receive, most_bytes: int) -> None:
        headers = Headers(scope=scope)
        self.is_whole = (
            headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
        )
        self._can_be_dropped = not self.is_whole and "expect" not in headers
        self._receive, self._most_bytes, self._taken = receive, most_bytes, 0
        self._until_s: float | None = None

    async def receive(self) -> Message:
        """Return the next piece; once it is whole, the next message."""
        if self.is_whole:
            return await self._receive()
        if self._until_s is None:
            self._until_s = asyncio.get_running_loop().time() + BODY_S
        try:
            async with asyncio.timeout_at(self._until_s):
                message = await self._receive()
        except TimeoutError as error:
            words = f"the body did not arrive within {BODY_S:g} s"
            raise HTTPException(408, words) from error
        self._taken += len(message.get("body", b""))
        self.is_whole = not message.get("more_body", False)
        if self._taken > self._most_bytes:
            raise HTTPException(413, f"the body is larger than {self._most_bytes} bytes")
        return message

    async def drop(self) -> None:
        """Read the rest, so that the sender reads our response."""
        try:
            while self._can_be_dropped and not self.is_whole:
                await self.receive()
        except HTTPException:
            return


def _refused(scope: Scope, refusal: HTTPException) -> Response:
    status, words, headers = refusal.status_code, refusal.detail, refusal.headers
    if is_page(scope["path"]):
        return PlainTextResponse(f"{words}\n", status, headers)
    return JSONResponse({"error": words}, status, headers)


def _with_headers(send: Send, said: dict[str, str], body: _Body) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in said.items():
                headers.setdefault(name, value)
            # The rest of a body must not be taken for the next request; after an unexpected
            # error the server closes the connection.
            if not body.is_whole or message["status"] == 500:
                headers["connection"] = "close"
        await send(message)

    return sending


def _head_alone(send: Send) -> Send:
    """Send the head of the response to a GET, and end it immediately."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body"})

    return sending
