"""How fast a step that does nothing but communicate exchanges its messages, from the timed steps.

In training and in inference none of these has an answer.
"""

from statistics import median

from evaluator.metrics.base import Absent, Evidence, Formula
from evaluator.metrics.throughput import UNTIMED, per_s, told_ranks
from evaluator.workloads.collectives.operations import Collective, DType, Operation
from records.message import Message


def _messages(evidence: Evidence) -> tuple[Message, ...] | Absent:
    if not evidence.step_times_s:
        return UNTIMED
    if evidence.workload is None or not evidence.workload.messages:
        return Absent("the workload is not one of messages alone")
    return evidence.workload.messages


def _bus_gb_per_s(evidence: Evidence) -> float | Absent:
    messages, ranks = _messages(evidence), told_ranks(evidence)
    if isinstance(messages, Absent):
        return messages
    if isinstance(ranks, Absent):
        return ranks
    moved = sum(_bus_gb(message, ranks) * message.count for message in messages)
    return per_s(moved, median(evidence.step_times_s)) if moved else Absent("no link is used")


def _bus_gb(message: Message, rank_count: int) -> float:
    """What one call puts on each link, decimal GB; nothing for a barrier."""
    # Imported here: metrics are listed without what measures collectives.
    from evaluator.bench.bandwidth import bandwidth

    operation = Operation(
        collective=Collective(message.collective),
        size_bytes=message.size_bytes,
        dtype=DType(message.dtype),
    )
    # In a second, so that bytes per second are bytes; a send_recv goes there and back.
    moved = bandwidth(operation.collective, operation.message_bytes, rank_count, 1.0, "nccl-tests")
    ways = 2 if operation.collective is Collective.SEND_RECV else 1
    return 0.0 if moved is None else moved.bus_gbps * ways


def _latency_s(evidence: Evidence) -> float | Absent:
    messages = _messages(evidence)
    if isinstance(messages, Absent):
        return messages
    return median(evidence.step_times_s) / sum(message.count for message in messages)


bus_bandwidth = Formula(
    name="bus_bandwidth",
    label="Bus bandwidth",
    unit="GB/s",
    better="higher",
    sources=frozenset({"samples"}),
    description="What the messages of a step put on each link, S times the factor of nccl-tests "
    "for each call, over the median step time; S and the factors are those of the bw_ metrics, 1 "
    "for a broadcast, a reduce and each way of a send_recv.",
    formula=_bus_gb_per_s,
)

latency = Formula(
    name="latency",
    label="Latency",
    unit="s",
    better="lower",
    sources=frozenset({"samples"}),
    description="Median step time over the calls of a step, where a step only exchanges messages; "
    "however these are put together, cut or overlapped, the calls that were asked for count.",
    formula=_latency_s,
)
