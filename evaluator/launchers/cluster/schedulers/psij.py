"""Agents through PSI/J: the way to PBS, LSF, Flux, and every batch system it has an executor for.

PSI/J neither finds a job by its name nor knows the names of its nodes: the batch system's own
command does the one, agents say the other.
"""

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final

from evaluator.launchers.cluster.scheduler import (
    AgentRequest,
    Gone,
    GoneKind,
    JobState,
    Running,
    SchedulerBusy,
    SchedulerError,
    Waiting,
    answer_of,
    last_words,
)
from records.errors import suggestion
from records.study import Cluster

if TYPE_CHECKING:
    import psij

POLL_S: Final = 5
CANCEL_LIMIT_S: Final = 120.0
CANCEL_POLL_S: Final = 0.5
POLL_FAILURES: Final = 1 << 30
LONGEST_S: Final = 86400.0 * 365

LAUNCHERS: Mapping[str, str] = {
    "cobalt": "aprun",
    "flux": "single",
    "local": "multiple",
    "lsf": "jsrun",
    "slurm": "srun",
}
"""What starts one process on each node, by executor; for all others it is mpirun."""

NAMES: Mapping[str, str] = {
    "lsf": "lsf.J",
    "pbs": "pbs.N",
    "pbs_classic": "pbs.N",
    "slurm": "slurm.job-name",
}
"""The attribute that names a job: the scripts of PSI/J 0.9.11 do not."""

FINDERS: Mapping[str, tuple[str, ...]] = {
    "lsf": ("bjobs", "-noheader", "-o", "jobid", "-J"),
    "pbs": ("qselect", "-N"),
    "pbs_classic": ("qselect", "-N"),
    "slurm": ("squeue", "--me", "--noheader", "--format=%i", "--name"),
}
"""What lists the ids of jobs by a name, which follows."""

CAUSES: tuple[tuple[str, GoneKind], ...] = (
    ("preempt", "preempted"),
    ("node_fail", "node_failed"),
    ("node required by the job is down", "node_failed"),
    ("failure of the slurm system", "node_failed"),
    ("time limit", "time_limit"),
    ("walltime", "time_limit"),
)
NONE_LISTED: Final = "is not found"
"""How LSF says that no job has a name."""


class Psij:
    """Jobs of the executor that `[cluster] executor` names; `options` are its own attributes."""

    carries_files = False

    def __init__(self, cluster: Cluster, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._cluster = cluster
        if find_spec("psij") is not None:
            _import_psij()
        self._lock = Lock()
        self._executor: psij.JobExecutor | None = None
        self._jobs: dict[str, psij.Job] = {}
        self._names: dict[str, str] = {}
        self._gone: set[str] = set()
        """Jobs that were cancelled before PSI/J asks again."""

    def missing(self) -> str | None:
        """Return how to get PSI/J where it is not installed."""
        if find_spec("psij") is None:
            return "launcher 'psij' needs PSI/J: pip install 'cclsearch[psij]'"
        return None

    def facts(self) -> Mapping[str, str]:
        """Return the executor, and those that there are."""
        import psij

        return {
            "executor": self._cluster.executor or "none given",
            "executors": ", ".join(sorted(psij.JobExecutor.get_executor_names())),
            "psij": psij.__version__,
        }

    def submit(self, request: AgentRequest) -> str:
        """Submit a job with one process on each node."""
        import psij

        job = psij.Job(job_spec(self._cluster, request))
        try:
            self._connected().submit(job)
        except (psij.SubmitException, psij.InvalidJobException) as error:
            raise SchedulerError(f"{self._cluster.executor}: {last_words(str(error))}") from error
        with self._lock:
            self._jobs[str(job.native_id)] = job
            self._names[str(job.native_id)] = request.name
        return str(job.native_id)

    def find(self, name: str) -> str | None:
        """Ask the batch system; None where there is no command that lists jobs by their name."""
        return next(iter(self._listed(name)), None)

    def state(self, job: str) -> JobState:
        """Translate what PSI/J knows, which it asks for every few seconds."""
        if job in self._gone:
            return Gone("cancelled", "cancelled")
        status = self._job(job).status
        words = last_words(status.message or "")
        limit_s = self._cluster.time_limit_s
        ends_in_s = None if limit_s is None else status.time + limit_s - time.time()
        if status.exit_code:
            words = words or f"exit status {status.exit_code}"
        return job_state(status.state.name, words, ends_in_s)

    def cancel(self, job: str) -> None:
        """Cancel, and wait until PSI/J or the batch system itself says that the job is gone."""
        import psij

        handle = self._job(job)
        try:
            with suppress(psij.InvalidJobException):
                handle.cancel()
        except psij.SubmitException as error:
            raise SchedulerBusy(f"job {job}: {last_words(str(error))}") from error
        deadline_s = time.monotonic() + CANCEL_LIMIT_S
        while not handle.status.final:
            name = self._names.get(job)
            is_askable = name is not None and self._cluster.executor in FINDERS
            if is_askable and job not in self._listed(name or ""):
                self._gone.add(job)
                return
            if time.monotonic() > deadline_s:
                raise SchedulerBusy(f"job {job} is not gone {CANCEL_LIMIT_S:g} s after its cancel")
            time.sleep(CANCEL_POLL_S)

    def _listed(self, name: str) -> list[str]:
        """Ids of the jobs of a name that are not gone."""
        command = FINDERS.get(self._cluster.executor or "")
        if command is None:
            return []
        try:
            jobs = answer_of((*command, name), self._environment).split()
        except SchedulerBusy:
            raise
        except SchedulerError as error:
            if NONE_LISTED in str(error):
                return []
            raise SchedulerBusy(str(error)) from error
        self._names.update(dict.fromkeys(jobs, name))
        return jobs

    def _connected(self) -> "psij.JobExecutor":
        import psij

        with self._lock:
            if self._executor is None:
                name = self._cluster.executor
                known = sorted(psij.JobExecutor.get_executor_names())
                if name is None or name not in known:
                    wrong = f"is {name!r}" if name else "is not given"
                    raise SchedulerError(
                        f"[cluster] executor {wrong}; {suggestion(name or '', known)}"
                    )
                self._executor = psij.JobExecutor.get_instance(name, config=_config(name))
            return self._executor

    def _job(self, native_id: str) -> "psij.Job":
        """The job as PSI/J knows it; one of an earlier process is attached."""
        import psij

        executor = self._connected()
        with self._lock:
            if native_id not in self._jobs:
                self._jobs[native_id] = psij.Job()
                executor.attach(self._jobs[native_id], native_id)
            return self._jobs[native_id]


def job_state(state: str, words: str, ends_in_s: float | None) -> JobState:
    """Translate a state of PSI/J; `words` are the batch system's own, or empty."""
    match state:
        case "NEW" | "QUEUED":
            return Waiting(words or "queued")
        case "STAGE_IN" | "ACTIVE" | "STAGE_OUT":
            return Running(ends_in_s=ends_in_s)
        case "CANCELED":
            return Gone("cancelled", words or "cancelled")
    for text, kind in CAUSES:
        if text in words.lower():
            return Gone(kind, words)
    return Gone("ended", words or state.lower())


def _import_psij() -> None:
    """Import PSI/J in another thread, where it cannot install its handler of SIGCHLD.

    In the main thread it does so while it is half imported. If a child ends just then,
    that import fails silently, and every child that ends later raises a NameError in our code.
    """
    logging.getLogger("psij.executors.local").setLevel(logging.ERROR)  # it warns about the thread
    importing = Thread(target=import_module, args=("psij",))
    importing.start()
    importing.join()


def _config(executor: str) -> "psij.JobExecutorConfig | None":
    """Poll often, and take no job for failed because the batch system did not answer."""
    from psij.executors.batch.batch_scheduler_executor import BatchSchedulerExecutorConfig

    if executor in ("local", "flux"):
        return None
    return BatchSchedulerExecutorConfig(
        queue_polling_interval=POLL_S, queue_polling_error_threshold=POLL_FAILURES
    )


def job_spec(cluster: Cluster, request: AgentRequest) -> "psij.JobSpec":
    """Return what PSI/J is asked for; our environment, with its secrets, is not inherited."""
    import psij

    executor = cluster.executor or ""
    options = dict(option.lstrip("-").partition("=")[::2] for option in cluster.options)
    for name, value in (("qos", cluster.qos), ("exclude", ",".join(cluster.exclude))):
        if value and executor != "slurm":
            raise SchedulerError(
                f"[cluster] {name} means nothing to executor {executor!r} of PSI/J; say it in its "
                "own words in [cluster] options"
            )
        if value:
            options[name] = value
    launcher = options.pop("launcher", LAUNCHERS.get(executor, "mpirun"))
    family = executor.removesuffix("_classic")
    attributes: dict[str, object] = {f"{family}.{name}": options[name] for name in options}
    if executor in NAMES:
        attributes[NAMES[executor]] = request.name
    count = request.node_count
    resources = (
        psij.ResourceSpecV1(node_count=count, process_count=count)
        if executor == "flux"
        else psij.ResourceSpecV1(node_count=count, processes_per_node=1)
    )
    variables = (f"{name}={value}" for name, value in request.environment.items())
    return psij.JobSpec(
        name=request.name,
        executable="/usr/bin/env",
        arguments=[*variables, *request.command],
        inherit_environment=False,
        stderr_path=request.log,
        launcher=launcher,
        resources=resources,
        attributes=psij.JobAttributes(
            duration=timedelta(seconds=cluster.time_limit_s or LONGEST_S),
            queue_name=cluster.partition,
            account=cluster.account,
            reservation_id=cluster.reservation,
            custom_attributes=attributes,
        ),
    )
