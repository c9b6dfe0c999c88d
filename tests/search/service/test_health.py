"""Health: what waits, what runs where, and what is wrong, whatever is broken."""

import pytest

from search.service.api.health import is_healthy, service_status
from search.service.config import OfferedEnvironment, ServiceConfig
from search.service.queue import State
from tests.search.service.queueing import submission


@pytest.fixture
def service(serve, tmp_path):
    config = ServiceConfig(
        environment={
            "a": OfferedEnvironment(devices="gpus"),
            "b": OfferedEnvironment(devices="gpus", parallel_studies=3),
            "c": OfferedEnvironment(),
        }
    )
    return serve(tmp_path / "store", config)


def test_uses_are_told_by_devices_with_the_strictest_limit(service):
    for number, state in enumerate([State.RUNNING, State.QUEUED, State.CANCELLING]):
        service.service.table.add(submission(str(number), environment="b"))
        service.service.table.change_from(str(number), State.PENDING, state)
    with service.client("read") as client:
        told = client.get("/api/v1/status").json()

    assert told["ok"] is True
    assert (told["queued"], told["running"]) == (1, 2)
    (gpus,) = (use for use in told["devices"] if use["devices"] == "gpus")
    assert (gpus["environments"], gpus["parallel_studies"]) == (["a", "b"], 1)
    assert (gpus["running"], gpus["queued"]) == (2, 1)
    assert told["disk_free_bytes"] > 0
    assert told["memory_bytes"] > 0


def test_monitoring_gets_the_same_in_its_own_format(service):
    with service.client("read") as client:
        lines = client.get("/api/v1/metrics").text.splitlines()

    assert "cclsearch_up 1" in lines
    assert 'cclsearch_devices_running{devices="gpus"} 0' in lines
    assert all(line.startswith(("# HELP ", "# TYPE ", "cclsearch_")) for line in lines)


def test_a_fault_of_the_queue_is_told_to_all_and_its_words_to_readers(service):
    service.service.scheduler.faults = ("no space left on device",)
    with service.client(None) as nobody, service.client("read") as reader:
        answer = nobody.get("/api/v1/health")
        told = reader.get("/api/v1/status").json()
        service.service.scheduler.faults = ()
        assert nobody.get("/api/v1/health").json() == {"ok": True}

    assert (answer.status_code, answer.json()) == (503, {"ok": False})
    assert told["faults"] == ["no space left on device"]


def test_a_broken_queue_is_told_and_records_are_counted_nonetheless(serve, tmp_path):
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "queue.db").write_bytes(b"garbage" * 1000)
    served = serve(tmp_path)
    details = service_status(served.service)

    assert (details.queued, details.running, details.webhooks_waiting) == (None, None, None)
    assert any("cannot use the queue" in fault for fault in details.faults)
    assert details.studies == 0
    with served.client("read") as client:
        assert client.get("/api/v1/status").status_code == 200


def test_a_scheduler_that_has_stopped_is_not_healthy(service):
    service.service.scheduler.close()

    assert not is_healthy(service.service)
    assert any("restart the service" in fault for fault in service_status(service.service).faults)
