"""XLA traces: operations by their own text, steps, launches, groups, and whatever else is there."""

import gzip
import json

import numpy as np
import pytest

from evaluator.traces.analysis.breakdown import job_split
from evaluator.traces.model import Activity, CollectiveKind, RankGroup, TraceSet
from evaluator.traces.readers.marks import collective_kind
from evaluator.traces.readers.read import read_folder
from evaluator.traces.readers.xla.reader import (
    activity_of,
    participants,
    read_devices,
    result_bytes,
)
from records.errors import TraceError
from tests.support.traces import DATA, named_cases, pieces, value_of
from tests.support.xla import named, span

JAX_CPU = DATA / "xla" / "jax_cpu_4dev.trace.json.gz"


def events_of(path):
    """Complete events of a file with the names of their process and thread, by plain json."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    processes, threads = (
        {
            (event["pid"], event.get("tid", 0) * (kind == "thread_name")): event["args"]["name"]
            for event in events
            if event.get("name") == kind
        }
        for kind in ("process_name", "thread_name")
    )
    return [
        (processes[event["pid"], 0], threads.get((event["pid"], event["tid"]), ""), event)
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


def test_devices_that_a_cpu_plays_agree_with_plain_json():
    events = [event for *_, event in events_of(JAX_CPU) if "hlo_op" in event.get("args", {})]
    for trace in read_devices(JAX_CPU):
        own = [event for event in events if event["args"]["device_ordinal"] == str(trace.rank)]
        collective = [event for event in own if event["name"].startswith("all-")]
        compute = [event for event in own if event not in collective]
        assert (trace.device, trace.world_size) == (None, 4)
        assert trace.spans.count == len(own) == 414
        assert trace.collectives.count == len(collective) == 108
        communicating_ns, computing_ns = (1000 * union_us(each) for each in (collective, compute))
        assert trace.communicating().total_ns == pytest.approx(communicating_ns, abs=500)
        assert trace.computing().total_ns == pytest.approx(computing_ns, abs=500)


def test_who_met_inside_a_collective_of_a_cpu_is_its_group():
    groups = [
        {group.ranks for group in trace.collectives.groups} for trace in read_devices(JAX_CPU)
    ]
    pairs = [(0, 1), (0, 2), (1, 3), (2, 3)]
    assert groups == [{pair for pair in pairs if rank in pair} for rank in range(4)]


def test_tpus_agree_with_plain_json(recorded_data):
    path = recorded_data / "traces" / "xla" / "vllm_tpu_2chip_a.trace.json.gz"
    events = events_of(path)
    modules = [event for *_, event in events if event["name"].startswith("jit_step_fun")]
    for trace in read_devices(path):
        line = (f"/device:TPU:{trace.rank}", "XLA Ops")
        own = [event for *place, event in events if tuple(place) == line]
        flops = sum(int(event["args"]["model_flops"]) for event in own)
        assert np.nansum(trace.spans.flops) == flops
        kinds = {"all-reduce", "all-gather"}
        collective = [event for event in own if event["args"]["hlo_category"] in kinds]
        communicating_ns = 1000 * union_us(collective)
        assert trace.communicating().total_ns == pytest.approx(communicating_ns, abs=200)
        halves = [event for event in own if event["name"].partition(".")[0].endswith("start")]
        assert trace.spans.doing(Activity.COPY).sum() == len(halves) == 787
        told = trace.collectives
        assert np.bincount(told.kind).tolist() == [0, 129, 2]
        assert np.unique(told.bytes).tolist() == [2 * 8 * 2, 2 * 8 * 4, 1024 * 5120 * 2]
        assert told.groups == (RankGroup("", (0, 1), 2),)
        ran_ns = 1000 * modules[trace.rank]["dur"]
        assert trace.steps.duration_ns.tolist() == [pytest.approx(ran_ns, abs=1)]


FUSION = span("fusion.1", 10, 5, hlo_category="loop fusion")
HALF = {"hlo_category": "copy-start"}
COPY_START = "%copy-start.4 = (f32[8], f32[8], u32[]) copy-start(f32[8] %a)"
COPY_DONE = "%copy-done.9 = f32[8]{0} copy-done((f32[8], f32[8], u32[]) %copy-start.4)"


@pytest.mark.parametrize(
    ("events", "last", "computing", "copying"),
    [
        ([FUSION], True, [(10, 15)], []),
        ([FUSION, span("matmul", 0, 90, tid=5)], False, [(10, 15)], []),
        ([FUSION, span("while.3", 0, 90, hlo_category="while")], False, [(10, 15)], []),
        ([FUSION, span("$parallel.py:9 all_gather", 0, 9, pid=701)], False, [(10, 15)], []),
        ([span("fusion.1", "10", "5")], False, [(10, 15)], []),
        (
            [
                span("copy-start.4", 10, 1, long_name=COPY_START, **HALF),
                span("fusion.1", 12, 5),
                span("copy-done.9", 30, 2, hlo_category="copy-done", long_name=COPY_DONE),
            ],
            False,
            [(12, 17)],
            [(10, 32)],
        ),
        ([span("copy-start.4", 10, 1, **HALF)], False, [], [(10, 11)]),
        (
            [
                span("copy-start.4", 10, 1, **HALF),
                span("copy-done.4", 30, 2, hlo_category="copy-done"),
                span("copy-start.4", 10, 22, tid=4, **HALF),
            ],
            False,
            [],
            [(10, 32)],
        ),
    ],
    ids=[
        "names of processes and threads may come last",
        "other lines of a device are derived",
        "what contains other operations does not count",
        "a python frame called like a collective is none",
        "numbers may be strings",
        "a copy runs from its start to its done",
        "a start without its done stays as it is",
        "a line of whole asynchronous operations replaces their halves",
    ],
)
def test_operations_compute_and_copy(read_tpus, events, last, computing, copying):
    [trace] = read_tpus(*events, last=last)
    assert pieces(trace.computing()) == [(1000 * a, 1000 * b) for a, b in computing]
    assert pieces(trace.covered(Activity.COPY)) == [(1000 * a, 1000 * b) for a, b in copying]
    assert trace.spans.count == len(computing) + len(copying)


def test_a_copy_moves_what_it_gives(read_tpus):
    [trace] = read_tpus(
        span("copy-start.4", 10, 1, long_name=COPY_START, **HALF),
        span("copy-done.9", 30, 2, hlo_category="copy-done", long_name=COPY_DONE, bytes_accessed=9),
    )
    assert trace.spans.bytes.tolist() == [32]


def test_the_devices_own_picoseconds_keep_neighbours_apart(read_tpus):
    def at(offset_ps, duration_ps, ts, dur):
        told = {"device_offset_ps": str(offset_ps), "device_duration_ps": str(duration_ps)}
        return span("fusion.1", ts, dur, **told)

    [trace] = read_tpus(at(5_000_600, 1_000_300, 1.0006, 1.0004), at(6_000_900, 10, 2.001, 0))
    assert trace.spans.start_ns.tolist() == [1001, 2001]
    assert trace.spans.end_ns.tolist() == [2001, 2001]


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


def gpus(count):
    """Names of so many GPUs, processes 1, 2, ..., each with one stream, and of their host."""
    names = [named("process", "/host:CPU", 701)]
    for pid in range(1, count + 1):
        names.append(named("process", f"/device:GPU:{pid - 1}", pid))
        names.append(named("thread", "Stream #16(Kernel)", pid, 3))
    return names


def test_a_call_is_the_launch_of_the_kernel_with_its_number(read_xla):
    [trace] = read_xla(
        *gpus(1),
        named("thread", "XLA Ops - from #16", tid=4),
        span("ncclDevKernel_AllReduce", 10, 5, correlation_id="7"),
        span("MemcpyD2H", 20, 5, memcpy_details="kind_src:device size:64 dest:0"),
        span("all-reduce.1", 10, 5, tid=4),
        span("cuLaunchKernel", 1, 2, pid=701, correlation_id="7"),
        span("cuLaunchKernel", 3, 4, pid=701, correlation_id="8"),
    )
    assert pieces(trace.covered(Activity.LAUNCH)) == [(1000, 3000)]
    assert trace.collectives.kind.tolist() == [CollectiveKind.ALL_REDUCE]
    assert trace.spans.bytes[trace.spans.doing(Activity.COPY)].tolist() == [64]


def test_devices_that_only_copy_are_left_out_and_counted(read_xla):
    marks = [span("train", 0, 30, pid=701, step_num="4")]
    work = [span("gemm", 10, 5, pid=2), span("gemm", 12, 5, pid=4)]
    copies = [span("MemcpyH2D", 0, 5, pid=pid) for pid in (1, 2, 3, 4)]
    traces = read_xla(*gpus(4), *marks, *work, *copies)
    computing = [pieces(trace.computing()) for trace in traces]
    assert computing == [[(10_000, 15_000)], [(12_000, 17_000)]]
    assert [trace.world_size for trace in traces] == [2, 2]
    assert traces[0].caveats == ("2 of 4 devices, which only copied, were left out",)
    assert job_split(TraceSet(ranks=traces)).mean.compute_s == pytest.approx(5e-6)


def test_devices_are_kept_where_all_only_copy(read_xla):
    traces = read_xla(*gpus(2), *(span("MemcpyH2D", 0, 5, pid=pid) for pid in (1, 2)))
    assert [trace.caveats for trace in traces] == [(), ()]


PALLAS = {"hlo_category": "custom-call", "long_name": "%k = f32[8] custom-call(f32[8] %a)"}


def test_flops_that_a_custom_call_does_not_state_leave_no_rate(read_tpus):
    traces = read_tpus(
        span("7", 0, 100, tid=1),
        span("fusion.1", 0, 60, model_flops="6000000", hlo_category="convolution fusion"),
        span("attention.1", 60, 20, model_flops="0", **PALLAS),
    )
    for name in ("achieved_tflops", "mfu"):
        assert value_of(name, TraceSet(ranks=traces)) == (
            "custom calls, 25 % of the compute time, do not state their FLOPs; give a card with "
            "the model's sizes"
        )


def test_flops_that_a_custom_call_states_count_and_additions_of_a_collective_do_not(read_tpus):
    traces = read_tpus(
        span("7", 0, 100, tid=1),
        span("fusion.1", 0, 60, model_flops="6000000", hlo_category="convolution fusion"),
        span("copy.1", 60, 1, model_flops="0", hlo_category="data formatting"),
        span("attention.1", 61, 20, model_flops="4000000", **PALLAS),
        span("all-reduce.1", 81, 9, model_flops="5000000", hlo_category="all-reduce"),
    )
    found = value_of("achieved_tflops", TraceSet(ranks=traces))
    assert found == pytest.approx(10e6 / 100e-6 / 1e12)


LINE = [span("7", 0, 9, tid=1), span("8", 10, 9, tid=1)]
MODULES = [
    span("jit_train_step(51)", 1, 5, tid=2),
    span("jit_convert(3)", 6, 90, tid=2),
    span("jit_train_step(51)", 11, 6, tid=2),
]
MARKS = [span("train", 0, 10, pid=701, step_num=str(at)) | {"ts": 10 * at} for at in (3, 4)]
FRAMES = [span("$core.py:985 _process_engine_step", at, 8, pid=701) for at in (0, 10)]
WORK = span("fusion.1", 0, 20)


def steps_of(read_tpus, *events):
    [trace] = read_tpus(WORK, *events, count=1)
    return trace.steps.number.tolist(), trace.steps.start_ns.tolist(), trace.host_steps


@named_cases(
    ("events", "numbers", "start_us", "host_numbers"),
    {
        "the line of steps": ([*FRAMES, *MARKS, *MODULES, *LINE], [7, 8], [0, 10], [7, 8]),
        "runs of its function": ([*FRAMES, *MARKS, *MODULES], [0, 1], [1, 11], [0, 1]),
        "what is numbered": ([*FRAMES, *MARKS], [3, 4], [30, 40], [3, 4]),
        "frames of functions": (FRAMES, [0, 1], [0, 10], [0, 1]),
    },
)
def test_steps_are_taken_in_the_order_of_how_sure_they_are(
    read_tpus, events, numbers, start_us, host_numbers
):
    number, start_ns, host_steps = steps_of(read_tpus, *events)
    assert (number, start_ns) == (numbers, [1000 * start for start in start_us])
    assert host_steps.number.tolist() == host_numbers


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        *((name, [0]) for name in ("jit_step_fun(5)", "jit_train_step", "jit__step(1)")),
        ("pmap_step(3)", [0]),
        *((name, []) for name in ("jit_stepwise(5)", "jit_sample(3)", "jit_footstep(1)")),
    ],
)
def test_modules_of_steps_are_known_by_name(read_tpus, name, numbers):
    assert steps_of(read_tpus, span(name, 1, 5, tid=2))[0] == numbers


only_exported = pytest.mark.parametrize("xla_form", ["trace.json"], indirect=True)
"""Only JSON can hold arguments of any type."""


@only_exported
@pytest.mark.parametrize(
    ("ts", "dur"), [(None, 1), (1, None), ("x", 1), (1, -2), (1e300, 1), (1, "nan"), (1, 1e18)]
)
def test_an_event_without_proper_times_is_left_out_and_told(read_tpus, ts, dur):
    [trace] = read_tpus(span("fusion.1", 10, 5), span("fusion.2", ts, dur))
    assert trace.spans.count == 1
    assert trace.caveats == ("1 events without a proper start and duration were left out",)


def test_a_file_without_operations_is_refused(read_tpus):
    with pytest.raises(TraceError, match="no operation of a device"):
        read_tpus(span("anything", 0, 1, pid=701))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("all-reduce.13", CollectiveKind.ALL_REDUCE),
        ("all_gather.12", CollectiveKind.ALL_GATHER),
        ("reduce_scatter.31", CollectiveKind.REDUCE_SCATTER),
        ("all-reduce-scatter.2", CollectiveKind.REDUCE_SCATTER),
        ("psum_scatter.3", CollectiveKind.REDUCE_SCATTER),
        ("psum_invariant.7", CollectiveKind.ALL_REDUCE),
        ("pmax.1", CollectiveKind.ALL_REDUCE),
        ("all-to-all", CollectiveKind.ALL_TO_ALL),
        ("ragged-all-to-all.2", CollectiveKind.ALL_TO_ALL),
        ("ppermute.2", CollectiveKind.SEND_RECV),
        ("collective-permute-start.4", CollectiveKind.SEND_RECV),
        ("send.1", CollectiveKind.SEND),
        ("recv-done.1", CollectiveKind.RECV),
    ],
)
def test_names_with_hyphens_and_underscores_communicate(name, kind):
    assert activity_of(name, "", "") == Activity.COMMUNICATION
    assert collective_kind(name) == kind


@pytest.mark.parametrize(
    ("name", "category", "activity"),
    [
        ("broadcast.3", "broadcast", Activity.COMPUTE),
        ("copy.769", "data formatting", Activity.COMPUTE),
        ("fusion.1", "all-reduce fusion", Activity.COMMUNICATION),
        ("slice-start.1", "async-start", Activity.COPY),
        ("all-to-all-start.1", "async-start", Activity.COMMUNICATION),
        ("copy-done", "copy-done", Activity.COPY),
        ("infeed.1", "infeed", Activity.COPY),
        ("conditional.2", "", None),
        ("call.2", "", None),
        ("custom-call.2", "custom-call", Activity.COMPUTE),
        ("reduce.5", "", Activity.COMPUTE),
        ("sender_fusion", "", Activity.COMPUTE),
    ],
)
def test_the_category_decides_before_the_name(name, category, activity):
    assert activity_of(name, category, "") == activity


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("%a = bf16[1024,5120]{1,0:T(8,128)(2,1)S(1)} all-reduce(f32[9] %x)", 10_485_760),
        ("%a = (f32[2,3]{1,0}, (u32[], s4[4])) foo(f32[99] %x)", 30),
        ("%a = pred[7] p()", 7),
        ("%a = f8e4m3fn[7] p()", 7),
        ("%a = c64[2] p()", 16),
        ("%a = token[] after-all()", 0),
        ("%a = f32[" + 30 * "9" + "," + 30 * "9" + "] p()", 1 << 50),
        ("no text at all", 0),
        ("%a = ((((", 0),
    ],
)
def test_the_size_of_a_result_is_that_of_its_shapes(text, size):
    assert result_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "device", "devices"),
    [
        ("replica_groups={{0,2},{1,3}}, x", 3, (1, 3)),
        ("replica_groups=[2,4]<=[8]", 5, (4, 5, 6, 7)),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", 3, (1, 3, 5, 7)),
        ("source_target_pairs={{0,1},{1,2},{2,0}}", 1, (0, 1, 2)),
        ("replica_groups={}", 0, None),
        ("replica_groups={{0,1}}", 7, None),
        ("replica_groups=[2,4]<=[9]", 0, None),
        ("replica_groups=[0,0]<=[0]", 0, None),
        ("replica_groups=[99999999,99999999]<=[99999999,99999999]", 0, None),
        ("replica_groups=[2,2]<=[2,2]T(0,7)", 0, None),
    ],
)
def test_those_who_take_part_are_told_in_every_notation(text, device, devices):
    assert participants(text, device) == devices


def one_collective(read_tpus, text, count=2):
    traces = read_tpus(
        *(
            span("c.1", 1, 1, 1 + number, hlo_category="reduce-scatter", long_name=text)
            for number in range(count)
        ),
        count=count,
    )
    return traces[0]


def test_the_whole_buffer_of_a_reduce_scatter_is_the_parts_of_all_ranks(read_tpus):
    trace = one_collective(
        read_tpus, "%c.1 = f32[8] reduce-scatter(f32[16] %x), replica_groups={{0,1}}"
    )
    assert trace.collectives.bytes.tolist() == [64]
    assert trace.world_size == 2


def test_a_group_with_devices_of_other_files_is_named_and_the_world_unknown(read_tpus):
    trace = one_collective(
        read_tpus, "%c.1 = f32[8] reduce-scatter(f32[16] %x), replica_groups={{0,5}}"
    )
    assert trace.collectives.groups == (RankGroup("0,5", None, 2),)
    assert trace.world_size is None


def test_groups_in_a_second_file_are_numbered_on_with_its_devices(read_tpus, tmp_path, xla_form):
    one_collective(read_tpus, "%c.1 = f32[8] all-reduce(f32[8] %x), replica_groups={{0,1}}")
    first = tmp_path / f"host.{xla_form}"
    (tmp_path / f"later.{xla_form}").write_bytes(first.read_bytes())
    traces = read_folder(tmp_path, use_cache=False)
    groups = [trace.collectives.groups for trace in traces.ranks]
    assert groups == 2 * [(RankGroup("", (0, 1), 2),)] + 2 * [(RankGroup("", (2, 3), 2),)]
