"""The exchange of a mix of messages from its setup alone: calls, rounds, bytes, sums and copies.

Of the knobs it knows those that change how often, how far or in what format messages are sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from evaluator.estimate.algorithms import traffic_of
from evaluator.estimate.machine import Group, Machine
from evaluator.estimate.traffic import Traffic
from evaluator.workloads.collectives.adapters.adapter import AdapterName
from evaluator.workloads.collectives.carriers import carriers
from evaluator.workloads.collectives.exchange_job import Setup
from evaluator.workloads.collectives.operations import Collective, Operation

MPI_CALLS, MPI_ROUNDS, MPI_BYTES = 0.01, 0.02, 0.25
"""Of what gloo takes over sockets, what MPI takes over memory that ranks share."""
TOUCHES = 3  # two numbers are read and their sum is written
COPIES = 4  # read and written on the way in, and again on the way out
SLOWED = {"LL": 2.0, "LL128": 1.05}
"""Times for the same bytes with protocols that send flags along."""
HASTENED = {"LL": 0.5, "LL128": 0.6}
"""And for a round, which nothing else has to announce."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """What a setup asks of the library below: an algorithm and segments for a collective.

    Collectives that are not listed go as is usual.
    """

    algorithms: Mapping[Collective, str] = field(default_factory=dict)
    segments_bytes: Mapping[Collective, int] = field(default_factory=dict)
    protocol: str | None = None


def estimated_exchange(
    messages: Sequence[Operation], setup: Setup, ways: Ways, machine: Machine, rank_count: int
) -> Mapping[str, float]:
    """Seconds of a step, by what takes them."""
    carried = carriers(messages, setup)
    traffic = Traffic()
    for part in (part for carrier in carried for part in carrier.parts):
        algorithm = ways.algorithms.get(part.collective, "")
        segment_bytes = ways.segments_bytes.get(part.collective, 0)
        traffic += traffic_of(part, algorithm, rank_count, segment_bytes)
    copied = sum(part.message_bytes for each in carried if each.is_copied for part in each.parts)
    touched = machine.crowding / machine.memory_bytes_per_s
    sent = _carried(traffic, setup, ways)
    group = Group(size=rank_count, stride=1)
    return {
        "calls": machine.exchange(Traffic(calls=sent.calls), group),
        "rounds": machine.exchange(Traffic(rounds=sent.rounds), group),
        "transfers": machine.exchange(Traffic(sent_bytes=sent.sent_bytes), group),
        "sums": TOUCHES * traffic.added_bytes * touched,
        "copies": COPIES * copied * touched,
    }


def _carried(traffic: Traffic, setup: Setup, ways: Ways) -> Traffic:
    """The same in what gloo, or NCCL, would take for it; overlapping calls wait together."""
    waiting = 1 / min(setup.in_flight, max(1.0, traffic.calls))
    if setup.comm_adapter is AdapterName.MPI:
        return Traffic(
            MPI_CALLS * traffic.calls,
            MPI_ROUNDS * traffic.rounds * waiting,
            MPI_BYTES * traffic.sent_bytes,
        )
    protocol = ways.protocol or ""
    return replace(
        traffic,
        rounds=traffic.rounds * waiting * HASTENED.get(protocol, 1.0),
        sent_bytes=traffic.sent_bytes * SLOWED.get(protocol, 1.0),
    )
