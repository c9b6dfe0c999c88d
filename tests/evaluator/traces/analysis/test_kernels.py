"""Work by name, how hosts launch it and why devices idle, by hand and instant by instant."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.traces.analysis.breakdown import job_split
from evaluator.traces.analysis.kernels import (
    idle_causes,
    launch_statistics,
    stream_queues,
    top_kernels,
)
from evaluator.traces.model import Activity, Device
from evaluator.traces.testing import Span
from tests.support.traces import job, named_cases, value_of

GPU = Device(name="GPU")
COMPUTE, COMMUNICATION, COPY = Activity.COMPUTE, Activity.COMMUNICATION, Activity.COPY
FILL, LAUNCH, SYNC, WAIT = Activity.FILL, Activity.LAUNCH, Activity.SYNC, Activity.WAIT


def traced(*spans, device=GPU, **given):
    return job(spans, device=device, **given)


def call(start, end, correlation):
    return Span(LAUNCH, start, end, correlation=correlation, lane=9)


def work(start, end, correlation, lane=0, activity=COMPUTE):
    return Span(activity, start, end, correlation=correlation, lane=lane)


def kernel(name, start, length, blocks_per_sm=float("nan"), activity=COMPUTE):
    return Span(activity, start, start + length, name=name, blocks_per_sm=blocks_per_sm)


def test_the_kernel_of_most_time_comes_first_and_only_work_counts():
    idle = (Span(LAUNCH, 0, 9), Span(SYNC, 0, 9), Span(WAIT, 0, 9))
    spans = (kernel("a", 0, 10), kernel("b", 10, 40), kernel("a", 50, 10))
    table = top_kernels(traced(*idle, *spans)).job
    assert [(row.name, row.count) for row in table.rows] == [("b", 1), ("a", 2)]
    assert [row.share for row in table.rows] == pytest.approx([4 / 6, 2 / 6])
    assert table.rows[1].mean_s == pytest.approx(10e-9)


def test_one_name_that_does_two_things_has_two_rows():
    both = kernel("a", 0, 10), kernel("a", 10, 5, activity=COMMUNICATION)
    table = top_kernels(traced(*both)).job
    assert [(row.activity, row.count) for row in table.rows] == [(COMPUTE, 1), (COMMUNICATION, 1)]


def test_ranks_are_told_apart_and_together():
    tables = top_kernels(
        job([kernel("a", 0, 10), kernel("b", 10, 1)], [kernel("b", 0, 30)], device=GPU)
    )
    totals_s = {row.name: row.total_s for row in tables.job.rows}
    assert totals_s == pytest.approx({"b": 31e-9, "a": 10e-9})
    assert [table.rank for table in tables.by_rank] == [0, 1]
    assert [row.name for row in tables.by_rank[0].rows] == ["a", "b"]


def test_copies_have_the_bandwidth_of_those_that_tell_their_bytes():
    table = top_kernels(
        traced(
            Span(COPY, 0, 10, name="HtoD", bytes=500),
            Span(COPY, 10, 30, name="HtoD", bytes=1000),
            Span(COPY, 30, 99, name="HtoD"),
            Span(FILL, 30, 40, name="fill"),
        )
    ).job
    assert table.rows[0].bytes_per_s == pytest.approx(1500 / 30e-9)
    assert table.rows[1].bytes_per_s is None


@named_cases(
    ("outer", "totals_s"),
    {
        "a call": (Span(COMPUTE, 0, 100, "outer"), {"outer": 20e-9, "addmm": 80e-9}),
        "a transfer": (Span(COMMUNICATION, 0, 100, "outer"), {"outer": 100e-9, "addmm": 80e-9}),
    },
)
def test_operators_of_a_host_count_without_those_that_they_call(outer, totals_s):
    table = top_kernels(traced(outer, Span(COMPUTE, 10, 90, "addmm"), device=None)).job
    assert {row.name: row.total_s for row in table.rows} == pytest.approx(totals_s)


def nccl(start, length):
    return kernel("nccl", start, length, 0.1, activity=COMMUNICATION)


@pytest.mark.parametrize(
    ("spans", "name", "value"),
    [
        ([kernel("a", 0, 30, 0.5), kernel("b", 30, 10, 4.0)], "mean_sm_coverage", 25 / 40),
        (
            [
                kernel("long", 0, 20_000, 2.0),
                kernel("short", 20_000, 10_000, 2.0),
                kernel("thin", 30_000, 30_000, 0.6),
            ],
            "compute_bound_fraction",
            20 / 60,
        ),
        (
            [kernel("thin", 0, 10, 0.4), kernel("wide", 10, 30, 1.0), nccl(40, 60)],
            "memory_bound_fraction",
            10 / 40,
        ),
        ([nccl(0, 60)], "mean_sm_coverage", 0.1),
        ([nccl(0, 60)], "memory_bound_fraction", "no kernel that computes says its blocks"),
        (
            [kernel("a", 0, 30)],
            "mean_sm_coverage",
            "no trace says how many blocks its kernels have",
        ),
    ],
    ids=["weighted", "long and wide", "not of nccl", "nccl covers", "nccl is unbound", "silent"],
)
def test_coverage_is_weighted_by_duration_and_bounds_what_computes(spans, name, value):
    expected = value if isinstance(value, str) else pytest.approx(value)
    assert value_of(name, traced(*spans)) == expected


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("vllm::moe::topkGatingSoftmax", 0.25),
        ("fused_moe_kernel", 0.25),
        ("_grouped_gemm_fprop", 0.25),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x2", 0.25),
        ("deep_ep::intranode::dispatch", 0.25),
        ("gatherTopK", 0),
        ("cub::DispatchReduceByKey", 0),
        ("combine_splits", 0),
    ],
)
def test_kernels_of_experts_are_known_by_their_names_and_samplers_are_none(name, share):
    traces = traced(kernel(name, 0, 25), kernel("gemm", 25, 75), Span(COPY, 40, 90, name="copy"))
    assert value_of("moe_fraction", traces) == pytest.approx(share)
    assert value_of("dominant_kernel_concentration", traces) == pytest.approx(0.75)
    assert value_of("memory_transfer_overhead", traced(Span(COPY, 20, 50))) == pytest.approx(0.3)


@pytest.mark.parametrize(
    "name",
    ["Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH", "MemcpyH2D", "[CUDA memcpy Host-to-Device]"],
)
def test_bandwidth_is_that_of_copies_between_host_and_device(name):
    traces = traced(
        Span(COPY, 0, 100, name=name, bytes=2500),
        Span(COPY, 0, 10, name="Memcpy DtoD (Device -> Device)", bytes=9000),
        Span(FILL, 0, 10, name="Memset (Device)", bytes=9000),
    )
    assert value_of("average_memory_bandwidth", traces) == pytest.approx(25)
    within = traced(Span(COPY, 0, 10, name="Memcpy DtoD (Device -> Device)", bytes=9000))
    why = "nothing was copied between host and device"
    assert value_of("average_memory_bandwidth", within) == why


@pytest.mark.parametrize(
    "name",
    [
        "dominant_kernel_concentration",
        "mean_sm_coverage",
        "compute_bound_fraction",
        "memory_bound_fraction",
        "moe_fraction",
        "average_memory_bandwidth",
        "memory_transfer_overhead",
    ],
)
def test_what_says_something_of_devices_only_has_no_value_on_a_host(name):
    assert "host" in value_of(name, traced(kernel("aten::mm", 0, 50), device=None))


def test_a_delay_lasts_from_the_call_to_its_work():
    told = statistics(call(0, 5, 1), work(12, 20, 1), call(10, 14, 2), work(50, 60, 2))
    assert told.launch_count == 2
    assert told.delay_median_s == pytest.approx(26e-9)
    assert told.call_median_s == pytest.approx(4.5e-9)
    assert told.call_total_s == pytest.approx(9e-9)


def test_a_graph_is_one_launch_whose_first_work_counts():
    told = statistics(
        call(0, 5, 1), work(7, 9, 1), work(40, 50, 1), call(10, 14, 2), work(60, 61, 2)
    )
    assert (told.launch_count, told.graph_launch_count, told.kernel_count) == (2, 1, 3)
    assert told.delay_median_s == pytest.approx((7 + 50) / 2 * 1e-9)


def statistics(*spans, **given):
    return launch_statistics(traced(*spans, **given)).job


def test_work_before_its_launch_shows_clocks_and_is_no_delay():
    early = (call(10, 15, 1), work(4, 9, 1))
    told = statistics(*early, call(20, 25, 2), work(26, 30, 2))
    assert told.early_share == pytest.approx(0.5)
    assert told.delay_median_s == pytest.approx(6e-9)
    assert statistics(*early).delay_median_s is None


def test_what_is_not_known_of_launches_has_its_reason():
    early, one = (call(10, 15, 1), work(4, 9, 1)), (call(0, 5, 1), work(12, 20, 1))
    for name, traces, why in (
        ("kernel_launch_delay", traced(*early), "all work starts before its launch, so clocks"),
        ("kernel_launch_delay", traced(work(0, 5, 0)), "no trace says which call launched what"),
        ("launches_per_step", traced(*one, steps=()), "the host marks no step"),
    ):
        assert value_of(name, traces).startswith(why)


def test_ranks_that_tell_no_launch_are_left_out():
    traces = job([work(0, 5, 0)], [call(0, 5, 1), work(6, 9, 1)], device=GPU)
    assert [each.rank for each in launch_statistics(traces).by_rank] == [1]


def test_launches_without_their_work_and_work_without_its_launch_do_not_count():
    told = statistics(
        call(0, 5, 1), work(12, 20, 1), call(20, 25, 7), work(30, 40, 8), work(50, 60, 0)
    )
    assert told.launch_count == 1
    assert told.kernel_count == 3


def test_launches_are_counted_in_the_steps_of_the_host():
    spans = [
        span
        for i in range(6)
        for span in (call(10 * i, 10 * i + 2, i + 1), work(10 * i + 5, 10 * i + 9, i + 1))
    ]
    told = statistics(*spans, host_steps=[(1, 10, 20), (2, 20, 50)])
    assert told.launches_per_step == pytest.approx(2)


def test_short_kernels_are_a_share_of_kernels_not_of_copies():
    told = statistics(
        call(0, 5, 1),
        work(10, 10_009, 1),
        work(20_000, 30_000, 0),
        work(40_000, 40_010, 0, activity=COPY),
    )
    assert told.short_kernel_share == pytest.approx(0.5)


def queues(*spans):
    return stream_queues(traced(*spans).ranks[0])


def test_a_queue_holds_what_was_handed_over_and_has_not_started():
    spans = [(0, 2, 3, 50), (4, 6, 50, 70), (8, 10, 70, 80)]
    pairs = [(call(a, b, i), work(c, d, i)) for i, (a, b, c, d) in enumerate(spans, 1)]
    (queue,) = queues(*(span for pair in pairs for span in pair))
    columns = (queue.start_ns, queue.end_ns, queue.waiting_count)
    segments = list(zip(*(column.tolist() for column in columns), strict=True))
    assert segments == [(2, 3, 1), (6, 10, 1), (10, 50, 2), (50, 70, 1)]
    assert queue.longest_count == 2
    assert queue.mean_count == pytest.approx((1 + 4 + 80 + 20) / 65)


def test_each_stream_has_its_queue_of_work_that_waits():
    found = queues(call(0, 2, 1), work(5, 9, 1, lane=3), call(2, 4, 2), work(9, 12, 2, lane=7))
    assert [queue.lane.thread for queue in found] == ["3", "7"]
    assert queues(call(0, 9, 1), work(5, 20, 1)) == ()


def test_queues_agree_with_counting_at_every_instant():
    random = np.random.default_rng(3)
    called = np.sort(random.integers(0, 60, 30))
    begun = called + random.integers(-5, 20, 30)
    lanes = random.integers(0, 3, 30)
    spans = [call(start, start + 2, i + 1) for i, start in enumerate(called.tolist())]
    spans += [
        work(start, start + 1, i + 1, lane)
        for i, (start, lane) in enumerate(zip(begun.tolist(), lanes.tolist(), strict=True))
    ]
    for queue in queues(*spans):
        own = lanes == int(queue.lane.thread)
        for instant in range(-5, 90):
            inside = (queue.start_ns <= instant) & (instant < queue.end_ns)
            waiting = own & (called + 2 <= instant) & (instant < begun)
            assert queue.waiting_count[inside].sum() == waiting.sum()


def causes(*spans, **changed):
    """Kernel wait, synchronising, host wait and other, by step."""
    (found,) = idle_causes(traced(*spans, **changed))
    columns = (found.kernel_wait_ns, found.sync_ns, found.host_wait_ns, found.other_ns)
    return [tuple(step) for step in zip(*(column.tolist() for column in columns), strict=True)]


def test_a_device_is_idle_for_a_cause_step_by_step():
    spans = [call(0, 1, 1), work(1, 20, 1), Span(SYNC, 5, 22, lane=9), call(60, 70, 2)]
    spans += [work(75, 80, 2), work(90, 100, 0)]
    assert causes(*spans) == [(5, 50, 1, 10)]
    steps = [(1, 0, 50), (2, 50, 100)]
    found = causes(call(0, 1, 1), work(1, 20, 1), call(60, 70, 2), work(80, 100, 2), steps=steps)
    assert found == [(0, 0, 31, 0), (10, 0, 20, 0)]


def test_waiting_for_the_host_is_a_share_of_the_step():
    traces = traced(call(0, 1, 1), work(0, 20, 1), call(60, 70, 2), work(70, 100, 2))
    assert value_of("host_wait_fraction", traces) == pytest.approx(0.5)


def test_a_rank_or_job_that_tells_no_launch_has_no_cause():
    told, untold = idle_causes(job([call(0, 1, 1), work(1, 20, 1)], [work(1, 20, 0)], device=GPU))
    assert told.other_ns.tolist() == [0]
    assert untold.other_ns.tolist() == untold.idle_ns.tolist() == [81]
    assert idle_causes(traced(work(0, 20, 0))) is None


ints = st.integers
launches = st.lists(
    st.tuples(ints(-10, 100), ints(0, 8), ints(-5, 40), ints(1, 30), st.booleans()),
    min_size=1,
    max_size=8,
)
syncs = st.lists(st.tuples(ints(-10, 100), ints(1, 40)), max_size=4)


def slow_causes(given_launches, given_syncs):
    """The same by looking at every instant."""
    runs = sorted(
        (start + delay, start + delay + length, told)
        for start, _, delay, length, told in given_launches
    )
    handed = [(s + c, s + d) for s, c, d, _, told in given_launches if told]
    counts = [0, 0, 0, 0]
    for instant in range(100):
        if any(start <= instant < end for start, end, _ in runs):
            continue
        ended = max((end for start, end, _ in runs if end <= instant), default=0)
        since = max(ended, 0)
        following = [told for start, _, told in runs if start == min_start(runs, instant)]
        if following and not any(following):
            counts[3] += 1
        elif any(start <= instant < end for start, end in handed):
            counts[0] += 1
        elif any(start <= since < start + length for start, length in given_syncs):
            counts[1] += 1
        else:
            counts[2] += 1
    return tuple(counts)


def min_start(runs, instant):
    return min((start for start, _, _ in runs if start > instant), default=None)


@given(launches, syncs)
def test_causes_agree_with_looking_at_every_instant(given_launches, given_syncs):
    spans = [Span(SYNC, start, start + length, lane=9) for start, length in given_syncs]
    for i, (start, lasting, delay, length, told) in enumerate(given_launches):
        begun = start + delay
        spans.append(call(start, start + lasting, i + 1))
        spans.append(work(begun, begun + length, i + 1 if told else 0))
    found = causes(*spans)
    assert sum(found[0]) == round(job_split(traced(*spans)).mean.idle_s * 1e9)
    if any(told for *_, told in given_launches):
        assert found == [slow_causes(given_launches, given_syncs)]
