"""Requests to a service: tried again while it is away, and its refusals as errors.

A request is sent again only where that cannot do a thing twice.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from ipaddress import ip_address
from typing import TypeVar
from urllib.parse import parse_qs, urlsplit

import httpx2
from pydantic import JsonValue

from records.codec import from_json
from records.errors import CodecError, StudyError, shown
from search.remote.errors import NotAllowed, NotThere, ServiceAway, ServiceRefused
from search.settings import service_token

API = "/api/v1"
TIMEOUT_S = 60.0
"""Longer than a service that has nothing to tell is silent."""
PAUSE_S = 0.5
MOST_PAUSE_S = 10.0
ERRORS: Mapping[int, type[ServiceRefused]] = {401: NotAllowed, 403: NotAllowed, 404: NotThere}
AWAY = frozenset({502, 503, 504})
TOO_MANY = 429

T = TypeVar("T")
Query = Mapping[str, str | int]
Body = Mapping[str, JsonValue]


class Connection:
    """One service, reached with one token; connections are kept open between requests.

    `patience_s` is how long a service that does not answer is waited for.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        patience_s: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url, found = address_of(url)
        self.patience_s = patience_s
        self.sleep = sleep
        given = token or found or service_token()
        self._http = httpx2.Client(
            base_url=self.url,
            headers={"authorization": f"Bearer {given}"} if given else {},
            timeout=TIMEOUT_S,
            # A token goes to the service alone: no redirects, and no proxy on the way to ourselves.
            follow_redirects=False,
            trust_env=not _is_here(self.url),
        )

    def close(self) -> None:
        """Close what is open."""
        self._http.close()

    def ask(self, kind: type[T], path: str, query: Query | None = None) -> T:
        """What the service answers to a GET."""
        asked = self._http.build_request("GET", f"{API}{path}", params=query)
        return self._parsed(kind, self._sent(asked, is_repeatable=True))

    def tell(self, kind: type[T], path: str, body: Body, key: str | None = None) -> T:
        """What the service answers to a POST; with a key it does once what is sent twice."""
        headers = {} if key is None else {"idempotency-key": key}
        asked = self._http.build_request("POST", f"{API}{path}", json=body, headers=headers)
        return self._parsed(kind, self._sent(asked, is_repeatable=key is not None))

    @contextmanager
    def reading(
        self, path: str, headers: Mapping[str, str] | None = None, *, is_patient: bool = False
    ) -> Iterator[httpx2.Response]:
        """An answer that is read piece by piece; raises `httpx2.TransportError` when it breaks.

        Who `is_patient` waits for a service that is away.
        """
        asked = self._http.build_request("GET", f"{API}{path}", headers=dict(headers or {}))
        if is_patient:
            answer = self._sent(asked, is_repeatable=True, stream=True)
        else:
            answer = self._http.send(asked, stream=True)
        with closing(answer):
            self.check(answer)
            yield answer

    def check(self, answer: httpx2.Response) -> None:
        """Raise what a refusal says."""
        if answer.status_code >= 400:
            answer.read()
        if 300 <= answer.status_code < 400:
            raise ServiceAway(f"{self.url} sends elsewhere; give the address of the service itself")
        if answer.status_code in AWAY:
            raise ServiceAway(f"{self.url} does not serve now: {_words(answer)}")
        if answer.status_code >= 500:
            raise ServiceAway(f"{self.url} failed at this: {_words(answer)}")
        if answer.status_code >= 400:
            raise ERRORS.get(answer.status_code, ServiceRefused)(_words(answer))

    def away(self, error: Exception) -> ServiceAway:
        """The error for a service that was waited for in vain."""
        return ServiceAway(
            f"{self.url} cannot be reached ({str(error) or type(error).__name__}); "
            "is `cclsearch serve` running there?"
        )

    def _sent(
        self, request: httpx2.Request, *, is_repeatable: bool, stream: bool = False
    ) -> httpx2.Response:
        until_s, pause_s = time.monotonic() + self.patience_s, PAUSE_S
        while True:
            is_late = time.monotonic() >= until_s
            try:
                answer = self._http.send(request, stream=stream)
            except httpx2.TransportError as error:
                was_sent = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
                if is_late or (was_sent and not is_repeatable):
                    raise self.away(error) from error
            else:
                if is_late or not _passes(answer, is_repeatable):
                    self.check(answer)
                    return answer
                answer.close()
            self.sleep(pause_s)
            pause_s = min(MOST_PAUSE_S, pause_s * 2)

    def _parsed(self, kind: type[T], answer: httpx2.Response) -> T:
        try:
            return from_json(kind, answer.content.decode("utf-8", "replace"))
        except CodecError as error:
            raise ServiceAway(
                f"{self.url} does not answer as this version of cclsearch expects: {error}"
            ) from error


def address_of(url: str) -> tuple[str, str | None]:
    """The address in a URL, and the token where it is the link that `cclsearch serve` prints."""
    try:
        parts = urlsplit(url.strip())
        _ = parts.port
    except ValueError as error:
        raise StudyError(f"{shown(url)} is no URL: {error}") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise StudyError(f"{shown(url)} is no URL of a service; it begins with http:// or https://")
    if "@" in parts.netloc:
        raise StudyError("the URL of a service has no name or password; give the token by itself")
    tokens = parse_qs(parts.query).get("token", [])
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", next(iter(tokens), None)


def _passes(answer: httpx2.Response, is_repeatable: bool) -> bool:
    """Whether a refusal is one that waiting ends."""
    if answer.status_code == TOO_MANY:
        return "retry-after" in answer.headers
    return is_repeatable and answer.status_code in AWAY


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _words(answer: httpx2.Response) -> str:
    """What a refusal says, on one line."""
    try:
        body: object = json.loads(answer.content)
    except ValueError:
        body = None
    said = body.get("error", body.get("detail")) if isinstance(body, dict) else None
    return str(said or f"it answers {answer.status_code} {answer.reason_phrase}")
