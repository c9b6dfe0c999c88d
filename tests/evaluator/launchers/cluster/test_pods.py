"""What TrainJobs, pods and events say, as an API server gives them."""

from dataclasses import replace

import pytest

from evaluator.launchers.cluster.scheduler import Gone, Running, Waiting
from evaluator.launchers.cluster.schedulers.pods import job_state

NOW_S = 1795530600.0  # 2026-11-24T14:30:00Z
RUNNING = Running(
    nodes=("gpu0", "gpu1"),
    names={"search-1-node-0-0": "gpu0", "search-1-node-0-1": "gpu1"},
)
READY = {"type": "Ready", "status": "True"}
NO_NODE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/4 nodes are available: 4 Insufficient nvidia.com/gpu.",
}


def train_job(*conditions, **spec):
    metadata = {"name": "search-1", "uid": "5f1c"}
    return {"metadata": metadata, "spec": spec, "status": {"conditions": list(conditions)}}


def pod(number=0, *, phase="Running", conditions=(READY,), container=None, **status):
    started = {"startTime": "2026-11-24T14:20:00Z", "phase": phase, "conditions": conditions}
    containers = [{"name": "node", **container}] if container else []
    return {
        "metadata": {"name": f"search-1-node-0-{number}"},
        "spec": {"nodeName": f"gpu{number}"},
        "status": {**started, "containerStatuses": containers, **status},
    }


def waiting(reason, message=None):
    return {"state": {"waiting": {"reason": reason, "message": message}}}


def terminated(reason, exit_code, when="state"):
    return {when: {"terminated": {"reason": reason, "exitCode": exit_code}}}


def event(reason, message="", name="search-1-node-0-1", kind="Warning"):
    about = {"involvedObject": {"name": name}, "type": kind}
    return {**about, "reason": reason, "message": message}


def condition(kind, reason, message="", status="True"):
    return {"type": kind, "status": status, "reason": reason, "message": message}


def judged(job=None, pods=(), events=(), *, node_count=2):
    return job_state(
        job or train_job(), list(pods), list(events), node_count=node_count, now_s=NOW_S
    )


def test_a_job_runs_when_every_node_has_its_pod():
    assert judged(pods=[pod(0), pod(1)]) == RUNNING


def test_a_node_is_known_by_the_name_of_its_machine_in_the_pod():
    indexed = pod(0)
    indexed["spec"]["hostname"] = "search-1-node-0-0"
    indexed["metadata"]["name"] = "search-1-node-0-0-x7k2p"

    assert judged(pods=[indexed], node_count=1).names == {"search-1-node-0-0": "gpu0"}


def test_the_time_left_counts_from_the_first_pod():
    state = judged(train_job(activeDeadlineSeconds=3600), [pod(0), pod(1)])

    assert state == replace(RUNNING, ends_in_s=3000.0)


def test_a_job_with_too_few_pods_waits():
    assert judged(pods=[pod(0)]) == Waiting("Pending")


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (pod(1, phase="Pending", conditions=[NO_NODE]), f"Unschedulable: {NO_NODE['message']}"),
        (
            pod(1, phase="Pending", container=waiting("ImagePullBackOff", "Back-off pulling")),
            "ImagePullBackOff: Back-off pulling",
        ),
        (pod(1, phase="Pending", container=waiting("ContainerCreating")), "ContainerCreating"),
    ],
)
def test_a_pod_that_does_not_start_says_why(second, reason):
    creating = pod(0, phase="Pending", container=waiting("ContainerCreating"))

    assert judged(pods=[creating, second]) == Waiting(reason)


def test_a_suspended_job_waits_in_its_queue():
    job = train_job(condition("Suspended", "Suspended", "TrainJob is suspended"))

    assert judged(job) == Waiting("Suspended: TrainJob is suspended")


def test_a_job_without_pods_says_what_forbids_them():
    exceeded = event("FailedCreate", "exceeded quota: gpus", name="search-1-node-0")

    assert judged(events=[exceeded]) == Waiting("FailedCreate: exceeded quota: gpus")


@pytest.mark.parametrize(
    ("second", "kind", "words"),
    [
        (pod(1, container=terminated("OOMKilled", 1)), "ended", "OOMKilled, exit status 1"),
        (pod(1, container=terminated("Error", 1)), "ended", "Error, exit status 1"),
        (
            pod(1, phase="Failed", reason="Evicted", message="low on resource: memory"),
            "preempted",
            "Evicted: low on resource: memory",
        ),
        (
            pod(1, reason="NodeLost", message="unresponsive"),
            "node_failed",
            "NodeLost: unresponsive",
        ),
        (
            pod(1, conditions=[condition("DisruptionTarget", "PreemptionByScheduler")]),
            "preempted",
            "PreemptionByScheduler",
        ),
        (
            pod(1, conditions=[condition("DisruptionTarget", "DeletionByTaintManager")]),
            "node_failed",
            "DeletionByTaintManager",
        ),
        (pod(1, container=waiting("InvalidImageName", "a b")), "refused", "InvalidImageName: a b"),
        (pod(1, container=terminated("StartError", 128)), "refused", "StartError, exit status 128"),
    ],
)
def test_one_pod_that_is_gone_ends_the_job(second, kind, words):
    assert judged(pods=[pod(0), second]) == Gone(kind, f"search-1-node-0-1: {words}")


@pytest.mark.parametrize("when", ["state", "lastState"])
def test_a_pod_that_was_killed_for_memory_names_its_node(when):
    state = judged(pods=[pod(0), pod(1, container=terminated("OOMKilled", 137, when))])

    words = "search-1-node-0-1: OOMKilled, exit status 137"
    assert state == Gone("out_of_memory", words, node="gpu1")


@pytest.mark.parametrize(
    ("reason", "message", "kind"),
    [
        ("Preempted", "Preempted by a pod on node gpu1", "preempted"),
        ("TaintManagerEviction", "Marking for deletion Pod", "node_failed"),
    ],
)
def test_a_pod_that_was_deleted_is_explained_by_its_event(reason, message, kind):
    state = judged(pods=[pod(0)], events=[event(reason, message, kind="Normal")])

    assert state == Gone(kind, f"search-1-node-0-1: {reason}: {message}")


def test_a_node_that_was_not_ready_for_a_moment_ends_nothing():
    state = judged(pods=[pod(0), pod(1)], events=[event("NodeNotReady", "Node is not ready")])

    assert state == RUNNING


def test_a_deletion_that_was_called_off_ends_nothing():
    called_off = event("TaintManagerEviction", "Cancelling deletion of Pod")

    assert judged(pods=[pod(0)], events=[called_off]) == Waiting("Pending")


@pytest.mark.parametrize(
    ("reached", "expected"),
    [
        (
            condition("Failed", "DeadlineExceeded", "longer"),
            Gone("time_limit", "DeadlineExceeded: longer"),
        ),
        (condition("Failed", "JobSetFailed", "jobset"), Gone("ended", "JobSetFailed: jobset")),
        (condition("Complete", "JobsCompleted"), Gone("ended", "JobsCompleted")),
        (condition("Failed", "JobSetFailed", status="False"), Waiting("Pending")),
    ],
)
def test_a_condition_that_holds_decides(reached, expected):
    assert judged(train_job(reached)) == expected


def test_a_deleted_job_is_gone_with_its_last_pod():
    assert job_state(None, [pod(0)], [], node_count=2, now_s=NOW_S) == Waiting("Terminating")
    assert job_state(None, [], [], node_count=2, now_s=NOW_S) == Gone(
        "cancelled", "the TrainJob was deleted"
    )
