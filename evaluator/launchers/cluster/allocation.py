"""The nodes of a search: asked for, found again after a crash, waited for, checked and given back.

What is asked for is recorded before the scheduler hears of it: the file of the meeting, by the
name of the request, lies in the folder of the study until the scheduler says that the job is gone.
"""

import io
import json
import logging
import os
import re
import shutil
import sys
import time
import zipfile
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import Event, RLock
from typing import assert_never

from evaluator.launchers.cluster.agents import Agents, NodeAgent, own_addresses
from evaluator.launchers.cluster.channel import Meeting
from evaluator.launchers.cluster.nodes import Nodes
from evaluator.launchers.cluster.scheduler import (
    AgentRequest,
    Gone,
    GoneKind,
    JobState,
    Running,
    Scheduler,
    SchedulerBusy,
    SchedulerError,
    Waiting,
    job_name,
    last_words,
)
from evaluator.ports import PhaseListener
from evaluator.rank.protocol import Reason
from records.errors import EnvironmentFault
from records.scrub import expanded
from records.study import Cluster

_LOG = logging.getLogger(__name__)

AGENT = "agent.pyz"
FOLDER = "clusters"
POLL_S = 0.2
ASK_SCHEDULER_EVERY_S = 2.0
ANSWER_LIMIT_S = 20.0
SHARED_LIMIT_S = 10.0
GONE_LIMIT_S = 10.0
CLOSE_LIMIT_S = 60.0
CLOCK_LIMIT_S = 1.0
NAMES_SHOWN = 8
LEAST_PYTHON = "3.10"
_REASONS: Mapping[GoneKind, Reason] = {
    "ended": "node_failed",
    "cancelled": "preempted",
    "preempted": "preempted",
    "node_failed": "node_failed",
    "time_limit": "preempted",
    "refused": "not_scheduled",
    "out_of_memory": "node_failed",
}
"""Of nodes without a launch that was to blame."""


class NodesUnavailable(Exception):
    """There are no nodes to launch on, by no fault of a configuration."""

    def __init__(self, reason: Reason, words: str) -> None:
        super().__init__(words)
        self.reason = reason


class Allocation:
    """The nodes of one study; several launchers share it, from several threads.

    `root` is on a disk that the nodes share, unless the scheduler carries files; `folder` in it is
    the study's own.
    """

    def __init__(
        self, scheduler: Scheduler, cluster: Cluster, nodes: Nodes, *, study_id: str, root: Path
    ) -> None:
        self.cluster = cluster
        self.root = root.absolute()
        self.folder = self.root / FOLDER / study_id
        self.nodes = nodes
        self.job: str | None = None
        self._scheduler = scheduler
        self._study_id = study_id
        self._attempt = 0
        self._is_unanswered = False
        self._agents: Agents | None = None
        self._ready: Sequence[NodeAgent] = ()
        self._has_met = False
        self._asked_s = 0.0
        self._started_s: float | None = None
        self._held_before_s = 0.0
        self._slow: frozenset[str] = frozenset()
        self._state: JobState = Waiting("")
        self._next_look_s = self._looked_s = 0.0
        self._lock = RLock()

    @property
    def is_shared(self) -> bool:
        """Whether jobs run in a folder that the nodes share with us."""
        return not self._scheduler.carries_files or self.cluster.shared_dir is not None

    def begin(self) -> None:
        """Ask for nodes unless they are asked for; return before they are there.

        Raises `EnvironmentFault` without a scheduler here, `SchedulerError` where it refuses.
        """
        with self._lock:
            if self.job is not None:
                return
            missing = self._scheduler.missing()
            if missing is not None:
                raise EnvironmentFault(missing)
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise EnvironmentFault(
                    f"[cluster] shared_dir {self.root} cannot be used here: {error.strerror}; name "
                    "a folder in which you can write, here and on every node"
                ) from error
            if self._agents is None:
                self._adopt_or_cancel()
            if self.job is None:
                self._submit()

    def agents(self, stopped: Event, on_phase: PhaseListener) -> Sequence[NodeAgent]:
        """Wait for the nodes and return their agents, always in the same order.

        Raises `NodesUnavailable`, `EnvironmentFault` for nodes that cannot be used,
        `SchedulerError` where the scheduler refuses, and `KeyboardInterrupt` once it is stopped.
        """
        with self._lock:
            lost = next((agent for agent in self._ready if agent.lost is not None), None)
            if lost is not None:
                self.give_up(lost)
            self._begin_once_answered(stopped, on_phase)
            if not self._ready:
                joined = self._joined(stopped, on_phase)
                # They may be there before the scheduler was asked whether the job runs.
                self._started_s = self._started_s or time.monotonic()
                self._check(joined)
                self._ready, self._has_met = joined, True
            return self._ready

    def give_up(
        self, agent: NodeAgent, launch_nodes: Container[str | None] = ()
    ) -> NodesUnavailable:
        """End the job with a node that was lost, or does not end a launch; return why.

        A scheduler takes a moment to know why it took a node back. Memory that ran out on a node
        of the launch is the launch's doing.
        """
        with self._lock:
            words = f"node {agent.node} was lost: {agent.lost or 'it does not end its ranks'}"
            found = NodesUnavailable("node_failed", words)
            if agent not in self._ready:
                return found  # another launch was first: the nodes of today are not to blame
            self._next_look_s, deadline_s = 0.0, time.monotonic() + GONE_LIMIT_S
            while agent.lost is not None and time.monotonic() < deadline_s:
                state = self._look()
                if isinstance(state, Gone):
                    where = state.node or agent.node
                    is_ours = state.kind == "out_of_memory" and where in launch_nodes
                    reason: Reason = "out_of_memory" if is_ours else _REASONS[state.kind]
                    found = NodesUnavailable(reason, f"{words} ({state.words})")
                    break
                time.sleep(POLL_S)
            self._cancel()
            return found

    def close(self) -> None:
        """End the job, and return once the scheduler says that it is gone."""
        with self._lock:
            try:
                self._cancel()
            finally:
                if self._agents is not None:
                    self._agents.close()
                    self._agents = None
            with suppress(OSError):  # it holds what was not cancelled, or was never made
                if not [*self.folder.glob("*.json")]:
                    shutil.rmtree(self.folder)
                    self.folder.parent.rmdir()

    @property
    def left_s(self) -> float | None:
        """How long the nodes are still ours, as the scheduler says; None where it sets no end."""
        with self._lock:
            state = self._look() if self._ready else None
            if not isinstance(state, Running) or state.ends_in_s is None:
                return None
            return state.ends_in_s - (time.monotonic() - self._looked_s)

    @property
    def held_s(self) -> float:
        """How long this process has held nodes, without the time that they were asked for."""
        started_s = self._started_s
        now_s = 0.0 if started_s is None else time.monotonic() - started_s
        return self._held_before_s + now_s

    def use_last(self, names: Iterable[str]) -> None:
        """Have jobs take these nodes only where there are too few others."""
        with self._lock:
            self._slow = frozenset(names)
            self._ready = self._in_order(self._ready)

    def _in_order(self, agents: Sequence[NodeAgent]) -> Sequence[NodeAgent]:
        return sorted(agents, key=lambda agent: (agent.node in self._slow, _in_numbers(agent.node)))

    def _begin_once_answered(self, stopped: Event, on_phase: PhaseListener) -> None:
        """Ask for nodes again and again while the scheduler is too busy to answer."""
        deadline_s = time.monotonic() + self.cluster.queue_limit_s
        while True:
            try:
                self.begin()
            except SchedulerBusy as busy:
                if time.monotonic() > deadline_s:
                    limit_s = self.cluster.queue_limit_s
                    words = f"no answer of the scheduler within {limit_s:g} s: {busy}"
                    raise NodesUnavailable("not_scheduled", words) from busy
                on_phase("queued")
                if stopped.wait(ASK_SCHEDULER_EVERY_S):
                    raise KeyboardInterrupt from busy
            else:
                return

    def _adopt_or_cancel(self) -> None:
        """Take over the job of a search that was killed, or end it where it is not the same."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                meeting = Meeting.of(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                path.unlink(missing_ok=True)
                continue
            self._attempt = max(self._attempt, int(meeting.name.rpartition("-")[2]))
            job = self._scheduler.find(meeting.name)
            if job is not None and self._agents is None and meeting.version == self._version:
                agents = Agents(meeting.port, meeting.secret, meeting.name)
                if self.is_shared or agents.port == meeting.port:
                    self._agents, self.job = agents, job
                    self._expect(meeting.name)
                    _LOG.info("adopted job=%s name=%s", job, meeting.name)
                    continue
                agents.close()
            if job is not None:
                self._scheduler.cancel(job)
            path.unlink(missing_ok=True)

    def _submit(self) -> None:
        self._agents = self._agents or Agents()
        if not self._is_unanswered:
            self._attempt += 1
        name = job_name(self._study_id, self._attempt)
        meeting = self._expect(name)
        carries, program = self._scheduler.carries_files, agent_zip()
        given = self.cluster.python and expanded(self.cluster.python)
        python = given or ("python3" if carries else sys.executable)
        path = self.folder / AGENT
        _write(path, program)
        where = (AGENT, meeting.name) if carries else (str(path), str(meeting))
        request = AgentRequest(
            name=name,
            node_count=self.nodes.count,
            command=(python, *where),
            files={AGENT: program, meeting.name: meeting.read_bytes()} if carries else {},
            log=meeting.with_suffix(".log"),
        )
        try:
            self.job = self._scheduler.submit(request)
        except SchedulerBusy:
            self._is_unanswered = True  # it may have arrived: its name stays on record
            raise
        except SchedulerError:
            meeting.unlink()
            raise
        self._is_unanswered = False
        _LOG.info("submitted job=%s name=%s", self.job, name)

    def _expect(self, name: str) -> Path:
        """Write where the agents of a request find us, and let them in."""
        assert self._agents is not None
        meeting = Meeting(
            name=name,
            addresses=own_addresses(self.cluster.search_host),
            port=self._agents.port,
            secret=self._agents.secret,
            version=self._version,
        )
        path = self.folder / f"{name}.json"
        _write(path, meeting.text.encode())
        self._agents.expect(name)
        self._asked_s = time.monotonic()
        self._state, self._next_look_s = Waiting("it was just asked for"), 0.0
        return path

    @property
    def _version(self) -> str:
        """What a job must have been asked for with to be the same."""
        asked = json.dumps([sha256(agent_zip()).hexdigest(), self.nodes.count, repr(self.cluster)])
        return sha256(asked.encode()).hexdigest()

    def _joined(self, stopped: Event, on_phase: PhaseListener) -> Sequence[NodeAgent]:
        """Wait until there is an agent on each node; raises as `agents` does."""
        assert self._agents is not None
        shown = ""
        while len(joined := self._agents.joined) != self.nodes.count:
            if stopped.is_set():
                raise KeyboardInterrupt
            phase = self._progress(joined)
            if phase != shown:
                on_phase(phase)
                shown = phase
            with self._agents.changed:
                self._agents.changed.wait(POLL_S)
        self._next_look_s = 0.0
        if isinstance(state := self._look(), Running):
            for agent in joined:
                agent.node = state.names.get(agent.facts.node, agent.facts.node)
        return self._in_order(joined)

    def _progress(self, joined: Sequence[NodeAgent]) -> str:
        """Return the phase that waiting is in; raises `NodesUnavailable` when it took too long."""
        now_s = time.monotonic()
        match self._look():
            case Waiting(reason=reason):
                if now_s - self._asked_s > self.cluster.queue_limit_s:
                    self._cancel()
                    raise NodesUnavailable(
                        "not_scheduled",
                        f"no {self.nodes.count} nodes after {self.cluster.queue_limit_s:g} s in "
                        f"the queue ({reason}); wait longer with [cluster] queue_limit_s",
                    )
                return "queued"
            case Running(nodes=nodes):
                self._started_s = self._started_s or now_s
                if now_s - self._started_s > self.cluster.start_limit_s:
                    silent = _names(sorted({*nodes} - {agent.node for agent in joined}))
                    printed = self._printed()
                    self._cancel()
                    raise NodesUnavailable(
                        "node_failed",
                        f"{len(joined)} of {self.nodes.count} agents connected within "
                        f"{self.cluster.start_limit_s:g} s{f', none of {silent}' if silent else ''}"
                        f"; nodes must reach {' or '.join(own_addresses(self.cluster.search_host))}"
                        ": name another address in [cluster] search_host"
                        f"{f'. The job printed: {printed}' if printed else ''}",
                    )
                return "starting"
            case Gone(kind=kind, words=words):
                self._cancel()
                if kind == "refused":
                    raise SchedulerError(words)
                if kind in ("ended", "out_of_memory") and not self._has_met:
                    # Nothing took the nodes away, so the next agents would end in the same way.
                    printed = self._printed()
                    said = words if printed in words else f"{words}: {printed}"
                    see = f"see {self.folder} and " if self.is_shared else ""
                    raise EnvironmentFault(
                        f"the agents ended before they connected ({said}); check that the nodes "
                        f"{see}have Python {LEAST_PYTHON} or later: [cluster] shared_dir names "
                        "another folder, [cluster] python another Python"
                    )
                raise NodesUnavailable(_REASONS[kind], f"the nodes were lost ({words})")
            case unknown:
                assert_never(unknown)

    def _printed(self) -> str:
        """Return the last of what the agents and what starts them printed, where it comes here."""
        with suppress(OSError):
            logs = sorted(self.folder.glob("*.log"), key=lambda path: path.stat().st_mtime)
            newest = [path.read_text(encoding="utf-8", errors="replace") for path in logs[-1:]]
            return last_words("".join(newest))
        return ""

    def _look(self) -> JobState:
        """Return what the scheduler says of the job, not asking it all the time."""
        now_s = time.monotonic()
        if self.job is not None and now_s >= self._next_look_s:
            with suppress(SchedulerBusy):  # it is asked again later
                self._state = self._scheduler.state(self.job)
                self._looked_s = time.monotonic()
            self._next_look_s = time.monotonic() + ASK_SCHEDULER_EVERY_S
        return self._state

    def _cancel(self) -> None:
        """Let the agents go and end the job; forget it once the scheduler says that it is gone."""
        self._ready = ()
        if self._agents is not None:
            self._agents.expect("")
        if self.job is None:
            return
        job, self.job = self.job, None
        self._held_before_s, self._started_s = self.held_s, None
        deadline_s = time.monotonic() + CLOSE_LIMIT_S
        while True:
            try:
                self._scheduler.cancel(job)
            except SchedulerBusy as busy:
                if time.monotonic() > deadline_s:
                    # Its name stays on record: who resumes the study ends the job.
                    _LOG.warning("not cancelled job=%s: %s", job, busy)
                    return
                time.sleep(POLL_S)
            else:
                break
        for path in self.folder.glob("*.json"):
            path.unlink(missing_ok=True)

    def _check(self, agents: Sequence[NodeAgent]) -> None:
        """Raise `EnvironmentFault` for nodes on which launches would go wrong, or mean nothing."""
        version, names = sha256(agent_zip()).hexdigest(), [agent.node for agent in agents]
        for agent in agents:
            if names.count(agent.node) > 1:
                raise EnvironmentFault(
                    f"node {agent.node} has more than one agent; ask the scheduler for one task on "
                    "each node in [cluster] options"
                )
            if agent.facts.version != version:
                raise EnvironmentFault(
                    f"node {agent.node}: its agent is of another version of cclsearch; cancel job "
                    f"{self.job} and start again"
                )
            there = len(agent.facts.gpus)
            if self.nodes.needs_gpus and there < self.nodes.ranks_per_node:
                raise EnvironmentFault(
                    f"node {agent.node} shows {there} GPUs, and [environment] ranks_per_node is "
                    f"{self.nodes.ranks_per_node}; ask for them in [cluster] options, as in "
                    f'["--gres=gpu:{self.nodes.ranks_per_node}"]'
                )
        self._check_clocks(agents)
        if self.is_shared:
            self._check_shared(agents)

    def _check_clocks(self, agents: Sequence[NodeAgent]) -> None:
        for agent in agents:
            sent_s = time.time()
            answer = agent.ask("clock", "clock", ANSWER_LIMIT_S)
            received_s = time.time()
            if answer is None:
                raise NodesUnavailable("node_failed", f"node {agent.node} does not answer")
            ahead_s = float(str(answer["now_s"])) - (sent_s + received_s) / 2
            if abs(ahead_s) - (received_s - sent_s) / 2 > CLOCK_LIMIT_S:
                direction = "ahead of" if ahead_s > 0 else "behind"
                raise EnvironmentFault(
                    f"node {agent.node}: its clock is {abs(ahead_s):.1f} s {direction} that of "
                    "this machine, so traces could not be merged; let NTP set both, or exclude "
                    "the node"
                )

    def _check_shared(self, agents: Sequence[NodeAgent]) -> None:
        """Let each node read a file of ours and write another, and look for those."""
        proof = self.folder / "proof"
        _write(proof, b"shared")
        blind = [
            agent.node
            for agent in agents
            if (answer := agent.ask("prove", "proof", ANSWER_LIMIT_S, path=str(proof))) is None
            or answer["is_shared"] is not True
        ]
        deadline_s = time.monotonic() + SHARED_LIMIT_S
        while len(found := [*self.folder.glob("proof-*")]) < len(agents) - len(blind):
            if time.monotonic() > deadline_s:
                blind = blind or [agent.node for agent in agents]
                break
            time.sleep(POLL_S)
        for path in (proof, *found):
            path.unlink(missing_ok=True)
        if blind:
            raise EnvironmentFault(
                f"{self.folder} is not shared with {_names(blind)}: what one side writes there, "
                "the other does not see; name a folder that all nodes share in [cluster] "
                "shared_dir"
            )


def _in_numbers(name: str) -> tuple[tuple[str, int], ...]:
    """Sort key that puts node 2 before node 10."""
    return tuple((text, int(number or 0)) for text, number in re.findall(r"(\D+|^)(\d*)", name))


def _names(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:NAMES_SHOWN]) + (", ..." if len(nodes) > NAMES_SHOWN else "")


def _write(path: Path, content: bytes) -> None:
    """Write a file for this user alone, so that it is there after a crash of the machine too."""
    partial = path.with_name(f".{path.name}.partial")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(handle)
    partial.replace(path)


# An old Python, too, has to be able to read it.
_MAIN = f"""\
import platform
import sys

if sys.version_info < ({LEAST_PYTHON.replace(".", ", ")}):
    sys.exit(
        "the agent needs Python {LEAST_PYTHON} or later, and on %s %s is %s: name another in "
        "[cluster] python" % (platform.node(), sys.executable, platform.python_version())
    )

from evaluator.launchers.cluster.agent import main

sys.exit(main(sys.argv[1:]))
"""
_PARTS = (
    *("__init__.py", "launchers/__init__.py", "launchers/connection.py", "launchers/limits.py"),
    *("launchers/supervisor.py", "launchers/watch.py", "launchers/cluster/__init__.py"),
    *("launchers/cluster/agent.py", "launchers/cluster/channel.py"),
    *("rank/**/*.py", "workloads/**/*.py"),
)


@cache
def agent_zip() -> bytes:
    """Return the agent, with all that it and the ranks of our own workloads import of ours."""
    root = Path(__file__).parents[2]
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(zipfile.ZipInfo("__main__.py"), _MAIN)
        for path in sorted(path for part in _PARTS for path in root.glob(part)):
            name = path.relative_to(root.parent).as_posix()
            file.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return content.getvalue()
