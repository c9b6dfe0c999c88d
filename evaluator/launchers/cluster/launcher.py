"""Run jobs on the nodes of a cluster, through the agents that its scheduler started there.

A job takes the nodes that its ranks need, `ranks_per_node` on each. Waiting for nodes and for
ranks to start has limits of its own, and is no fault of a configuration. Whether a job hangs is
judged over all nodes: the ranks of one may wait for those of another.
"""

import shutil
import tarfile
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from itertools import count
from pathlib import Path, PurePosixPath
from queue import SimpleQueue
from threading import Event
from typing import BinaryIO

import msgspec

from evaluator.launchers.cluster.agent import FOLDER
from evaluator.launchers.cluster.agents import Inbox, NodeAgent, next_message
from evaluator.launchers.cluster.allocation import Allocation, NodesUnavailable
from evaluator.launchers.cluster.channel import Message
from evaluator.launchers.cluster.nodes import cluster_of, environment_for_nodes, nodes_of
from evaluator.launchers.cluster.scheduler import SchedulerBusy
from evaluator.launchers.cluster.schedulers.catalog import scheduler_named
from evaluator.launchers.limits import DISK_BYTES
from evaluator.launchers.local import (
    ISOLATED,
    OVERRUN_S,
    POLL_S,
    LocalLauncher,
    thread_counts,
)
from evaluator.launchers.watch import PATIENCE, PEER_GRACE_S
from evaluator.ports import Job, JobResult, Launcher, NodePlace, PhaseListener
from evaluator.rank.protocol import Ended, Reason
from records.errors import EnvironmentFault
from records.scrub import expanded
from records.study import Study

PORT_LIMIT_S = 20.0
REDUCTION = "evaluator.traces.reduction"
SAMPLED_NODES = 8
MOST_AGENT_S = 7 * 24 * 3600.0
"""What an agent's own clock would end a job after: the launcher's does before."""
ABANDON_LIMIT_S = 30.0
_NUMBERS = count(1)


@contextmanager
def open_launchers(
    study: Study,
    study_id: str,
    root: Path,
    environment: Mapping[str, str],
    *,
    ours: Mapping[str, str],
) -> Iterator[Callable[[], Launcher]]:
    """Yield what makes the launchers of a study; nodes that they share are given back at the end.

    `environment` is what jobs may see of `ours`, which holds no secrets. Nodes see `root` where the
    study names no shared folder.
    """
    threads = study.launch.threads_per_rank
    if study.is_local:
        niceness = ISOLATED if study.launch.isolate else 0
        yield lambda: LocalLauncher(environment, threads, niceness=niceness)
        return
    allocation = allocation_of(study, study_id, root, ours)
    there = environment_for_nodes(study, environment, is_shared=allocation.is_shared)
    try:
        yield lambda: ClusterLauncher(allocation, there, threads)
    finally:
        allocation.close()


def allocation_of(study: Study, study_id: str, root: Path, ours: Mapping[str, str]) -> Allocation:
    """Return the nodes of a study, which are not asked for yet."""
    cluster = cluster_of(study)
    scheduler = scheduler_named(study.launch.launcher, cluster, ours)
    shared = root if cluster.shared_dir is None else Path(expanded(cluster.shared_dir))
    return Allocation(scheduler, cluster, nodes_of(study), study_id=study_id, root=shared)


def sampled_ranks(world_size: int, ranks_per_node: int) -> tuple[int, ...]:
    """Return the ranks of a large job whose traces stay whole.

    They are those of the first node, and the first rank of a few more, far apart.
    """
    nodes = range(0, world_size, ranks_per_node)
    apart = nodes[:: max(1, len(nodes) // SAMPLED_NODES)][:SAMPLED_NODES]
    return tuple(sorted({*range(min(ranks_per_node, world_size)), *apart}))


class ClusterLauncher:
    """Launches on nodes of an allocation, which its maker closes.

    `environment` is what jobs see of ours, in addition to what their node has: the caller has taken
    out secrets and what belongs to this machine alone.
    """

    def __init__(
        self, allocation: Allocation, environment: Mapping[str, str], threads_per_rank: int
    ) -> None:
        self._allocation = allocation
        self._threads = thread_counts(threads_per_rank)
        self._environment = {**environment, **self._threads}
        self._stopped = Event()
        self._warmed: Sequence[NodeAgent] = ()

    @property
    def allocation(self) -> Allocation:
        """The nodes that it launches on."""
        return self._allocation

    def prepare(self, job: Job) -> None:  # noqa: ARG002 - there is no node yet that could
        """Ask for nodes, without waiting for them."""
        with suppress(SchedulerBusy):  # the first launch asks again
            self._allocation.begin()

    def run(self, job: Job, workdir: Path, on_phase: PhaseListener) -> JobResult:
        """Run a job; a Ctrl-C or any other exception ends its processes before it leaves."""
        agents: Sequence[NodeAgent] = ()
        job_id, started_s = None, time.monotonic()
        try:
            everywhere = self._allocation.agents(self._stopped, on_phase)
            job_id, started_s = self._allocation.job, time.monotonic()
            agents = self._nodes_of(job, everywhere)
            on_phase("starting")
            with _place(job, workdir, self._allocation) as place:
                launch = _Launch(job, agents, place, self._allocation, on_phase)
                ended = launch.run(self._environment, self._stopped)
        except NodesUnavailable as error:
            wall_s = time.monotonic() - started_s if agents else 0.0
            ended = Ended(reason=error.reason, wall_s=wall_s, message=str(error))
        how = {each.name: getattr(ended, each.name) for each in fields(ended)}
        hosts = tuple(agent.node for agent in agents)
        return JobResult(
            workdir=workdir, environment=self._threads, hosts=hosts, job_id=job_id, **how
        )

    def stop(self) -> None:
        """End the job that another thread waits for, whose `run` raises KeyboardInterrupt."""
        self._stopped.set()

    def close(self) -> None:
        """Leave the nodes to who made the allocation."""

    def _nodes_of(self, job: Job, agents: Sequence[NodeAgent]) -> Sequence[NodeAgent]:
        """Return the nodes that a job runs on; warm them where it is the first on them."""
        per_node = self._allocation.nodes.ranks_per_node
        numbers = job.nodes or range(-(-job.world_size // per_node))
        if len(numbers) > len(agents):
            raise EnvironmentFault(
                f"{job.world_size} ranks take {len(numbers)} nodes of {per_node} ranks, and there "
                f"are {len(agents)}; set [cluster] nodes"
            )
        if job.modules and agents is not self._warmed:
            for agent in agents:
                agent.send(
                    "prepare",
                    modules=job.modules,
                    python=job.python,
                    environment=self._environment,
                )
            self._warmed = agents
        return [agents[number] for number in numbers]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a job runs: `folder` is on a disk of all nodes; None where each has its own.

    `workdir` is where its files are to be in the end.
    """

    workdir: Path
    folder: Path | None

    def on_nodes(self, text: str) -> str:
        """Return a path of ours, or a text with one, as it is on the nodes."""
        there = FOLDER if self.folder is None else str(self.folder)
        return text.replace(str(self.workdir.absolute()), there)


@contextmanager
def _place(job: Job, workdir: Path, allocation: Allocation) -> Iterator[_Place]:
    """Make the folder of a job on a disk that the nodes share, and move its files here."""
    if not allocation.is_shared:
        yield _Place(workdir=workdir, folder=None)
        return
    if workdir.resolve().is_relative_to(allocation.root.resolve()):
        _write_files(job, workdir)
        yield _Place(workdir=workdir, folder=workdir.absolute())
        return
    folder = allocation.folder / f"launch-{uuid.uuid4().hex[:12]}"
    try:
        shutil.copytree(workdir, folder)
        _write_files(job, folder)
        yield _Place(workdir=workdir, folder=folder)
        shutil.copytree(folder, workdir, symlinks=True, dirs_exist_ok=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_files(job: Job, folder: Path) -> None:
    for name, text in job.files.items():
        (folder / name).write_text(text, encoding="utf-8")


class Beat(msgspec.Struct, frozen=True):
    """How the ranks of one node do: the least time that one at work was silent, and so on."""

    is_in_step: bool
    longest_step_s: float
    silent_s: float | None


@dataclass(slots=True, kw_only=True)
class _OnNode:
    """The part of a launch on one node, and what is known of it."""

    agent: NodeAgent
    has_begun: bool = False
    ended: Ended | None = None
    is_lost: bool = False
    is_reducing: bool = False
    """Whether its ranks have ended well, and their traces are being reduced."""
    beat: Beat | None = None
    files: BinaryIO | None = None

    @property
    def is_over(self) -> bool:
        return self.is_lost or self.ended is not None

    @property
    def has_failed(self) -> bool:
        """Whether it ended, and other than well."""
        ended = self.ended
        return ended is not None and (
            ended.reason != "finished" or any(rank.status != 0 for rank in ended.ranks)
        )


class _Launch:
    """One job on its nodes, from the request to the end of all of them."""

    def __init__(
        self,
        job: Job,
        agents: Sequence[NodeAgent],
        place: _Place,
        allocation: Allocation,
        on_phase: PhaseListener,
    ) -> None:
        self._job = job
        self._place = place
        self._allocation = allocation
        self._on_phase = on_phase
        self._number = next(_NUMBERS)
        self._inbox: Inbox = SimpleQueue()
        self._nodes = {agent: _OnNode(agent=agent) for agent in agents}
        self._asked_s = time.monotonic()
        self._begun_s: float | None = None
        self._failed_s: float | None = None
        self._first_failed: _OnNode | None = None
        self._told: Reason | None = None
        self._told_s = 0.0

    def run(self, environment: Mapping[str, str], stopped: Event) -> Ended:
        """Return how it ended, once nothing of it is left on nodes that are there.

        Raises `NodesUnavailable` where a node was lost.
        """
        try:
            self._start(environment)
            while not all(node.is_over for node in self._nodes.values()):
                if stopped.is_set():
                    raise KeyboardInterrupt
                self._follow()
            lost = next((node.agent for node in self._nodes.values() if node.is_lost), None)
            if lost is not None:
                names = {agent.node for agent in self._nodes}
                raise self._allocation.give_up(lost, names)
            return self._ended()
        finally:
            if not all(node.is_over for node in self._nodes.values()):
                self._abandon()
            for node in self._nodes.values():
                if node.files is not None:
                    node.files.close()

    def _start(self, environment: Mapping[str, str]) -> None:
        """Ask all nodes to start their ranks."""
        first = next(iter(self._nodes))
        answer = first.ask("port", "port", PORT_LIMIT_S)
        port = int(str(answer["port"])) if answer else 0
        for number, node in enumerate(self._nodes.values()):
            node.agent.inbox = self._inbox
            node.agent.send(
                "launch",
                id=self._number,
                modules=self._job.modules,
                python=self._job.python,
                environment=environment,
                files=self._job.files if self._place.folder is None else {},
                launch=self._request(number, NodePlace(number, first.facts.address, port)),
                reduction=self._reduction(number),
            )
            node.is_lost = node.agent.lost is not None

    def _reduction(self, number: int) -> Sequence[str]:
        """Return what reduces the traces of a node; nothing where all come back whole."""
        job, cluster = self._job, self._allocation.cluster
        per_node = self._allocation.nodes.ranks_per_node
        if job.world_size <= cluster.whole_traces or not job.traces:
            return ()
        folder = PurePosixPath(job.traces[0]).parent
        sampled = sampled_ranks(job.world_size, per_node)[: cluster.whole_traces]
        whole = ",".join(map(str, sampled))
        return (
            *("-m", REDUCTION),
            *(f"{FOLDER}/{folder}", f"node{number}.columns", whole),
            *(str(number * per_node), str(per_node)),
            *(PurePosixPath(pattern).name for pattern in job.traces),
        )

    def _request(self, number: int, place: NodePlace) -> Mapping[str, object]:
        """Return what one node is asked for: a `Launch`, which its agent completes."""
        job, per_node = self._job, self._allocation.nodes.ranks_per_node
        rank_count = min(per_node, job.world_size - number * per_node)
        environment = {
            **self._meeting_variables(number, place, rank_count),
            **{name: self._place.on_nodes(text) for name, text in job.environment.items()},
        }
        host = f"[{place.master_addr}]" if ":" in place.master_addr else place.master_addr
        init_method = f"tcp://{host}:{place.master_port}"
        return {
            "argv": [self._place.on_nodes(word) for word in job.argv_on(place)],
            "folder": None if self._place.folder is None else str(self._place.folder),
            "folders": [*job.folders.values()],
            "world_size": job.world_size,
            "first_rank": number * per_node,
            "rank_count": rank_count,
            "init_method": init_method if len(self._nodes) > 1 else None,
            "environment": environment,
            # Both are judged over all nodes, here.
            "timeout_s": MOST_AGENT_S,
            "hang_after_s": None,
            "disk_bytes": DISK_BYTES,
            "maps_freely": job.maps_freely,
            "cores": job.cores,
            "niceness": 0,
        }

    def _meeting_variables(
        self, number: int, place: NodePlace, rank_count: int
    ) -> Mapping[str, str]:
        """Return what torchrun reads its options from, and scripts like it."""
        node_count, port = str(len(self._nodes)), str(place.master_port)
        return {
            "PET_NNODES": node_count,
            "PET_NODE_RANK": str(number),
            "PET_NPROC_PER_NODE": str(rank_count),
            "PET_MASTER_ADDR": place.master_addr,
            "PET_MASTER_PORT": port,
            "NNODES": node_count,
            "NODE_RANK": str(number),
            "NPROC_PER_NODE": str(rank_count),
            "MASTER_ADDR": place.master_addr,
            "MASTER_PORT": port,
        }

    def _follow(self) -> None:
        """Take what the nodes say within a moment, then judge the job."""
        self._listen()
        now_s = time.monotonic()
        if self._begun_s is None and all(node.has_begun for node in self._nodes.values()):
            self._begun_s = now_s
        if self._told is not None:
            if now_s - self._told_s > OVERRUN_S:
                for node in self._nodes.values():
                    node.is_lost = node.is_lost or node.ended is None
            return
        reason = self._reason_to_end(now_s)
        if reason is not None:
            self._end(reason)

    def _listen(self) -> None:
        """Wait for a word of the nodes, and take all that are there."""
        wait_s = POLL_S
        with suppress(TimeoutError):
            while True:
                agent, message, data = next_message(self._inbox, wait_s)
                self._hear(self._nodes[agent], message, data)
                wait_s = 0.0

    def _hear(self, node: _OnNode, message: Message, data: bytes) -> None:
        match message:
            case {"said": "lost"}:
                node.is_lost = node.ended is None
            case {"id": number} if number != self._number:
                pass  # of a launch that was given up
            case {"said": "begun" | "reducing" as said}:
                node.has_begun, node.is_reducing = True, said == "reducing"
            case {"said": "phase", "phase": str(phase)}:
                self._on_phase(phase)
            case {"said": "beat"}:
                node.beat = msgspec.convert(message, Beat)
            case {"said": "files"}:
                node.files = node.files or tempfile.TemporaryFile()  # noqa: SIM115 - more comes
                node.files.write(data)
            case {"said": "refused", "words": str(words)}:
                node.ended = Ended(reason="launcher_lost", wall_s=0.0, message=words)
                raise EnvironmentFault(
                    f"ranks cannot be started on node {node.agent.node}: {words}; is torch "
                    "installed for the Python there? [cluster] python names another"
                )
            case {"said": "ended", "ended": ended}:
                node.ended = msgspec.convert(ended, Ended)
        if self._first_failed is None and (node.is_lost or node.has_failed):
            self._first_failed, self._failed_s = node, time.monotonic()

    def _reason_to_end(self, now_s: float) -> Reason | None:
        """Return why what is left of the job has to end; None while it may continue."""
        if self._failed_s is not None:
            return "rank_failed" if now_s - self._failed_s > PEER_GRACE_S else None
        if self._begun_s is None:
            limit_s = self._allocation.cluster.start_limit_s
            return "node_failed" if now_s - self._asked_s > limit_s else None
        if all(node.is_over or node.is_reducing for node in self._nodes.values()):
            return None
        if now_s - self._begun_s > self._job.timeout_s:
            return "timeout"
        hangs = self._job.hang_after_s is not None and self._hangs(self._job.hang_after_s)
        return "hang" if hangs else None

    def _hangs(self, hang_after_s: float) -> bool:
        """Whether ranks at work are silent on every node, as `all_hang` judges those of one."""
        beats = [node.beat for node in self._nodes.values() if node.beat is not None]
        silent_s = [beat.silent_s for beat in beats if beat.silent_s is not None]
        longest_s = max((beat.longest_step_s for beat in beats), default=0.0)
        limit_s = max(hang_after_s, PATIENCE * longest_s)
        return any(beat.is_in_step for beat in beats) and min(silent_s, default=0.0) > limit_s

    def _end(self, reason: Reason) -> None:
        """Ask every node that still runs to end its part."""
        self._told, self._told_s = reason, time.monotonic()
        for node in self._nodes.values():
            if not node.is_over:
                node.agent.send("end", id=self._number, reason=reason)

    def _abandon(self) -> None:
        """End what runs and wait for it; give the nodes up where one does not end it."""
        self._end("rank_failed")
        deadline_s = time.monotonic() + ABANDON_LIMIT_S
        while left := [node.agent for node in self._nodes.values() if not node.is_over]:
            if time.monotonic() > deadline_s:
                self._allocation.give_up(left[0])
                return
            with suppress(EnvironmentFault):
                self._listen()

    def _ended(self) -> Ended:
        """Return how the whole job ended, and have its files in place."""
        for node in self._nodes.values():
            if node.files is not None:
                unpack(node.files, self._place.workdir)
        ends = [node.ended for node in self._nodes.values() if node.ended is not None]
        first = self._first_failed.ended if self._first_failed is not None else None
        reason: Reason = "finished" if first is None else first.reason
        message = "" if first is None else first.message
        if self._told not in (None, "rank_failed"):
            reason, message = self._told, message
        if self._told == "node_failed":
            late = [node.agent.node for node in self._nodes.values() if not node.has_begun]
            limit_s = self._allocation.cluster.start_limit_s
            message = f"no ranks on {', '.join(late)} within {limit_s:g} s"
        kills = [each.memory_kill_count for each in ends if each.memory_kill_count is not None]
        begun_s = self._asked_s if self._begun_s is None else self._begun_s
        return Ended(
            reason=reason,
            message=message,
            ranks=tuple(rank for each in ends for rank in each.ranks),
            heartbeats=tuple(beat for each in ends for beat in each.heartbeats),
            wall_s=time.monotonic() - begun_s,
            memory_kill_count=sum(kills) if kills else None,
        )


def unpack(files: BinaryIO, folder: Path) -> None:
    """Put the files that a node sent into the folder of the job; they may hold anything."""
    files.seek(0)
    left_bytes, root = DISK_BYTES, folder.resolve()
    # Python has tar filters only from 3.11.4 on.
    with suppress(tarfile.TarError), tarfile.open(fileobj=files) as tar:
        for member in tar:
            left_bytes -= member.size
            packed = tar.extractfile(member) if member.isreg() and left_bytes >= 0 else None
            if packed is not None:
                with suppress(ValueError, FileExistsError, IsADirectoryError, NotADirectoryError):
                    path = (root / member.name).resolve()
                    path.relative_to(root)  # raises where it leads out of the folder
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with path.open("wb") as file:
                        shutil.copyfileobj(packed, file)
