"""What a launch on many nodes costs the searching side: simulated agents, real connections.

One process plays the agent of every node: each connects, shows signs of life twice a second while
the job runs, and then sends the reduced traces of its eight ranks, whose straggler is known. The
searching side is a process of its own with the launcher and the readers of the product: seconds
until all agents are connected, from the request until all have begun, and from the end of the job
until its files are here; then reading the traces and every metric. Bytes are those received,
memory is the most that the searching process had. The last line is what one node does with
traces as PyTorch's profiler writes them.

    python benchmarks/cluster_scale.py
    python benchmarks/cluster_scale.py --nodes 64 1024 --json
"""

import argparse
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from threading import Event
from typing import TypeVar

import msgspec
from cluster_traces import MadeJob
from fresh_process import run_fresh
from generated_events import Style
from generated_job import Shape
from generated_traces import generate, steps_for

from evaluator.evaluate import diagnose
from evaluator.launchers.cluster.allocation import Allocation, agent_zip
from evaluator.launchers.cluster.channel import Channel, ChannelLost, Meeting
from evaluator.launchers.cluster.launcher import ClusterLauncher
from evaluator.launchers.cluster.nodes import Nodes
from evaluator.launchers.cluster.scheduler import AgentRequest, Gone, JobState, Running
from evaluator.metrics.base import Evidence
from evaluator.metrics.registry import measure_all
from evaluator.ports import Job
from evaluator.rank.protocol import Ended, RankExit
from evaluator.traces.readers.files import STANDARD_LIMITS
from evaluator.traces.readers.read import read_folder
from records.study import Cluster

NODE_COUNTS = (64, 256, 1024, 1250)
JOB_S = 10.0
BEAT_S = 0.5
STRAGGLER = 11
PIECE_BYTES = 1 << 20
MB = 1e6
WIDTH = 14
EVENTS_OF_RANK = 100_000


class Simulated:
    """A scheduler whose nodes are played by one process."""

    carries_files = True

    def __init__(self, job: MadeJob) -> None:
        self._job = job
        self._process: subprocess.Popen[bytes] | None = None

    def missing(self) -> str | None:
        """Nothing is."""
        return None

    def facts(self) -> Mapping[str, str]:
        """There are none."""
        return {}

    def submit(self, request: AgentRequest) -> str:
        """Start the process that plays the nodes, once it has made what they will send."""
        meeting = next(text for name, text in request.files.items() if name == request.command[-1])
        self._process = subprocess.Popen(
            [sys.executable, __file__, "play", str(self._job.node_count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdout.readline()
        self._process.stdin.write(meeting)
        self._process.stdin.close()
        return request.name

    def find(self, name: str) -> str | None:  # noqa: ARG002 - nothing is left of any before
        """Find nothing."""
        return None

    def state(self, job: str) -> JobState:  # noqa: ARG002 - there is one
        """It runs while its process does."""
        return Running() if self._process else Gone("ended", "it ended")

    def cancel(self, job: str) -> None:  # noqa: ARG002 - there is one
        """Kill the process."""
        if self._process:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


@dataclass(slots=True, kw_only=True)
class PlayedNode:
    """One agent: its connection, what it will send, and the launch that it is in."""

    number: int
    channel: Channel
    files: bytes
    ranks: Sequence[int]
    launch: int | None = None
    ends_s: float = 0.0

    def fileno(self) -> int:
        """What becomes readable when the search asks for something."""
        return self.channel.fileno()

    def answer(self) -> None:
        """Do what the search asks for."""
        message, _ = self.channel.receive()
        match message:
            case {"do": "clock"}:
                self.channel.send({"said": "clock", "now_s": time.time()})
            case {"do": "port"}:
                self.channel.send({"said": "port", "port": 1})
            case {"do": "launch", "id": int(number)}:
                self.launch, self.ends_s = number, time.monotonic() + JOB_S
                self.channel.send({"said": "begun", "id": number})

    def go_on(self, now_s: float) -> None:
        """Show signs of life, or end the launch."""
        if self.launch is None:
            self.channel.send({"said": "beat"})
        elif now_s < self.ends_s:
            beat = {"is_in_step": True, "longest_step_s": 0.2, "silent_s": 0.1}
            self.channel.send({"said": "beat", "id": self.launch, **beat})
        else:
            for start in range(0, len(self.files), PIECE_BYTES):
                piece = self.files[start : start + PIECE_BYTES]
                self.channel.send({"said": "files", "id": self.launch}, piece)
            exits = tuple(RankExit(rank=rank, status=0) for rank in self.ranks)
            ended = Ended(reason="finished", wall_s=JOB_S, ranks=exits)
            self.channel.send({"said": "ended", "id": self.launch, "ended": asdict(ended)})
            self.launch = None


def play(node_count: int) -> None:
    """Play the agents of all nodes; the meeting comes in at standard input."""
    raise_file_limit()
    job = MadeJob(node_count=node_count, straggler=STRAGGLER)
    files = [packed(job, number) for number in range(node_count)]
    print("ready", flush=True)
    meeting = Meeting.of(sys.stdin.read())
    version = sha256(agent_zip()).hexdigest()
    nodes = []
    with selectors.DefaultSelector() as selector:
        for number in range(node_count):
            channel = Channel.to("127.0.0.1", meeting.port, meeting.secret, 60.0)
            hello = {
                "name": meeting.name,
                "node": f"n{number}",
                "address": channel.own_address,
                "version": version,
                "python": "3.12",
                "core_count": 64,
                "memory_bytes": 1 << 40,
                "gpus": [],
            }
            channel.send({"said": "hello", **hello})
            first = number * job.ranks_per_node
            node = PlayedNode(
                number=number,
                channel=channel,
                files=files[number],
                ranks=range(first, first + job.ranks_per_node),
            )
            nodes.append(node)
            selector.register(node, selectors.EVENT_READ, node)
        next_s = time.monotonic()
        with suppress(ChannelLost):
            while True:
                for key, _ in selector.select(max(0.0, next_s - time.monotonic())):
                    key.data.answer()
                if time.monotonic() >= next_s:
                    next_s = time.monotonic() + BEAT_S
                    for node in nodes:
                        node.go_on(time.monotonic())


def packed(job: MadeJob, number: int) -> bytes:
    """What a node sends: an archive with its reduced traces."""
    content = BytesIO()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(mode="w", fileobj=content) as tar:
        path = job.write(number, Path(folder))
        tar.add(path, path.name)
    return content.getvalue()


def raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def own_peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB


def own_cpu_s() -> float:
    spent = os.times()
    return spent.user + spent.system


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCost:
    """What one launch took on the searching side; the seconds of the job itself do not count."""

    nodes: int
    ranks: int
    connect_s: float
    launch_s: float
    """From the request until the files of all nodes are here."""
    launch_cpu_s: float
    received_mb: float
    launch_peak_mb: float
    read_s: float
    measure_s: float
    peak_mb: float


CostT = TypeVar("CostT")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionCost:
    """What a node took to reduce the traces of its ranks."""

    traces: int
    before_mb: float
    after_mb: float
    wall_s: float
    cpu_s: float
    peak_mb: float


def search(node_count: int) -> SearchCost:
    """Be the searching side of one launch; return what it took."""
    made = MadeJob(node_count=node_count, straggler=STRAGGLER)
    with tempfile.TemporaryDirectory() as root:
        allocation = Allocation(
            Simulated(made),
            Cluster(start_limit_s=600.0),
            Nodes(count=node_count, ranks_per_node=made.ranks_per_node),
            study_id="scale",
            root=Path(root),
        )
        launcher = ClusterLauncher(allocation, {}, 1)
        workdir = Path(root, "job")
        workdir.mkdir()
        job = Job(argv=("true",), world_size=made.world_size, files={}, timeout_s=600.0)
        allocation.begin()
        asked_s = time.monotonic()
        allocation.agents(Event(), lambda _phase: None)
        connected_s, cpu_s = time.monotonic(), own_cpu_s()
        result = launcher.run(job, workdir, lambda _phase: None)
        ended_s, cpu_s = time.monotonic(), own_cpu_s() - cpu_s
        assert result.reason == "finished", result
        received = sum(path.stat().st_size for path in workdir.iterdir())
        launch_peak_mb = own_peak_mb()
        allocation.close()
        closed_s = time.monotonic()
        traces = read_folder(workdir, limits=STANDARD_LIMITS, use_cache=False)
        read_s = time.monotonic()
        evidence = Evidence(traces=traces)
        assert measure_all(evidence).values
        found = diagnose(evidence)
        measured_s = time.monotonic()
    assert found is not None
    assert found.straggler == STRAGGLER, found.straggler
    return SearchCost(
        nodes=node_count,
        ranks=made.world_size,
        connect_s=connected_s - asked_s,
        launch_s=ended_s - connected_s - JOB_S,
        launch_cpu_s=cpu_s,
        received_mb=received / MB,
        launch_peak_mb=launch_peak_mb,
        read_s=read_s - closed_s,
        measure_s=measured_s - read_s,
        peak_mb=own_peak_mb(),
    )


def reduce() -> ReductionCost:
    """Reduce what a profiler writes of one node; return what it took."""
    shape = Shape(ranks=8, world=8)
    shape = replace(shape, steps=steps_for(shape, EVENTS_OF_RANK))
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder), shape, Style())
        cost = run_fresh(
            [
                *(sys.executable, "-P", "-m", "evaluator.traces.reduction"),
                *(folder, "node0.columns", "", "0", "8", "rank*_trace.json"),
            ]
        )
    done = json.loads(cost.output)
    return ReductionCost(
        traces=done["reduced_count"],
        before_mb=done["bytes_before"] / MB,
        after_mb=done["bytes_after"] / MB,
        wall_s=cost.wall_s,
        cpu_s=cost.cpu_s,
        peak_mb=cost.peak_bytes / MB,
    )


def main() -> None:
    match sys.argv[1:2]:
        case ["play"]:
            play(int(sys.argv[2]))
        case ["search"]:
            print(json.dumps(asdict(search(int(sys.argv[2])))))
        case ["reduce"]:
            print(json.dumps(asdict(reduce())))
        case _:
            report()


def report() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="*", default=NODE_COUNTS)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    columns = [each.name for each in fields(SearchCost)]
    costs = []
    if not asked.json:
        print(*(f"{name:>{WIDTH}}" for name in columns), flush=True)
    for count in asked.nodes:
        costs.append(of_process(SearchCost, "search", str(count)))
        if not asked.json:
            values = (f"{value:,.4g}" for value in asdict(costs[-1]).values())
            print(*(f"{value:>{WIDTH}}" for value in values), flush=True)
    reduction = of_process(ReductionCost, "reduce")
    if asked.json:
        rows = [asdict(cost) for cost in costs]
        print(json.dumps({"searches": rows, "reduction": asdict(reduction)}, indent=1))
        return
    print(
        f"a node reduces {reduction.traces} traces of {EVENTS_OF_RANK:,} events from "
        f"{reduction.before_mb:,.0f} to {reduction.after_mb:.2f} MB in {reduction.wall_s:.0f} s "
        f"({reduction.cpu_s:.0f} s of CPU, {reduction.peak_mb:,.0f} MB of memory)"
    )


def of_process(kind: type[CostT], *words: str) -> CostT:
    """What a process of its own prints, whose memory and CPU are nobody else's."""
    output = run_fresh([sys.executable, __file__, *words]).output
    return msgspec.json.decode(output, type=kind)


if __name__ == "__main__":
    main()
