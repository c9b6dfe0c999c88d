"""Bandwidth and volume of collectives against answers worked out by hand and the known truth."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evaluator.metrics.base import Absent, Evidence
from evaluator.metrics.registry import metric
from evaluator.traces.analysis.collectives import bandwidths, match, volume
from evaluator.traces.model import Activity, CollectiveKind, RankGroup, TraceSet
from evaluator.traces.readers.read import read_traces
from evaluator.traces.testing import Span, rank_trace

TRACES = Path(__file__).parents[3] / "data" / "traces"
WORLD = RankGroup("0", (0, 1, 2, 3))
KINDS = {
    "bw_allreduce": CollectiveKind.ALL_REDUCE,
    "bw_allgather": CollectiveKind.ALL_GATHER,
    "bw_reducescatter": CollectiveKind.REDUCE_SCATTER,
    "bw_alltoall": CollectiveKind.ALL_TO_ALL,
}
FACTORS = {
    "bw_allreduce": 1.5,
    "bw_allgather": 0.75,
    "bw_reducescatter": 0.75,
    "bw_alltoall": 0.75,
}


def call(kind, start, end, *, group=WORLD, size=1000):
    return Span(
        Activity.COMMUNICATION, start, end, collective=kind, group=group, payload_bytes=size
    )


def job(*calls_of_rank, steps=((0, 0, 10**6),), world_size=4):
    return TraceSet(
        ranks=tuple(
            rank_trace(calls, steps=steps, rank=rank, world_size=world_size)
            for rank, calls in enumerate(calls_of_rank)
        )
    )


def measured(name, traces):
    return metric(name).measure(Evidence(traces=traces))


# One instance.


@pytest.mark.parametrize("name", list(KINDS))
def test_bus_bandwidth_is_that_of_the_rank_that_waited_for_nobody(name):
    traces = job(*([call(KINDS[name], 900 - wait, 1000)] for wait in (0, 50, 200, 700)))
    assert measured(name, traces) == pytest.approx(1000 * FACTORS[name] / 100)


def test_waiting_is_in_the_bandwidth_by_own_duration_only():
    traces = job(
        *([call(CollectiveKind.ALL_REDUCE, 900 - wait, 1000)] for wait in (0, 100, 300, 0))
    )
    table = bandwidths(traces, match(traces))
    assert table.algorithm_bytes_per_s.tolist() == [1e10]
    assert table.bus_bytes_per_s.tolist() == [1.5e10]
    assert table.with_waiting_bytes_per_s.tolist() == [[1.5e10, 0.75e10, 0.375e10, 1.5e10]]
    assert not table.partial.any()


def test_a_transfer_moves_its_message_once():
    pair = RankGroup("1", (0, 1))
    traces = job(
        [call(CollectiveKind.SEND, 0, 500, group=pair)],
        [call(CollectiveKind.RECV, 400, 500, group=pair)],
    )
    assert measured("bw_peertopeer", traces) == pytest.approx(10)


def test_a_put_moves_its_bytes_in_its_own_time():
    puts = [call(CollectiveKind.PUT, 0, 100, group=RankGroup("", (0, 1)))]
    assert measured("bw_peertopeer", job(puts, [], world_size=2)) == pytest.approx(10)


def test_instances_count_by_their_bytes_and_time_whatever_ranks_wait():
    ends = (100, 300, 900)
    calls = [call(CollectiveKind.ALL_GATHER, 1000 * i, 1000 * i + e) for i, e in enumerate(ends)]
    last = [replace(one, start_ns=one.start_ns + 50) for one in calls]
    assert measured("bw_allgather", job(*[calls] * 4)) == pytest.approx(3 * 750 / 1300)
    waiting = job(calls, calls, calls, last)
    assert measured("bw_allgather", waiting) == pytest.approx(3 * 750 / 1150)


def test_small_and_large_messages_give_the_rate_of_all_their_bytes():
    small, large = (1_000, 48), (1_000_000, 10_638)  # bytes and ns: 21 and 94 GB/s
    calls = [
        call(CollectiveKind.ALL_GATHER, 20_000 * i, 20_000 * i + time_ns, size=4 * size // 3)
        for i, (size, time_ns) in enumerate([small, large] * 2)
    ]
    value = measured("bw_allgather", job(*[calls] * 4))
    assert value == pytest.approx(1_001_000 / 10_686, rel=1e-3)
    assert value == pytest.approx(93.7, abs=0.1)


def test_groups_of_two_sizes_have_factors_of_their_own():
    left, right = RankGroup("1", (0, 1)), RankGroup("1", (2, 3))
    traces = job(
        *([call(CollectiveKind.ALL_REDUCE, 0, 100, group=g)] for g in (left, left, right, right))
    )
    assert measured("bw_allreduce", traces) == pytest.approx(10)


# No answer.


def test_ranks_without_a_trace_make_it_a_lower_bound():
    traces = job(*([call(CollectiveKind.ALL_REDUCE, 0, end)] for end in (100, 200)))
    table = bandwidths(traces, match(traces))
    assert table.partial.tolist() == [True]
    assert table.bus_bytes_per_s.tolist() == [1.5e10]
    answer = measured("bw_allreduce", traces)
    assert isinstance(answer, Absent)
    assert "at least 15 GB/s" in answer.reason


def test_what_is_whole_counts_where_other_instances_are_not():
    pair = RankGroup("1", (0, 1))
    calls = [
        call(CollectiveKind.ALL_REDUCE, 0, 10),
        call(CollectiveKind.ALL_REDUCE, 100, 200, group=pair),
    ]
    assert measured("bw_allreduce", job(calls, calls)) == pytest.approx(10)


def test_every_lack_of_bandwidth_has_its_reason():
    kind = CollectiveKind.ALL_REDUCE
    lone = [call(kind, 0, 100)]
    reasons = {
        "nothing was profiled": None,
        "no all-reduce ran": job([], []),
        "do not say how large": job(*[[call(kind, 0, 100, size=0)]] * 4),
        "do not say which ranks take part": job(*[[call(kind, 0, 100, group=RankGroup(""))]] * 4),
        "not equally many": job(lone, lone, lone, []),
        "outside all profiled steps": job(*[lone] * 4, steps=((0, 500, 900),)),
        "how many ranks take part": job(*[[call(kind, 0, 100, group=RankGroup("a"))]] * 4),
    }
    for words, traces in reasons.items():
        assert words in measured("bw_allreduce", traces).reason


def test_no_time_gives_no_bandwidth():
    traces = job(*([call(CollectiveKind.ALL_REDUCE, 5, end)] for end in (5, 9, 9, 9)))
    assert isinstance(measured("bw_allreduce", traces), Absent)


def test_collectives_with_a_root_are_not_timed_by_who_leaves_first():
    traces = job(*[[call(CollectiveKind.BROADCAST, 0, 10)]] * 4)
    assert bandwidths(traces, match(traces)).count == 0


# Volume.


def test_volume_is_by_kind_and_group_and_step():
    pair = RankGroup("1", (0, 1))
    calls = [
        call(CollectiveKind.ALL_GATHER, 0, 10, size=100),
        call(CollectiveKind.ALL_REDUCE, 20, 30, size=7, group=pair),
        call(CollectiveKind.ALL_GATHER, 120, 130, size=300),
        call(CollectiveKind.BARRIER, 140, 150, size=0),
    ]
    traces = job(calls, calls, calls[:1] + calls[2:], steps=((0, 0, 100), (1, 100, 200)))
    found = volume(traces, match(traces))
    rows = {(row.kind, row.group.name): row for row in found.groups}
    gathers, reduces = rows[CollectiveKind.ALL_GATHER, "0"], rows[CollectiveKind.ALL_REDUCE, "1"]
    assert (gathers.per_rank.bytes, gathers.traced_ranks.bytes) == (200, 600)
    assert (reduces.per_rank.bytes, reduces.rank_count, reduces.traced_ranks.bytes) == (3.5, 2, 7)
    assert rows[CollectiveKind.BARRIER, "0"].per_rank.call_count == 0.5
    assert [traffic.bytes for _, traffic in found.by_rank] == [203.5, 203.5, 200]
    assert measured("communication_volume", traces) == pytest.approx(607 / 3)
    assert measured("collective_count", traces) == pytest.approx((2 + 2 + 1.5) / 3)


def test_a_message_counts_where_it_is_sent():
    pair = RankGroup("1", (0, 1))
    traces = job(
        [call(CollectiveKind.SEND, 0, 10, group=pair)],
        [call(CollectiveKind.RECV, 0, 10, group=pair)],
    )
    assert measured("communication_volume", traces) == 500


def test_a_size_that_is_not_told_leaves_no_volume():
    calls = [
        call(CollectiveKind.ALL_REDUCE, 0, 10),
        call(CollectiveKind.ALL_REDUCE, 20, 30, size=0),
    ]
    traces = job(calls, calls)
    reason = "2 of 4 collectives do not say their size"
    assert measured("communication_volume", traces) == Absent(reason)
    assert measured("collective_count", traces) == 2


def test_without_steps_there_is_no_volume_of_a_step():
    traces = job([call(CollectiveKind.ALL_REDUCE, 0, 10)], steps=())
    assert isinstance(measured("communication_volume", traces), Absent)


# Files whose answer is known.


def read(folder):
    return read_traces(sorted(folder.glob("rank*_trace.json.gz")))


def test_the_generator_agrees_on_bandwidth_and_volume():
    folder = TRACES / "synth_fsdp_4rank_straggler2"
    truth = json.loads((folder / "truth.json").read_text())
    last = truth["ranks"]["2"]["collectives"]
    traces = read(folder)
    table = bandwidths(traces, match(traces))
    assert table.count == last["allgather"]["count"] + last["reducescatter"]["count"]
    assert not table.partial.any()
    # All-gathers are quick enough for other ranks than the straggler to come last.
    for name, expected in (
        ("bw_reducescatter", last["reducescatter"]["busbw_GBps_median"]),
        ("bw_allgather", 168.8),
    ):
        assert measured(name, traces) == pytest.approx(expected, rel=1e-3)
    total = sum(last[key]["total_bytes"] for key in ("allgather", "reducescatter"))
    assert measured("communication_volume", traces) == pytest.approx(total / 5)
    own = np.nanmedian(table.with_waiting_bytes_per_s[table.kind == 3], axis=0) / 1e9
    assert own.tolist() == [
        pytest.approx(
            truth["ranks"][str(rank)]["collectives"]["reducescatter"]["busbw_GBps_median"],
            rel=1e-3,
        )
        for rank in range(4)
    ]


def test_gloo_on_processors_has_bandwidth_too():
    traces = read(TRACES / "gloo_ddp_2rank")
    assert 0 < measured("bw_allreduce", traces) < 100
    assert measured("communication_volume", traces) > 0
