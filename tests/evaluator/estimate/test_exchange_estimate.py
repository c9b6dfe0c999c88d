"""The estimate of an exchange of messages: by algorithm, and by what a setup does to them."""

import pytest

from evaluator.estimate.communication import Ways, estimate_exchange, traffic_of
from evaluator.estimate.hardware import Machine
from evaluator.workloads.collectives.operations import (
    AdapterName,
    Collective,
    Compression,
    Operation,
    Setup,
)
from records.study import Link

MACHINE = Machine(
    flops_per_s=1.0,
    memory_bytes_per_s=1000.0,
    dispatch_s=0.001,
    call_s=0.1,
    scale_up=Link(bandwidth_bytes_per_s=1000.0, latency_s=0.01),
    scale_out=Link(bandwidth_bytes_per_s=1000.0, latency_s=0.01),
    ranks_per_node=8,
)


def message(size_bytes=4000, collective=Collective.ALL_REDUCE):
    return Operation(collective=collective, size_bytes=size_bytes)


def parts(*messages, ways=None, **setup):
    return estimate_exchange(messages, Setup(**setup), ways or Ways(), MACHINE, 4)


def test_a_ring_is_as_worked_out_by_hand():
    assert parts(message()) == pytest.approx(
        {
            "calls": 0.1,
            "rounds": 6 * 0.01,
            "transfers": 2 * 3 / 4 * 4000 / 1000,
            "sums": 3 * 3 / 4 * 4000 / 1000,
            "copies": 0,
        }
    )


@pytest.mark.parametrize(
    ("algorithm", "rounds", "sent", "added"),
    [
        ("ring", 14, 1.75, 0.875),
        ("recursive_doubling", 3, 3, 3),
        ("rabenseifner", 6, 1.75, 0.875),
        ("linear", 14, 14, 7),
        ("nonoverlapping", 6, 6, 3),
        ("NVLS", 2, 1, 0),
        ("one that is not known", 14, 1.75, 0.875),
    ],
)
def test_algorithms_of_an_all_reduce_of_eight_ranks(algorithm, rounds, sent, added):
    seen = traffic_of(message(), algorithm, 8)

    assert (seen.calls, seen.rounds) == (1, rounds)
    assert (seen.sent_bytes, seen.added_bytes) == (sent * 4000, added * 4000)


@pytest.mark.parametrize(
    ("collective", "algorithm", "rounds", "sent"),
    [
        (Collective.BROADCAST, "", 3, 3),
        (Collective.BROADCAST, "linear", 7, 7),
        (Collective.BROADCAST, "chain", 7, 1),
        (Collective.ALL_GATHER, "", 7, 7),
        (Collective.ALL_GATHER, "bruck", 3, 7),
        (Collective.SEND_RECV, "", 2, 2),
        (Collective.BARRIER, "", 3, 0),
    ],
)
def test_other_collectives_of_eight_ranks(collective, algorithm, rounds, sent):
    seen = traffic_of(message(collective=collective), algorithm, 8)

    assert (seen.rounds, seen.sent_bytes) == (rounds, sent * 4000)


@pytest.mark.parametrize("collective", Collective)
def test_a_rank_alone_sends_nothing(collective):
    seen = traffic_of(message(collective=collective), "", 1)

    assert (seen.rounds, seen.sent_bytes, seen.added_bytes) == (0, 0, 0)


def test_segments_take_more_rounds_and_hide_the_sums():
    whole, cut = (traffic_of(message(), "segmented_ring", 4, size) for size in (0, 250))

    assert cut.rounds > whole.rounds
    assert cut.added_bytes == whole.added_bytes / 4
    assert cut.sent_bytes == whole.sent_bytes


@pytest.mark.parametrize(
    ("setup", "ratios"),
    [
        ({"fusion_bytes": 8000}, {"calls": 1 / 2, "transfers": 1}),
        ({"chunk_count": 4}, {"calls": 4}),
        ({"chunk_count": 2, "in_flight": 2}, {"calls": 2, "rounds": 1}),
        ({"compression": Compression.FP16}, {"transfers": 1 / 2}),
        ({"comm_adapter": AdapterName.MPI, "backend": "mpi"}, {"calls": 0.01, "transfers": 0.25}),
        ({"ways": Ways(protocol="LL")}, {"rounds": 0.5, "transfers": 2}),
    ],
)
def test_a_setup_changes_what_two_messages_cost_by_these_ratios(setup, ratios):
    plain, changed = (parts(message(), message(), **each) for each in ({}, setup))

    assert {name: changed[name] / plain[name] for name in ratios} == pytest.approx(ratios)
    copies = "fusion_bytes" in setup or "compression" in setup
    assert (changed["copies"] > 0) is copies
