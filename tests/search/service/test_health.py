"""Health: what waits, what runs where, and what is wrong, whatever is broken."""

import pytest

from search.service.api.health import is_healthy, service_status
from search.service.config import OfferedEnvironment, ServiceConfig
from search.service.queue import State
from tests.search.service.conftest import running
from tests.search.service.queueing import submission

CONFIG = ServiceConfig(
    environment={
        "a": OfferedEnvironment(devices="gpus"),
        "b": OfferedEnvironment(devices="gpus", parallel_studies=3),
        "c": OfferedEnvironment(),
    }
)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A service of three environments, two of which share their devices."""
    with running(tmp_path_factory.mktemp("health"), CONFIG) as found:
        yield found


@pytest.fixture
def reader(served):
    with served.client("read") as found:
        yield found


def test_uses_are_told_by_devices_with_the_strictest_limit(served, reader):
    table = served.service.table
    for number, state in enumerate([State.RUNNING, State.QUEUED, State.CANCELLING]):
        table.add(submission(str(number), environment="b"))
        table.change_from(str(number), State.PENDING, state)
    told = reader.get("/api/v1/status").json()

    assert told["ok"] is True
    assert (told["queued"], told["running"]) == (1, 2)
    (gpus,) = (use for use in told["devices"] if use["devices"] == "gpus")
    assert (gpus["environments"], gpus["parallel_studies"]) == (["a", "b"], 1)
    assert (gpus["running"], gpus["queued"]) == (2, 1)
    assert min(told["disk_free_bytes"], told["memory_bytes"]) > 0
    lines = reader.get("/api/v1/metrics").text.splitlines()
    assert {"cclsearch_up 1", 'cclsearch_devices_running{devices="gpus"} 2'} <= {*lines}
    assert all(line.startswith(("# HELP ", "# TYPE ", "cclsearch_")) for line in lines)


def test_a_fault_of_the_queue_is_told_to_all_and_its_words_to_readers(served, reader, monkeypatch):
    with served.client(None) as nobody:
        assert nobody.get("/api/v1/health").json() == {"ok": True}
        monkeypatch.setattr(served.service.scheduler, "tick", lambda *_: None)
        monkeypatch.setattr(served.service.scheduler, "faults", ("no space left on device",))
        answer = nobody.get("/api/v1/health")

    assert (answer.status_code, answer.json()) == (503, {"ok": False})
    assert reader.get("/api/v1/status").json()["faults"] == ["no space left on device"]


def test_a_broken_queue_and_a_stopped_scheduler_are_told_and_records_counted(serve, tmp_path):
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "queue.db").write_bytes(b"garbage" * 1000)
    served = serve(tmp_path)
    served.service.scheduler.close()
    details = service_status(served.service)

    assert not is_healthy(served.service)
    assert (details.queued, details.running, details.webhooks_waiting) == (None, None, None)
    assert any("cannot use the queue" in fault for fault in details.faults)
    assert any("restart the service" in fault for fault in details.faults)
    assert details.studies == 0
    with served.client("read") as client:
        assert client.get("/api/v1/status").status_code == 200
