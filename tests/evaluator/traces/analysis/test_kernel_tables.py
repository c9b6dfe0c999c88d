"""Top kernels and what metrics make of them, against answers by hand and the generator's truth."""

import json
from pathlib import Path

import pytest

from evaluator.metrics.base import Absent, Evidence
from evaluator.metrics.registry import metric
from evaluator.traces.analysis.kernels import coverage, top_kernels
from evaluator.traces.model import Activity, Device, TraceSet
from evaluator.traces.readers.read import read_traces
from evaluator.traces.testing import Span, rank_trace

SYNTHETIC = Path(__file__).parents[3] / "data" / "traces" / "synth_fsdp_4rank_straggler2"
GPU = Device(name="GPU")
COMPUTE, COMMUNICATION, COPY, FILL = (
    Activity.COMPUTE,
    Activity.COMMUNICATION,
    Activity.COPY,
    Activity.FILL,
)


def job(*spans, device=GPU):
    return TraceSet(ranks=(rank_trace(spans, device=device),))


def measured(name, traces):
    return metric(name).measure(Evidence(traces=traces))


def kernel(name, start, length, blocks_per_sm=float("nan"), activity=COMPUTE):
    return Span(activity, start, start + length, name=name, blocks_per_sm=blocks_per_sm)


# Tables.


def test_the_kernel_of_most_time_comes_first():
    table = top_kernels(job(kernel("a", 0, 10), kernel("b", 10, 40), kernel("a", 50, 10))).job
    assert [(row.name, row.count) for row in table.rows] == [("b", 1), ("a", 2)]
    assert [row.share for row in table.rows] == pytest.approx([4 / 6, 2 / 6])
    assert table.rows[1].mean_s == pytest.approx(10e-9)


def test_one_name_that_does_two_things_has_two_rows():
    table = top_kernels(job(kernel("a", 0, 10), kernel("a", 10, 5, activity=COMMUNICATION))).job
    assert [(row.activity, row.count) for row in table.rows] == [(COMPUTE, 1), (COMMUNICATION, 1)]


def test_ranks_are_told_apart_and_together():
    traces = TraceSet(
        ranks=(
            rank_trace([kernel("a", 0, 10), kernel("b", 10, 1)], device=GPU),
            rank_trace([kernel("b", 0, 30)], device=GPU, rank=1),
        )
    )
    tables = top_kernels(traces)
    assert [(row.name, row.total_s) for row in tables.job.rows] == [
        ("b", pytest.approx(31e-9)),
        ("a", pytest.approx(10e-9)),
    ]
    assert [table.rank for table in tables.by_rank] == [0, 1]
    assert [row.name for row in tables.by_rank[0].rows] == ["a", "b"]


def test_launches_and_waits_are_no_work():
    traces = job(Span(Activity.LAUNCH, 0, 9), Span(Activity.SYNC, 0, 9), Span(Activity.WAIT, 0, 9))
    assert top_kernels(traces).job.rows == ()


def test_copies_have_the_bandwidth_of_those_that_tell_their_bytes():
    table = top_kernels(
        job(
            Span(COPY, 0, 10, name="HtoD", bytes=500),
            Span(COPY, 10, 30, name="HtoD", bytes=1000),
            Span(COPY, 30, 99, name="HtoD"),
            Span(FILL, 30, 40, name="fill"),
        )
    ).job
    assert table.rows[0].bytes_per_s == pytest.approx(1500 / 30e-9)
    assert table.rows[1].bytes_per_s is None


def test_operators_of_a_host_count_without_those_that_they_call():
    table = top_kernels(
        job(Span(COMPUTE, 0, 100, "linear"), Span(COMPUTE, 10, 90, "addmm"), device=None)
    ).job
    assert [(row.name, row.total_s) for row in table.rows] == [
        ("addmm", pytest.approx(80e-9)),
        ("linear", pytest.approx(20e-9)),
    ]


def test_operators_beside_a_transfer_of_their_thread_take_nothing_from_it():
    table = top_kernels(
        job(Span(COMMUNICATION, 0, 100, "gloo:recv"), Span(COMPUTE, 10, 90, "mm"), device=None)
    ).job
    assert [row.total_s for row in table.rows] == [pytest.approx(100e-9), pytest.approx(80e-9)]


# Coverage.


def test_coverage_is_weighted_by_duration_and_full_at_one_block():
    found = coverage(job(kernel("a", 0, 30, 0.5), kernel("b", 30, 10, 4.0)).ranks)
    assert found.mean == pytest.approx((0.5 * 30 + 1 * 10) / 40)


def test_only_long_well_covering_kernels_are_bound_by_compute():
    found = coverage(
        job(
            kernel("long", 0, 20_000, 2.0),
            kernel("short", 20_000, 10_000, 2.0),
            kernel("thin", 30_000, 30_000, 0.6),
        ).ranks
    )
    assert found.compute_bound == pytest.approx(20 / 60)


def test_kernels_that_communicate_are_not_bound_by_memory():
    found = coverage(
        job(
            kernel("thin", 0, 10, 0.4),
            kernel("wide", 10, 30, 1.0),
            kernel("nccl", 40, 60, 0.1, activity=COMMUNICATION),
        ).ranks
    )
    assert found.memory_bound == pytest.approx(10 / 40)


def test_geometry_that_nothing_tells_has_no_coverage():
    assert coverage(job(kernel("a", 0, 30)).ranks) is None
    absent = measured("mean_sm_coverage", job(kernel("a", 0, 30)))
    assert absent == Absent("no trace says how many blocks its kernels have")


def test_communication_alone_is_bound_by_nothing():
    traces = job(kernel("nccl", 0, 60, 0.1, activity=COMMUNICATION))
    assert isinstance(measured("memory_bound_fraction", traces), Absent)
    assert measured("mean_sm_coverage", traces) == pytest.approx(0.1)


# Metrics.


@pytest.mark.parametrize(
    "name",
    [
        "vllm::moe::topkGatingSoftmax",
        "fused_moe_kernel",
        "_grouped_gemm_fprop",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x2",
        "deep_ep::intranode::dispatch",
    ],
)
def test_kernels_of_experts_are_known_by_their_names(name):
    traces = job(kernel(name, 0, 25), kernel("gemm", 25, 75))
    assert measured("moe_fraction", traces) == pytest.approx(0.25)


@pytest.mark.parametrize("name", ["gatherTopK", "cub::DispatchReduceByKey", "combine_splits"])
def test_samplers_and_sorts_are_no_experts(name):
    assert measured("moe_fraction", job(kernel(name, 0, 25))) == 0


def test_copies_and_fills_are_no_kernels():
    traces = job(kernel("a", 0, 30), kernel("b", 30, 10), Span(COPY, 40, 90, name="copy"))
    assert measured("dominant_kernel_concentration", traces) == pytest.approx(0.75)


@pytest.mark.parametrize(
    "name",
    ["Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH", "MemcpyH2D", "[CUDA memcpy Host-to-Device]"],
)
def test_bandwidth_is_that_of_copies_between_host_and_device(name):
    traces = job(
        Span(COPY, 0, 100, name=name, bytes=2500),
        Span(COPY, 0, 10, name="Memcpy DtoD (Device -> Device)", bytes=9000),
        Span(FILL, 0, 10, name="Memset (Device)", bytes=9000),
    )
    assert measured("average_memory_bandwidth", traces) == pytest.approx(25)


def test_copies_within_a_device_have_no_bandwidth_to_it():
    traces = job(Span(COPY, 0, 10, name="Memcpy DtoD (Device -> Device)", bytes=9000))
    absent = measured("average_memory_bandwidth", traces)
    assert absent == Absent("nothing was copied between host and device")


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
    absent = measured(name, job(kernel("aten::mm", 0, 50), device=None))
    assert "host" in absent.reason


def test_exposed_copies_are_a_share_of_the_step():
    traces = job(kernel("a", 0, 30), Span(COPY, 20, 50, name="copy"))
    assert measured("memory_transfer_overhead", traces) == pytest.approx(0.2)


def test_the_generators_kernels_are_what_it_knew():
    truth = json.loads((SYNTHETIC / "truth.json").read_text())["ranks"]
    traces = read_traces(sorted(SYNTHETIC.glob("*.gz")))
    for trace, table in zip(traces.ranks, top_kernels(traces).by_rank, strict=True):
        known = truth[str(trace.rank)]
        top = table.kernels[0]
        assert table.kernel_s == pytest.approx(known["kernel_time_sum"] / 1e9)
        assert top.name == known["top_kernel"]
        assert top.total_s / table.kernel_s == pytest.approx(known["top_kernel_fraction"])
        alone = TraceSet(ranks=(trace,))
        for name, key in {
            "mean_sm_coverage": "sm_coverage_dur_weighted",
            "average_memory_bandwidth": "memcpy_GBps",
            "moe_fraction": "moe_time",
        }.items():
            assert measured(name, alone) == pytest.approx(known[key], rel=1e-6)
