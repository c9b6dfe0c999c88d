"""The Kineto reader is exact on traces whose answer is known."""

import gzip
import json
from collections import Counter
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.readers.job import read_traces
from evaluator.readers.kineto import read_rank
from evaluator.traces import Activity, TraceError

OURS = Path(__file__).parents[1] / "data" / "traces"
GLOO = OURS / "gloo_ddp_2rank"
SYNTHETIC = OURS / "synth_fsdp_4rank_straggler2"

RANK_0_OF_2 = {"backend": "gloo", "rank": 0, "world_size": 2}
MAIN, GLOO_THREAD = 1, 2


def span(cat, name, ts, dur, tid=MAIN, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur} | (
        {"args": args} if args else {}
    )


def thread_name(tid, name):
    return {"ph": "M", "name": "thread_name", "pid": 7, "tid": tid, "args": {"name": name}}


def write(folder, document, name="rank0_trace.json"):
    path = folder / name
    path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
    return path


def trace_of(folder, *events, distributed=RANK_0_OF_2, **top):
    document = {"distributedInfo": distributed, "traceEvents": list(events), **top}
    return read_rank(write(folder, document))


def pieces(intervals):
    return list(zip(intervals.start_ns.tolist(), intervals.end_ns.tolist(), strict=True))


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


NCCL = {"backend": "nccl", "rank": 0, "world_size": 2}


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
    assert trace.activity.tolist() == [Activity.COMMUNICATION]


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
    assert trace.activity.tolist() == [Activity.COMPUTE]


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
    assert trace.activity.tolist() == [Activity.COMPUTE, Activity.COPY, Activity.FILL]


def test_a_gloo_job_on_devices_communicates_on_the_host(tmp_path):
    trace = trace_of(
        tmp_path,
        span("kernel", "gemm", 0, 10),
        span("user_annotation", "gloo:all_reduce", 20, 10, tid=GLOO_THREAD),
    )
    assert pieces(trace.communicating()) == [(20_000, 30_000)]


def test_a_device_job_without_device_work_is_refused(tmp_path):
    with pytest.raises(TraceError, match="no device work"):
        trace_of(tmp_path, span("cpu_op", "aten::mm", 0, 9), distributed=NCCL)


def test_device_steps_reach_over_all_streams_and_win_over_host_steps(tmp_path):
    trace = trace_of(
        tmp_path,
        span("kernel", "gemm", 100, 10),
        span("user_annotation", "ProfilerStep#4", 0, 90),
        span("gpu_user_annotation", "ProfilerStep#4", 100, 30, tid=7),
        span("gpu_user_annotation", "ProfilerStep#4", 95, 20, tid=8),
        distributed=NCCL,
    )
    assert trace.steps.number.tolist() == [4]
    assert (trace.steps.start_ns.tolist(), trace.steps.end_ns.tolist()) == ([95_000], [130_000])


def test_host_steps_serve_where_the_device_has_none(tmp_path):
    trace = trace_of(
        tmp_path,
        span("user_annotation", "ProfilerStep#11", 100, 50),
        span("user_annotation", "ProfilerStep#9", 0, 50),
    )
    assert trace.steps.number.tolist() == [9, 11]
    assert trace.steps.end_ns.tolist() == [50_000, 150_000]


def test_spans_are_in_order_of_start(tmp_path):
    trace = trace_of(tmp_path, span("cpu_op", "aten::b", 9, 1), span("cpu_op", "aten::a", 3, 1))
    assert [trace.names[i] for i in trace.name_id] == ["aten::a", "aten::b"]


def test_the_file_name_gives_a_rank_that_the_trace_does_not(tmp_path):
    path = write(tmp_path, {"traceEvents": []}, "rank12_trace.json")
    assert read_rank(path).rank == 12


# Time.


@given(start_ns=st.integers(0, 2 * 10**18), duration_ns=st.integers(0, 10**15))
def test_no_nanosecond_is_lost_at_any_epoch(tmp_path_factory, start_ns, duration_ns):
    event = json.dumps(span("cpu_op", "aten::mm", "START", "LENGTH"))
    event = event.replace('"START"', f"{start_ns // 1000}.{start_ns % 1000:03}")
    event = event.replace('"LENGTH"', f"{duration_ns // 1000}.{duration_ns % 1000:03}")
    text = f'{{"traceEvents": [{event}]}}'.encode()
    trace = read_rank(write(tmp_path_factory.getbasetemp(), text))
    assert trace.start_ns.tolist() == [start_ns]
    assert trace.end_ns.tolist() == [start_ns + duration_ns]


def test_relative_times_count_from_the_base(tmp_path):
    base_ns = 1_790_857_026_000_000_000
    event = span("cpu_op", "aten::mm", 4333735370567.171, 3120.146)
    trace = trace_of(tmp_path, event, baseTimeNanoseconds=base_ns)
    assert trace.start_ns.tolist() == [base_ns + 4_333_735_370_567_171]
    assert trace.end_ns.tolist() == [base_ns + 4_333_735_370_567_171 + 3_120_146]


def test_absolute_nanoseconds_of_a_real_trace_are_read_digit_by_digit(recorded_data):
    path = recorded_data / "traces/kineto" / "v100_ns_resolution.json.gz"
    with gzip.open(path) as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    kernels = sorted(int(e["ts"] * 1000) for e in events if e.get("cat") == "kernel")
    trace = read_rank(path)
    computing = (trace.activity == Activity.COMPUTE) | (trace.activity == Activity.COMMUNICATION)
    assert trace.start_ns[computing].tolist() == kernels


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
    assert (trace.activity == Activity.COMMUNICATION).sum() == 21


def test_symmetric_memory_kernels_are_not_missed(recorded_data):
    trace = read_rank(recorded_data / "traces/kineto" / "b200_8rank_rank0_eager.json.gz")
    assert trace.communicating().total_ns == pytest.approx(2_141_000, abs=1_000)
    assert (trace.activity == Activity.COMMUNICATION).sum() == 74


def test_a_large_gloo_job_is_read_from_one_of_its_ranks(recorded_data):
    traces = read_traces([recorded_data / "traces/kineto" / "cpu_only_gloo_rank34.json.gz"])
    assert (traces.ranks[0].rank, traces.world_size, len(traces.missing_ranks)) == (34, 300, 299)
    assert (traces.ranks[0].activity == Activity.COMMUNICATION).sum() == 10


# Batches.


def test_a_long_trace_is_read_whole_across_batches(tmp_path):
    events = [span("cpu_op", "aten::mm", 10 * i, 1, Stream="x" * 100) for i in range(40_000)]
    path = write(tmp_path, {"distributedInfo": RANK_0_OF_2, "traceEvents": events})
    assert path.stat().st_size > 6 << 20
    assert read_rank(path).start_ns.tolist() == [10_000 * i for i in range(40_000)]


def test_what_looks_like_the_end_of_an_event_inside_one_is_seen_through(tmp_path):
    long_list = span("cpu_op", "aten::mm", 1, 1, nested=[{"a": 1}] * 600_000)
    events = [span("cpu_op", "aten::mm", 0, 1), long_list, span("cpu_op", "aten::mm", 5, 1)]
    path = write(tmp_path, {"distributedInfo": RANK_0_OF_2, "traceEvents": events})
    assert read_rank(path).start_ns.tolist() == [0, 1_000, 5_000]
