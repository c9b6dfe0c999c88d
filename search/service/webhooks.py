"""Webhooks: signed messages to the configured addresses when a study ends.

Messages are kept in the queue's database, so they outlive the service. Delivery is retried with
growing pauses until the receiver accepts. A message may arrive twice, with the same id.
"""

import hmac
import json
import logging
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from hashlib import sha256
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from threading import Event, Thread, Timer
from urllib.parse import urlsplit

from records.codec import utc_now
from records.errors import CclsearchError, StudyError
from records.store.store import Store
from search.service.config import Webhook
from search.service.queue import Delivery, RunTable, Submitted

POLL_EVERY_S = 1.0
TAKES_S = 10.0
"""Time limit for the whole response."""
FIRST_WAIT_S, LONGEST_WAIT_S = 5.0, 3600.0
MOST_ATTEMPTS = 50
"""About two days."""
MOST_SECRET_BYTES = 4096
ANSWER_BYTES = 1 << 10

_log = logging.getLogger(__name__)


class WebhookSender:
    """A thread that delivers queued messages; `folder` is that of the configuration."""

    def __init__(
        self,
        table: Path,
        webhooks: Sequence[Webhook],
        folder: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.fault: str | None = None
        self._table, self._clock = table, clock
        self._secret_files = {each.url: folder / each.secret_file for each in webhooks}
        for path in self._secret_files.values():
            secret_in(path)
        self._ended = Event()
        self._thread = Thread(target=self._run, name="messenger", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; undelivered messages stay in the queue."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(TAKES_S + 1)

    def deliveries_for(self, submitted: Submitted, records: Store) -> Sequence[Delivery]:
        """Return the messages about a study that ended, one for each address."""
        counts = records.counts(submitted.study_id)
        facts = {
            "event": "study_ended",
            "study": {
                "id": submitted.study_id,
                "name": records.find(submitted.study_id).study.name,
                "status": submitted.state.value,
                "message": submitted.message,
                "environment": submitted.environment,
                "submitted_by": submitted.submitted_by,
                "trials": counts.trials,
                "failed": counts.failed,
            },
            "sent_at": utc_now(),
        }
        return [
            Delivery(
                id=secrets.token_hex(16),
                study_id=submitted.study_id,
                url=url,
                body=json.dumps(facts),
            )
            for url in self._secret_files
        ]

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                with closing(RunTable(self._table)) as table:
                    while not self._ended.is_set():
                        self.deliver_due(table)
                        self._ended.wait(POLL_EVERY_S)
            except (CclsearchError, OSError) as error:
                self.fault = str(error)
                self._ended.wait(POLL_EVERY_S)

    def deliver_due(self, table: RunTable) -> None:
        """Attempt the deliveries that are due; skip an address after its first failure."""
        silent = set[str]()
        for delivery in table.deliveries():
            is_due = delivery.due_s <= self._clock() and delivery.url not in silent
            if is_due and not self._ended.is_set() and not self._try(delivery, table):
                silent.add(delivery.url)
        tried = [each for each in table.deliveries() if each.error is not None]
        self.fault = f"webhook {tried[0].url}: {tried[0].error}" if tried else None

    def _try(self, delivery: Delivery, table: RunTable) -> bool:
        """Deliver or reschedule a message; return whether it was accepted."""
        problem = self._problem(delivery)
        if problem is None:
            table.drop(delivery)
        elif delivery.attempts + 1 >= MOST_ATTEMPTS or delivery.url not in self._secret_files:
            _log.warning(
                "gave up webhook=%s study=%s: %s", delivery.url, delivery.study_id, problem
            )
            table.drop(delivery)
        else:
            table.put_off(delivery, self._clock() + wait_s(delivery.attempts), problem)
        return problem is None

    def _problem(self, delivery: Delivery) -> str | None:
        """Deliver a message; return why that failed."""
        path = self._secret_files.get(delivery.url)
        if path is None:
            return "it is no longer configured"
        try:
            status = posted(delivery, secret_in(path), int(self._clock()))
        except (OSError, HTTPException, ValueError, StudyError) as error:
            return str(error) or type(error).__name__
        return None if status // 100 == 2 else f"it answered {status}"


def wait_s(attempts: int) -> float:
    """Return the pause after a failed attempt that had `attempts` before it."""
    return min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(attempts, 20))


def secret_in(path: Path) -> bytes:
    """Read the secret in a file; raise `StudyError` where it has none."""
    try:
        with path.open("rb") as file:
            secret = file.read(MOST_SECRET_BYTES).strip()
    except OSError as error:
        raise StudyError(f"[[webhook]] secret_file {path}: {error.strerror}") from error
    if not secret:
        raise StudyError(f"[[webhook]] secret_file {path} is empty; write a long random text to it")
    return secret


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    """Return the HMAC-SHA256 over the timestamp, a dot and the body."""
    return "sha256=" + hmac.new(secret, timestamp.encode() + b"." + body, sha256).hexdigest()


def posted(delivery: Delivery, secret: bytes, at_s: int) -> int:
    """Send a message and return the HTTP status; redirects are not followed."""
    target, body = urlsplit(delivery.url), delivery.body.encode()
    kind = HTTPSConnection if target.scheme == "https" else HTTPConnection
    connection = kind(target.hostname or "", target.port, timeout=TAKES_S)
    path = (target.path or "/") + (f"?{target.query}" if target.query else "")
    with closing(connection):
        connection.connect()
        # The socket timeout holds for each read, not for a response that trickles in.
        late = Event()
        limit = Timer(TAKES_S, _cut, [connection, late])
        limit.daemon = True
        limit.start()
        try:
            connection.request("POST", path, body, _headers(delivery, secret, str(at_s)))
            answer = connection.getresponse()
            answer.read(ANSWER_BYTES)
        finally:
            limit.cancel()
    if late.is_set():
        raise TimeoutError(f"no complete response within {TAKES_S:g} s")
    return answer.status


def _cut(connection: HTTPConnection, late: Event) -> None:
    late.set()
    if connection.sock is not None:
        with suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)


def _headers(delivery: Delivery, secret: bytes, timestamp: str) -> Mapping[str, str]:
    return {
        "Content-Type": "application/json",
        "User-Agent": "cclsearch",
        "X-Cclsearch-Delivery": delivery.id,
        "X-Cclsearch-Timestamp": timestamp,
        "X-Cclsearch-Signature": signature(secret, timestamp, delivery.body.encode()),
    }
