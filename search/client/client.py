"""The Python client of a service: submit studies, follow them, read what they found.

    ServiceAway      it cannot be reached, or is not a service of cclsearch
    ServiceRefused   it did not do what was asked; the message is its own
     ├─ NotAllowed   the token is missing, unknown or of a lesser role
     └─ NotThere     it has nothing of that name
    StillRunning     a study did not end in the given time

A request is repeated only where that cannot do a thing twice.
"""

import json
import math
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import parse_qs, quote, urlsplit

import httpx2
from pydantic import JsonValue
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    retry_if_result,
    stop_after_delay,
    wait_exponential,
)

from records.codec import from_json
from records.errors import CodecError, EnvironmentFault, StudyError, shown
from search.service.models import (
    Board,
    Environment,
    File,
    Page,
    PolicyFull,
    PolicyShort,
    QueuedStudy,
    StudyFull,
    StudyLabels,
    StudyProgress,
    StudyShort,
    TrialFull,
    TrialsCompared,
    TrialShort,
)
from search.settings import service_token, service_url

if TYPE_CHECKING:
    import pandas as pd


class ServiceAway(EnvironmentFault):
    """The service cannot be reached, or does not answer as one."""


class ServiceRefused(StudyError):
    """The service did not do what was asked."""


class NotAllowed(ServiceRefused):
    """The token does not allow it."""


class NotThere(ServiceRefused):
    """The service has nothing of that name."""


class StillRunning(StudyError):
    """A study did not end in the given time; it continues."""


API = "/api/v1"
TIMEOUT_S = 60.0
"""Longer than the pauses between signs of life of a quiet stream."""
PAUSE_S = 0.5
MOST_PAUSE_S = 10.0
PAUSES = wait_exponential(PAUSE_S, max=MOST_PAUSE_S)
ERRORS: Mapping[int, type[ServiceRefused]] = {401: NotAllowed, 403: NotAllowed, 404: NotThere}
AWAY = frozenset({502, 503, 504})
TOO_MANY = 429

END, PROGRESS = "end", "progress"
MOST_LINE_BYTES = 1 << 22
PAGE = 500
POLL_EVERY_S = 1.0
PATIENCE_S = 60.0
OVER = frozenset({"finished", "failed", "cancelled", "interrupted"})
"""The states in which nothing works on a study."""

T = TypeVar("T")
Query = Mapping[str, str | int]
Body = Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that a search did; names and facts are those of `cclsearch run --json`.

    `id` is where to continue after it.
    """

    id: str
    name: str
    facts: Mapping[str, JsonValue]


class Client:
    """The service at `url`, with what `token` allows; the link that it prints has both.

    Without them they are CCLSEARCH_URL, or this machine, and CCLSEARCH_TOKEN. Each request is
    repeated for `patience_s` while the service is away, as during a restart. Raises
    `ServiceAway`, `NotAllowed`, `NotThere` or `ServiceRefused`.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        patience_s: float = PATIENCE_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url, found = address_of(service_url(url))
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def environments(self) -> list[Environment]:
        """Return the environments that studies may be submitted for."""
        return self.ask(list[Environment], "/environments")

    def studies(self, query: Query | None = None) -> Iterator[StudyShort]:
        """Yield recorded studies, newest first, without archived ones.

        `query` is what the API takes: `text`, `status`, `tag`, `archived`, `sort`, `order`.
        """
        return self.paged(Page[StudyShort], "/studies", query)

    def study_page(self, limit: int, offset: int = 0) -> Page[StudyShort]:
        """Return a page of the studies, newest first."""
        return self.ask(Page[StudyShort], "/studies", {"limit": limit, "offset": offset})

    def study(self, study_id: str) -> "RemoteStudy":
        """Return the study with this id; raise `NotThere`."""
        found = RemoteStudy(self, study_id)
        found.now()
        return found

    def compare(self, a: str, b: str) -> TrialsCompared:
        """Return whether trial B is faster than trial A, and how sure that is.

        A side is `STUDY:N`, or `STUDY` for its best trial.
        """
        return self.ask(TrialsCompared, "/compare/trials", {"a": a, "b": b})

    def leaderboard(self, query: Query | None = None) -> Board:
        """Return the best trial of every study, in groups of one workload.

        `query` is what the API takes: `by`, `workload`, `top`, `limit`, `offset`.
        """
        return self.ask(Board, "/leaderboard", query)

    def submit(
        self, environment: str = "builtin", *, key: str | None = None, **asked: JsonValue
    ) -> "RemoteStudy":
        """Put a study into the queue.

        `asked` is what the API takes: `objectives`, `limits`, `strategy`, `trials`, `choices`, ...
        The same `key` with the same request makes one study, even if it is sent twice.
        """
        return self.submit_request({"environment": environment, **asked}, key)

    def submit_request(self, request: Body, key: str | None = None) -> "RemoteStudy":
        """Put a study into the queue, given as one mapping."""
        sent = self.tell(QueuedStudy, "/studies", request, key or uuid.uuid4().hex)
        return RemoteStudy(self, sent.id)

    def ask(self, kind: type[T], path: str, query: Query | None = None) -> T:
        """Return what the service answers to a GET."""
        asked = self._http.build_request("GET", f"{API}{path}", params=query)
        return self._parsed(kind, self._sent(asked, is_repeatable=True))

    def tell(self, kind: type[T], path: str, body: Body, key: str | None = None) -> T:
        """Return what the service answers to a POST; with a key a repeated request acts once."""
        headers = {} if key is None else {"idempotency-key": key}
        asked = self._http.build_request("POST", f"{API}{path}", json=body, headers=headers)
        return self._parsed(kind, self._sent(asked, is_repeatable=key is not None))

    @contextmanager
    def reading(
        self, path: str, headers: Mapping[str, str] | None = None, *, is_patient: bool = False
    ) -> Iterator[httpx2.Response]:
        """Yield a response to read in pieces; raise `httpx2.TransportError` when it breaks.

        With `is_patient`, wait for a service that is away.
        """
        asked = self._http.build_request("GET", f"{API}{path}", headers=dict(headers or {}))
        if is_patient:
            answer = self._sent(asked, is_repeatable=True, stream=True)
        else:
            answer = self._http.send(asked, stream=True)
        with closing(answer):
            self._check(answer)
            yield answer

    def _check(self, answer: httpx2.Response) -> None:
        if answer.status_code >= 400:
            answer.read()
        if 300 <= answer.status_code < 400:
            raise ServiceAway(f"{self.url} redirects; give the address of the service itself")
        if answer.status_code in AWAY:
            raise ServiceAway(f"{self.url} does not serve now: {_words(answer)}")
        if answer.status_code >= 500:
            raise ServiceAway(f"{self.url} failed at this: {_words(answer)}")
        if answer.status_code >= 400:
            raise ERRORS.get(answer.status_code, ServiceRefused)(_words(answer))

    def away(self, error: Exception) -> ServiceAway:
        """Return the error for a service that did not come back."""
        return ServiceAway(
            f"{self.url} cannot be reached ({str(error) or type(error).__name__}); "
            "is `cclsearch serve` running there?"
        )

    def paged(self, kind: type[Page[T]], path: str, query: Query | None = None) -> Iterator[T]:
        """Yield all items of a list, fetched page by page on demand."""
        offset = 0
        while True:
            page = self.ask(kind, path, {**(query or {}), "limit": PAGE, "offset": offset})
            yield from page.items
            offset += len(page.items)
            if not page.items or offset >= page.total:
                return

    def _sent(
        self, request: httpx2.Request, *, is_repeatable: bool, stream: bool = False
    ) -> httpx2.Response:
        def is_lost(error: BaseException) -> bool:
            unsent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            return unsent or (is_repeatable and isinstance(error, httpx2.TransportError))

        def passes(answer: httpx2.Response) -> bool:
            if answer.status_code == TOO_MANY:
                return "retry-after" in answer.headers
            return is_repeatable and answer.status_code in AWAY

        retries = Retrying(
            retry=retry_if_exception(is_lost) | retry_if_result(passes),
            stop=stop_after_delay(self.patience_s),
            wait=PAUSES,
            sleep=self.sleep,
            before_sleep=_close,
            retry_error_callback=lambda state: state.outcome and state.outcome.result(),
        )
        try:
            answer: httpx2.Response = retries(self._http.send, request, stream=stream)
        except httpx2.TransportError as error:
            raise self.away(error) from error
        self._check(answer)
        return answer

    def _parsed(self, kind: type[T], answer: httpx2.Response) -> T:
        try:
            return from_json(kind, answer.content.decode("utf-8", "replace"))
        except CodecError as error:
            raise ServiceAway(
                f"{self.url} does not answer as this version of cclsearch expects: {error}"
            ) from error


class RemoteStudy:
    """One study of a service."""

    def __init__(self, client: Client, study_id: str) -> None:
        if not study_id or study_id.startswith("."):
            raise NotThere(f"no study {shown(study_id)}")  # in a path it would mean another address
        self._client = client
        self.id = study_id
        self._path = f"/studies/{quote(study_id, safe='')}"

    def now(self) -> StudyFull:
        """Return its current state: status, counts, the best, what was asked and found."""
        return self._client.ask(StudyFull, self._path)

    def progress(self) -> StudyProgress:
        """Return the launches that run now, and how long the search still takes."""
        return self._client.ask(StudyProgress, f"{self._path}/progress")

    def wait(self, timeout_s: float | None = None) -> StudyFull:
        """Wait until nothing works on it; raise `StillRunning` after `timeout_s`."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while (found := self.now()).status not in OVER:
            if until_s is not None and time.monotonic() >= until_s:
                raise StillRunning(
                    f"study {self.id} is {found.status} after {timeout_s:g} s; it continues"
                )
            self._client.sleep(POLL_EVERY_S)
        return found

    def events(self, after: str | None = None) -> Iterator[Event]:
        """Yield its events, from the first or after the id of one, until it ends.

        A lost connection is opened again after the last event, so that none comes twice and none
        is left out. Raises `ServiceAway` where that fails for as long as the client is patient.
        How far running launches are is not among them; `progress` returns that.
        """
        client, lost_s, pause_s = self._client, math.inf, PAUSE_S
        while True:
            headers = {} if after is None else {"last-event-id": after}
            try:
                with client.reading(f"{self._path}/events", headers) as answer:
                    lost_s = math.inf
                    for event in events_in(lines_in(answer.iter_bytes())):
                        pause_s = PAUSE_S
                        if event.name == END:
                            return
                        if event.name == PROGRESS:
                            continue
                        after = event.id or after
                        yield event
            except (httpx2.TransportError, ServiceAway) as error:
                lost_s = min(lost_s, time.monotonic())
                if time.monotonic() - lost_s >= client.patience_s:
                    raise client.away(error) from error
            client.sleep(pause_s)
            pause_s = min(MOST_PAUSE_S, pause_s * 2)

    def trials(self) -> "pd.DataFrame":
        """Return one row per trial, as `cclsearch.trials` does: config, result and every metric."""
        from search.views.frames import trial_table

        trials = self._client.paged(Page[TrialShort], f"{self._path}/trials")
        return trial_table((_summary(each), each.config or {}, each.metrics) for each in trials)

    def trial_page(self, query: Query) -> Page[TrialShort]:
        """Return a page of its trials; `query` is what the API takes: `sort`, `text`, `limit`..."""
        return self._client.ask(Page[TrialShort], f"{self._path}/trials", query)

    def trial(self, ordinal: int) -> TrialFull:
        """Return one trial in full: samples, metrics, launches, rationale."""
        return self._client.ask(TrialFull, f"{self._path}/trials/{ordinal}")

    def policies(self) -> list[PolicyShort]:
        """Return every policy that it tried, in the order of first trials."""
        return [*self._client.paged(Page[PolicyShort], f"{self._path}/policies")]

    def policy(self, digest: str) -> PolicyFull:
        """Return a policy with its text, and its changes against its parent."""
        return self._client.ask(PolicyFull, f"{self._path}/policies/{quote(digest, safe='')}")

    def files(self, ordinal: int) -> list[File]:
        """Return the logs, traces and other files of a trial."""
        return [*self._client.paged(Page[File], f"{self._path}/trials/{ordinal}/files")]

    def download(self, ordinal: int, name: str, to: Path) -> Path:
        """Save one file of a trial as `to`, whole and checked, or not at all."""
        path = f"{self._path}/trials/{ordinal}/files/{quote(name)}"
        part, digest = to.with_name(f"{to.name}.part"), sha256()
        try:
            with self._client.reading(path, is_patient=True) as answer, part.open("wb") as file:
                expected = answer.headers.get("etag", "").strip('"')
                for piece in answer.iter_bytes():
                    digest.update(piece)
                    file.write(piece)
            if expected != digest.hexdigest():
                raise ServiceAway(f"{name} of trial {ordinal} arrived damaged; download it again")
            return part.replace(to)
        except httpx2.TransportError as error:
            raise self._client.away(error) from error
        except OSError as error:
            raise EnvironmentFault(f"cannot write {to}: {error.strerror}") from error
        finally:
            with suppress(OSError):  # where it could not even be opened
                part.unlink()

    def label(
        self,
        *,
        tags: Iterable[str] | None = None,
        notes: str | None = None,
        archived: bool | None = None,
    ) -> StudyLabels:
        """Change its tags, its notes or whether it is archived; return all of them."""
        body: dict[str, JsonValue] = {} if tags is None else {"tags": [*tags]}
        body |= {} if notes is None else {"notes": notes}
        body |= {} if archived is None else {"archived": archived}
        return self._client.tell(StudyLabels, f"{self._path}/labels", body)

    def race(self, a: int, b: int) -> "RemoteStudy":
        """Queue a new study that launches two of its trials again, interleaved."""
        sent = self._client.tell(QueuedStudy, f"{self._path}/race", {"trials": [a, b]})
        return RemoteStudy(self._client, sent.id)

    def cancel(self) -> str:
        """Cancel it; what it measured stays. Return its status."""
        return self._client.tell(QueuedStudy, f"{self._path}/cancel", {}).status

    def resume(self, more_trials: int | None = None) -> str:
        """Resume it after it ended, optionally with more trials. Return its status."""
        body: dict[str, JsonValue] = {} if more_trials is None else {"more_trials": more_trials}
        return self._client.tell(QueuedStudy, f"{self._path}/resume", body).status


def address_of(url: str) -> tuple[str, str | None]:
    """Return the address in a URL, and the token of a link that `cclsearch serve` printed."""
    try:
        parts = urlsplit(url.strip())
        _ = parts.port
    except ValueError as error:
        raise StudyError(f"{shown(url)} is not a URL: {error}") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise StudyError(
            f"{shown(url)} is not the URL of a service; it begins with http:// or https://"
        )
    if "@" in parts.netloc:
        raise StudyError("the URL of a service has no name or password; give the token by itself")
    tokens = parse_qs(parts.query).get("token", [])
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", next(iter(tokens), None)


def _close(state: RetryCallState) -> None:
    """Close the answer of an attempt that is made again."""
    if state.outcome is not None and not state.outcome.failed:
        state.outcome.result().close()


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _words(answer: httpx2.Response) -> str:
    """Return the message of a refusal."""
    try:
        body: object = json.loads(answer.content)
    except ValueError:
        body = None
    said = body.get("error", body.get("detail")) if isinstance(body, dict) else None
    return str(said or f"it answers {answer.status_code} {answer.reason_phrase}")


def lines_in(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield whole lines; raise `ServiceAway` for one that does not end."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace").removesuffix("\r")
        if len(rest) > MOST_LINE_BYTES:
            raise ServiceAway("a line of events does not end; this is not a cclsearch service")


def events_in(lines: Iterable[str]) -> Iterator[Event]:
    """Yield the events in the lines of a stream, without one that is cut off at the end."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields:
            yield Event(
                id=fields.get("id", ""),
                name=fields.get("event", "message"),
                facts=_facts(fields["data"]),
            )
        fields = {}


def _facts(data: str) -> dict[str, JsonValue]:
    """Return the facts of an event; data that is not a JSON object becomes its `text`."""
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError):
        facts = None
    return facts if isinstance(facts, dict) else {"text": data}


def _summary(trial: TrialShort) -> dict[str, object]:
    score = trial.score
    remarks = (*trial.broken_limits, *(score.caveats if score else ()))
    return {
        **trial.model_dump(),
        "score": score.value if score else None,
        "launches": score.launches if score else None,
        "unit": score.unit if score else None,
        "caveats": "; ".join(remarks) or None,
    }
