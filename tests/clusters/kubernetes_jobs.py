"""The scheduler `kubernetes` through Kubeflow's SDK, against an API server without nodes."""

import base64
import json
from pathlib import Path

import pytest

from evaluator.launchers.cluster.scheduler import (
    AgentRequest,
    Gone,
    Running,
    SchedulerBusy,
    SchedulerError,
    Waiting,
)
from evaluator.launchers.cluster.schedulers.kubernetes import Kubernetes
from records.study import Cluster
from tests.clusters.kubernetes_server import TRAINER, KubernetesServer

models = pytest.importorskip(
    "kubeflow_trainer_api.models", reason="needs: pip install 'cclsearch[kubernetes]'"
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Kubeflow's SDK

NAME = "cclsearch-20261124-142926-208b-1"
JOB = f"{TRAINER}/namespaces/research/trainjobs/{NAME}"
PODS = "/api/v1/namespaces/research/pods"
SECRET = f"/api/v1/namespaces/research/secrets/{NAME}"
GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def server(tmp_path):
    running = KubernetesServer(tmp_path)
    yield running
    running.stop()


@pytest.fixture
def scheduler(server):
    return made(server)


def made(server, **settings):
    cluster = Cluster(namespace="research", **settings)
    return Kubernetes(cluster, {"KUBECONFIG": str(server.kubeconfig)})


def asked(**settings):
    command = ("python3", "agent.pyz", "--address=10.0.0.1:5000")
    return AgentRequest(name=NAME, node_count=2, command=command, **settings)


def add_pod(server, number, **status):
    labels = {"jobset.sigs.k8s.io/jobset-name": NAME}
    name = f"{NAME}-node-0-{number}"
    server.objects[f"{PODS}/{name}"] = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": f"gpu{number}"},
        "status": status,
    }


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("plain", {}),
        (
            "everything",
            {
                "image": "registry.example/train:1",
                "options": ("nvidia.com/gpu=8", "cpu=64", "memory=512Gi"),
                "exclude": ("gpu7",),
                "partition": "research-queue",
                "qos": "high",
                "shared_dir": "/shared",
                "volume_claim": "shared",
                "time_limit_s": 7200.0,
            },
        ),
    ],
)
def test_the_train_job_is_what_the_published_api_takes(server, name, settings, tmp_path):
    request = asked(files={"agent.pyz": b"zip"}, environment={"GREETING": "good day"})

    made(server, **settings).submit(request)

    created = server.objects[JOB]
    for changing in ("uid", "creationTimestamp"):
        del created["metadata"][changing]
    assert models.TrainerV1alpha1TrainJob.from_dict(created).to_dict() == created
    written = tmp_path / f"train_job_{name}.json"
    written.write_text(json.dumps(created, indent=1, sort_keys=True) + "\n")
    golden = GOLDEN / written.name
    assert written.read_text() == golden.read_text(), f"cp {written} {golden}"


def test_files_come_in_a_secret_that_goes_with_the_job(server, scheduler):
    scheduler.submit(asked(files={"agent.pyz": b"zip"}))

    secret = server.objects[SECRET]
    assert base64.b64decode(secret["data"]["agent.pyz"]) == b"zip"
    assert secret["metadata"]["ownerReferences"][0]["uid"] == server.objects[JOB]["metadata"]["uid"]
    assert "zip" not in json.dumps(server.objects[JOB])


def test_a_job_is_followed_from_its_queue_to_its_end(server, scheduler):
    job = scheduler.submit(asked())
    states = [scheduler.state(job)]
    back_off = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    add_pod(server, 0, phase="Running")
    add_pod(server, 1, phase="Pending", containerStatuses=[{"state": {"waiting": back_off}}])
    states.append(scheduler.state(job))
    add_pod(server, 1, phase="Running")
    states.append(scheduler.state(job))
    killed = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    add_pod(server, 1, phase="Failed", containerStatuses=[{"state": killed}])
    states.append(scheduler.state(job))

    assert states == [
        Waiting("Pending"),
        Waiting("ImagePullBackOff: Back-off pulling image"),
        Running(nodes=("gpu0", "gpu1"), names={f"{NAME}-node-0-{n}": f"gpu{n}" for n in (0, 1)}),
        Gone("out_of_memory", f"{NAME}-node-0-1: OOMKilled, exit status 137", "gpu1"),
    ]


def test_a_job_is_found_until_it_is_deleted(server, scheduler):
    job = scheduler.submit(asked())
    found = scheduler.find(NAME)
    scheduler.cancel(job)

    assert found == job
    assert scheduler.find(NAME) is None
    assert JOB not in server.objects


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (403, SchedulerError, "trainjobs is forbidden: exceeded quota"),
        (404, SchedulerError, 'namespaces "nowhere" not found'),
        (503, SchedulerBusy, "apiserver is shutting down"),
    ],
)
def test_a_refusal_is_in_the_servers_own_words(server, scheduler, code, kind, words):
    server.refuse = (code, words)

    with pytest.raises(SchedulerError, match=words) as raised:
        scheduler.submit(asked())
    assert type(raised.value) is kind


def test_a_refused_secret_leaves_no_job(server, scheduler, monkeypatch):
    create = server._create

    def without_secrets(path, body):
        if path.endswith("/secrets"):
            return 403, {"kind": "Status", "code": 403, "message": "secrets is forbidden"}
        return create(path, body)

    monkeypatch.setattr(server, "_create", without_secrets)

    with pytest.raises(SchedulerError, match="secrets is forbidden"):
        scheduler.submit(asked(files={"agent.pyz": b"zip"}))
    assert JOB not in server.objects


def test_a_second_job_of_the_same_name_is_refused(scheduler):
    scheduler.submit(asked())

    with pytest.raises(SchedulerError, match=f'"{NAME}" already exists'):
        scheduler.submit(asked())


def test_a_server_that_does_not_answer_is_asked_again_later(server, scheduler):
    scheduler.submit(asked())
    server.stop()

    with pytest.raises(SchedulerBusy):
        scheduler.state(NAME)


def test_a_runtime_that_does_not_exist_is_named(server):
    with pytest.raises(SchedulerError, match='"torch-distribted" not found'):
        made(server, runtime="torch-distribted").submit(asked())


def test_facts_name_the_version_the_namespace_and_the_runtimes(scheduler):
    assert scheduler.facts() == {
        "version": "v1.34.1",
        "namespace": "research",
        "runtimes": "torch-distributed",
    }
