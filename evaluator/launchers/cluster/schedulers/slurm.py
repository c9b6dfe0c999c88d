"""Slurm: agents as a job of their own, or as a step of the allocation that the search runs in.

Only Slurm's commands are used, with output formats that the request spells out. Accounting is asked
where there is any; otherwise the log of a job that Slurm has forgotten explains how it ended.
"""

import math
import re
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from evaluator.launchers.cluster.scheduler import (
    AgentRequest,
    Gone,
    GoneKind,
    JobState,
    Running,
    SchedulerBusy,
    SchedulerError,
    Waiting,
    absent_programs,
    answer_of,
    last_words,
)
from records.study import Cluster

POLL_S = 0.5
TERM_GRACE_S = 15.0
CANCEL_LIMIT_S = 600.0
STEP_LIMIT_S = 60.0
LOG_TAIL_BYTES = 2000

UNREACHABLE = re.compile(
    "unable to contact slurm controller|socket timed out|connection refused|zero bytes were"
    "|connection failure|temporarily un|standby mode|queue full|not connected",
    re.IGNORECASE,
)
"""What commands say while slurmctld restarts or its queue is full."""
FORGOTTEN = re.compile("invalid job id", re.IGNORECASE)
NEVER = re.compile(
    r"Partition(Config|NodeLimit|TimeLimit)|BadConstraints|Invalid(Account|QOS)|(Account|QOS)NotAllowed"
    r"|(Assoc|QOS)Max\w+PerJob(Limit)?"
)
"""Reasons for which a job would wait for ever."""
WAITS = re.compile("PENDING|CONFIGURING|SUSPENDED|STOPPED|SPECIAL_EXIT|REQUEUE|RESV_DEL")
ENDS: Mapping[str, GoneKind] = {
    "BOOT_FAIL": "node_failed",
    "CANCELLED": "cancelled",
    "COMPLETED": "ended",
    "DEADLINE": "time_limit",
    "FAILED": "ended",
    "NODE_FAIL": "node_failed",
    "OUT_OF_MEMORY": "out_of_memory",
    "PREEMPTED": "preempted",
    "REVOKED": "cancelled",
    "TIMEOUT": "time_limit",
}
LOGGED_ENDS: Mapping[str, GoneKind] = {
    "DUE TO TIME LIMIT": "time_limit",
    "DUE TO PREEMPTION": "preempted",
    "DUE TO NODE FAILURE": "node_failed",
    "Node failure on": "node_failed",
    "CANCELLED AT": "cancelled",
    "oom_kill event": "out_of_memory",
}
"""What Slurm writes to the log of a job that it ends, the more exact first."""


class Slurm:
    """Agents run in a job of their own, which sbatch submits and srun spreads over its nodes."""

    carries_files = False
    _programs: tuple[str, ...] = ("sbatch", "squeue", "scancel", "scontrol", "sinfo")

    def __init__(self, cluster: Cluster, environment: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._logs: dict[str, Path] = {}
        self._allocation = environment.get("SLURM_JOB_ID")
        # The variables of a job that we are in would be options of the commands.
        self._environment = {
            name: value
            for name, value in environment.items()
            if not name.startswith("SLURM_") or name == "SLURM_CONF"
        }

    def missing(self) -> str | None:
        """Return what is not installed here and how to get it; None where it can be used."""
        if absent := absent_programs(self._programs):
            return (
                f"no {', '.join(absent)} on the PATH: start the search where the cluster's Slurm "
                "commands are installed, such as a login node (Debian: slurm-client)"
            )
        return None

    def facts(self) -> Mapping[str, str]:
        """Return the version, the partitions, and what keeps accounts."""
        lines = self._ask("scontrol", "show", "config").splitlines()
        named = (line.partition("=") for line in lines)
        settings = {name.strip(): value.strip() for name, _, value in named}
        partitions = self._ask("sinfo", "--noheader", "--format=%P (%D nodes, %a, time limit %l)")
        accounting = settings.get("AccountingStorageType", "").rpartition("/")[2]
        return {
            "version": settings.get("SLURM_VERSION", "unknown"),
            "cluster": settings.get("ClusterName", "unknown"),
            "partitions": ", ".join(partitions.splitlines()),
            "accounting": "none" if accounting in ("", "(null)") else accounting,
        }

    def submit(self, request: AgentRequest) -> str:
        """Ask for agents and return the job's id; raises `SchedulerError` with its own words."""
        # An answer that was lost may hide a job that was accepted.
        if (job := self.find(request.name)) is not None:
            return job
        script = f"#!/bin/sh\nexec {shlex.join(_srun(request))}\n"
        options = self._options(request)
        answer = self._ask("sbatch", *options, stdin=script, variables=request.environment)
        job = answer.strip().partition(";")[0]
        self._logs[job] = request.log
        return job

    def find(self, name: str) -> str | None:
        """Return the id of the job of this name that is not gone, or None."""
        return next(iter(self._listed(f"--name={name}", "--format=%i")), None)

    def state(self, job: str) -> JobState:
        """Return what became of a job; one that would never start is cancelled and refused."""
        rows = self._listed(f"--jobs={job}", "--states=all", "--format=%T|%r|%N|%L|%P")
        if not rows:
            return self._forgotten(job)
        state, reason, nodes, left, partition = rows[0].split("|")
        if state == "PENDING" and NEVER.fullmatch(reason):
            self.cancel(job)
            where = f" in partition {partition}" if reason.startswith("Partition") else ""
            return Gone("refused", f"Slurm would never start the job{where}: {reason}")
        if WAITS.match(state):
            return Waiting(reason if state == "PENDING" else state)
        if state in ENDS:
            kind, log = ENDS[state], self._log_tail(job)
            if kind == "cancelled":
                kind = _logged_end(log, kind)
            why = state if reason == "None" else f"{state} ({reason})"
            return Gone(kind, last_words(f"{why} {log}"))
        return Running(nodes=self._hosts(nodes), ends_in_s=seconds(left))

    def cancel(self, job: str) -> None:
        """End a job, and return once the scheduler says that it is gone."""
        deadline_s = time.monotonic() + CANCEL_LIMIT_S
        asked = False
        while time.monotonic() < deadline_s:
            with suppress(SchedulerBusy):
                if not self._is_listed(job):
                    return
                if not asked:
                    self._ask("scancel", "--quiet", job)
                    asked = True
            time.sleep(POLL_S)
        raise SchedulerError(
            f"Slurm has not ended job {job} within {CANCEL_LIMIT_S:g} s of scancel {job}: look at "
            f"squeue --jobs={job} and at the state of its nodes"
        )

    def _ask(
        self, *command: str, stdin: str = "", variables: Mapping[str, str] | None = None
    ) -> str:
        try:
            return answer_of(command, {**self._environment, **(variables or {})}, stdin=stdin)
        except SchedulerBusy:
            raise
        except SchedulerError as error:
            if UNREACHABLE.search(str(error)):
                raise SchedulerBusy(str(error)) from error
            raise

    def _listed(self, *options: str) -> list[str]:
        """What squeue lists; nothing of a job that it has forgotten."""
        try:
            rows = self._ask("squeue", "--noheader", *options).splitlines()
        except SchedulerBusy:
            raise
        except SchedulerError as error:
            if FORGOTTEN.search(str(error)):
                return []
            raise
        return [row.strip() for row in rows]

    def _is_listed(self, job: str) -> bool:
        return bool(self._listed(f"--jobs={job}", "--format=%i"))

    def _forgotten(self, job: str) -> Gone:
        """How a job ended that squeue does not list any more."""
        words, accounted = self._log_tail(job), ""
        with suppress(SchedulerError):
            fields = ["--noheader", "--parsable2", "--format=State"]
            rows = self._ask("sacct", *fields, f"--jobs={job}")
            accounted, *_ = [*rows.split(), ""]
        kind = _logged_end(words, ENDS.get(accounted, "ended"))
        words = last_words(f"{accounted} {words}")
        return Gone(kind, words or f"Slurm does not know job {job} any more")

    def _hosts(self, compressed: str) -> tuple[str, ...]:
        """The names of nodes in a list such as `gpu[01-04]`."""
        if not compressed:
            return ()
        return tuple(self._ask("scontrol", "show", "hostnames", compressed).split())

    def _options(self, request: AgentRequest) -> Iterator[str]:
        cluster = self._cluster
        yield from ("--parsable", "--no-requeue", "--exclusive", "--mem=0", "--export=ALL")
        yield f"--job-name={request.name}"
        yield f"--output={request.log}"
        yield f"--nodes={request.node_count}"
        yield "--ntasks-per-node=1"
        for name in ("partition", "account", "qos", "reservation"):
            if (value := getattr(cluster, name)) is not None:
                yield f"--{name}={value}"
        if cluster.time_limit_s is not None:
            yield f"--time={math.ceil(cluster.time_limit_s / 60)}"
        yield from self._choices()

    def _choices(self) -> Iterator[str]:
        """Options that sbatch and srun share, the user's own last."""
        if self._cluster.exclude:
            yield f"--exclude={','.join(self._cluster.exclude)}"
        yield from self._cluster.options

    def _log_tail(self, job: str) -> str:
        """The end of what srun and the agents wrote; an adopted job has none here."""
        with suppress(KeyError, OSError):
            return self._logs[job].read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        return ""


class SlurmStep(Slurm):
    """Agents run in a step of the allocation that the search runs in: nothing is queued."""

    _programs = ("srun", "squeue", "scancel", "scontrol", "sinfo")

    def __init__(self, cluster: Cluster, environment: Mapping[str, str]) -> None:
        super().__init__(cluster, environment)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def missing(self) -> str | None:
        """Return what is not installed here and how to get it; None where it can be used."""
        if self._allocation is None:
            return (
                "this is no allocation of Slurm (SLURM_JOB_ID is not set): start the search in "
                'one, by salloc or sbatch, or set launcher = "slurm"'
            )
        return super().missing()

    def submit(self, request: AgentRequest) -> str:
        """Start a step and return its id once Slurm lists it; raises with the words of srun."""
        if (step := self.find(request.name)) is not None:
            return step
        with request.log.open("wb") as output:
            process = subprocess.Popen(
                _srun(request, f"--jobid={self._allocation}", *self._choices()),
                env={**self._environment, **request.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline_s, step = time.monotonic() + STEP_LIMIT_S, None
        try:
            while process.poll() is None and time.monotonic() < deadline_s:
                with suppress(SchedulerBusy):
                    if (step := self.find(request.name)) is not None:
                        self._processes[step], self._logs[step] = process, request.log
                        return step
                time.sleep(POLL_S)
        finally:
            if step is None:
                process.kill()
                process.wait()
        words = last_words(request.log.read_text(encoding="utf-8", errors="replace"))
        raise SchedulerError(words or f"srun: no step within {STEP_LIMIT_S:g} s")

    def find(self, name: str) -> str | None:
        """Return the id of the step of this name that is not gone, or None."""
        for row in self._step_rows():
            step, _, step_name = row.split("|")
            if step_name == name:
                return step
        return None

    def state(self, job: str) -> JobState:
        """Return what became of a step, whose time ends with that of the allocation."""
        process = self._processes.get(job)
        for row in self._step_rows():
            step, nodes, _ = row.split("|")
            if step == job:
                (left,) = self._listed(f"--jobs={self._allocation}", "--format=%L") or [""]
                return Running(nodes=self._hosts(nodes), ends_in_s=seconds(left))
        if process is not None and process.poll() is None:
            return Running()  # only srun knows yet, or still
        return self._forgotten(job)

    def cancel(self, job: str) -> None:
        """End a step, and return once the scheduler says that it is gone."""
        super().cancel(job)
        if (process := self._processes.pop(job, None)) is not None:
            process.wait()

    def _is_listed(self, job: str) -> bool:
        return any(row.startswith(f"{job}|") for row in self._step_rows())

    def _step_rows(self) -> list[str]:
        return self._listed("--steps", f"--jobs={self._allocation}", "--format=%i|%N|%j")


def _logged_end(log: str, otherwise: GoneKind) -> GoneKind:
    """How Slurm says in a job's log that it ended it, which is more exact than the job's state."""
    return next((kind for words, kind in LOGGED_ENDS.items() if words in log), otherwise)


def seconds(left: str) -> float | None:
    """The seconds of `1-02:03:04`; None of UNLIMITED and of other words."""
    days, _, clock = left.strip().rpartition("-")
    if not re.fullmatch(r"\d+(:\d+){1,2}", clock):
        return None
    total = 0
    for part in clock.split(":"):
        total = total * 60 + int(part)
    return total + int(days or 0) * 86400.0


def _srun(request: AgentRequest, *options: str) -> list[str]:
    """One agent on each node, which may use all of its node and need not outlive the others."""
    count = request.node_count
    return [
        "srun",
        f"--job-name={request.name}",
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        "--overlap",
        "--mem=0",
        "--cpu-bind=none",
        "--export=ALL",
        "--kill-on-bad-exit=0",
        "--wait=0",
        *options,
        *request.command,
    ]
