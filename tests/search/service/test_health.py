"""Health: what waits, what runs where, and what is wrong, whatever is broken."""

import pytest

from search.service.api.health import details_of, is_well
from search.service.config import Offered, ServiceConfig
from search.service.queue import State, entering


@pytest.fixture
def service(serve, tmp_path):
    config = ServiceConfig(
        environment={
            "a": Offered(devices="gpus"),
            "b": Offered(devices="gpus", at_once=3),
            "c": Offered(),
        }
    )
    return serve(tmp_path / "store", config)


def test_uses_are_told_by_devices_with_the_strictest_limit(service):
    for number, state in enumerate([State.RUNNING, State.QUEUED, State.CANCELLING]):
        service.service.table.add(entering(str(number), "b", "gpus", 3, "ci"))
        service.service.table.change_from(str(number), State.ENTERING, state)
    with service.client("read") as client:
        told = client.get("/api/v1/status").json()

    assert told["ok"] is True
    assert (told["queued"], told["running"]) == (1, 2)
    (gpus,) = (use for use in told["places"] if use["devices"] == "gpus")
    assert (gpus["environments"], gpus["at_once"]) == (["a", "b"], 1)
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
    service.service.keeper.faults = ("no space left on device",)
    with service.client(None) as nobody, service.client("read") as reader:
        answer = nobody.get("/api/v1/health")
        told = reader.get("/api/v1/status").json()
        service.service.keeper.faults = ()
        assert nobody.get("/api/v1/health").json() == {"ok": True}

    assert (answer.status_code, answer.json()) == (503, {"ok": False})
    assert told["faults"] == ["no space left on device"]


def test_a_broken_queue_is_told_and_records_are_counted_nonetheless(serve, tmp_path):
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "queue.db").write_bytes(b"garbage" * 1000)
    served = serve(tmp_path)
    details = details_of(served.service)

    assert (details.queued, details.running, details.webhooks_waiting) == (None, None, None)
    assert any("cannot use the queue" in fault for fault in details.faults)
    assert details.studies == 0
    with served.client("read") as client:
        assert client.get("/api/v1/status").status_code == 200


def test_a_keeper_that_is_gone_is_not_well(service):
    service.service.keeper.close()

    assert not is_well(service.service)
    assert any("start the service again" in fault for fault in details_of(service.service).faults)
