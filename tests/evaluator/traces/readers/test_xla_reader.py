"""The XLA reader agrees with plain JSON, and reads what operations do from their own text."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from evaluator.metrics.base import Absent, Evidence
from evaluator.metrics.registry import measure, metric
from evaluator.traces.analysis.breakdown import job_split
from evaluator.traces.model import Activity, CollectiveKind, RankGroup, TraceSet
from evaluator.traces.readers.xla.reader import read_devices

OURS = Path(__file__).parents[3] / "data" / "traces" / "xla"


def span(name, ts, dur, pid=1, tid=3, **args):
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def pieces(intervals):
    return list(zip(intervals.start_ns.tolist(), intervals.end_ns.tolist(), strict=True))


def events_of(path):
    """Complete events of a file with the names of their process and thread, by plain json."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    labels = {
        (
            event["name"],
            event["pid"],
            event.get("tid", 0) * (event["name"] == "thread_name"),
        ): event["args"]["name"]
        for event in events
        if event.get("name") in {"process_name", "thread_name"}
    }
    return [
        (
            labels["process_name", event["pid"], 0],
            labels.get(("thread_name", event["pid"], event["tid"]), ""),
            event,
        )
        for event in events
        if event.get("ph") == "X"
    ]


def union_us(events):
    total, reach = 0.0, 0.0
    for event in sorted(events, key=lambda event: event["ts"]):
        end = event["ts"] + event["dur"]
        total += max(end, reach) - max(event["ts"], reach)
        reach = max(reach, end)
    return total


# Recorded traces against plain json.


@pytest.mark.parametrize("device", range(4))
def test_devices_that_a_cpu_plays_agree_with_plain_json(device):
    path = OURS / "jax_cpu_4dev.trace.json.gz"
    operations = [
        event
        for _, _, event in events_of(path)
        if event.get("args", {}).get("device_ordinal") == str(device) and "hlo_op" in event["args"]
    ]
    collective = [event for event in operations if event["name"].startswith("all-")]
    trace = read_devices(path)[device]
    assert trace.device is None
    assert trace.world_size == 4
    assert trace.spans.count == len(operations) == 414
    assert trace.communicating().total_ns == pytest.approx(1000 * union_us(collective), abs=500)
    assert trace.collectives.count == len(collective) == 108
    compute = [event for event in operations if event not in collective]
    assert trace.computing().total_ns == pytest.approx(1000 * union_us(compute), abs=500)


def test_who_met_inside_a_collective_of_a_cpu_is_its_group():
    traces = read_devices(OURS / "jax_cpu_4dev.trace.json.gz")
    groups = [{group.ranks for group in trace.collectives.groups} for trace in traces]
    assert groups == [
        {(0, 1), (0, 2)},
        {(0, 1), (1, 3)},
        {(0, 2), (2, 3)},
        {(1, 3), (2, 3)},
    ]


def test_numbered_annotations_are_steps():
    trace = read_devices(OURS / "jax_cpu_4dev.trace.json.gz")[0]
    marks = [
        event
        for _, _, event in events_of(OURS / "jax_cpu_4dev.trace.json.gz")
        if "step_num" in event.get("args", {})
    ]
    assert trace.steps.number.tolist() == [int(mark["args"]["step_num"]) for mark in marks]
    assert trace.steps.duration_ns.tolist() == pytest.approx(
        [1000 * mark["dur"] for mark in marks], abs=1
    )


def test_tpus_agree_with_plain_json(recorded_data):
    path = recorded_data / "traces" / "xla" / "vllm_tpu_2chip_a.trace.json.gz"
    traces, events = read_devices(path), events_of(path)
    for trace in traces:
        operations = [
            event
            for process, thread, event in events
            if (process, thread) == (f"/device:TPU:{trace.rank}", "XLA Ops")
        ]
        flops = sum(int(event["args"]["model_flops"]) for event in operations)
        assert np.nansum(trace.spans.flops) == flops
        collective = [
            event
            for event in operations
            if event["args"]["hlo_category"] in {"all-reduce", "all-gather"}
        ]
        communicating_ns = 1000 * union_us(collective)
        assert trace.communicating().total_ns == pytest.approx(communicating_ns, abs=200)
        halves = [
            event for event in operations if event["name"].partition(".")[0].endswith("start")
        ]
        assert trace.spans.doing(Activity.COPY).sum() == len(halves) == 787
        told = trace.collectives
        assert np.bincount(told.kind).tolist() == [0, 129, 2]
        assert np.unique(told.bytes).tolist() == [2 * 8 * 2, 2 * 8 * 4, 1024 * 5120 * 2]
        assert told.groups == (RankGroup("", (0, 1), 2),)
        modules = [event for *_, event in events if event["name"].startswith("jit_step_fun")]
        ran_ns = 1000 * modules[trace.rank]["dur"]
        assert trace.steps.duration_ns.tolist() == [pytest.approx(ran_ns, abs=1)]


def test_gpus_agree_with_plain_json(recorded_data):
    path = recorded_data / "traces" / "xla" / "mi300_jax_conv_8gpu.trace.json.gz"
    traces, events = read_devices(path), events_of(path)
    assert len(traces) == 8
    for trace in traces:
        kernels = [
            event
            for process, thread, event in events
            if process == f"/device:GPU:{trace.rank}" and thread.startswith("Stream #")
        ]
        copies = [event for event in kernels if "copyBuffer" in event["name"]]
        work = trace.spans.doing(Activity.COMPUTE, Activity.COPY)
        assert work.sum() == len(kernels)
        assert trace.spans.union(work).total_ns == pytest.approx(1000 * union_us(kernels), abs=100)
        assert trace.spans.doing(Activity.COPY).sum() == len(copies)


# Small ones.


def test_names_of_processes_and_threads_may_come_last(read_tpus):
    [trace] = read_tpus(span("fusion.1", 10, 5), last=True)
    assert pieces(trace.computing()) == [(10_000, 15_000)]


def test_other_lines_of_a_device_are_derived(read_tpus):
    [trace] = read_tpus(span("fusion.1", 10, 5), span("matmul", 0, 90, tid=5))
    assert trace.spans.count == 1


def test_what_contains_other_operations_does_not_count(read_tpus):
    [trace] = read_tpus(
        span("while.3", 0, 90, hlo_category="while"),
        span("fusion.1", 10, 5, hlo_category="loop fusion"),
    )
    assert pieces(trace.computing()) == [(10_000, 15_000)]


def test_the_devices_own_picoseconds_keep_neighbours_apart(read_tpus):
    def at(offset_ps, duration_ps, ts, dur):
        told = {"device_offset_ps": str(offset_ps), "device_duration_ps": str(duration_ps)}
        return span("fusion.1", ts, dur, **told)

    [trace] = read_tpus(at(5_000_600, 1_000_300, 1.0006, 1.0004), at(6_000_900, 10, 2.001, 0))
    assert trace.spans.start_ns.tolist() == [1001, 2001]
    assert trace.spans.end_ns.tolist() == [2001, 2001]


def test_a_copy_runs_from_its_start_to_its_done(read_tpus):
    start = "%copy-start.4 = (f32[8], f32[8], u32[]) copy-start(f32[8] %a)"
    done = "%copy-done.9 = f32[8]{0} copy-done((f32[8], f32[8], u32[]) %copy-start.4)"
    [trace] = read_tpus(
        span("copy-start.4", 10, 1, hlo_category="copy-start", long_name=start),
        span("fusion.1", 12, 5),
        span("copy-done.9", 30, 2, hlo_category="copy-done", long_name=done, bytes_accessed="99"),
    )
    assert pieces(trace.covered(Activity.COPY)) == [(10_000, 32_000)]
    assert trace.spans.bytes[trace.spans.doing(Activity.COPY)].tolist() == [32]


def test_an_asynchronous_collective_runs_from_its_start_to_its_done(read_tpus):
    start = (
        "%all-gather-start.1 = (bf16[4], bf16[8]) all-gather-start(bf16[4] %x),"
        " replica_groups={{0,1}}, dimensions={0}"
    )
    done = "%all-gather-done.1 = bf16[8] all-gather-done((bf16[4], bf16[8]) %all-gather-start.1)"
    [trace] = read_tpus(
        span("all-gather-start.1", 10, 1, hlo_category="async-start", long_name=start),
        span("all-gather-done.1", 20, 1, hlo_category="async-done", long_name=done),
    )
    assert pieces(trace.communicating()) == [(10_000, 21_000)]
    assert trace.collectives.bytes.tolist() == [16]
    assert trace.collectives.kind.tolist() == [CollectiveKind.ALL_GATHER]


def test_a_start_without_its_done_stays_as_it_is(read_tpus):
    [trace] = read_tpus(span("copy-start.4", 10, 1, hlo_category="copy-start"))
    assert pieces(trace.covered(Activity.COPY)) == [(10_000, 11_000)]


def test_a_line_of_whole_asynchronous_operations_replaces_their_halves(read_tpus):
    [trace] = read_tpus(
        span("copy-start.4", 10, 1, hlo_category="copy-start"),
        span("copy-done.4", 30, 2, hlo_category="copy-done"),
        span("copy-start.4", 10, 22, tid=4, hlo_category="copy-start"),
    )
    assert trace.spans.count == 1
    assert pieces(trace.covered(Activity.COPY)) == [(10_000, 32_000)]


def test_a_python_frame_called_like_a_collective_is_none(read_tpus):
    [trace] = read_tpus(
        span("fusion.1", 10, 5), span("$parallel.py:1669 all_gather", 0, 9, pid=701)
    )
    assert trace.collectives.count == 0


def test_a_call_is_the_launch_of_the_kernel_with_its_number(read_xla):
    def named(kind, pid, name, tid=0):
        args = {"name": name}
        return {"ph": "M", "name": f"{kind}_name", "pid": pid, "tid": tid, "args": args}

    [trace] = read_xla(
        named("process", 1, "/device:GPU:0"),
        named("thread", 1, "Stream #16(Kernel)", 3),
        named("thread", 1, "XLA Ops - from #16", 4),
        span("ncclDevKernel_AllReduce", 10, 5, correlation_id="7"),
        span("MemcpyD2H", 20, 5, memcpy_details="kind_src:device size:64 dest:0"),
        span("all-reduce.1", 10, 5, tid=4),
        span("cuLaunchKernel", 1, 2, pid=701, correlation_id="7"),
        span("cuLaunchKernel", 3, 4, pid=701, correlation_id="8"),
    )
    assert pieces(trace.covered(Activity.LAUNCH)) == [(1000, 3000)]
    assert trace.collectives.kind.tolist() == [CollectiveKind.ALL_REDUCE]
    assert trace.spans.bytes[trace.spans.doing(Activity.COPY)].tolist() == [64]


def test_numbers_may_be_strings(read_tpus):
    [trace] = read_tpus(span("fusion.1", "10", "5", model_flops=7))
    assert pieces(trace.computing()) == [(10_000, 15_000)]
    assert trace.spans.flops.tolist() == [7.0]


def gpus(count):
    """Names of so many GPUs, processes 1, 2, ..., each with one stream, and of their host."""
    named = [("process_name", 701, 0, "/host:CPU")]
    for pid in range(1, count + 1):
        named.append(("process_name", pid, 0, f"/device:GPU:{pid - 1}"))
        named.append(("thread_name", pid, 3, "Stream #16(Kernel)"))
    return [
        {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
        for kind, pid, tid, name in named
    ]


def test_devices_that_only_copy_are_left_out_and_counted(read_xla):
    marks = [span("train", 0, 30, pid=701, step_num="4")]
    work = [span("gemm", 10, 5, pid=2), span("gemm", 12, 5, pid=4)]
    copies = [span("MemcpyH2D", 0, 5, pid=pid) for pid in (1, 2, 3, 4)]
    traces = read_xla(*gpus(4), *marks, *work, *copies)
    assert [pieces(trace.computing()) for trace in traces] == [
        [(10_000, 15_000)],
        [(12_000, 17_000)],
    ]
    assert [trace.world_size for trace in traces] == [2, 2]
    assert traces[0].caveats == ("2 of 4 devices, which only copied, were left out",)
    assert job_split(TraceSet(ranks=traces)).mean.compute_s == pytest.approx(5e-6)


def test_devices_are_kept_where_all_only_copy(read_xla):
    traces = read_xla(*gpus(2), *(span("MemcpyH2D", 0, 5, pid=pid) for pid in (1, 2)))
    assert [trace.caveats for trace in traces] == [(), ()]


PALLAS = {"hlo_category": "custom-call", "long_name": "%k = f32[8] custom-call(f32[8] %a)"}


def achieved(traces):
    found = measure(metric("achieved_tflops"), Evidence(traces=TraceSet(ranks=traces)))
    return found.reason if isinstance(found, Absent) else found.value


def test_flops_that_a_custom_call_does_not_state_leave_no_rate(read_tpus):
    traces = read_tpus(
        span("7", 0, 100, tid=1),
        span("fusion.1", 0, 60, model_flops="6000000", hlo_category="convolution fusion"),
        span("attention.1", 60, 20, model_flops="0", **PALLAS),
    )
    assert achieved(traces) == (
        "custom calls, 25 % of the compute time, do not state their FLOPs; give a card with the "
        "model's sizes"
    )
    assert measure(metric("mfu"), Evidence(traces=TraceSet(ranks=traces))).reason == achieved(
        traces
    )


def test_flops_that_a_custom_call_states_count_and_additions_of_a_collective_do_not(read_tpus):
    traces = read_tpus(
        span("7", 0, 100, tid=1),
        span("fusion.1", 0, 60, model_flops="6000000", hlo_category="convolution fusion"),
        span("copy.1", 60, 1, model_flops="0", hlo_category="data formatting"),
        span("attention.1", 61, 20, model_flops="4000000", **PALLAS),
        span("all-reduce.1", 81, 9, model_flops="5000000", hlo_category="all-reduce"),
    )
    assert achieved(traces) == pytest.approx(10e6 / 100e-6 / 1e12)
