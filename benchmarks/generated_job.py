"""A made-up training job: what the hosts and devices of its ranks do, to the nanosecond.

Sharded data parallel, with tensor parallel groups and experts where asked for: parameters are
gathered one layer ahead, gradients reduced and scattered behind the backward pass, both beside the
compute. A collective ends for all once the last rank has arrived and the message went over the
bus. Nothing here knows how a trace is written or measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from generated_kernels import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    CLEAR,
    DENSE,
    EXPERTS,
    LOAD,
    OPTIMIZER,
    REDUCE_SCATTER,
    Message,
    Work,
)

COMPUTE_STREAM, SHARD_STREAM, TENSOR_STREAM, COPY_STREAM = 7, 20, 24, 31
OPERATOR_NS, COLLECTIVE_NS = 9_000, 21_000
LAUNCH_AFTER_NS, LAUNCH_LATENCY_NS = 4_600, 7_400
GAP_NS = 900
MESSAGE_ELEMENTS = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How large the job is, how fast its parts are, and what is wrong with it."""

    ranks: int = 4
    """Ranks that leave a trace, from 0."""
    world: int = 4
    steps: int = 5
    layers: int = 6
    operators: int = 8
    """Of one layer in the forward pass; the backward pass has twice as many."""
    python_frames: int = 1
    """Around each operator."""
    tensor_parallel: int = 1
    experts: bool = False
    straggler: int | None = None
    slowdown: float = 1.25
    skew_us: float = 0.0
    """Clocks of ranks are off by as much at most."""
    bus_gb_per_s: float = 180.0
    latency_us: float = 14.0
    shard_elements: int = 6_500_000
    seed: int = 11
    quantum_ns: int = 1
    """Times of devices are multiples of it."""


@dataclass(slots=True)
class Run:
    """One piece of device work: what, where, when, and the host's call that it came from."""

    work: Work
    stream: int
    start_ns: int
    end_ns: int
    correlation: int
    thread: int
    host_start_ns: int
    host_end_ns: int
    message: Message | None = None
    sequence: int = 0


@dataclass(slots=True)
class RankStep:
    """One step of one rank; the host waits for the device from `sync_ns` on."""

    rank: int
    number: int
    host_start_ns: int
    sync_ns: int
    host_end_ns: int
    runs: list[Run]


@dataclass(slots=True)
class Rank:
    """Where a rank stands."""

    number: int
    slowdown: float
    host_ns: int = 0
    correlation: int = 60_000
    backward: bool = False
    free_ns: dict[int, int] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)


class Job:
    """Simulates a job step by step, from time 0 on; equal shapes give equal jobs."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._random = Random(shape.seed)
        self._sequences: dict[str, int] = {}
        self._ranks = [
            Rank(number, shape.slowdown if number == shape.straggler else 1.0)
            for number in range(shape.world)
        ]
        degree = shape.tensor_parallel
        self._shard_groups = [range(first, shape.world, degree) for first in range(degree)]
        self._tensor_groups = [
            range(first, first + degree) for first in range(0, shape.world, degree)
        ]

    def step(self, number: int) -> list[RankStep]:
        """The next step, on every rank that leaves a trace."""
        begun = [self._begin(rank) for rank in self._ranks]
        self._forward()
        self._backward()
        for rank in self._ranks:
            for _ in range(4):
                self._run(rank, OPTIMIZER, COMPUTE_STREAM)
        self._collective(self._everyone(), ALL_REDUCE, SHARD_STREAM, 64, ready=None)
        steps = [
            self._end(rank, number, start_ns)
            for rank, start_ns in zip(self._ranks, begun, strict=True)
        ]
        return steps[: self.shape.ranks]

    def _begin(self, rank: Rank) -> int:
        start_ns = rank.host_ns
        rank.host_ns += 11_000
        load = self._run(rank, LOAD, COPY_STREAM)
        rank.free_ns[COMPUTE_STREAM] = max(rank.free_ns.get(COMPUTE_STREAM, 0), load.end_ns)
        self._run(rank, CLEAR, COMPUTE_STREAM)
        return start_ns

    def _end(self, rank: Rank, number: int, start_ns: int) -> RankStep:
        sync_ns = rank.host_ns
        done_ns = max(sync_ns, *rank.free_ns.values()) + 3_000 + int(9_000 * self._random.random())
        rank.host_ns = self._whole(done_ns)
        runs, rank.runs, rank.backward = rank.runs, [], False
        return RankStep(rank.number, number, start_ns, sync_ns, rank.host_ns, runs)

    def _forward(self) -> None:
        ready = self._gather(None)
        for layer in range(self.shape.layers):
            following = self._gather(None) if layer + 1 < self.shape.layers else ready
            self._layer(ready, self.shape.operators)
            ready = following

    def _backward(self) -> None:
        for rank in self._ranks:
            rank.backward = True
        ready = self._gather(None)
        for layer in range(self.shape.layers):
            following = self._gather(None) if layer + 1 < self.shape.layers else ready
            self._layer(ready, 2 * self.shape.operators)
            computed = [rank.free_ns[COMPUTE_STREAM] for rank in self._ranks]
            for group in self._shard_groups:
                self._collective(group, REDUCE_SCATTER, SHARD_STREAM, self._shard(group), computed)
            ready = following

    def _layer(self, ready: Sequence[int], operators: int) -> None:
        for rank, ready_ns in zip(self._ranks, ready, strict=True):
            rank.free_ns[COMPUTE_STREAM] = max(rank.free_ns[COMPUTE_STREAM], ready_ns)
        for half in range(2):
            for rank in self._ranks:
                for number in range(half * operators // 2, (half + 1) * operators // 2):
                    self._run(rank, DENSE[number % len(DENSE)], COMPUTE_STREAM)
            if self.shape.tensor_parallel > 1:
                self._blocking(self._tensor_groups, ALL_REDUCE, TENSOR_STREAM)
        if self.shape.experts:
            self._blocking(self._shard_groups, ALL_TO_ALL, SHARD_STREAM)
            for rank in self._ranks:
                for work in EXPERTS:
                    self._run(rank, work, COMPUTE_STREAM)
            self._blocking(self._shard_groups, ALL_TO_ALL, SHARD_STREAM)

    def _gather(self, ready: Sequence[int] | None) -> list[int]:
        ends = [0] * self.shape.world
        for group in self._shard_groups:
            for rank, end_ns in self._collective(
                group, ALL_GATHER, SHARD_STREAM, self._shard(group), ready
            ).items():
                ends[rank] = end_ns
        return ends

    def _blocking(self, groups: Sequence[range], work: Work, stream: int) -> None:
        """Collectives that compute waits for."""
        ready = [rank.free_ns[COMPUTE_STREAM] for rank in self._ranks]
        for group in groups:
            for rank, end_ns in self._collective(
                group, work, stream, MESSAGE_ELEMENTS, ready
            ).items():
                self._ranks[rank].free_ns[COMPUTE_STREAM] = end_ns

    def _collective(
        self,
        group: range,
        work: Work,
        stream: int,
        elements: int,
        ready: Sequence[int] | None,
    ) -> dict[int, int]:
        """Run on all ranks of a group; gives when it ended on each."""
        message = self._message(group, work, elements)
        self._sequences[message.group_name] = self._sequences.get(message.group_name, 0) + 1
        runs = [
            self._run(self._ranks[rank], work, stream, ready[rank] if ready else 0, message)
            for rank in group
        ]
        bus_ns = message.bytes * message.factor / self.shape.bus_gb_per_s
        took_ns = (self.shape.latency_us * 1e3 + bus_ns) * self._random.uniform(1.0, 1.01)
        end_ns = max(run.start_ns for run in runs) + took_ns
        for run in runs:
            run.end_ns = self._whole(end_ns + self._random.uniform(0, 400))
            run.sequence = self._sequences[message.group_name]
        for rank, run in zip(group, runs, strict=True):
            self._ranks[rank].free_ns[stream] = run.end_ns
        return {rank: run.end_ns for rank, run in zip(group, runs, strict=True)}

    def _run(
        self,
        rank: Rank,
        work: Work,
        stream: int,
        ready_ns: int = 0,
        message: Message | None = None,
    ) -> Run:
        """Launch work from the host: it starts when its stream is free and its inputs are ready."""
        host_ns = rank.host_ns
        rank.host_ns += COLLECTIVE_NS if message else OPERATOR_NS
        rank.correlation += 8
        launched_ns = host_ns + LAUNCH_LATENCY_NS
        start_ns = self._whole(
            max(launched_ns, ready_ns, rank.free_ns.get(stream, 0) + GAP_NS)
            + 200 * self._random.random()
        )
        took_ns = 1e3 * work.mean_us * rank.slowdown * self._random.uniform(0.85, 1.15)
        end_ns = max(start_ns + self.shape.quantum_ns, self._whole(start_ns + took_ns))
        rank.free_ns[stream] = end_ns
        run = Run(
            work=work,
            stream=stream,
            start_ns=start_ns,
            end_ns=end_ns,
            correlation=rank.correlation,
            thread=1 if rank.backward else 0,
            host_start_ns=host_ns,
            host_end_ns=rank.host_ns - 1_000,
            message=message,
        )
        rank.runs.append(run)
        return run

    def _message(self, group: range, work: Work, elements: int) -> Message:
        count = len(group)
        shares = (count - 1) / count
        collective, annotation, inwards, outwards, factor = {
            ALL_GATHER.name: ("_allgather_base", "_all_gather_base", 1, count, shares),
            REDUCE_SCATTER.name: ("_reduce_scatter_base", "_reduce_scatter_base", count, 1, shares),
            ALL_REDUCE.name: ("allreduce", "all_reduce", 1, 1, 2 * shares),
            ALL_TO_ALL.name: ("all_to_allv", "all_to_all", 1, 1, shares),
        }[work.name]
        among = "tp" if group.step == 1 else "dp"
        everyone = count == self.shape.world
        return Message(
            work=work,
            collective=collective,
            annotation=annotation,
            in_elements=inwards * elements,
            out_elements=outwards * elements,
            group_name="0" if everyone else f"{among}{group.start}",
            group_description="default_pg" if everyone else f"mesh_{among}",
            ranks=tuple(group),
            factor=factor,
        )

    def _shard(self, group: range) -> int:
        return self.shape.shard_elements * 4 // len(group)

    def _everyone(self) -> range:
        return range(self.shape.world)

    def _whole(self, ns: float) -> int:
        return int(ns) // self.shape.quantum_ns * self.shape.quantum_ns
