"""Agents on the nodes of a Ray cluster, started by a Ray job over a placement group.

A job's id begins with the name of its request, so that it is found without any record. No id is
used twice: Ray still monitors a job that has just ended, and would mark a new one with its id as
dead.
"""

import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from evaluator.launchers.cluster.scheduler import (
    AgentRequest,
    Gone,
    JobState,
    Running,
    SchedulerBusy,
    SchedulerError,
    Waiting,
    last_words,
)
from evaluator.launchers.cluster.schedulers import ray_job
from records.study import Cluster

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

POLL_S: Final = 0.5
CANCEL_LIMIT_S: Final = 120.0


class Ray:
    """Jobs of the Ray cluster at `[cluster] address`, by default that of this machine."""

    carries_files = True

    def __init__(self, cluster: Cluster, environment: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._address = cluster.address or environment.get("RAY_ADDRESS")

    def missing(self) -> str | None:
        """Return how to get Ray where it is not installed."""
        if find_spec("ray") is None:
            return "launcher 'ray' needs Ray: pip install 'cclsearch[ray]'"
        return None

    def facts(self) -> Mapping[str, str]:
        """Return the version and what every living node has."""
        import ray
        from ray.util.state import list_nodes

        address = self._client().get_address()
        nodes = [node for node in list_nodes(address=address) if node.state == "ALIVE"]
        return {
            "address": address,
            "ray": ray.__version__,
            "nodes": "; ".join(f"{n.node_name}: {_amounts(n.resources_total)}" for n in nodes),
        }

    def submit(self, request: AgentRequest) -> str:
        """Submit the job that takes the nodes and starts the agents."""
        asked = {
            "node_count": request.node_count,
            "resources": resources(self._cluster.options),
            "exclude": self._cluster.exclude,
            "time_limit_s": self._cluster.time_limit_s,
            "command": request.command,
            "environment": dict(request.environment),
        }
        with TemporaryDirectory() as name:
            folder = Path(name)
            (folder / ray_job.REQUEST).write_text(json.dumps(asked))
            (folder / ray_job.PROGRAM).write_bytes(Path(ray_job.__file__).read_bytes())
            for file, content in request.files.items():
                (folder / file).write_bytes(content)
            try:
                return str(
                    self._client().submit_job(
                        # Without `exec`, an early stop may kill only the shell.
                        entrypoint=f"exec python {ray_job.PROGRAM}",
                        submission_id=f"{request.name}-{token_hex(4)}",
                        runtime_env={"working_dir": name},
                    )
                )
            except (RuntimeError, ValueError) as error:
                raise SchedulerError(f"Ray: {_words(error)}") from error

    def find(self, name: str) -> str | None:
        """Return the id of the job with this name that has not ended."""
        try:
            jobs = self._client().list_jobs()
        except RuntimeError as error:
            raise SchedulerBusy(f"Ray: {_words(error)}") from error
        for job in jobs:
            id_ = job.submission_id or ""
            if id_.rpartition("-")[0] == name and not job.status.is_terminal():
                return id_
        return None

    def state(self, job: str) -> JobState:
        """Translate the job's status; what only its program knows is in what it printed last."""
        client = self._client()
        try:
            details = client.get_job_info(job)
            said = client.get_job_logs(job)
        except RuntimeError as error:
            if "does not exist" in str(error):
                return Gone("ended", f"Ray knows no job {job}")
            raise SchedulerBusy(f"Ray: {_words(error)}") from error
        return job_state(str(details.status.value), details.message or "", said, time.time())

    def cancel(self, job: str) -> None:
        """Stop the job, and wait until its agents are gone with it."""
        if isinstance(self.state(job), Gone):
            return
        self._client().stop_job(job)
        deadline_s = time.monotonic() + CANCEL_LIMIT_S
        while not isinstance(self.state(job), Gone):
            if time.monotonic() > deadline_s:
                raise SchedulerBusy(
                    f"Ray job {job} has not ended {CANCEL_LIMIT_S:g} s after its stop"
                )
            time.sleep(POLL_S)

    def _client(self) -> "JobSubmissionClient":
        from ray.job_submission import JobSubmissionClient

        # It reports what it uploads, in the midst of what we report.
        logging.getLogger("ray.dashboard.modules.dashboard_sdk").setLevel(logging.WARNING)
        try:
            return JobSubmissionClient(self._address)
        except ConnectionError as error:
            raise SchedulerBusy(
                f"no Ray cluster answers at {self._address or 'this machine'}; give the address of "
                'its dashboard, as in [cluster] address = "http://head:8265"'
            ) from error


def job_state(status: str, message: str, said: str, now_s: float) -> JobState:
    """Judge a job by its status and by the last line that its program printed."""
    last = ray_job.last_report(said)
    if status == "PENDING":
        return Waiting(last_words(message) or "PENDING")
    if status == "RUNNING":
        if "nodes" not in last:
            return Waiting(last.get("waiting", "RUNNING"))
        ends_s = last.get("ends_s")
        return Running(
            nodes=tuple(last["nodes"]), ends_in_s=None if ends_s is None else ends_s - now_s
        )
    if "gone" in last:
        return Gone(last["gone"], last["words"], last.get("node"))
    if status == "STOPPED":
        return Gone("cancelled", last_words(message))
    return Gone("refused" if "nodes" not in last else "ended", last_words(message) or status)


def resources(options: Sequence[str]) -> dict[str, float]:
    """What each node has to have, as in `GPU=8`; one CPU where nothing is said."""
    try:
        given = {name: float(amount) for name, _, amount in (o.partition("=") for o in options)}
    except ValueError as error:
        raise SchedulerError(
            f"[cluster] options {list(options)}: to Ray they are what each node has to have, as in "
            '["CPU=16", "GPU=8"]'
        ) from error
    return given or {"CPU": 1.0}


def _amounts(resources: Mapping[str, float]) -> str:
    """The accelerators and processors of a node."""
    return ", ".join(f"{resources[name]:g} {name}" for name in ("GPU", "CPU") if name in resources)


def _words(error: Exception) -> str:
    """The last error in what Ray says, which is often the traceback of its server."""
    errors = re.findall(r"^\s*(?:\w+\.)*\w*Error: (.+)$", str(error), re.MULTILINE)
    return last_words(errors[-1] if errors else str(error))
