"""Agents as the pods of a TrainJob of Kubeflow Trainer, one pod on each node.

A runtime of the cluster says what pods there need: tolerations, accounts, gang scheduling. The
files of a request come in a Secret that goes with the TrainJob.
"""

import base64
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from evaluator.launchers.cluster.scheduler import (
    AgentRequest,
    Gone,
    JobState,
    SchedulerBusy,
    SchedulerError,
    last_words,
)
from evaluator.launchers.cluster.schedulers.pods import job_state
from records.study import Cluster

if TYPE_CHECKING:
    from kubeflow.trainer import TrainerClient

GROUP, VERSION, PLURAL = "trainer.kubeflow.org", "v1alpha1", "trainjobs"
RUNTIME: Final = "torch-distributed"
CONTAINER: Final = "node"
OF_JOB: Final = "jobset.sigs.k8s.io/jobset-name"
HOST: Final = "kubernetes.io/hostname"
FOLDER: Final = "/cclsearch"
SECRET_BYTES: Final = 1 << 20
POLL_S: Final = 1.0
CANCEL_LIMIT_S: Final = 180.0
BUSY: Final = (0, 429, 500, 502, 503, 504)


class Kubernetes:
    """TrainJobs in a namespace; `[cluster] address` is a context of the kubeconfig."""

    carries_files = True

    def __init__(self, cluster: Cluster, environment: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._kubeconfig = environment.get("KUBECONFIG")
        self._trainer: TrainerClient | None = None

    def missing(self) -> str | None:
        """Return how to get Kubeflow's SDK where it is not installed."""
        if find_spec("kubeflow") is None or find_spec("kubernetes") is None:
            return "launcher 'kubernetes' needs Kubeflow's SDK: pip install 'cclsearch[kubernetes]'"
        return None

    def facts(self) -> Mapping[str, str]:
        """Return the namespace, the version, and the runtimes of Kubeflow Trainer."""
        from kubernetes.client import VersionApi

        backend = self._connected().backend
        with _words_kept():
            runtimes = [runtime.name for runtime in self._connected().list_runtimes()]
            version = VersionApi(backend.core_api.api_client).get_code(_preload_content=False)
        return {
            "version": str(json.loads(version.data)["gitVersion"]),
            "namespace": backend.namespace,
            "runtimes": ", ".join(runtimes) or "none: install Kubeflow Trainer",
        }

    def submit(self, request: AgentRequest) -> str:
        """Create the TrainJob, then the Secret with its files, which goes when the TrainJob goes.

        Pods wait until the Secret is there.
        """
        from kubernetes.client import ApiException

        trainer = self._connected()
        with _words_kept():
            runtime = trainer.get_runtime(self._cluster.runtime or RUNTIME)
            trainer.train(runtime=runtime, **train_job(self._cluster, request, runtime))
            job = self._job(request.name)
            try:
                if request.files and job is not None:
                    trainer.backend.core_api.create_namespaced_secret(
                        trainer.backend.namespace, _secret(request, job)
                    )
            except ApiException:
                self._delete(request.name)
                raise
        return request.name

    def find(self, name: str) -> str | None:
        """Return the name itself if a TrainJob of this name has not ended."""
        return None if isinstance(self.state(name), Gone) else name

    def state(self, job: str) -> JobState:
        """Judge the TrainJob by its conditions, its pods and their events."""
        backend = self._connected().backend
        core, namespace = backend.core_api, backend.namespace
        with _words_kept():
            train_job = self._job(job)
            pods = core.list_namespaced_pod(
                namespace, label_selector=f"{OF_JOB}={job}", _preload_content=False
            )
            events = core.list_namespaced_event(namespace, _preload_content=False)
        return job_state(
            train_job,
            json.loads(pods.data)["items"],
            [event for event in json.loads(events.data)["items"] if _concerns(event, job)],
            node_count=(train_job or {}).get("spec", {}).get("trainer", {}).get("numNodes", 0),
            now_s=time.time(),
        )

    def cancel(self, job: str) -> None:
        """Delete the TrainJob, and wait until the last of its pods is gone."""
        deadline_s = time.monotonic() + CANCEL_LIMIT_S
        self._delete(job)
        while self._job(job) is not None or not isinstance(self.state(job), Gone):
            if time.monotonic() > deadline_s:
                raise SchedulerBusy(
                    f"TrainJob {job} is not gone {CANCEL_LIMIT_S:g} s after its deletion"
                )
            time.sleep(POLL_S)

    def _connected(self) -> "TrainerClient":
        """The client, made once; it takes the kubeconfig, or the account of the pod it is in."""
        from kubeflow.common.types import KubernetesBackendConfig
        from kubeflow.trainer import TrainerClient
        from kubernetes.config import ConfigException

        if self._trainer is None:
            try:
                self._trainer = TrainerClient(
                    KubernetesBackendConfig(
                        config_file=self._kubeconfig,
                        context=self._cluster.address,
                        namespace=self._cluster.namespace,
                    )
                )
            except ConfigException as error:
                raise SchedulerError(f"Kubernetes: {last_words(str(error))}") from error
        return self._trainer

    def _job(self, name: str) -> dict[str, Any] | None:
        from kubernetes.client import ApiException

        backend = self._connected().backend
        with _words_kept():
            try:
                found: dict[str, Any] = backend.custom_api.get_namespaced_custom_object(
                    GROUP, VERSION, backend.namespace, PLURAL, name
                )
            except ApiException as error:
                if error.status == 404:
                    return None
                raise
        return found

    def _delete(self, name: str) -> None:
        """Have what the TrainJob owns deleted before it."""
        from kubernetes.client import ApiException

        backend = self._connected().backend
        with _words_kept():
            try:
                backend.custom_api.delete_namespaced_custom_object(
                    GROUP, VERSION, backend.namespace, PLURAL, name, propagation_policy="Foreground"
                )
            except ApiException as error:
                if error.status != 404:
                    raise


def train_job(cluster: Cluster, request: AgentRequest, runtime: Any) -> dict[str, Any]:
    """Return what the SDK makes the TrainJob of: its trainer and its options."""
    from kubeflow.trainer import CustomTrainerContainer
    from kubeflow.trainer.options import ActiveDeadlineSeconds, Labels, Name, TrainerCommand

    command = ("/bin/sh", "-c", f'cd {FOLDER} && exec "$@"', "sh") if request.files else ()
    options = [
        Name(request.name),
        Labels(dict(_labels(cluster))),
        TrainerCommand([*command, *request.command]),
        _pod_patch(cluster, request),
    ]
    if cluster.time_limit_s is not None:
        options.append(ActiveDeadlineSeconds(int(cluster.time_limit_s)))
    return {
        "trainer": CustomTrainerContainer(
            image=cluster.image or runtime.trainer.image,
            num_nodes=request.node_count,
            resources_per_node=dict(option.partition("=")[::2] for option in cluster.options),
            env=dict(request.environment),
        ),
        "options": options,
    }


def _labels(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Queue and priority, as Kueue reads them."""
    if cluster.partition:
        yield "kueue.x-k8s.io/queue-name", cluster.partition
    if cluster.qos:
        yield "kueue.x-k8s.io/priority-class", cluster.qos


def _pod_patch(cluster: Cluster, request: AgentRequest) -> Any:
    """One pod on a node, none on those excluded, and the files of the request in each."""
    from kubeflow.trainer import options as sdk

    others = {"labelSelector": {"matchLabels": {OF_JOB: request.name}}, "topologyKey": HOST}
    affinity: dict[str, Any] = {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [others]}
    }
    if cluster.exclude:
        term = {"key": HOST, "operator": "NotIn", "values": list(cluster.exclude)}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    volumes = list(_volumes(cluster, request))
    mounts = [{"name": volume["name"], "mountPath": path} for path, volume in volumes]
    spec = sdk.PodSpecPatch(
        affinity=affinity,
        volumes=[volume for _, volume in volumes],
        containers=[sdk.ContainerPatch(name=CONTAINER, volume_mounts=mounts)],
    )
    template = sdk.JobTemplatePatch(spec=sdk.JobSpecPatch(template=sdk.PodTemplatePatch(spec=spec)))
    jobs = [sdk.ReplicatedJobPatch(name=CONTAINER, template=template)]
    jobset = sdk.JobSetTemplatePatch(spec=sdk.JobSetSpecPatch(replicated_jobs=jobs))
    return sdk.RuntimePatch(training_runtime_spec=sdk.TrainingRuntimeSpecPatch(template=jobset))


def _volumes(cluster: Cluster, request: AgentRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each volume is mounted, and the volume."""
    if request.files:
        yield FOLDER, {"name": "files", "secret": {"secretName": request.name}}
    if cluster.volume_claim and cluster.shared_dir:
        claim = {"claimName": cluster.volume_claim}
        yield cluster.shared_dir, {"name": "shared", "persistentVolumeClaim": claim}


def _secret(request: AgentRequest, job: Mapping[str, Any]) -> dict[str, Any]:
    """The files of a request, owned by the TrainJob."""
    size = sum(map(len, request.files.values()))
    if size > SECRET_BYTES:
        raise SchedulerError(
            f"the agent's files take {size} bytes, and a Secret holds {SECRET_BYTES}; give a "
            "[cluster] shared_dir and volume_claim"
        )
    owner = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TrainJob",
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
    }
    return {
        "metadata": {"name": request.name, "ownerReferences": [owner]},
        "data": {name: base64.b64encode(file).decode() for name, file in request.files.items()},
    }


def _concerns(event: Mapping[str, Any], job: str) -> bool:
    """Whether an event is of the TrainJob, or of what was made for it."""
    name = str(event["involvedObject"].get("name", ""))
    return name == job or name.startswith(f"{job}-")


@contextmanager
def _words_kept() -> Iterator[None]:
    """Raise an API server's own words, which the SDK keeps in the cause of its error."""
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (ApiException, HTTPError, RuntimeError, TimeoutError) as error:
        cause = error if isinstance(error, ApiException | HTTPError) else error.__cause__
        if isinstance(cause, ApiException):
            kind = SchedulerBusy if cause.status in BUSY else SchedulerError
            raise kind(f"Kubernetes: {_message(cause)}") from error
        kind = SchedulerBusy if isinstance(cause, HTTPError | TimeoutError) else SchedulerError
        raise kind(f"Kubernetes: {last_words(str(cause or error))}") from error


def _message(error: Any) -> str:
    """What the server said, from its Status object where it sent one."""
    try:
        return last_words(str(json.loads(error.body)["message"]))
    except (TypeError, ValueError, KeyError):
        return last_words(f"{error.status} {error.reason} {error.body or ''}")
