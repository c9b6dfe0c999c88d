"""The Nsight Systems reader agrees with plain SQL, and says what it cannot know."""

import gzip
import sqlite3

import numpy as np
import pytest

from evaluator.traces.errors import TraceError
from evaluator.traces.model import Activity, CollectiveKind, RankGroup
from evaluator.traces.readers.nsys.reader import read_devices


def pieces(intervals):
    return list(zip(intervals.start_ns.tolist(), intervals.end_ns.tolist(), strict=True))


def named(trace, activity):
    rows = np.flatnonzero(trace.spans.activity == activity)
    return [trace.spans.names[number] for number in trace.spans.name_id[rows]]


def union_ns(rows):
    total = reach = 0
    for start, end in sorted(rows):
        total += max(end, reach) - max(start, reach)
        reach = max(reach, end)
    return total


RECORDED = ("h100_2gpu_1s", "h100_2gpu_sp_before", "mock", "saxpy_mpi_a100")


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_exports_agree_with_plain_sql(recorded_data, tmp_path, name):
    packed = recorded_data / "traces" / "nsys" / f"{name}.sqlite.gz"
    plain = tmp_path / "plain.sqlite"
    plain.write_bytes(gzip.decompress(packed.read_bytes()))
    database = sqlite3.connect(plain)
    devices = database.execute(
        "SELECT DISTINCT deviceId, globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY 1, 2"
    ).fetchall()
    traces = read_devices(packed)
    assert [trace.rank for trace in traces] == list(range(len(devices)))
    for trace, device in zip(traces, devices, strict=True):
        rows = database.execute(
            'SELECT start, "end", value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds'
            " ON id = demangledName WHERE deviceId = ? AND globalPid = ?",
            device,
        ).fetchall()
        kernels = trace.spans.doing(Activity.COMPUTE, Activity.COMMUNICATION)
        assert kernels.sum() == len(rows)
        assert trace.spans.duration_ns[kernels].sum() == sum(end - start for start, end, _ in rows)
        assert trace.spans.union(kernels).total_ns == union_ns(row[:2] for row in rows)
        nccl = [row[:2] for row in rows if "nccl" in row[2]]
        assert trace.communicating().total_ns == union_ns(nccl)
        assert trace.collectives.count == len(nccl)
        [(copied, count)] = database.execute(
            "SELECT coalesce(sum(bytes), 0), count(*) FROM CUPTI_ACTIVITY_KIND_MEMCPY"
            " WHERE deviceId = ? AND globalPid = ?",
            device,
        )
        copies = trace.spans.doing(Activity.COPY)
        assert (trace.spans.bytes[copies].sum(), copies.sum()) == (copied, count)
    database.close()


def test_a_launch_belongs_to_the_device_of_what_it_launched(recorded_data):
    path = recorded_data / "traces" / "nsys" / "h100_2gpu_sp_before.sqlite.gz"
    for trace in read_devices(path):
        launches = trace.spans.doing(Activity.LAUNCH)
        assert launches.sum() > 2600
        launched = np.isin(trace.spans.correlation, trace.spans.correlation[launches])
        assert launched[~launches].sum() == launches.sum()


def test_sends_and_receives_that_torch_calls_all_to_all_are(recorded_data):
    path = recorded_data / "traces" / "nsys" / "h100_2gpu_sp_before.sqlite.gz"
    kinds = [trace.collectives.kind.tolist() for trace in read_devices(path)]
    # The launch of the first is not in the file, so only its own name tells what it is.
    alone = [CollectiveKind.SEND_RECV]
    assert kinds == [alone + 32 * [CollectiveKind.ALL_TO_ALL]] * 2


def test_kernels_alone_are_enough(nsys):
    [trace] = nsys.read(kernels=[nsys.kernel(10, 20), nsys.kernel(15, 30, nsys.ALL_REDUCE)])
    assert pieces(trace.computing()) == [(10, 20)]
    assert pieces(trace.communicating()) == [(15, 30)]
    assert trace.collectives.kind.tolist() == [CollectiveKind.ALL_REDUCE]
    assert trace.steps.count == 0
    assert np.isnan(trace.spans.blocks_per_sm).all()


def test_a_name_that_is_not_in_the_file_does_not_lose_the_kernel(nsys):
    [trace] = nsys.read(kernels=[nsys.kernel(10, 20, 99)], strings={})
    assert named(trace, Activity.COMPUTE) == ["unnamed kernel"]


def test_processes_that_all_call_their_device_0_are_ranks_in_order_of_their_ids(nsys):
    traces = nsys.read(kernels=[nsys.kernel(0, 5, process=nsys.OTHER_PROCESS), nsys.kernel(10, 20)])
    assert [pieces(trace.computing()) for trace in traces] == [[(10, 20)], [(0, 5)]]
    assert [trace.world_size for trace in traces] == [2, 2]


def test_a_device_that_a_process_only_copies_to_is_no_rank(nsys):
    traces = nsys.read(
        kernels=[nsys.kernel(0, 5), nsys.kernel(0, 5, device=1, process=nsys.OTHER_PROCESS)],
        copies=[nsys.copy(0, 1, 1, 64, process=nsys.OTHER_PROCESS)],
    )
    assert [named(trace, Activity.COPY) for trace in traces] == [[], []]
    assert traces[0].caveats[0].startswith("1 copies and fills of processes that ran no kernel")


@pytest.mark.parametrize(
    "more",
    [
        {"TARGET_INFO_GPU": [{"id": 0, "name": "A100", "smCount": 100, "totalMemory": 1 << 30}]},
        {"TARGET_INFO_CUDA_DEVICE": [
            {"gpuId": 0, "cudaId": 0, "pid": 111, "numMultiprocessors": 100}
        ]},
    ],
)  # fmt: skip
def test_either_table_of_devices_tells_blocks_per_multiprocessor(nsys, more):
    [trace] = nsys.read(kernels=[nsys.kernel(0, 5, grid=(50, 2, 3))], **more)
    assert trace.spans.blocks_per_sm.tolist() == [3.0]


def test_a_device_is_found_by_the_number_that_its_process_has_for_it(nsys):
    devices = [{"id": 0, "name": "A100", "smCount": 108}, {"id": 1, "name": "H100", "smCount": 132}]
    seen = [{"gpuId": 1, "cudaId": 0, "pid": 111, "numMultiprocessors": 132}]
    [trace] = nsys.read(
        kernels=[nsys.kernel(0, 5)], TARGET_INFO_GPU=devices, TARGET_INFO_CUDA_DEVICE=seen
    )
    assert trace.device.name == "H100"


@pytest.mark.parametrize(
    "text",
    ["ProfilerStep#{}", "step {}", "Step: {}", "train_step[{}]", "iteration {}", "Iter_{}",
     "global step {}/9", "ProfilerStep#{}, op_id = 3"],
)  # fmt: skip
def test_ranges_that_look_like_steps_are_steps(nsys, text):
    [trace] = nsys.read(
        kernels=[nsys.kernel(0, 100)],
        ranges=[nsys.marked(10, 20, text.format(3)), nsys.marked(20, 30, text.format(4))],
    )
    assert trace.host_steps.number.tolist() == [3, 4]
    assert trace.host_steps.start_ns.tolist() == [10, 20]


@pytest.mark.parametrize(
    "text", ["forward", "step into", "Optimizer.step#AdamW.step", "stepwise 3"]
)
def test_other_ranges_are_no_steps(nsys, text):
    [trace] = nsys.read(kernels=[nsys.kernel(0, 100)], ranges=[nsys.marked(10, 20, text)])
    assert trace.steps.count == 0


def test_a_step_on_the_device_spans_what_was_launched_in_it(nsys):
    [trace] = nsys.read(
        kernels=[
            nsys.kernel(50, 60, call=1),
            nsys.kernel(60, 80, call=2),
            nsys.kernel(80, 90, call=3),
        ],
        calls=[nsys.call(11, 12, 1), nsys.call(18, 19, 2), nsys.call(21, 22, 3)],
        ranges=[nsys.marked(10, 20, "step 0"), nsys.marked(20, 30, "step 1")],
    )
    assert trace.steps.start_ns.tolist() == [50, 80]
    assert trace.steps.end_ns.tolist() == [80, 90]
    assert trace.host_steps.start_ns.tolist() == [10, 20]


def test_steps_whose_numbers_begin_again_are_counted(nsys):
    ranges = [nsys.marked(10 * at, 10 * at + 9, f"step {at % 2}") for at in range(4)]
    [trace] = nsys.read(kernels=[nsys.kernel(0, 100)], ranges=ranges)
    assert trace.steps.number.tolist() == [0, 1, 2, 3]
    assert any("do not rise" in caveat for caveat in trace.caveats)


def test_the_outer_of_nested_ranges_are_the_steps(nsys):
    inner = [nsys.marked(at, at + 2, f"step {at}") for at in range(0, 20, 2)]
    outer = [nsys.marked(0, 10, "iteration 5"), nsys.marked(10, 21, "iteration 6")]
    [trace] = nsys.read(kernels=[nsys.kernel(0, 100)], ranges=outer + inner)
    assert trace.steps.number.tolist() == [5, 6]


def test_the_text_of_a_range_may_stand_among_the_strings(nsys):
    ranges = [
        {"start": 1, "end": 9, "eventType": nsys.PUSHED, "globalTid": nsys.THREAD, "textId": 6}
    ]
    [trace] = nsys.read(
        kernels=[nsys.kernel(0, 5)], ranges=ranges, strings={**nsys.STRINGS, 6: "step 7"}
    )
    assert trace.steps.number.tolist() == [7]


def test_times_are_since_the_epoch_where_the_file_tells_its_start(nsys):
    [trace] = nsys.read(
        kernels=[nsys.kernel(5, 9)],
        TARGET_INFO_SESSION_START_TIME=[{"utcEpochNs": 1_700_000_000_000_000_000}],
    )
    assert trace.spans.start_ns.tolist() == [1_700_000_000_000_000_005]


def test_waits_are_of_the_device_their_thread_last_launched_on(nsys):
    traces = nsys.read(
        kernels=[nsys.kernel(20, 30, call=1), nsys.kernel(40, 50, device=1, call=2)],
        calls=[
            nsys.call(1, 2, 1),
            nsys.call(3, 4, 9, nsys.WAIT),
            nsys.call(5, 6, 2),
            nsys.call(7, 8, 10, nsys.WAIT),
        ],
    )
    waits = [trace.covered(Activity.SYNC) for trace in traces]
    assert [pieces(wait) for wait in waits] == [[(3, 4)], [(7, 8)]]


def test_a_call_that_is_in_the_file_twice_counts_once(nsys):
    [trace] = nsys.read(
        kernels=[nsys.kernel(20, 30, call=1)], calls=[nsys.call(1, 5, 1), nsys.call(2, 4, 1)]
    )
    assert pieces(trace.covered(Activity.LAUNCH)) == [(1, 5)]
    assert len(named(trace, Activity.LAUNCH)) == 1


def test_a_copy_between_devices_communicates(nsys):
    traces = nsys.read(
        kernels=[nsys.kernel(0, 1), nsys.kernel(0, 1, device=1)],
        copies=[nsys.copy(5, 9, 10, 4096, source=0, target=1), nsys.copy(10, 12, 1, 64)],
    )
    told = traces[0].collectives
    assert told.kind.tolist() == [CollectiveKind.PUT]
    assert told.bytes.tolist() == [4096]
    assert told.groups == (RankGroup("", (0, 1), 2),)
    assert named(traces[0], Activity.COPY) == ["Memcpy HtoD"]


def test_a_graph_recorded_as_a_whole_computes_and_is_told(nsys):
    graph = {"start": 10, "end": 30, "graphId": 4, "deviceId": 0, "globalPid": nsys.PROCESS}
    [trace] = nsys.read(kernels=[nsys.kernel(0, 1)], CUPTI_ACTIVITY_KIND_GRAPH_TRACE=[graph])
    assert pieces(trace.computing()) == [(0, 1), (10, 30)]
    assert any("recorded as a whole" in caveat for caveat in trace.caveats)


def test_a_file_without_work_of_a_device_is_refused(nsys):
    with pytest.raises(TraceError, match="no work of a device"):
        nsys.read(calls=[nsys.call(1, 2, 1)])
