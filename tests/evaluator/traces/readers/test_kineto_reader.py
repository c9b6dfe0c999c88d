"""What counts as what in a Kineto trace, when it was and in which step, by eye and by record."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.traces.model import Activity, Device, StepKind
from evaluator.traces.readers.kineto.reader import read_rank
from evaluator.traces.readers.read import read_folder, read_traces
from records.errors import TraceError
from tests.support.kineto import (
    GLOO_THREAD,
    NCCL,
    kernel,
    launch,
    span,
    thread_name,
    trace_of,
    write,
)
from tests.support.traces import named_cases, pieces

MATMUL = span("cpu_op", "aten::matmul", 0, 100)
ON_GLOO = {"tid": GLOO_THREAD}


@named_cases(
    ("events", "computing", "communicating"),
    {
        "gloo spans communicate and aten operators compute": (
            [
                span("cpu_op", "aten::mm", 10, 5),
                span("cpu_op", "AddmmBackward0", 0, 90),
                span("user_annotation", "gloo:all_reduce", 12, 8, **ON_GLOO),
                span("user_annotation", "Optimizer.step#AdamW.step", 0, 90),
            ],
            [(10, 15)],
            [(12, 20)],
        ),
        "what gloo threads copy is not compute": (
            [
                thread_name(GLOO_THREAD, "thread 2 (python3)"),
                span("cpu_op", "aten::copy_", 10, 5, **ON_GLOO),
                span("cpu_op", "aten::mm", 30, 5),
                thread_name(GLOO_THREAD, "thread 2 (pt_gloo_runloop)"),
            ],
            [(30, 35)],
            [],
        ),
        "waiting inside an operator is not compute": (
            [MATMUL, span("cpu_op", "_c10d_functional::wait_tensor", 10, 80)],
            [(0, 10), (90, 100)],
            [],
        ),
        "a wait does not stop another thread from computing": (
            [
                MATMUL,
                span("cpu_op", "c10d::allreduce_", 10, 80),
                span("cpu_op", "aten::mm", 20, 10, tid=3),
            ],
            [(0, 10), (20, 30), (90, 100)],
            [],
        ),
        "point to point spans communicate on the thread that posts them": (
            [span("user_annotation", "gloo:send", 0, 20), span("cpu_op", "aten::mm", 5, 10)],
            [(5, 15)],
            [(0, 20)],
        ),
        "vLLM's ranks on CPUs communicate through shared memory": (
            [span("cpu_op", "_C::shm_allreduce", 0, 20), span("cpu_op", "aten::mm", 20, 5)],
            [(20, 25)],
            [(0, 20)],
        ),
        "a gloo job on devices communicates on the host": (
            [kernel("gemm", 0, 10), span("user_annotation", "gloo:all_reduce", 20, 10, **ON_GLOO)],
            [(0, 10)],
            [(20, 30)],
        ),
    },
)
def test_of_a_gloo_job_operators_compute_and_spans_of_gloo_communicate(
    tmp_path, events, computing, communicating
):
    trace = trace_of(tmp_path, *events)
    assert pieces(trace.computing()) == in_ns(computing)
    assert pieces(trace.communicating()) == in_ns(communicating)


def in_ns(windows_us):
    return [(1000 * start, 1000 * end) for start, end in windows_us]


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


@pytest.mark.parametrize(
    ("name", "activity"),
    [
        (
            "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            Activity.COMMUNICATION,
        ),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", Activity.COMMUNICATION),
        ("void multimem_all_reduce_kernel<c10::BFloat16>", Activity.COMMUNICATION),
        ("void vllm::cross_device_reduce_1stage<half, 2>", Activity.COMMUNICATION),
        ("void at::native::broadcast_kernel<float>", Activity.COMPUTE),
        ("cub::DispatchReduceByKey", Activity.COMPUTE),
        ("void at::native::reduce_kernel<512, 1>", Activity.COMPUTE),
    ],
)
def test_collective_kernels_are_known_by_name_unless_they_only_sound_so(tmp_path, name, activity):
    trace = trace_of(tmp_path, kernel(name, 0, 10), distributed=NCCL)
    assert trace.spans.activity.tolist() == [activity]
    named = kernel(name, 0, 10, **{"Collective name": "allreduce"})
    trace = trace_of(tmp_path, named, distributed=NCCL)
    assert trace.spans.activity.tolist() == [Activity.COMMUNICATION]


def test_where_a_device_worked_the_host_does_not_count(tmp_path):
    trace = trace_of(
        tmp_path,
        span("cpu_op", "aten::mm", 0, 90),
        span("gpu_memset", "Memset", 130, 1),
        span("kernel", "gemm", 100, 10),
        span("gpu_memcpy", "Memcpy HtoD", 120, 5),
        span("gpu_user_annotation", "nccl:all_reduce", 0, 500),
        distributed=NCCL,
    )
    assert trace.spans.activity.tolist() == [Activity.COMPUTE, Activity.COPY, Activity.FILL]


def test_a_device_job_without_device_work_has_no_work_and_a_trial_without_is_refused(tmp_path):
    trace = trace_of(tmp_path, span("cpu_op", "aten::mm", 0, 9), distributed=NCCL)
    assert (trace.on_device, trace.has_work) == (True, False)
    assert trace.caveats == ("no work of its device was recorded",)
    with pytest.raises(TraceError, match="holds no device work"):
        read_traces(list(tmp_path.iterdir()))


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
        distributed=NCCL,
    )
    assert trace.spans.bytes.tolist() == [0, 4096, 512]
    for column, known in ((trace.spans.blocks_per_sm, 2.5), (trace.spans.occupancy, 0.75)):
        assert column.tolist() == pytest.approx([known, np.nan, np.nan], nan_ok=True)


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


def test_overlap_of_recorded_ranks_is_what_others_find(recorded_data):
    folder = recorded_data / "traces/kineto"
    trace = read_rank(folder / "a100_ddp_2rank_rank0.json.gz")
    hidden_ns = trace.communicating().intersect(trace.computing()).total_ns
    assert hidden_ns / trace.communicating().total_ns == pytest.approx(0.156, abs=0.0005)
    symmetric = read_rank(folder / "b200_8rank_rank0_eager.json.gz")  # memory, that is
    assert symmetric.communicating().total_ns == pytest.approx(2_141_000, abs=1_000)


def test_a_large_gloo_job_is_read_from_one_of_its_ranks(recorded_data):
    traces = read_traces([recorded_data / "traces/kineto" / "cpu_only_gloo_rank34.json.gz"])
    assert (traces.ranks[0].rank, traces.world_size, len(traces.missing_ranks)) == (34, 300, 299)
    assert (traces.ranks[0].spans.activity == Activity.COMMUNICATION).sum() == 10


@given(start_ns=st.integers(0, 2 * 10**18), duration_ns=st.integers(0, 10**15))
def test_no_nanosecond_is_lost_at_any_epoch(tmp_path_factory, start_ns, duration_ns):
    event = json.dumps(span("cpu_op", "aten::mm", "START", "LENGTH"))
    event = event.replace('"START"', f"{start_ns // 1000}.{start_ns % 1000:03}")
    event = event.replace('"LENGTH"', f"{duration_ns // 1000}.{duration_ns % 1000:03}")
    text = f'{{"traceEvents": [{event}]}}'.encode()
    trace = read_rank(write(tmp_path_factory.getbasetemp(), text))
    assert trace.spans.start_ns.tolist() == [start_ns]
    assert trace.spans.end_ns.tolist() == [start_ns + duration_ns]


def test_an_epoch_of_mixed_spellings_is_read_digit_by_digit(tmp_path):
    text = b'{"ph":"X","cat":"cpu_op","name":"aten::mm","dur":1,"ts":%b}'
    spelled = (
        b"1712195495505583.017",
        b"1712195495505584",
        b'"1712195495505585.5"',
        b"1.7121954955055861e15",
    )
    events = b",".join(text % ts for ts in spelled)
    trace = read_rank(write(tmp_path, b'{"traceEvents":[%b]}' % events))
    start_ns = 1_712_195_495_505_583_000
    assert (trace.spans.start_ns - start_ns).tolist() == [17, 1_000, 2_500, 3_100]


@pytest.mark.parametrize("base_first", [True, False])
def test_relative_times_count_from_the_base_wherever_it_stands(tmp_path, base_first):
    base_ns, event = 1_790_857_026_000_000_000, span("cpu_op", "aten::mm", 4333735370567.171, 3.146)
    fields = {"baseTimeNanoseconds": base_ns, "traceEvents": [event]}
    names = sorted(fields, reverse=not base_first)
    trace = read_rank(write(tmp_path, {name: fields[name] for name in names}))
    start_ns = base_ns + 4_333_735_370_567_171
    assert (trace.spans.start_ns.tolist(), trace.spans.end_ns.tolist()) == (
        [start_ns],
        [start_ns + 3_146],
    )


@named_cases(
    ("events", "duration_us", "caveat"),
    {
        "what lasts less than nothing is an instant and counted": (
            [kernel("a", 10, -3), kernel("a", 5, 1)],
            [1, 0],
            ["1 events have a negative duration: they count as instants"],
        ),
        "kernels that overlap a little are left alone": (
            [kernel("a", 0, 12), kernel("b", 10, 5)],
            [12, 5],
            [],
        ),
        "work that begins before its launch is counted": (
            [launch(9, 5), kernel("a", 3, 9, correlation=5)],
            [9, 1],
            ["1 spans begin before they were launched"],
        ),
    },
)
def test_faulty_times_are_repaired_and_counted(tmp_path, events, duration_us, caveat):
    trace = trace_of(tmp_path, *events, distributed=NCCL)
    assert (trace.spans.duration_ns // 1000).tolist() == duration_us
    assert list(trace.caveats) == caveat


def test_durations_that_overflowed_on_rocm_end_where_the_next_kernel_begins(tmp_path):
    trace = trace_of(
        tmp_path,
        kernel("gemm", 0, 5_000_000),
        kernel("gemm", 10, 5),
        kernel("gemm", 12, 100, tid=21),
        kernel("gemm", 20, 30),
        distributed=NCCL,
        roctracer_version=4.1,
    )
    assert trace.spans.duration_ns.tolist() == [10_000, 5_000, 100_000, 30_000]
    assert len(trace.caveats) == 1
    assert trace.caveats[0].startswith("1 spans reached into the next one of their stream")


def windows(steps):
    starts, ends = steps.start_ns.tolist(), steps.end_ns.tolist()
    return [(n, a // 1000, b // 1000) for n, a, b in zip(steps.number, starts, ends, strict=True)]


def mark(name, ts, dur):
    return span("user_annotation", name, ts, dur)


def on_stream(number, ts, dur, tid):
    return span("gpu_user_annotation", f"ProfilerStep#{number}", ts, dur, tid=tid)


LAUNCHED = [
    *(launch(10, 5), launch(20, 6), launch(60, 7)),
    kernel("a", 30, 10, correlation=5),
    kernel("b", 45, 40, tid=21, correlation=6),
    kernel("c", 110, 10, correlation=7),
]


@named_cases(
    ("events", "top", "steps", "host_steps"),
    {
        "device steps reach over all streams and win over host steps": (
            [
                *(kernel("a", 100, 10), mark("ProfilerStep#4", 0, 90)),
                *(on_stream(4, 100, 30, 7), on_stream(4, 95, 20, 8)),
            ],
            {"distributed": NCCL},
            [(4, 95, 130)],
            [(4, 0, 90)],
        ),
        "host steps serve where the device has none": (
            [mark("ProfilerStep#11", 100, 50), mark("ProfilerStep#9", 0, 50)],
            {},
            [(9, 0, 50), (11, 100, 150)],
            None,
        ),
        "work that was launched in a step belongs to it however late it runs": (
            [mark("ProfilerStep#1", 0, 50), mark("ProfilerStep#2", 50, 50), *LAUNCHED],
            {"distributed": NCCL},
            [(1, 30, 85), (2, 110, 120)],
            [(1, 0, 50), (2, 50, 100)],
        ),
        "a step recorded on a stream reaches over all work that was launched in it": (
            [
                *(mark("ProfilerStep#1", 0, 50), on_stream(1, 40, 5, 20)),
                *(launch(10, 5), kernel("a", 20, 60, correlation=5)),
            ],
            {"distributed": NCCL},
            [(1, 20, 80)],
            [(1, 0, 50)],
        ),
        "the host's windows stand where no launch is known": (
            [mark("ProfilerStep#1", 0, 50), kernel("a", 20, 60)],
            {"distributed": NCCL},
            [(1, 0, 50)],
            None,
        ),
        "steps of 2021 are operators": (
            [span("Operator", "ProfilerStep#5", 0, 9)],
            {},
            [(5, 0, 9)],
            None,
        ),
        "what an engine nests in a step is no step": (
            [
                mark("step[EXTEND bs=1 toks=9]", 0, 20),
                mark("step[DECODE bs=1]", 5, 5),
                span("python_function", "optimizer.py(3): step", 30, 5),
            ],
            {},
            [(0, 0, 20)],
            None,
        ),
        "steps that have numbers win": (
            [mark("step[DECODE bs=1]", 5, 5), mark("ProfilerStep#3", 0, 20)],
            {},
            [(3, 0, 20)],
            None,
        ),
    },
)
def test_steps_are_where_their_work_is_else_where_they_are_marked(
    tmp_path, events, top, steps, host_steps
):
    trace = trace_of(tmp_path, *events, **top)
    assert windows(trace.steps) == steps
    assert windows(trace.host_steps) == (host_steps or steps)


@pytest.mark.parametrize(
    ("cat", "name", "kind"),
    [
        ("user_annotation", "execute_context_1(888_788544)_generation_0(0)", StepKind.PREFILL),
        ("user_annotation", "execute_context_0(0)_generation_8(8_99)", StepKind.DECODE),
        ("user_annotation", "execute_9_context_1(sq1sk1)_generation_8(sq8)", StepKind.PREFILL),
        ("user_annotation", "execute_32_context_0(sq0sk0)_generation_32(sq32)", StepKind.DECODE),
        ("user_annotation", "step[DECODE bs=32]", StepKind.DECODE),
        ("user_annotation", "step[EXTEND bs=15 toks=15360]", StepKind.PREFILL),
        ("user_annotation", "step[IDLE]", StepKind.PLAIN),
        (
            "python_function",
            "/opt/vllm/v1/engine/core.py(985): _process_engine_step",
            StepKind.PLAIN,
        ),
        ("python_function", "sglang/srt/managers/scheduler.py(17): run_batch", StepKind.PLAIN),
    ],
)
def test_engines_say_what_their_steps_do(tmp_path, cat, name, kind):
    trace = trace_of(tmp_path, span(cat, name, 10, 5), span(cat, name, 0, 5))
    assert windows(trace.steps) == [(0, 0, 5), (1, 10, 15)]
    assert trace.steps.kind.tolist() == [kind, kind]
