"""The published toolkit's definitions, against what it reports and its faults, one by one."""

from dataclasses import replace
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
from tests.support.traces import SYNTHETIC, named_cases

CCL_BENCH = read_metrics_file(Path(__file__).parents[3] / "benchmarks" / "ccl_bench_metrics.py")
PREFIX = "published_"
COMPUTE, COMMUNICATION, COPY = Activity.COMPUTE, Activity.COMMUNICATION, Activity.COPY
GPU = Device(name="NVIDIA H100")


def kernel(start, end, name="gemm", **given):
    return Span(COMPUTE, start, end, name, **given)


def gather(start, end, **given):
    return Span(COMMUNICATION, start, end, "ncclDevKernel_AllGather_RING_LL", lane=1, **given)


def gpu(*spans, **given):
    return rank_trace(spans, **({"device": GPU} | given))


def answers(*ranks, **given):
    """The value of each published metric, or the reason why there is none."""
    measures = measure_each(CCL_BENCH, Evidence(traces=TraceSet(ranks=ranks), **given))
    found = dict(measures.absent) | {value.name: value.value for value in measures.values}
    return {name.removeprefix(PREFIX): answer for name, answer in found.items()}


HOST = [(1, 0, 50), (2, 50, 100), (3, 100, 150)]
LATE = {"steps": [(1, 0, 300)], "host_steps": HOST}
PART = {"collective": CollectiveKind.ALL_GATHER, "payload_bytes": 4 << 30}
COVERED = gpu(kernel(0, 99, blocks_per_sm=8.0), kernel(99, 100, blocks_per_sm=0.25))
NAMED = gpu(
    kernel(0, 40, "vectorized_elementwise_kernel"),
    kernel(40, 60, "cutlass_gemm_softmax"),
    kernel(60, 80, "DeviceRadixSort_topk_DispatchReduceByKey"),
    gather(80, 100),
)
COPIED = gpu(kernel(0, 50), Span(COPY, 50, 100, "Memcpy HtoD", bytes=500))
ENGINE = gpu(
    steps=[(1, 0, 500), (2, 600, 610), (3, 700, 800), (4, 900, 910)],
    kinds=(StepKind.PREFILL, StepKind.DECODE, StepKind.PREFILL, StepKind.DECODE),
)


@pytest.fixture(scope="module")
def synthetic():
    return answers(*read_folder(SYNTHETIC, use_cache=False).ranks)


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


@named_cases(
    ("ranks", "expected"),
    {
        "step times are averaged over ranks": (
            [gpu(steps=[(1, 0, 100 * (1 + r))], rank=r) for r in range(3)],
            {"avg_step_time": 200e-9},
        ),
        "kernels at a boundary count whole in both steps": (
            [gpu(kernel(0, 90), gather(90, 210), kernel(210, 300), steps=[(1, 0, 100)])],
            {"communication_fraction": 100 * 120 / 210},
        ),
        "elementwise kernels that broadcast count as communication": (
            [gpu(kernel(0, 80), kernel(80, 100, "broadcast_gradient_kernel"))],
            {"communication_fraction": 20},
        ),
        "hidden communication is not subtracted": (
            [gpu(kernel(0, 100), gather(20, 60))],
            {"total_communication_time": 40e-9, "compute_comm_overlap": 100},
        ),
        "kernels after the hosts inner steps are lost in part": (
            [gpu(kernel(0, 300), gather(90, 190), **LATE)],
            {"total_communication_time": 10e-9},
        ),
        "kernels after the hosts inner steps are lost": (
            [gpu(gather(190, 290), **LATE)],
            {"total_communication_time": 0, "compute_comm_overlap": "the published tool gives -1"},
        ),
        "of two steps the communication of the whole trace counts": (
            [gpu(gather(0, 300), steps=[(1, 0, 50), (2, 50, 100)])],
            {"total_communication_time": 150e-9},
        ),
        "waiting hides an imbalance": (
            [
                gpu(kernel(0, 100), gather(100, 1000)),
                gpu(kernel(0, 900), gather(900, 1000), rank=1),
            ],
            {"load_imbalance_ratio": 1, "straggler": (900 - 100) / 900},
        ),
        "an all gather is sized by one ranks part": (
            [gpu(gather(0, 10**9, group=RankGroup("0", (0, 1, 2, 3), 4), **PART))],
            {"bw_allgather": 0.75},
        ),
        "real copies are never counted": (
            [COPIED],
            {"memory_transfer_overhead": "", "average_memory_bandwidth": 10},
        ),
        "conversions are copies": (
            [gpu(kernel(0, 50), kernel(50, 100, "direct_copy_kernel_cuda"))],
            {"memory_transfer_overhead": 50},
        ),
        "names decide what is bound by memory or a mixture": (
            [NAMED],
            {
                "memory_bound_fraction": 60,
                "moe_fraction": 20,
                "dominant_kernel_concentration": 40,
            },
        ),
        "coverage is weighted": (
            [COVERED],
            {"mean_sm_coverage": 99.25, "compute_bound_fraction": ""},
        ),
        "coverage of nsight systems is not weighted": (
            [replace(COVERED, source="nsys")],
            {"mean_sm_coverage": 62.5, "memory_bound_fraction": 1},
        ),
        "the engines steps are its times of tokens": ([ENGINE], {"ttft": 500e-9, "tpot": 55e-9}),
        "xla traces are not read its way": (
            [replace(gpu(kernel(0, 10)), source="xla")],
            {"straggler": "how the published tool reads XLA traces is not restated here"},
        ),
    },
)
def test_each_definition_and_fault_is_restated(ranks, expected):
    found = answers(*ranks)
    for name, answer in expected.items():
        if isinstance(answer, str):
            assert found[name].startswith(answer)
        else:
            assert found[name] == pytest.approx(answer)


def test_utilization_knows_three_devices_by_their_names_on_cards():
    sizes = {"layer_count": 1, "hidden_size": 8, "head_count": 2, "ffn_size": 16, "vocab_size": 32}
    work = Workload(name="w", global_batch=4, sequence_length=10, **sizes)
    ours, unknown = (
        answers(
            gpu(steps=[(1, 0, 10**9)], world_size=2),
            workload=work,
            environment=Environment(
                name="m", device="cuda", accelerator=name, world_size=2, ranks_per_node=2
            ),
        )["mfu"]
        for name in ("nvidia_h100", "NVIDIA H100")
    )
    assert ours == pytest.approx(100 * 40 * (6 * (640 + 256 + 24) + 12 * 80) / 2 / 989e12)
    assert unknown.startswith("the published tool knows no 'NVIDIA H100', only nvidia_a100")


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
