"""Exports of Nsight Systems agree with plain SQL, say what NCCL was asked, and may be hostile."""

import gzip
import json
import os
import sqlite3
import struct
from contextlib import closing

import numpy as np
import pytest

from evaluator.traces.model import Activity, CollectiveKind, RankGroup
from evaluator.traces.readers.files import ReadLimits
from evaluator.traces.readers.nsys.reader import read_devices
from records.errors import TraceError
from tests.support.traces import named_cases, pieces


def named(trace, activity):
    rows = np.flatnonzero(trace.spans.activity == activity)
    return [trace.spans.names[number] for number in trace.spans.name_id[rows]]


def union_ns(rows):
    total = reach = 0
    for start, end in sorted(rows):
        total += max(end, reach) - max(start, reach)
        reach = max(reach, end)
    return total


@pytest.mark.parametrize("name", ["h100_2gpu_1s", "h100_2gpu_sp_before", "mock", "saxpy_mpi_a100"])
def test_recorded_exports_agree_with_plain_sql(recorded_data, tmp_path, name):
    packed = recorded_data / "traces" / "nsys" / f"{name}.sqlite.gz"
    plain = tmp_path / "plain.sqlite"
    plain.write_bytes(gzip.decompress(packed.read_bytes()))
    with closing(sqlite3.connect(plain)) as database:
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
            total_ns = sum(end - start for start, end, _ in rows)
            assert kernels.sum() == len(rows)
            assert trace.spans.duration_ns[kernels].sum() == total_ns
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


def test_kernels_alone_are_enough_though_their_names_be_missing(nsys):
    [trace] = nsys.read(
        kernels=[nsys.kernel(10, 20, 99), nsys.kernel(15, 30, nsys.ALL_REDUCE)],
        TARGET_INFO_SESSION_START_TIME=[{"utcEpochNs": 1_700_000_000_000_000_000}],
    )
    trace = trace.shifted(-1_700_000_000_000_000_000)
    assert pieces(trace.computing()) == [(10, 20)]
    assert pieces(trace.communicating()) == [(15, 30)]
    assert named(trace, Activity.COMPUTE) == ["unnamed kernel"]
    assert trace.collectives.kind.tolist() == [CollectiveKind.ALL_REDUCE]
    assert trace.steps.count == 0
    assert np.isnan(trace.spans.blocks_per_sm).all()


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


A100 = {"id": 0, "name": "A100", "smCount": 100, "totalMemory": 1 << 30}
H100 = A100 | {"id": 1, "name": "H100"}


@pytest.mark.parametrize(
    ("gpus", "number", "name"),
    [([A100], None, "A100"), ([], 0, ""), ([A100, H100], 1, "H100")],
    ids=["by number on the machine", "of processes alone", "by the number of its process"],
)
def test_either_table_of_devices_tells_blocks_per_multiprocessor(nsys, gpus, number, name):
    own = {"gpuId": number, "cudaId": 0, "pid": 111, "numMultiprocessors": 100}
    seen = [] if number is None else [own]
    [trace] = nsys.read(
        kernels=[nsys.kernel(0, 5, grid=(50, 2, 3))],
        TARGET_INFO_GPU=gpus,
        TARGET_INFO_CUDA_DEVICE=seen,
    )
    assert trace.spans.blocks_per_sm.tolist() == [3.0]
    assert trace.device.name == name


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        *(
            ([text.format(3), text.format(4)], [3, 4])
            for text in (
                *("ProfilerStep#{}", "step {}", "Step: {}", "train_step[{}]", "iteration {}"),
                *("Iter_{}", "global step {}/9", "ProfilerStep#{}, op_id = 3"),
            )
        ),
        *(
            ([text], [])
            for text in ("forward", "step into", "Optimizer.step#AdamW.step", "stepwise 3")
        ),
        (["step 0", "step 1", "step 0", "step 1"], [0, 1, 2, 3]),
    ],
)
def test_ranges_that_look_like_steps_are_steps(nsys, texts, numbers):
    ranges = [nsys.marked(10 * at, 10 * at + 9, text) for at, text in enumerate(texts, 1)]
    [trace] = nsys.read(kernels=[nsys.kernel(0, 100)], ranges=ranges)
    assert trace.host_steps.number.tolist() == numbers
    assert trace.host_steps.start_ns.tolist() == [10 * at for at, _ in enumerate(numbers, 1)]
    assert any("do not rise" in caveat for caveat in trace.caveats) is (numbers == [0, 1, 2, 3])


def test_the_outer_of_nested_ranges_are_the_steps_wherever_their_text_stands(nsys):
    inner = [nsys.marked(at, at + 2, f"step {at}") for at in range(0, 20, 2)]
    outer = [nsys.marked(0, 10, "iteration 5"), nsys.marked(10, 21, None) | {"textId": 6}]
    outer[0]["textId"] = None
    inner = [each | {"textId": None} for each in inner]
    [trace] = nsys.read(
        kernels=[nsys.kernel(0, 100)],
        ranges=outer + inner,
        strings={**nsys.STRINGS, 6: "iteration 6"},
    )
    assert trace.steps.number.tolist() == [5, 6]


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


def test_waits_are_of_the_device_their_thread_last_launched_on_and_calls_count_once(nsys):
    traces = nsys.read(
        kernels=[nsys.kernel(20, 30, call=1), nsys.kernel(40, 50, device=1, call=2)],
        calls=[
            *(nsys.call(1, 2, 1), nsys.call(1, 2, 1), nsys.call(3, 4, 9, nsys.WAIT)),
            *(nsys.call(5, 6, 2), nsys.call(7, 8, 10, nsys.WAIT)),
        ],
    )
    waits = [trace.covered(Activity.SYNC) for trace in traces]
    assert [pieces(wait) for wait in waits] == [[(3, 4)], [(7, 8)]]
    assert [len(named(trace, Activity.LAUNCH)) for trace in traces] == [1, 1]


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


def payload(size=None, *, communicator=77, ranks=None):
    told = {
        "NCCL communicator ID": communicator,
        "Message size [bytes]": size,
        "No. of ranks": ranks,
    }
    return json.dumps({name: value for name, value in told.items() if value is not None})


@pytest.fixture
def told(nsys):
    """The collectives of kernels that were launched at 12, 22, ... inside ranges."""

    def read(names, ranges, init=4):
        ranges = [nsys.marked(0, 1, "ncclCommInitRank", payload=payload(ranks=init)), *ranges]
        [trace] = nsys.read(
            kernels=[
                nsys.kernel(100 + at, 101 + at, name, call=at + 1) for at, name in enumerate(names)
            ],
            calls=[nsys.call(12 + 10 * at, 13 + 10 * at, at + 1) for at in range(len(names))],
            ranges=ranges,
        )
        return trace.collectives

    return read


KINDS = CollectiveKind


@pytest.mark.parametrize(
    ("operation", "size", "init", "kind", "whole_bytes"),
    [
        ("ncclAllReduce", 1024, 4, KINDS.ALL_REDUCE, 1024),
        ("ncclAllGather", 1024, 4, KINDS.ALL_GATHER, 4096),
        ("ncclReduceScatter", 1024, 4, KINDS.REDUCE_SCATTER, 4096),
        ("ncclAlltoAll", 1024, 4, KINDS.ALL_TO_ALL, 4096),
        ("ncclBroadcast", 1024, 4, KINDS.BROADCAST, 1024),
        ("ncclBcast", 1024, 4, KINDS.BROADCAST, 1024),
        ("ncclReduce", 1024, 4, KINDS.REDUCE, 1024),
        ("ncclGather", 1024, 4, KINDS.GATHER, 4096),
        ("ncclScatter", 1024, 4, KINDS.SCATTER, 4096),
        ("ncclSend", 1024, 4, KINDS.SEND, 1024),
        ("ncclRecv", 1024, 4, KINDS.RECV, 1024),
        ("ncclAllGather", 1024, None, KINDS.ALL_GATHER, 0),
        ("ncclAllReduce", "1,024", 4, KINDS.ALL_REDUCE, 1024),
    ],
)
def test_the_range_around_a_launch_tells_kind_group_and_whole_buffer(
    nsys, told, operation, size, init, kind, whole_bytes
):
    stated = nsys.marked(10, 15, operation, payload=payload(size))
    found = told([nsys.ALL_REDUCE], [stated], init=init)
    assert (found.kind.tolist(), found.bytes.tolist()) == ([kind], [whole_bytes])
    assert found.groups == (RankGroup("77", None, init),)


@pytest.mark.parametrize("text", ["", "no json", "[1]", '{"Message size [bytes]": []}', 9000 * "["])
def test_a_payload_that_cannot_be_read_tells_nothing_but_the_kind(nsys, told, text):
    found = told([nsys.ALL_REDUCE], [nsys.marked(10, 15, "ncclAllReduce", payload=text)])
    assert (found.kind.tolist(), found.bytes.tolist()) == ([KINDS.ALL_REDUCE], [0])


def grouped(nsys, *operations):
    """A group whose end, from 10 to 20, launches."""
    inner = [nsys.marked(6, 7, name, payload=payload(size)) for name, size in operations]
    return [nsys.marked(2, 3, "ncclGroupStart"), *inner, nsys.marked(10, 20, "ncclGroupEnd")]


@pytest.mark.parametrize(
    ("operations", "kind", "total_bytes"),
    [
        ([("ncclAllReduce", 64), ("ncclAllReduce", 32)], KINDS.ALL_REDUCE, 96),
        ([*4 * [("ncclSend", 8)], *4 * [("ncclRecv", 8)]], KINDS.ALL_TO_ALL, 32),
        ([("ncclSend", 8), ("ncclRecv", 8)], KINDS.SEND_RECV, 8),
    ],
    ids=[
        "calls in one kernel are their sum",
        "everyone sending to everyone is all to all",
        "one message each way is a transfer",
    ],
)
def test_a_group_of_calls_is_what_its_one_kernel_does(nsys, told, operations, kind, total_bytes):
    found = told([nsys.SEND_RECV], grouped(nsys, *operations))
    assert (found.kind.tolist(), found.bytes.tolist()) == ([kind], [total_bytes])


def test_kernels_that_share_a_group_of_calls_are_known_by_name_only(nsys, told):
    ranges = grouped(nsys, ("ncclAllReduce", 64), ("ncclAllReduce", 32))
    ranges[-1]["end"] = 30
    found = told([nsys.ALL_REDUCE, nsys.ALL_REDUCE], ranges)
    assert found.kind.tolist() == 2 * [KINDS.ALL_REDUCE]
    assert found.bytes.tolist() == [0, 0]


def test_the_inner_end_of_nested_groups_launches_nothing(nsys, told):
    ranges = [nsys.marked(1, 2, "ncclGroupStart"), *grouped(nsys, ("ncclAllReduce", 64))]
    found = told([nsys.ALL_REDUCE, nsys.ALL_REDUCE], [*ranges, nsys.marked(21, 25, "ncclGroupEnd")])
    assert found.bytes.tolist() == [0, 64]


def test_a_payload_as_it_lay_in_memory_is_read_by_its_schema(nsys):
    """Header: count, schema, size and whole size; then a communicator and bytes, 8 bytes each."""
    binary = struct.pack("<QQQQQQ", 1, 55, 16, 48, 77, 2048)
    names = ["NCCL communicator ID", "Message size [bytes]"]
    entries = [
        {"schemaId": 55, "type": kind, "name": name, "offset": offset}
        for name, kind, offset in zip(names, (18, 22), (None, 8), strict=True)
    ]
    [trace] = nsys.read(
        kernels=[nsys.kernel(100, 200, nsys.ALL_REDUCE, call=1)],
        calls=[nsys.call(12, 13, 1)],
        ranges=[nsys.marked(10, 15, "ncclAllReduce") | {"binaryData": binary}],
        NVTX_PAYLOAD_SCHEMA_ENTRIES=entries,
    )
    assert trace.collectives.bytes.tolist() == [2048]
    assert trace.collectives.groups == (RankGroup("77"),)


@pytest.mark.parametrize("binary", [b"", 31 * b"x", 32 * b"x", 33 * b"\xff", 48 * b"\0"])
def test_a_damaged_binary_payload_tells_nothing(nsys, binary):
    [trace] = nsys.read(
        kernels=[nsys.kernel(100, 200, nsys.ALL_REDUCE, call=1)],
        calls=[nsys.call(12, 13, 1)],
        ranges=[nsys.marked(10, 15, "ncclAllReduce") | {"binaryData": binary}],
        NVTX_PAYLOAD_SCHEMA_ENTRIES=[{"schemaId": 0, "type": 18, "name": "x", "offset": 2**62}],
    )
    assert trace.collectives.bytes.tolist() == [0]


@pytest.mark.parametrize(("rank_count", "world_size"), [(1, 1), (8, None)])
def test_a_world_larger_than_the_file_is_unknown(nsys, rank_count, world_size):
    init = nsys.marked(0, 1, "ncclCommInitRank", payload=payload(ranks=rank_count))
    [trace] = nsys.read(
        kernels=[nsys.kernel(100, 200, nsys.ALL_REDUCE, call=1)],
        calls=[nsys.call(12, 13, 1)],
        ranges=[init, nsys.marked(10, 15, "ncclAllReduce", payload=payload(64))],
    )
    assert trace.world_size == world_size


KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


def changed(nsys, *statements, **tables):
    """An export that the statements were run on afterwards."""
    path = nsys.write(**({"kernels": [nsys.kernel(1, 2)]} | tables))
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)
    return path


@pytest.mark.parametrize(
    "content", [b"", b"no database", b"SQLite format 3\0", b"\x1f\x8b\x08", b"{}"]
)
def test_what_is_no_database_is_refused(tmp_path, content):
    path = tmp_path / "report.sqlite"
    path.write_bytes(content)
    with pytest.raises(TraceError):
        read_devices(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(TraceError, match="not a regular file"):
        read_devices(path)


def test_a_path_with_characters_of_an_address_is_read(nsys, tmp_path):
    odd = tmp_path / "a?mode=memory#%41.sqlite"
    nsys.write(kernels=[nsys.kernel(1, 2)]).rename(odd)
    assert len(read_devices(odd)) == 1


@named_cases(
    "statements",
    {
        "of another table": [f"CREATE VIEW {KERNELS} AS SELECT * FROM other"],
        "without end": [
            f"CREATE VIEW {KERNELS} AS WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1"
            " FROM c) SELECT n AS start, n + 1 AS [end] FROM c"
        ],
        "listed as a table": [
            f"CREATE VIEW {KERNELS} AS SELECT * FROM {KERNELS}",
            "PRAGMA writable_schema = ON",
            f"UPDATE sqlite_master SET type = 'table' WHERE name = '{KERNELS}'",
        ],
    },
)
def test_a_view_in_place_of_a_table_is_not_read(nsys, statements):
    path = changed(nsys, f"ALTER TABLE {KERNELS} RENAME TO other", *statements)
    with pytest.raises(TraceError):
        read_devices(path)


@named_cases(
    "statement",
    {
        "a column that is computed when read": f"ALTER TABLE {KERNELS} ADD COLUMN"
        " graphId AS (length(hex(zeroblob(100000000))))",
        "a trigger": f"CREATE TRIGGER t AFTER INSERT ON {KERNELS} BEGIN DELETE FROM {KERNELS}; END",
        "a long text that names nothing": f"INSERT INTO StringIds VALUES (99, '{'x' * 3_000_000}')",
    },
)
def test_what_else_a_database_may_hold_changes_nothing(nsys, statement):
    assert len(read_devices(changed(nsys, statement))) == 1


def test_what_holds_no_work_of_a_device_is_refused(nsys):
    for tables in ({"kernels": [{"deviceId": 0}]}, {"kernels": [], "calls": [nsys.call(1, 2, 1)]}):
        with pytest.raises(TraceError, match="no work of a device"):
            read_devices(changed(nsys, **tables))
        nsys.path.unlink()


@pytest.mark.parametrize("value", ["'text'", "NULL", "1.5", "x'00'", "-5", str(2**63 - 1)])
def test_a_row_without_proper_times_is_left_out_and_told(nsys, value):
    path = changed(
        nsys,
        f"UPDATE {KERNELS} SET start = {value} WHERE start = 50",
        kernels=[nsys.kernel(1, 2), nsys.kernel(50, 60)],
    )
    [trace] = read_devices(path)
    assert trace.spans.count == 1
    assert trace.caveats[0] == "1 kernels without a proper start and end were left out"


def test_text_that_is_not_utf_8_is_read_somehow(nsys):
    path = changed(nsys, "UPDATE StringIds SET value = CAST(x'ff67656d6d' AS TEXT) WHERE id = 1")
    [trace] = read_devices(path)
    assert trace.spans.names == ("\ufffdgemm",)


def test_a_name_of_many_megabytes_is_refused(nsys):
    path = changed(nsys, strings={1: "x" * 3_000_000})
    with pytest.raises(TraceError, match="too big"):
        read_devices(path)


def test_more_rows_or_bytes_than_the_limits_are_refused(nsys):
    path = nsys.write(kernels=[nsys.kernel(at, at + 1) for at in range(30)])
    with pytest.raises(TraceError, match="more than 20 events"):
        read_devices(path, ReadLimits(event_count=20))
    with pytest.raises(TraceError, match="more than 100 bytes on disk"):
        read_devices(path, ReadLimits(file_bytes=100))


def test_thousands_of_devices_are_refused(nsys):
    path = nsys.write(kernels=[nsys.kernel(1, 2, device=number) for number in range(2000)])
    with pytest.raises(TraceError, match="names 2000 devices"):
        read_devices(path)


def test_pages_that_stand_for_many_rows_end_at_the_limit(nsys):
    """A page of the tree that points at one leaf 100 times makes 100 times its rows."""
    path = nsys.write(kernels=[nsys.kernel(at, at + 1) for at in range(2000)])
    content = bytearray(path.read_bytes())
    with closing(sqlite3.connect(path)) as database:
        [(root,)] = database.execute(f"SELECT rootpage FROM sqlite_master WHERE name = '{KERNELS}'")
    page = (root - 1) * 4096
    cells = [
        int.from_bytes(content[page + 12 + 2 * at : page + 14 + 2 * at]) + page
        for at in range(int.from_bytes(content[page + 3 : page + 5]))
    ]
    for cell in cells:
        content[cell : cell + 4] = content[cells[0] : cells[0] + 4]
    path.write_bytes(content)
    with pytest.raises(TraceError, match="events"):
        read_devices(path, ReadLimits(event_count=1000))
