"""The published toolkit's definitions, against what it reports and its faults, one by one."""

from pathlib import Path

import pytest

from evaluator.metrics.base import Evidence
from evaluator.metrics.registry import measure_each, metric_names, read_metrics_file
from evaluator.metrics.testing import evidences
from evaluator.traces.model import Activity, CollectiveKind, Device, RankGroup, StepKind, TraceSet
from evaluator.traces.readers.read import read_folder
from evaluator.traces.testing import Span, rank_trace
from records.study import Environment
from records.workload import Workload

SYNTHETIC = Path(__file__).parents[2] / "data" / "traces" / "synth_fsdp_4rank_straggler2"
CCL_BENCH = read_metrics_file(Path(__file__).parents[3] / "benchmarks" / "ccl_bench_metrics.py")
PREFIX = "published_"
COMPUTE, COMMUNICATION, COPY = Activity.COMPUTE, Activity.COMMUNICATION, Activity.COPY
GPU = Device(name="NVIDIA H100")


def kernel(start, end, name="gemm", **given):
    return Span(COMPUTE, start, end, name, **given)


def gather(start, end, **given):
    return Span(COMMUNICATION, start, end, "ncclDevKernel_AllGather_RING_LL", lane=1, **given)


def gpu(spans, **given):
    return rank_trace(spans, **({"device": GPU} | given))


def nsys(trace):
    changed = {name: getattr(trace, name) for name in trace.__slots__} | {"source": "nsys"}
    return type(trace)(**changed)


def values(*ranks, **given):
    measures = measure_each(CCL_BENCH, Evidence(traces=TraceSet(ranks=ranks), **given))
    return {value.name.removeprefix(PREFIX): value.value for value in measures.values}


def reasons(*ranks, **given):
    absent = measure_each(CCL_BENCH, Evidence(traces=TraceSet(ranks=ranks), **given)).absent
    return {name.removeprefix(PREFIX): reason for name, reason in absent.items()}


@pytest.fixture(scope="module")
def synthetic():
    return values(*read_folder(SYNTHETIC, use_cache=False).ranks)


# As it reports the synthetic job, whose truth is known.


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("bw_allgather", 39.2),  # true: 168.8 GB/s
        ("bw_reducescatter", 24.9),  # true: 168.7 GB/s
        ("straggler", 0.689),  # rank 2, which has the least NCCL time
        ("load_imbalance_ratio", 1.002),  # true: 1.248
    ],
)
def test_the_synthetic_job_is_reported_as_the_toolkit_does(synthetic, name, reported):
    assert synthetic[name] == pytest.approx(reported, rel=0.003)


# Its definitions and their faults, by hand.


def test_step_times_are_averaged_over_ranks():
    ranks = [gpu([], steps=[(1, 0, 100 * (1 + r))], rank=r) for r in range(3)]
    assert values(*ranks)["avg_step_time"] == pytest.approx(200e-9)


def test_kernels_at_a_boundary_count_whole_in_both_steps():
    trace = gpu([kernel(0, 90), gather(90, 210), kernel(210, 300)], steps=[(1, 0, 100)])
    assert values(trace)["communication_fraction"] == pytest.approx(100 * 120 / 210)


def test_elementwise_kernels_that_broadcast_count_as_communication():
    trace = gpu([kernel(0, 80), kernel(80, 100, "broadcast_gradient_kernel")])
    assert values(trace)["communication_fraction"] == pytest.approx(20)


def test_hidden_communication_is_not_subtracted():
    trace = gpu([kernel(0, 100), gather(20, 60)])
    assert values(trace)["total_communication_time"] == pytest.approx(40e-9)
    assert values(trace)["compute_comm_overlap"] == pytest.approx(100)


def test_kernels_after_the_hosts_inner_steps_are_lost():
    host = [(1, 0, 50), (2, 50, 100), (3, 100, 150)]
    trace = gpu([kernel(0, 300), gather(90, 190)], steps=[(1, 0, 300)], host_steps=host)
    assert values(trace)["total_communication_time"] == pytest.approx(10e-9)
    late = gpu([gather(190, 290)], steps=[(1, 0, 300)], host_steps=host)
    assert values(late)["total_communication_time"] == 0
    assert reasons(late)["compute_comm_overlap"].startswith("the published tool gives -1")


def test_of_two_steps_the_communication_of_the_whole_trace_counts():
    trace = gpu([gather(0, 300)], steps=[(1, 0, 50), (2, 50, 100)])
    assert values(trace)["total_communication_time"] == pytest.approx(150e-9)


def test_waiting_hides_an_imbalance():
    ranks = [
        gpu([kernel(0, 100), gather(100, 1000)]),
        gpu([kernel(0, 900), gather(900, 1000)], rank=1),
    ]
    assert values(*ranks)["load_imbalance_ratio"] == 1
    assert values(*ranks)["straggler"] == pytest.approx((900 - 100) / 900)


def test_an_all_gather_is_sized_by_one_ranks_part():
    told = {
        "collective": CollectiveKind.ALL_GATHER,
        "group": RankGroup("0", (0, 1, 2, 3), 4),
        "payload_bytes": 4 << 30,
    }
    assert values(gpu([gather(0, 10**9, **told)]))["bw_allgather"] == pytest.approx(0.75)


def test_real_copies_are_never_counted_and_conversions_are():
    trace = gpu([kernel(0, 50), Span(COPY, 50, 100, "Memcpy HtoD", bytes=500)])
    assert "memory_transfer_overhead" in reasons(trace)
    assert values(trace)["average_memory_bandwidth"] == pytest.approx(10)
    converting = gpu([kernel(0, 50), kernel(50, 100, "direct_copy_kernel_cuda")])
    assert values(converting)["memory_transfer_overhead"] == pytest.approx(50)


def test_names_decide_what_is_bound_by_memory_or_a_mixture():
    trace = gpu(
        [
            kernel(0, 40, "vectorized_elementwise_kernel"),
            kernel(40, 60, "cutlass_gemm_softmax"),
            kernel(60, 80, "DeviceRadixSort_topk_DispatchReduceByKey"),
            gather(80, 100),
        ]
    )
    assert values(trace)["memory_bound_fraction"] == pytest.approx(60)
    assert values(trace)["moe_fraction"] == pytest.approx(20)
    assert values(trace)["dominant_kernel_concentration"] == pytest.approx(40)


def test_coverage_of_nsight_systems_is_not_weighted():
    trace = gpu([kernel(0, 99, blocks_per_sm=8.0), kernel(99, 100, blocks_per_sm=0.25)])
    assert values(trace)["mean_sm_coverage"] == pytest.approx(99.25)
    assert values(nsys(trace))["mean_sm_coverage"] == pytest.approx(62.5)
    assert values(nsys(trace))["memory_bound_fraction"] == pytest.approx(1)
    assert "compute_bound_fraction" in reasons(trace)


def test_the_engines_steps_are_its_times_of_tokens():
    kinds = (StepKind.PREFILL, StepKind.DECODE, StepKind.PREFILL, StepKind.DECODE)
    steps = [(1, 0, 500), (2, 600, 610), (3, 700, 800), (4, 900, 910)]
    found = values(gpu([], steps=steps, kinds=kinds))
    assert found["ttft"] == pytest.approx(500e-9)
    assert found["tpot"] == pytest.approx(55e-9)


def test_utilization_knows_three_devices_by_their_names_on_cards():
    work = Workload(
        name="w",
        global_batch=4,
        sequence_length=10,
        layer_count=1,
        hidden_size=8,
        head_count=2,
        ffn_size=16,
        vocab_size=32,
    )

    def card(name):
        return Environment(
            name="m", device="cuda", accelerator=name, world_size=2, ranks_per_node=2
        )

    trace = gpu([], steps=[(1, 0, 10**9)], world_size=2)
    found = values(trace, workload=work, environment=card("nvidia_h100"))["mfu"]
    assert found == pytest.approx(100 * 40 * (6 * (640 + 256 + 24) + 12 * 80) / 2 / 989e12)
    unknown = reasons(trace, workload=work, environment=card("NVIDIA H100"))["mfu"]
    assert unknown.startswith("the published tool knows no 'NVIDIA H100', only nvidia_a100")


# All of them.


def test_every_name_is_one_of_ours_too_and_each_says_what_is_wrong():
    names = [published.name.removeprefix(PREFIX) for published in CCL_BENCH]
    assert len(names) == len(set(names)) == 21
    assert set(names) <= set(metric_names())
    assert all(published.differs.endswith(".") for published in CCL_BENCH)


@pytest.mark.parametrize("kind", evidences())
def test_whatever_is_shown_has_values_or_reasons(kind):
    measures = measure_each(CCL_BENCH, evidences()[kind])
    assert len(measures.values) + len(measures.absent) == len(CCL_BENCH)
    assert not [reason for reason in measures.absent.values() if "failed" in reason]


def test_xla_traces_are_not_read_its_way():
    trace = gpu([kernel(0, 10)])
    tpu = type(trace)(
        **{name: getattr(trace, name) for name in trace.__slots__} | {"source": "xla"}
    )
    assert (
        reasons(tpu)["straggler"] == "how the published tool reads XLA traces is not restated here"
    )
