"""What a TrainJob, its pods and their events say of a job: plain values, as the API gives them."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from signal import SIGKILL
from typing import Any, Final, TypeAlias

from evaluator.launchers.cluster.scheduler import (
    Gone,
    GoneKind,
    JobState,
    Running,
    Waiting,
    last_words,
)

Object: TypeAlias = Mapping[str, Any]
"""An object of the API, or a part of one."""

DISRUPTIONS: Final[Mapping[str, GoneKind]] = {
    "PreemptionByScheduler": "preempted",
    "EvictionByEvictionAPI": "preempted",
    "TerminationByKubelet": "preempted",
    "DeletionByTaintManager": "node_failed",
    "DeletionByPodGC": "node_failed",
}
"""Reasons of a pod's condition DisruptionTarget."""

EVENTS: Final[Mapping[str, GoneKind]] = {
    "Preempted": "preempted",
    "Evicted": "preempted",
    "NodeNotReady": "node_failed",
    "TaintManagerEviction": "node_failed",
}
CALLED_OFF: Final = "Cancelling deletion"
NODE_LOST: Final = ("NodeLost", "NodeAffinity", "NodeShutdown", "Shutdown")
NEVER_STARTS: Final = (
    "InvalidImageName",
    "ErrImageNeverPull",
    "StartError",
    "ContainerCannotRun",
)
OUT_OF_MEMORY: Final = "OOMKilled"
KILLED: Final = 128 + SIGKILL
"""The exit status of a process that was killed. One that runs on after a child of its was killed
for memory may end with any other, for any other reason, and gets the same word."""
STARTS: Final = ("ContainerCreating", "PodInitializing")


def job_state(
    job: Object | None,
    pods: Sequence[Object],
    events: Sequence[Object],
    *,
    node_count: int,
    now_s: float,
) -> JobState:
    """Judge a job; `events` are those of its objects, and None is a job that was deleted."""
    if job is None:
        return Waiting("Terminating") if pods else Gone("cancelled", "the TrainJob was deleted")
    if "deletionTimestamp" in job["metadata"]:
        return Waiting("Terminating")
    conditions = {c["type"]: c for c in job.get("status", {}).get("conditions", ()) if _holds(c)}
    failed = conditions.get("Failed")
    if failed is not None and failed.get("reason") == "DeadlineExceeded":
        return Gone("time_limit", _words(failed))
    gone = next(_causes(pods, events), None)
    if gone is not None:
        return gone
    if failed is not None:
        return Gone("ended", _words(failed))
    if "Complete" in conditions:
        return Gone("ended", _words(conditions["Complete"]))
    running = [pod for pod in pods if pod["status"].get("phase") in ("Running", "Succeeded")]
    if len(running) == node_count:
        return Running(
            nodes=tuple(str(pod["spec"]["nodeName"]) for pod in running),
            names={_hostname(pod): str(pod["spec"]["nodeName"]) for pod in running},
            ends_in_s=_ends_in_s(job, running, now_s),
        )
    if "Suspended" in conditions:
        return Waiting(_words(conditions["Suspended"]))
    return Waiting(_why_waiting(pods, events))


def _causes(pods: Sequence[Object], events: Sequence[Object]) -> Iterator[Gone]:
    """Why it is over, the more exact first."""
    for pod in pods:
        yield from _ends(pod)
    not_ready = {pod["metadata"]["name"] for pod in pods if not _ready(pod)}
    names = {pod["metadata"]["name"] for pod in pods}
    for event in events:
        kind = EVENTS.get(event.get("reason", ""))
        name = event["involvedObject"].get("name", "")
        lost = name in not_ready or name not in names
        if kind is not None and lost and not event.get("message", "").startswith(CALLED_OFF):
            yield Gone(kind, f"{name}: {_words(event)}")


def _ends(pod: Object) -> Iterator[Gone]:
    """How a pod came to its end, if it did."""
    status, name = pod["status"], pod["metadata"]["name"]
    for condition in status.get("conditions", ()):
        if condition["type"] == "DisruptionTarget" and _holds(condition):
            disruption = DISRUPTIONS.get(condition.get("reason", ""), "preempted")
            yield Gone(disruption, f"{name}: {_words(condition)}")
    if status.get("reason") == "Evicted":
        yield Gone("preempted", f"{name}: {_words(status)}")
    if status.get("reason") in NODE_LOST:
        yield Gone("node_failed", f"{name}: {_words(status)}")
    for container in status.get("containerStatuses", ()):
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason") in NEVER_STARTS:
            yield Gone("refused", f"{name}: {_words(waiting)}")
        for when in ("state", "lastState"):
            ended = container.get(when, {}).get("terminated")
            if ended is not None and ended.get("exitCode") != 0:
                yield _of_container(pod, ended)
    if status.get("phase") == "Failed":
        yield Gone("ended", f"{name}: {_words(status) or 'Failed'}")


def _of_container(pod: Object, ended: Object) -> Gone:
    """How a container failed; a kill for memory is one of the whole container, with its agent."""
    status, name = ended.get("exitCode"), pod["metadata"]["name"]
    words = f"{name}: {_words(ended)}, exit status {status}"
    if ended.get("reason") == OUT_OF_MEMORY and status == KILLED:
        return Gone("out_of_memory", words, node=str(pod["spec"]["nodeName"]))
    return Gone("refused" if ended.get("reason") in NEVER_STARTS else "ended", words)


def _why_waiting(pods: Sequence[Object], events: Sequence[Object]) -> str:
    """The most telling reason: an image before a node before a quota."""
    reasons = [reason for reason in map(_waits, pods) if reason]
    telling = [reason for reason in reasons if not reason.startswith(STARTS)]
    warnings = [_words(event) for event in events if event.get("type") == "Warning"]
    return next(iter((*telling, *(warnings[-1:] if not pods else ()), *reasons)), "Pending")


def _waits(pod: Object) -> str:
    """Why a pod does not run yet; empty where it does."""
    for container in pod["status"].get("containerStatuses", ()):
        waiting = container.get("state", {}).get("waiting")
        if waiting is not None:
            return _words(waiting)
    for condition in pod["status"].get("conditions", ()):
        if condition["type"] == "PodScheduled" and not _holds(condition):
            return _words(condition)
    return ""


def _hostname(pod: Object) -> str:
    """What a pod takes for the name of its machine."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])


def _ready(pod: Object) -> bool:
    return any(c["type"] == "Ready" and _holds(c) for c in pod["status"].get("conditions", ()))


def _holds(condition: Object) -> bool:
    return bool(condition.get("status") == "True")


def _ends_in_s(job: Object, running: Sequence[Object], now_s: float) -> float | None:
    limit_s = job["spec"].get("activeDeadlineSeconds")
    if limit_s is None:
        return None
    started = (datetime.fromisoformat(pod["status"]["startTime"]) for pod in running)
    return min(start.timestamp() for start in started) + float(limit_s) - now_s


def _words(said: Object) -> str:
    """A reason and its message, on one line."""
    return last_words(": ".join(filter(None, (said.get("reason"), said.get("message")))))
