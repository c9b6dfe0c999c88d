"""The Kineto reader is exact on traces whose answer is known."""

import gzip
import json
from collections import Counter
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from evaluator.traces.errors import TraceError
from evaluator.traces.model import Activity, Device
from evaluator.traces.readers.kineto.reader import read_rank
from evaluator.traces.readers.read import read_folder, read_traces
from tests.support.kineto import (
    GLOO_THREAD,
    NCCL,
    kernel,
    launch,
    pieces,
    span,
    thread_name,
    trace_of,
    write,
)

OURS = Path(__file__).parents[3] / "data" / "traces"
GLOO = OURS / "gloo_ddp_2rank"
SYNTHETIC = OURS / "synth_fsdp_4rank_straggler2"

# What counts as what, on traces small enough to check by eye (times in us, answers in ns).


def test_gloo_spans_communicate_and_aten_operators_compute(tmp_path):
    trace = trace_of(
        tmp_path,
        span("cpu_op", "aten::mm", 10, 5),
        span("cpu_op", "AddmmBackward0", 0, 90),
        span("user_annotation", "gloo:all_reduce", 12, 8, tid=GLOO_THREAD),
        span("user_annotation", "Optimizer.step#AdamW.step", 0, 90),
    )
    assert pieces(trace.computing()) == [(10_000, 15_000)]
    assert pieces(trace.communicating()) == [(12_000, 20_000)]


def test_what_gloo_threads_copy_is_not_compute(tmp_path):
    trace = trace_of(
        tmp_path,
        thread_name(GLOO_THREAD, "thread 2 (python3)"),
        span("cpu_op", "aten::copy_", 10, 5, tid=GLOO_THREAD),
        span("cpu_op", "aten::mm", 30, 5),
        thread_name(GLOO_THREAD, "thread 2 (pt_gloo_runloop)"),
    )
    assert pieces(trace.computing()) == [(30_000, 35_000)]


@pytest.mark.parametrize(
    ("name", "activity"),
    [
        ("fwdmatmul_kernel", Activity.COMPUTE),
        ("dma_request", Activity.COPY),
        ("DMA_IN", Activity.COPY),
        ("memcpy_d2d", Activity.COPY),
        ("memset_request", Activity.FILL),
        ("ncclKernel_AllReduce", Activity.COMMUNICATION),
    ],
)
def test_work_of_mtia_is_told_apart_by_its_name(tmp_path, name, activity):
    trace = trace_of(tmp_path, kernel(name, 0, 5) | {"cat": "mtia_ccp_events"}, distributed=NCCL)
    assert trace.spans.activity.tolist() == [activity]


@pytest.mark.parametrize("name", ["wait_for_event", "WaitForDma", "dma_wait", "EVENT_WAIT"])
def test_waits_of_mtia_are_no_work(tmp_path, name):
    wait = kernel(name, 0, 50) | {"cat": "mtia_ccp_events"}
    work = kernel("matmul", 50, 5) | {"cat": "mtia_ccp_events"}
    trace = trace_of(tmp_path, wait, work, distributed=NCCL)
    assert pieces(trace.computing()) == [(50_000, 55_000)]
    assert trace.spans.count == 1


def test_waiting_inside_an_operator_is_not_compute(tmp_path):
    trace = trace_of(
        tmp_path,
        span("cpu_op", "aten::matmul", 0, 100),
        span("cpu_op", "_c10d_functional::wait_tensor", 10, 80),
    )
    assert pieces(trace.computing()) == [(0, 10_000), (90_000, 100_000)]


def test_a_wait_does_not_stop_another_thread_from_computing(tmp_path):
    trace = trace_of(
        tmp_path,
        span("cpu_op", "aten::matmul", 0, 100),
        span("cpu_op", "c10d::allreduce_", 10, 80),
        span("cpu_op", "aten::mm", 20, 10, tid=3),
    )
    assert pieces(trace.computing()) == [(0, 10_000), (20_000, 30_000), (90_000, 100_000)]


def test_point_to_point_spans_communicate_on_the_thread_that_posts_them(tmp_path):
    trace = trace_of(
        tmp_path,
        span("user_annotation", "gloo:send", 0, 20),
        span("cpu_op", "aten::mm", 5, 10),
    )
    assert pieces(trace.communicating()) == [(0, 20_000)]
    assert pieces(trace.computing()) == [(5_000, 15_000)]


def test_a_kernel_with_a_collective_name_communicates_whatever_its_own_name(tmp_path):
    kernel = span("kernel", "oddly_named", 0, 10, **{"Collective name": "allreduce"})
    trace = trace_of(tmp_path, kernel, distributed=NCCL)
    assert pieces(trace.communicating()) == [(0, 10_000)]


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t",
        "void multimem_all_reduce_kernel<c10::BFloat16>",
        "void vllm::cross_device_reduce_1stage<half, 2>",
    ],
)
def test_collective_kernels_are_known_by_name(tmp_path, name):
    trace = trace_of(tmp_path, span("kernel", name, 0, 10), distributed=NCCL)
    assert trace.spans.activity.tolist() == [Activity.COMMUNICATION]


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::broadcast_kernel<float>",
        "cub::DispatchReduceByKey",
        "void at::native::reduce_kernel<512, 1>",
    ],
)
def test_kernels_that_only_sound_like_collectives_compute(tmp_path, name):
    trace = trace_of(tmp_path, span("kernel", name, 0, 10), distributed=NCCL)
    assert trace.spans.activity.tolist() == [Activity.COMPUTE]


def test_where_a_device_worked_the_host_does_not_count(tmp_path):
    trace = trace_of(
        tmp_path,
        span("cpu_op", "aten::mm", 0, 90),
        span("kernel", "gemm", 100, 10),
        span("gpu_memcpy", "Memcpy HtoD", 120, 5),
        span("gpu_memset", "Memset", 130, 1),
        span("gpu_user_annotation", "nccl:all_reduce", 0, 500),
        distributed=NCCL,
    )
    assert trace.spans.activity.tolist() == [Activity.COMPUTE, Activity.COPY, Activity.FILL]


def test_a_gloo_job_on_devices_communicates_on_the_host(tmp_path):
    trace = trace_of(
        tmp_path,
        span("kernel", "gemm", 0, 10),
        span("user_annotation", "gloo:all_reduce", 20, 10, tid=GLOO_THREAD),
    )
    assert pieces(trace.communicating()) == [(20_000, 30_000)]


def test_a_device_job_without_device_work_has_no_work(tmp_path):
    trace = trace_of(tmp_path, span("cpu_op", "aten::mm", 0, 9), distributed=NCCL)

    assert trace.on_device
    assert not trace.has_work
    assert trace.caveats == ("no work of its device was recorded",)


def test_a_trial_whose_traces_lack_device_work_is_refused(tmp_path):
    event = span("cpu_op", "aten::mm", 0, 9)
    path = write(tmp_path, {"distributedInfo": NCCL, "traceEvents": [event]})

    with pytest.raises(TraceError, match="holds no device work"):
        read_traces([path])


def test_launches_and_waits_of_the_host_stand_beside_device_work(tmp_path):
    trace = trace_of(
        tmp_path,
        launch(0, 5),
        launch(2, 6, "cuLaunchKernelEx") | {"cat": "cuda_driver"},
        launch(3, 7, "hipMemcpyWithStream"),
        launch(4, 0, "cudaStreamWaitEvent"),
        launch(5, 8, "cudaStreamSynchronize"),
        launch(6, 9, "cudaLaunchHostFunc"),
        kernel("gemm", 10, 5, correlation=5),
        distributed=NCCL,
    )
    launched = [Activity.LAUNCH] * 3
    assert trace.spans.activity.tolist() == [*launched, Activity.SYNC, Activity.COMPUTE]
    assert trace.spans.correlation.tolist() == [5, 6, 7, 8, 5]


def test_what_kernels_and_copies_tell_of_themselves_is_kept(tmp_path):
    told = {"blocks per SM": 2.5, "est. achieved occupancy %": 75}
    trace = trace_of(
        tmp_path,
        kernel("gemm", 0, 5, **told),
        span("gpu_memcpy", "Memcpy DtoD", 10, 5, bytes="4096"),
        span("gpu_memset", "Memset", 20, 5, bytes=512),
        kernel("silent", 30, 5),
        distributed=NCCL,
    )
    assert trace.spans.bytes.tolist() == [0, 4096, 512, 0]
    assert trace.spans.blocks_per_sm[0] == 2.5
    assert trace.spans.occupancy[0] == 0.75
    assert np.isnan(trace.spans.blocks_per_sm[1:]).all()
    assert np.isnan(trace.spans.occupancy[1:]).all()


def test_the_device_is_the_one_that_worked(tmp_path):
    devices = [
        {"id": i, "name": f"GPU {i}", "numSms": 100 + i, "totalGlobalMem": i << 30}
        for i in range(3)
    ]
    works = [kernel("gemm", i, 1) | {"pid": 2} for i in range(3)]
    trace = trace_of(
        tmp_path, *works, kernel("gemm", 9, 1), distributed=NCCL, deviceProperties=devices
    )
    assert trace.device == Device(name="GPU 2", multiprocessor_count=102, memory_bytes=2 << 30)


def on_two_devices(folder, **distributed):
    """A process that computes on device 0 for 10 us, and on device 1 for 5 us beside that."""
    events = [
        span("user_annotation", "ProfilerStep#3", 0, 50),
        launch(1, 1),
        launch(2, 2),
        launch(3, 3),
        kernel("gemm", 10, 10, correlation=1),
        kernel("gemm", 15, 5, correlation=2) | {"pid": 1},
        kernel("ncclKernel_AllReduce", 20, 4, correlation=3) | {"pid": 1},
    ]
    document = {"deviceProperties": [{"id": 0}, {"id": 1}], "traceEvents": events}
    return write(folder, document | ({"distributedInfo": distributed} if distributed else {}))


@pytest.mark.parametrize("distributed", [{}, {"backend": "nccl", "rank": 0, "world_size": 1}])
def test_every_device_of_a_process_that_is_alone_is_a_rank(tmp_path, distributed):
    one, other = read_folder(on_two_devices(tmp_path, **distributed), use_cache=False).ranks
    assert (one.rank, other.rank) == (0, 1)
    assert pieces(one.computing()) == [(10_000, 20_000)]
    assert pieces(other.computing()) == [(15_000, 20_000)]
    assert (one.collectives.count, other.collectives.count) == (0, 1)
    assert other.spans.correlation.tolist() == [2, 3, 2, 3]
    assert pieces(other.communicating()) == [(20_000, 24_000)]
    assert one.steps.start_ns.tolist() == other.steps.start_ns.tolist() == [10_000]
    assert other.caveats == ("is device 1 of 2 that one process uses",)


def test_of_a_rank_with_several_devices_the_busiest_counts_and_the_rest_is_left_out(tmp_path):
    path = on_two_devices(tmp_path, backend="nccl", rank=0, world_size=2)
    for traces in (read_folder(path, use_cache=False), read_traces([path])):
        (trace,) = traces.ranks
        assert pieces(trace.computing()) == [(10_000, 20_000)]
        assert trace.collectives.count == 0
        assert trace.caveats == (
            "device 1 is left out with 33.3% of the device time: what counts is device 0",
        )


def test_memory_is_that_of_the_device_where_there_is_one(tmp_path):
    def report(ts, device_type, **told):
        args = {"Device Type": device_type, "Device Id": 0, **told}
        return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": ts, "args": args}

    reports = [
        report(9, 1, **{"Total Allocated": 900}),
        report(4, 1, **{"Total Allocated": 400}),
        report(5, 0, **{"Total Allocated": 5}),
        report(6, 1, Bytes=4),
    ]
    device = trace_of(tmp_path, kernel("gemm", 0, 1), *reports, distributed=NCCL)
    assert device.memory.time_ns.tolist() == [4_000, 9_000]
    assert device.memory.allocated_bytes.tolist() == [400, 900]
    host = trace_of(tmp_path, *reports)
    assert host.memory.allocated_bytes.tolist() == [5]
    assert trace_of(tmp_path, kernel("gemm", 0, 1), distributed=NCCL).memory is None


def test_spans_are_in_order_of_start(tmp_path):
    trace = trace_of(tmp_path, span("cpu_op", "aten::b", 9, 1), span("cpu_op", "aten::a", 3, 1))
    assert [trace.spans.names[i] for i in trace.spans.name_id] == ["aten::a", "aten::b"]


def test_the_file_name_gives_a_rank_that_the_trace_does_not(tmp_path):
    path = write(tmp_path, {"traceEvents": []}, "rank12_trace.json")
    assert read_rank(path).rank == 12


# Real traces.


def hidden_and_all_communication_ns(path):
    """The definition, word by word: at every instant count what is open, thread by thread."""
    with gzip.open(path) as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    gloo = {e["tid"] for e in events if "pt_gloo" in str(e.get("args", {}).get("name"))}
    edges = []
    for event in events:
        name, thread = event["name"], event.get("tid")
        computes = event.get("cat") == "cpu_op" and name.startswith("aten::") and thread not in gloo
        waits = event.get("cat") == "cpu_op" and name.startswith(("c10d::", "_c10d_functional"))
        what = "comm" if name.startswith("gloo:") else "op" if computes else "wait" if waits else ""
        if what:
            edges += [
                (event["ts"], 1, what, thread),
                (event["ts"] + event["dur"], -1, what, thread),
            ]
    open_spans, hidden, total = Counter(), Decimal(0), Decimal(0)
    edges.sort(key=lambda edge: edge[0])
    threads = {thread for *_, thread in edges}
    for (now, change, what, thread), (later, *_) in pairwise(edges):
        open_spans[what, thread] += change
        if any(open_spans["comm", t] for t in threads):
            total += later - now
            if any(open_spans["op", t] and not open_spans["wait", t] for t in threads):
                hidden += later - now
    return int(hidden * 1000), int(total * 1000)


@pytest.mark.parametrize("rank", [0, 1])
def test_overlap_on_gloo_is_what_its_definition_says(rank):
    path = GLOO / f"rank{rank}_trace.json.gz"
    trace = read_rank(path)
    hidden = trace.communicating().intersect(trace.computing())
    measured = (hidden.total_ns, trace.communicating().total_ns)
    assert measured == hidden_and_all_communication_ns(path)


def test_a_gloo_job_is_read_whole():
    traces = read_traces([GLOO / "rank1_trace.json.gz", GLOO / "rank0_trace.json.gz"])
    assert [trace.rank for trace in traces.ranks] == [0, 1]
    assert (traces.world_size, traces.missing_ranks) == (2, ())
    assert traces.common_steps.tolist() == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_busy_times_are_those_the_generator_knew(rank):
    truth = json.loads((SYNTHETIC / "truth.json").read_text())["ranks"][str(rank)]["gpu_window"]
    trace = read_rank(SYNTHETIC / f"rank{rank}_trace.json.gz")
    assert trace.computing().total_ns == truth["compute_busy"]
    assert trace.communicating().total_ns == truth["comm_busy"]
    assert trace.covered(Activity.COPY, Activity.FILL).total_ns == truth["memcpy_busy"]


def test_a_100_overlap_is_what_every_reference_finds(recorded_data):
    trace = read_rank(recorded_data / "traces/kineto" / "a100_ddp_2rank_rank0.json.gz")
    communicating = trace.communicating()
    hidden_ns = communicating.intersect(trace.computing()).total_ns
    assert hidden_ns / communicating.total_ns == pytest.approx(0.156, abs=0.0005)
    assert (trace.spans.activity == Activity.COMMUNICATION).sum() == 21


def test_symmetric_memory_kernels_are_not_missed(recorded_data):
    trace = read_rank(recorded_data / "traces/kineto" / "b200_8rank_rank0_eager.json.gz")
    assert trace.communicating().total_ns == pytest.approx(2_141_000, abs=1_000)
    assert (trace.spans.activity == Activity.COMMUNICATION).sum() == 74


def test_a_large_gloo_job_is_read_from_one_of_its_ranks(recorded_data):
    traces = read_traces([recorded_data / "traces/kineto" / "cpu_only_gloo_rank34.json.gz"])
    assert (traces.ranks[0].rank, traces.world_size, len(traces.missing_ranks)) == (34, 300, 299)
    assert (traces.ranks[0].spans.activity == Activity.COMMUNICATION).sum() == 10
