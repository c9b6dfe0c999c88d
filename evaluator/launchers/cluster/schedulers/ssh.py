"""Agents on a list of hosts, over ssh; `local` is a host too: this machine.

There is no queue. The connection of each agent is its life: an agent ends when it closes, so
nothing is left where this process is killed.
"""

import shlex
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import BinaryIO

from evaluator.launchers.cluster.agent import END_WITH_STDIN
from evaluator.launchers.cluster.scheduler import (
    AgentRequest,
    Gone,
    GoneKind,
    JobState,
    Running,
    SchedulerError,
    absent_programs,
    last_words,
)
from records.study import Cluster

LOCAL_HOST = "local"
SSH = (
    *("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"),
    *("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3"),
)
SSH_FAILED = 255
END_LIMIT_S = 30.0


class Ssh:
    """Starts agents as children, through ssh where their host is another one."""

    carries_files = False

    def __init__(self, cluster: Cluster, environment: Mapping[str, str]) -> None:
        self._hosts = tuple(host for host in cluster.hosts if host not in cluster.exclude)
        self._options = cluster.options
        self._environment = environment
        self._jobs: dict[str, Sequence[_Agent]] = {}
        self._lock = threading.Lock()

    def missing(self) -> str | None:
        """Return that there is no ssh, or no host."""
        if not self._hosts:
            return '[cluster] hosts names no host; give their names, as in hosts = ["n1", "n2"]'
        if {*self._hosts} != {LOCAL_HOST} and absent_programs(["ssh"]):
            return "ssh is not installed on this machine; install openssh-client"
        return None

    def facts(self) -> Mapping[str, str]:
        """Return the hosts."""
        return {"hosts": ", ".join(self._hosts) or "none in [cluster] hosts"}

    def submit(self, request: AgentRequest) -> str:
        """Start an agent on each of the first hosts."""
        if request.node_count > len(self._hosts):
            raise SchedulerError(
                f"{request.node_count} nodes are needed, and [cluster] hosts has "
                f"{len(self._hosts)}; name more hosts, or set nodes"
            )
        with self._lock:
            self._jobs[request.name] = [
                _Agent(self._command(request, number, host), host, self._environment)
                for number, host in enumerate(self._hosts[: request.node_count])
            ]
        return request.name

    def find(self, name: str) -> str | None:
        """Return the job of this name, which only this process may have."""
        return name if name in self._jobs else None

    def state(self, job: str) -> JobState:
        """Return whether all agents run."""
        agents = self._jobs.get(job, ())
        for agent in agents:
            words = agent.ended_with()
            if words is not None:
                kind: GoneKind = "refused" if agent.was_refused else "ended"
                self.cancel(job)
                return Gone(kind, words)
        return Running(nodes=tuple(a.host for a in agents)) if agents else Gone("ended", "it ended")

    def cancel(self, job: str) -> None:
        """Close the connections of all agents, and wait until they have ended."""
        with self._lock:
            agents = self._jobs.pop(job, ())
        for agent in agents:
            agent.close()
        for agent in agents:
            agent.wait()

    def _command(self, request: AgentRequest, number: int, host: str) -> Sequence[str]:
        command = [*request.command, END_WITH_STDIN]
        variables = [f"{name}={text}" for name, text in request.environment.items()]
        if host == LOCAL_HOST:
            # Several agents on this machine are nodes of their own.
            return ["env", *variables, f"CCLSEARCH_NODE={host}{number}", *command]
        words = ["exec", "env", *variables, f"CCLSEARCH_NODE={host}", *command]
        address = host.replace("[", "").replace("]", "")  # of IPv6, which ssh takes bare
        return [*SSH, *self._options, address, shlex.join(words)]


class _Agent:
    """One agent as a child of this process, and what it wrote."""

    def __init__(self, command: Sequence[str], host: str, environment: Mapping[str, str]) -> None:
        self.host = host
        self._output: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - as long as it runs
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,
        )

    @property
    def was_refused(self) -> bool:
        """Whether ssh itself failed: the host is unknown, or lets us not in."""
        return self._process.poll() == SSH_FAILED and self.host != LOCAL_HOST

    def ended_with(self) -> str | None:
        """Return what an agent that ended said last; None while it runs."""
        status = self._process.poll()
        if status is None:
            return None
        self._output.seek(0)
        said = last_words(self._output.read().decode(errors="replace"))
        return f"{self.host}: {said or f'the agent ended with status {status}'}"

    def close(self) -> None:
        """Ask it to end."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def wait(self) -> None:
        """Wait until it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_LIMIT_S)
        self._process.kill()
        self._process.wait()
        self._output.close()
