"""Webhooks: signed messages to the configured addresses when a study ends.

Messages are kept in the queue's database, so they outlive the service. Delivery is retried with
growing pauses until the receiver accepts. A message may arrive twice, with the same id.
"""

import asyncio
import hmac
import json
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from threading import Event, Thread

import httpx2

from records.codec import utc_now
from records.errors import CclsearchError, StudyError
from records.store.store import Store
from search.service.config import Webhook
from search.service.queue import Delivery, RunTable, Submitted

POLL_EVERY_S = 1.0
TAKES_S = 10.0
"""Time limit for a response."""
FIRST_WAIT_S, LONGEST_WAIT_S = 5.0, 3600.0
MOST_ATTEMPTS = 50
"""About two days."""
MOST_SECRET_BYTES = 4096

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
        self._thread = Thread(target=self._run, name="webhooks", daemon=True)

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
                    self.deliver_due(table)
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
            status = asyncio.run(post(delivery, secret_in(path), int(self._clock())))
        except TimeoutError:
            return f"no response within {TAKES_S:g} s"
        except httpx2.ConnectError as error:
            return f"it cannot be reached: {error}"
        except (OSError, httpx2.HTTPError, httpx2.InvalidURL, StudyError) as error:
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


async def post(delivery: Delivery, secret: bytes, at_s: int) -> int:
    """Send a message and return the HTTP status; redirects are not followed."""
    timestamp, body = str(at_s), delivery.body.encode()
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "cclsearch",
        "X-Cclsearch-Delivery": delivery.id,
        "X-Cclsearch-Timestamp": timestamp,
        "X-Cclsearch-Signature": signature(secret, timestamp, body),
    }
    # A timeout of the client holds for each read, not for a response that trickles in.
    async with (
        asyncio.timeout(TAKES_S),
        httpx2.AsyncClient(timeout=None, trust_env=False) as client,
        client.stream("POST", delivery.url, content=body, headers=headers) as response,
    ):
        return response.status_code
