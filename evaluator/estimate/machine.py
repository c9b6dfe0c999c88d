"""What ranks run on, in rates: peaks of known accelerators, round numbers for the rest."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evaluator.estimate.traffic import Traffic
from evaluator.machine import core_count
from evaluator.metrics.peaks import accelerator, peak_flops_per_s
from records.study import Environment, Link

CPU_FLOPS_PER_S = 60e9
CUDA_FLOPS_PER_S = 300e12
REACHED = 0.5
"""The part of an accelerator's peak that large matrix products reach."""
MEMORY_BYTES_PER_S = {"cpu": 10e9, "cuda": 2e12}
DISPATCH_S = 15e-6
"""What it takes to start one operator from Python, with its part of the backward pass's record."""
CALL_S = {"cpu": 500e-6, "cuda": 20e-6}
"""What one collective call takes beside its rounds: process groups, streams, events."""
ROUND_S = {"cpu": 100e-6, "cuda": 5e-6}
"""How long a rank waits for its neighbour in one round of a collective."""
SCALE_UP_BYTES_PER_S = {"cpu": 1e9, "cuda": 200e9}
SCALE_OUT_BYTES_PER_S = {"cpu": 1e9, "cuda": 25e9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that communicate: how many, and how far apart neighbours are, in ranks."""

    size: int
    stride: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Rates of one rank; `crowding` is how many ranks share a core, 1 where each has its own.

    Where it `joins_tensors`, one operator goes over many at once.
    """

    flops_per_s: float
    memory_bytes_per_s: float
    dispatch_s: float
    call_s: float
    scale_up: Link
    scale_out: Link
    ranks_per_node: int
    crowding: float = 1.0
    joins_tensors: bool = False

    def together(self, seconds: Sequence[float]) -> float:
        """How long ranks take with so much work each: the busiest, or all on the cores they share.

        The cores have work as long as any rank has.
        """
        return max(max(seconds), self.crowding * sum(seconds) / len(seconds))

    def leaves_node(self, group: Group) -> bool:
        """Whether the ranks of a group are on several nodes."""
        return group.size * group.stride > self.ranks_per_node

    def exchange(self, traffic: Traffic, group: Group) -> float:
        """How long collectives of a group take on the slowest link between its ranks.

        Groups side by side share what leads out of their nodes. Ranks without a core of their own
        wait for their turn in every call.
        """
        link, sharing = self.scale_up, 1
        if self.leaves_node(group):
            link, sharing = self.scale_out, min(group.stride, self.ranks_per_node)
        waiting = traffic.calls * self.call_s + traffic.rounds * (link.latency_s or 0.0)
        sending = traffic.sent_bytes * sharing / link.bandwidth_bytes_per_s
        return self.crowding * (waiting + sending)


def machine_of(
    environment: Environment, precision: str, rank_count: int, threads_per_rank: int = 1
) -> Machine:
    """The machine of an environment for so many ranks; what it does not tell is assumed."""
    # What is assumed of GPUs is nearer to a TPU than what is assumed of CPUs.
    device = "cpu" if environment.device == "cpu" else "cuda"
    neighbours = min(rank_count, environment.ranks_per_node)
    cores = core_count(environment) or neighbours * threads_per_rank
    on_cpu = device == "cpu"
    threads = max(1.0, min(threads_per_rank, cores / neighbours))
    return Machine(
        flops_per_s=CPU_FLOPS_PER_S * threads if on_cpu else _flops_per_s(environment, precision),
        memory_bytes_per_s=MEMORY_BYTES_PER_S[device],
        dispatch_s=DISPATCH_S,
        call_s=CALL_S[device],
        scale_up=_link(environment.scale_up, SCALE_UP_BYTES_PER_S[device], ROUND_S[device]),
        scale_out=_link(environment.scale_out, SCALE_OUT_BYTES_PER_S[device], 2 * ROUND_S[device]),
        ranks_per_node=environment.ranks_per_node,
        crowding=max(1.0, neighbours / cores) if on_cpu else 1.0,
        joins_tensors=not on_cpu,
    )


def _flops_per_s(environment: Environment, precision: str) -> float:
    known = accelerator(environment.accelerator)
    peak = peak_flops_per_s(known, precision) if known else None
    return REACHED * (peak or CUDA_FLOPS_PER_S)


def _link(told: Link | None, bandwidth_bytes_per_s: float, latency_s: float) -> Link:
    if told is None:
        return Link(bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=latency_s)
    return replace(told, latency_s=latency_s) if told.latency_s is None else told
