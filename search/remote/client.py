"""A service for Python programs: submit studies, follow them, read what they found."""

import time
import uuid
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import JsonValue

from records.errors import EnvironmentFault, shown
from search.remote.connection import Body, Connection, Query
from search.remote.errors import NotThere, ServiceAway, StillRunning
from search.remote.events import Event, followed
from search.service.answers import (
    Entered,
    Environment,
    File,
    Page,
    PolicyFull,
    PolicyShort,
    StudyFull,
    StudyShort,
    TrialFull,
    TrialShort,
)
from search.settings import service_url

if TYPE_CHECKING:
    import pandas as pd

    from search.service.answers_compared import Board, TrialsCompared

PAGE = 500
LOOK_EVERY_S = 1.0
PATIENCE_S = 60.0
OVER = frozenset({"finished", "failed", "cancelled", "interrupted"})
"""How a study can be that nothing works on."""

T = TypeVar("T")


class Client:
    """The service at `url`, with what `token` allows; the link that it prints has both.

    Without them they are CCLSEARCH_URL, or this machine, and CCLSEARCH_TOKEN. Each request is
    tried again for `patience_s` while the service is away, as when it is started anew. Raises
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
        self._connection = Connection(service_url(url), token, patience_s, sleep)

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
        self._connection.close()

    def environments(self) -> list[Environment]:
        """What studies may be submitted for."""
        return self._connection.ask(list[Environment], "/environments")

    def studies(self) -> Iterator[StudyShort]:
        """Every study on record, newest first."""
        return _paged(self._connection, Page[StudyShort], "/studies")

    def study_page(self, limit: int, offset: int = 0) -> Page[StudyShort]:
        """Some of the studies, newest first."""
        return self._connection.ask(
            Page[StudyShort], "/studies", {"limit": limit, "offset": offset}
        )

    def study(self, study_id: str) -> "RemoteStudy":
        """The study with this id; raises `NotThere`."""
        found = RemoteStudy(self._connection, study_id)
        found.now()
        return found

    def compare(self, a: str, b: str) -> "TrialsCompared":
        """Whether trial B is faster than trial A, and how sure that is.

        A side is `STUDY:N`, or `STUDY` for its best trial.
        """
        from search.service.answers_compared import TrialsCompared

        return self._connection.ask(TrialsCompared, "/compare/trials", {"a": a, "b": b})

    def leaderboard(self, query: Query | None = None) -> "Board":
        """The best of every study, in groups that did the same work.

        `query` is what the API takes: `by`, `workload`, `top`, `limit`, `offset`.
        """
        from search.service.answers_compared import Board

        return self._connection.ask(Board, "/leaderboard", query)

    def submit(
        self, environment: str = "builtin", *, key: str | None = None, **asked: JsonValue
    ) -> "RemoteStudy":
        """Put a study into the queue.

        `asked` is what the API takes: `objectives`, `limits`, `strategy`, `trials`, `choices`, ...
        The same `key` with the same request makes one study, however often it is sent.
        """
        return self.submit_request({"environment": environment, **asked}, key)

    def submit_request(self, request: Body, key: str | None = None) -> "RemoteStudy":
        """Put a study into the queue, as one mapping asks for it."""
        sent = self._connection.tell(Entered, "/studies", request, key or uuid.uuid4().hex)
        return RemoteStudy(self._connection, sent.id)


class RemoteStudy:
    """One study of a service."""

    def __init__(self, connection: Connection, study_id: str) -> None:
        if not study_id or study_id.startswith("."):
            raise NotThere(f"no study {shown(study_id)}")  # as a path it would lead elsewhere
        self._connection = connection
        self.id = study_id
        self._path = f"/studies/{quote(study_id, safe='')}"

    def now(self) -> StudyFull:
        """How it is now: status, counts, the best, what was asked and found."""
        return self._connection.ask(StudyFull, self._path)

    def wait(self, timeout_s: float | None = None) -> StudyFull:
        """How it is once nothing works on it; raises `StillRunning` after `timeout_s`."""
        connection = self._connection
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while (found := self.now()).status not in OVER:
            if until_s is not None and time.monotonic() >= until_s:
                raise StillRunning(
                    f"study {self.id} is {found.status} after {timeout_s:g} s; it goes on"
                )
            connection.sleep(LOOK_EVERY_S)
        return found

    def events(self, after: str | None = None) -> Iterator[Event]:
        """What it does, from the first event or after the id of one, until it ends.

        A lost connection is made again; no event comes twice, none is left out.
        """
        return followed(self._connection, f"{self._path}/events", after)

    def trials(self) -> "pd.DataFrame":
        """One row per trial, as `cclsearch.trials` has it: config, result and every metric."""
        from search.remote.frames import trial_frame

        return trial_frame(_paged(self._connection, Page[TrialShort], f"{self._path}/trials"))

    def trial_page(self, query: Query) -> Page[TrialShort]:
        """Some of its trials; `query` is what the API takes: `sort`, `order`, `text`, `limit`..."""
        return self._connection.ask(Page[TrialShort], f"{self._path}/trials", query)

    def trial(self, ordinal: int) -> TrialFull:
        """One trial in full: samples, metrics, launches, rationale."""
        return self._connection.ask(TrialFull, f"{self._path}/trials/{ordinal}")

    def policies(self) -> list[PolicyShort]:
        """Every policy that it tried, in the order of its first trial."""
        return [*_paged(self._connection, Page[PolicyShort], f"{self._path}/policies")]

    def policy(self, digest: str) -> PolicyFull:
        """A policy with its text, and what changed against its parent."""
        return self._connection.ask(PolicyFull, f"{self._path}/policies/{quote(digest, safe='')}")

    def files(self, ordinal: int) -> list[File]:
        """Logs, traces and other files of a trial."""
        return [*_paged(self._connection, Page[File], f"{self._path}/trials/{ordinal}/files")]

    def download(self, ordinal: int, name: str, to: Path) -> Path:
        """Save one file of a trial as `to`; it is there whole and checked, or not at all."""
        path = f"{self._path}/trials/{ordinal}/files/{quote(name)}"
        part, digest = to.with_name(f"{to.name}.part"), sha256()
        try:
            with self._connection.reading(path, is_patient=True) as answer, part.open("wb") as file:
                expected = answer.headers.get("etag", "").strip('"')
                for piece in answer.iter_bytes():
                    digest.update(piece)
                    file.write(piece)
            if expected != digest.hexdigest():
                raise ServiceAway(f"{name} of trial {ordinal} came damaged; fetch it again")
            return part.replace(to)
        except httpx2.TransportError as error:
            raise self._connection.away(error) from error
        except OSError as error:
            raise EnvironmentFault(f"cannot write {to}: {error.strerror}") from error
        finally:
            part.unlink(missing_ok=True)

    def cancel(self) -> str:
        """End it; what it measured stays. Gives its status."""
        return self._connection.tell(Entered, f"{self._path}/cancel", {}).status

    def resume(self, more_trials: int | None = None) -> str:
        """Go on with it after it ended, with more trials if they are given. Gives its status."""
        body: dict[str, JsonValue] = {} if more_trials is None else {"more_trials": more_trials}
        return self._connection.tell(Entered, f"{self._path}/resume", body).status


def _paged(connection: Connection, kind: type[Page[T]], path: str) -> Iterator[T]:
    """Everything of a list, fetched page by page as it is taken."""
    offset = 0
    while True:
        page = connection.ask(kind, path, {"limit": PAGE, "offset": offset})
        yield from page.items
        offset += len(page.items)
        if not page.items or offset >= page.total:
            return
