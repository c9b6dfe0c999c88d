"""The ASGI middleware that checks every request first and sets headers on every response."""

import asyncio

from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from search.service import access
from search.service.access import SAFE_METHODS, Refusal, is_page, refusal_of, token_in
from search.service.auth import Caller, Role, find_token
from search.service.limits import Rates, address_of
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


class BodyTooLargeError(HTTPException):
    """A body without a length exceeded the limit."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(413, f"the body is larger than {most_bytes} bytes")


class BodyTooSlowError(HTTPException):
    """A body did not arrive in time."""

    def __init__(self) -> None:
        super().__init__(408, f"the body did not arrive within {BODY_S:g} s")


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
            answer = _refused(scope, Refusal(error.status_code, str(error.detail)))
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
            return _refused(scope, refusal)
        headers = Headers(scope=scope)
        token = access.token_of(headers, self._service)
        caller = None if token is None else token.caller
        who = address_of(scope) if caller is None else f"as {caller.name}"
        if not self._rates.allow(who):
            return _refused(scope, Refusal(429, TOO_OFTEN, 1))
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
        return self._too_many_wrong(scope) or access.redirect_to_login(scope, failed=True)

    def _by_role(self, scope: Scope, headers: Headers, caller: Caller | None) -> Response | None:
        path: str = scope["path"]
        if path in OPEN or path.startswith("/static/"):
            return None
        if caller is None:
            wrong = self._too_many_wrong(scope) if token_in(headers) is not None else None
            if wrong is not None or not is_page(path) or scope["method"] == "OPTIONS":
                return wrong or _refused(scope, Refusal(401, access.NEEDED))
            return access.redirect_to_login(scope)
        if scope["method"] not in SAFE_METHODS and caller.role < Role.SUBMIT:
            return _refused(scope, Refusal(403, access.too_low(caller, Role.SUBMIT)))
        return None

    def _too_many_wrong(self, scope: Scope) -> Response | None:
        if self._service.wrong_tokens.allow(address_of(scope)):
            return None
        return _refused(scope, Refusal(429, "too many wrong tokens; wait a minute", 60))


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
            raise BodyTooSlowError from error
        self._taken += len(message.get("body", b""))
        self.is_whole = not message.get("more_body", False)
        if self._taken > self._most_bytes:
            raise BodyTooLargeError(self._most_bytes)
        return message

    async def drop(self) -> None:
        """Read the rest, so that the sender reads our response."""
        try:
            while self._can_be_dropped and not self.is_whole:
                await self.receive()
        except HTTPException:
            return


def _refused(scope: Scope, refusal: Refusal) -> Response:
    headers = {} if refusal.wait_s is None else {"retry-after": str(refusal.wait_s)}
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    if is_page(scope["path"]):
        return PlainTextResponse(f"{refusal.words}\n", refusal.status, headers)
    return JSONResponse({"error": refusal.words}, refusal.status, headers)


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
