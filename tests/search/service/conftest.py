"""The real service on a free port of loopback, and stores that it serves."""

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2
import pytest

from records.codec import to_json
from records.llm_exchange import LlmExchange, TokenUsage
from records.store.rows import PendingTrial
from records.store.store import Store
from records.study import Origin, Study
from records.trial import Config, FailureKind, Policy, Trial
from search.loop.study_result import StudyResult
from search.service import server
from search.service.app import app_of
from search.service.auth import KnownToken, Rates, Role, digest_of
from search.service.config import Listen, ServiceConfig
from search.service.queue import RunTable
from search.service.runner import Scheduler
from search.service.server import listening, server_of
from search.service.service import Service
from tests.support import records as testing

FINISHED, FAILED, IMPORTED = (f"20260101-00000{n}-aaaa" for n in range(3))
"""Studies of `recorded_store`: one with a winner, one whose trials all failed, one imported."""
HOSTILE = "<img src=x onerror=alert(1)>&'\"\x1b[31mred\x1b]0;title\x07\u202e\r\n"
"""Stands in names, messages, policies, logs and transcripts of `recorded_store`."""
TOKENS = {role: f"{role}-token-of-a-test" for role in Role}


class IdleScheduler(Scheduler):
    """A scheduler that starts nothing, so that what is submitted stays queued."""

    def recover_pending(self, table: RunTable, records: Store) -> None:
        """Let everything be: tests write into the queue while it starts."""

    def tick(self, table: RunTable, records: Store) -> None:
        """Let everything be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A service that runs: where, and clients of each role."""

    url: str
    service: Service
    tokens: Mapping[str, str]

    def client(
        self, role: str | None = "admin", headers: Mapping[str, str] | None = None, **more: object
    ) -> httpx2.Client:
        """A client with the token of a role in a header; None has none. Close it, or use `with`."""
        own = {} if role is None else {"authorization": f"Bearer {self.tokens[role]}"}
        given = own | dict(headers or {})
        return httpx2.Client(base_url=self.url, headers=given, timeout=60, trust_env=False, **more)

    def say(self, *, head: str, body: bytes = b"", host: str | None = None) -> tuple[int, str]:
        """Send lines of a head as they are, and a body; gives the status and the whole answer."""
        lines = [head, f"Host: {host or self.url.removeprefix('http://')}", "Connection: close"]
        with self.connected() as at:
            at.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
            answer = b"".join(iter(lambda: at.recv(65536), b"")).decode("latin-1")
        return int(answer.split(" ", 2)[1]), answer

    def connected(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(("127.0.0.1", self.service.config.listen.port), timeout=60)


@contextmanager
def running(
    root: Path,
    config: ServiceConfig | None = None,
    *,
    folder: Path | None = None,
    searching: bool = False,
    **more: object,
) -> Iterator[Served]:
    """A service over a store; `searching` lets it start searches of what is submitted."""
    known = tuple(
        KnownToken(name=role, role=role, sha256=digest_of(token)) for role, token in TOKENS.items()
    )
    asked = replace(config or ServiceConfig(), token=known)
    with listening(Listen(port=0)) as at:
        listen = replace(asked.listen, port=at.getsockname()[1])
        service = Service(
            config=replace(asked, listen=listen),
            folder=folder or root,
            store=root,
            tokens=known,
            scheduler=(Scheduler if searching else IdleScheduler)(root),
            **more,
        )
        running_server = server_of(app_of(service), listen, service.feeds.close)
        thread = threading.Thread(target=running_server.run, kwargs={"sockets": [at]}, daemon=True)
        thread.start()
        while not running_server.started:
            assert thread.is_alive(), "the service did not start"
            time.sleep(0.005)
        yield Served(url=f"http://127.0.0.1:{listen.port}", service=service, tokens=TOKENS)
        running_server.should_exit = True
        thread.join(60)


def until(fact: Callable[[], object]) -> None:
    """Wait for what comes a moment after an answer is there."""
    end_s = time.monotonic() + 60
    while not fact():
        assert time.monotonic() < end_s
        time.sleep(0.005)


@pytest.fixture(scope="session", autouse=True)
def session_priority() -> Iterator[None]:
    """Leaves the priority of the session alone: services here run in the process of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "AUTOGROUP", Path("/nonexistent"))
        patch.setattr(server, "NICENESS", 0)
        yield


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Starts services, as `running` does, and ends them."""
    with ExitStack() as started:
        yield lambda *given, **named: started.enter_context(running(*given, **named))


@pytest.fixture
def reader_of(serve) -> Iterator[Callable[[Path], httpx2.Client]]:
    """Gives a reader's client of a service over a store."""
    with ExitStack() as opened:
        yield lambda root: opened.enter_context(serve(root).client("read"))


@pytest.fixture
def served(serve, recorded_store) -> Served:
    """The service over `recorded_store`, with a token for each role; nothing is ever searched."""
    return serve(recorded_store)


@pytest.fixture(scope="session")
def shared(made_once) -> Iterator[Served]:
    """The same, started once for all tests that change nothing; wrong tokens are not slowed."""
    with running(made_once, wrong_tokens=Rates(per_s=1e6, burst=1 << 20)) as found:
        yield found


@pytest.fixture
def client(shared) -> Iterator[httpx2.Client]:
    """A reader of `shared`."""
    with shared.client("read") as found:
        yield found


@pytest.fixture
def recorded_store(tmp_path, made_once) -> Path:
    """A store with the studies FINISHED, FAILED and IMPORTED, full of HOSTILE texts; its root."""
    return shutil.copytree(made_once, tmp_path / "recorded")


@pytest.fixture(scope="session")
def made_once(tmp_path_factory) -> Path:
    """What `recorded_store` copies."""
    folder = tmp_path_factory.mktemp("made-once")
    with closing(Store(folder / "recorded")) as store:
        log = folder / "rank0.log"
        log.write_text(f"step 1 {HOSTILE}\nstep 2\n", encoding="utf-8")
        kept = (store.artifacts.keep(log, "logs/rank0.log"),)
        good = [replace(testing.measured(s), artifacts=kept) for s in (0.5, 0.4, 0.25)]
        bad = replace(
            testing.failed(FailureKind.OUT_OF_MEMORY, message=f"it broke {HOSTILE}"), artifacts=kept
        )
        _add(store, FINISHED, _study(f"finished {HOSTILE}"), [*good, bad], _FINDING)
        _add(store, FAILED, _study("all failed"), [bad, bad], replace(_FINDING, winner=None))
        origin = Origin(kind="ccl-search", source=f"run {HOSTILE}", notes=(f"lost {HOSTILE}",))
        study = replace(_study("imported"), origin=origin, strategy="ccl-search")
        store.add_study(IMPORTED, study, "test", _trials([good[0], bad]))
        return store.root


_FINDING = StudyResult(
    stop_reason="patience: 6 launches without improvement",
    winner=2,
    unit="s",
    result=None,
    against_seed=None,
    ties=(),
    unreliable=(),
)


def _study(name: str) -> Study:
    return replace(testing.study(), name=name, strategy="offline")


def _trials(outcomes: list[object]) -> Iterator[Trial]:
    configs = [{"tp": tp, "pp": pp} for tp in (1, 2, 4) for pp in (1, 2)]
    parent = None
    for ordinal, outcome in enumerate(outcomes):
        policy = Policy(
            source=f"# {HOSTILE.strip()}\nprint({ordinal})\n",
            author="llm",
            rationale=f"try {HOSTILE}",
            parent=parent,
        )
        parent = policy.digest
        trial = testing.trial(ordinal, outcome, configs[ordinal])
        yield replace(trial, policy=policy, config=Config(configs[ordinal]))


def _add(
    store: Store, study_id: str, study: Study, outcomes: list[object], finding: StudyResult
) -> None:
    asked = LlmExchange(
        model="m",
        request=f'["{ascii(HOSTILE)[1:-1]}"]'.replace("\\", "\\\\"),
        reply="[]",
        result="submitted",
        usage=TokenUsage(input_tokens=3),
        latency_s=0.5,
        request_count=1,
    )
    store.create(study_id, study, "test")
    for trial in _trials(outcomes):
        intent = PendingTrial(
            ordinal=trial.ordinal, policy=trial.policy, started_at=trial.started_at, exchange=None
        )
        stored = store.begin(study_id, intent, asked if trial.ordinal else None)
        store.finish(study_id, replace(trial, exchange=stored.exchange))
    store.update(study_id, status="finished", summary=to_json(finding))
