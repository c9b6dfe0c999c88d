"""What NCCL's NVTX ranges tell of kernels that were launched inside them."""

import json
import struct

import pytest

from evaluator.traces.model import CollectiveKind, RankGroup


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


@pytest.mark.parametrize(
    ("operation", "kind", "whole_bytes"),
    [
        ("ncclAllReduce", CollectiveKind.ALL_REDUCE, 1024),
        ("ncclAllGather", CollectiveKind.ALL_GATHER, 4096),
        ("ncclReduceScatter", CollectiveKind.REDUCE_SCATTER, 4096),
        ("ncclAlltoAll", CollectiveKind.ALL_TO_ALL, 4096),
        ("ncclBroadcast", CollectiveKind.BROADCAST, 1024),
        ("ncclSend", CollectiveKind.SEND, 1024),
    ],
)
def test_the_range_around_a_launch_tells_kind_group_and_whole_buffer(
    nsys, told, operation, kind, whole_bytes
):
    found = told([nsys.ALL_REDUCE], [nsys.marked(10, 15, operation, payload=payload(1024))])
    assert found.kind.tolist() == [kind]
    assert found.bytes.tolist() == [whole_bytes]
    assert found.groups == (RankGroup("77", None, 4),)


def test_a_part_of_a_group_of_unknown_size_tells_no_whole(nsys, told):
    found = told(
        [nsys.ALL_REDUCE], [nsys.marked(10, 15, "ncclAllGather", payload=payload(1024))], init=None
    )
    assert found.bytes.tolist() == [0]


def test_numbers_with_commas_are_numbers(nsys, told):
    found = told(
        [nsys.ALL_REDUCE], [nsys.marked(10, 15, "ncclAllReduce", payload=payload("1,024"))]
    )
    assert found.bytes.tolist() == [1024]


@pytest.mark.parametrize("text", ["", "no json", "[1]", '{"Message size [bytes]": []}', 9000 * "["])
def test_a_payload_that_cannot_be_read_tells_nothing_but_the_kind(nsys, told, text):
    found = told([nsys.ALL_REDUCE], [nsys.marked(10, 15, "ncclAllReduce", payload=text)])
    assert found.kind.tolist() == [CollectiveKind.ALL_REDUCE]
    assert found.bytes.tolist() == [0]


def grouped(nsys, *operations):
    """A group whose end, from 10 to 20, launches."""
    inner = [nsys.marked(6, 7, name, payload=payload(size)) for name, size in operations]
    return [nsys.marked(2, 3, "ncclGroupStart"), *inner, nsys.marked(10, 20, "ncclGroupEnd")]


def test_a_group_of_calls_in_one_kernel_is_their_sum(nsys, told):
    found = told([nsys.ALL_REDUCE], grouped(nsys, ("ncclAllReduce", 64), ("ncclAllReduce", 32)))
    assert found.bytes.tolist() == [96]


def test_kernels_that_share_a_group_of_calls_are_known_by_name_only(nsys, told):
    ranges = grouped(nsys, ("ncclAllReduce", 64), ("ncclAllReduce", 32))
    ranges[-1]["end"] = 30
    found = told([nsys.ALL_REDUCE, nsys.ALL_REDUCE], ranges)
    assert found.kind.tolist() == 2 * [CollectiveKind.ALL_REDUCE]
    assert found.bytes.tolist() == [0, 0]


def test_everyone_sending_to_everyone_is_all_to_all(nsys, told):
    found = told([nsys.SEND_RECV], grouped(nsys, *4 * [("ncclSend", 8)], *4 * [("ncclRecv", 8)]))
    assert found.kind.tolist() == [CollectiveKind.ALL_TO_ALL]
    assert found.bytes.tolist() == [32]


def test_one_message_each_way_is_a_transfer(nsys, told):
    found = told([nsys.SEND_RECV], grouped(nsys, ("ncclSend", 8), ("ncclRecv", 8)))
    assert found.kind.tolist() == [CollectiveKind.SEND_RECV]
    assert found.bytes.tolist() == [8]


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
