"""Chakra traces of others: durations become a schedule, and what is not understood is refused."""

import tarfile
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.traces.model import Activity, CollectiveKind, RankGroup
from evaluator.traces.readers.chakra.reader import SCHEDULED
from evaluator.traces.readers.files import STANDARD_LIMITS
from evaluator.traces.readers.read import read_folder
from records.errors import TraceError
from tests.support.traces import SYNTHETIC, named_cases
from tests.support.xla import number, text

LOAD, COMPUTE, SEND, RECEIVE, COLLECTIVE = 2, 4, 5, 6, 7
ALL_REDUCE, ALL_GATHER = 0, 2


def attribute(name, value):
    match value:
        case bytes():
            content = value
        case str():
            content = text(29, value)
        case _:
            content = number(27 if isinstance(value, bool) else 9, int(value))
    return text(10, text(1, name) + content)


def node(id, us=0, *, type=COMPUTE, name="gemm", after=(), control=(), **attributes):
    waits = b"".join(number(5, one) for one in after) + b"".join(number(4, one) for one in control)
    stated = b"".join(attribute(*one) for one in attributes.items())
    return number(1, id) + text(2, name) + number(3, type) + waits + number(7, us) + stated


def collective(id, us, after=(), **attributes):
    stated = {"comm_type": ALL_REDUCE, "comm_size": 1024} | attributes
    return node(id, us, type=COLLECTIVE, name="nccl", after=after, **stated)


def delimited(message):
    return text(1, message)[1:]


def written(folder, *nodes, rank=0):
    """A file of a rank; returns its folder."""
    content = b"".join(map(delimited, (text(1, "0.0.4"), *nodes)))
    (folder / f"job.{rank}.et").write_bytes(content)
    return folder


def spans(trace):
    """Name, start and end in microseconds of each span."""
    rows = trace.spans
    times = zip(rows.name_id, rows.start_ns // 1000, rows.end_ns // 1000, strict=True)
    return [(rows.names[name], int(start), int(end)) for name, start, end in times]


def test_a_node_starts_once_its_stream_is_free_and_what_it_waits_for_has_ended(tmp_path):
    written(
        tmp_path,
        node(1, 10, name="first"),
        node(2, 5, name="other stream", stream=7, after=[1]),
        node(3, 20, name="second"),
        node(4, 1, name="last", after=[2, 3]),
    )

    traces = read_folder(tmp_path)

    assert spans(traces.ranks[0]) == [
        ("first", 0, 10),
        ("other stream", 10, 15),
        ("second", 10, 30),
        ("last", 30, 31),
    ]
    assert SCHEDULED in traces.caveats
    waits = traces.ranks[0].waits
    names = [name for name, _, _ in spans(traces.ranks[0])]
    pairs = zip(waits.source, waits.target, strict=True)
    assert {(names[source], names[target]) for source, target in pairs} == {
        ("first", "other stream"),
        ("other stream", "last"),
        ("second", "last"),
    }


def test_of_nodes_that_could_start_the_lowest_id_goes_first(tmp_path):
    written(tmp_path, node(9, 1, name="b"), node(3, 1, name="a"), node(11, 1, name="c"))

    assert [name for name, _, _ in spans(read_folder(tmp_path).ranks[0])] == ["a", "b", "c"]


def test_a_collective_ends_on_all_ranks_after_the_last_has_come(tmp_path):
    written(tmp_path, node(1, 10), collective(2, 50, after=[1]), rank=0)
    written(tmp_path, node(1, 40), collective(2, 20, after=[1]), rank=1)

    traces = read_folder(tmp_path)

    assert [spans(trace)[1] for trace in traces.ranks] == [("nccl", 10, 60), ("nccl", 40, 60)]
    assert traces.ranks[0].collectives.groups == (RankGroup("", (0, 1), 2),)


def test_a_transfer_joins_its_sender_and_its_receiver(tmp_path):
    ends = {"comm_src": 1, "comm_dst": 0, "comm_tag": 3, "comm_size": 64}
    written(tmp_path, node(1, 1), node(2, 9, type=RECEIVE, after=[1], **ends), rank=0)
    written(tmp_path, node(1, 5), node(2, 9, type=SEND, after=[1], **ends), rank=1)

    zero, one = read_folder(tmp_path).ranks

    assert (spans(zero)[1][1:], spans(one)[1][1:]) == ((1, 14), (5, 14))
    assert zero.collectives.kind.tolist() == [CollectiveKind.RECV]
    assert one.collectives.groups == (RankGroup("0-1", (0, 1), 2),)


def test_kinds_sizes_and_groups_are_those_of_the_file(tmp_path):
    listed = '["[{"pg_name": "3", "ranks": [0, 1, 2, 3]}]"]'
    groups = number(1, 1) + text(2, "## process_group:init ##") + number(3, 1)
    written(
        tmp_path,
        groups + text(8, text(1, listed)),
        collective(2, 5, comm_type=ALL_GATHER, comm_size=100, pg_name="3"),
        node(3, 5, name="Memcpy HtoD"),
        node(4, 5, type=LOAD, name="weights"),
    )

    (trace,) = read_folder(tmp_path).ranks

    assert trace.collectives.kind.tolist() == [CollectiveKind.ALL_GATHER]
    assert trace.collectives.bytes.tolist() == [400]
    assert trace.collectives.groups == (RankGroup("3", (0, 1, 2, 3), 4),)
    assert trace.world_size == 4
    assert trace.covered(Activity.COPY).total_ns == 10_000


def test_what_a_host_launches_belongs_to_its_last_node_before_it(tmp_path):
    written(
        tmp_path,
        node(1, 10, name="operator", is_cpu_op=True),
        node(2, 3, name="cudaLaunchKernel", is_cpu_op=True, after=[1]),
        node(3, 20, after=[1, 2]),
        node(4, 2, name="cudaStreamSynchronize", is_cpu_op=True, after=[2, 3]),
    )

    (trace,) = read_folder(tmp_path).ranks
    found = dict(zip([name for name, _, _ in spans(trace)], trace.spans.correlation, strict=True))

    assert found["gemm"] == found["cudaLaunchKernel"] != 0
    assert ("cudaStreamSynchronize", 13, 35) in spans(trace)


def test_control_dependencies_count_only_where_there_are_no_others(tmp_path):
    written(tmp_path, node(1, 10, control=[2], stream=1), node(2, 5, stream=2))
    alone = spans(read_folder(tmp_path).ranks[0])
    written(tmp_path, node(1, 10, control=[2], stream=1), node(2, 5, stream=2, after=[1]))
    among_others = spans(read_folder(tmp_path).ranks[0])

    assert [span[1:] for span in alone] == [(0, 5), (5, 15)]
    assert [span[1:] for span in among_others] == [(0, 10), (10, 15)]


def test_dependencies_on_nodes_that_are_missing_hold_nothing_back(tmp_path):
    written(tmp_path, node(1, 10, after=[77]))

    traces = read_folder(tmp_path)

    assert spans(traces.ranks[0]) == [("gemm", 0, 10)]
    assert any("1 dependencies name nodes that the file does not have" in c for c in traces.caveats)


@named_cases(
    ["nodes", "what"],
    {
        "an unknown type": ([node(1, 5, type=8)], "a node of type 8, which is not understood"),
        "an unknown collective": (
            [collective(1, 5, comm_type=77)],
            "a comm_type 77, which is not understood",
        ),
        "an attribute of another type": (
            [collective(1, 5, comm_size=text(29, "9"))],
            "an attribute comm_size that is not a whole number",
        ),
        "an id of two nodes": ([node(1, 5), node(1, 5)], "two nodes with the id 1"),
        "a circle": ([node(1, 5, after=[2]), node(2, 5, after=[1])], "node 1 never ends"),
        "a node that waits for itself": ([node(1, 5, after=[1])], "node 1 never ends"),
        "no durations": ([node(1, 0)], "has no durations.*cclsearch trace chakra TRACES -o FOLDER"),
        "only a host": ([node(1, 5, is_cpu_op=True)], "no node of a device"),
        "no nodes": ([], "a Chakra trace without nodes"),
        "an endless duration": ([node(1, 1 << 60)], "a node that lasts for months"),
        "a transfer of other ranks": (
            [node(1, 5, type=SEND, comm_src=2, comm_dst=3)],
            "a transfer from rank 2 to 3, as rank 0",
        ),
        "groups that are not JSON": (
            [number(1, 1) + text(2, "## process_group:init ##") + number(3, 1)
             + text(8, text(1, "nothing"))],
            "unreadable process groups",
        ),
    },
)  # fmt: skip
def test_what_is_not_understood_is_refused_in_one_line(tmp_path, nodes, what):
    with pytest.raises(TraceError, match=what) as refused:
        read_folder(written(tmp_path, *nodes))
    assert "\n" not in str(refused.value)


def test_ranks_that_come_to_collectives_in_different_orders_are_refused(tmp_path):
    one, other = collective(1, 5), collective(2, 5, comm_type=ALL_GATHER)
    written(tmp_path, one, other, rank=0)
    first, second = collective(1, 5, after=[2]), collective(2, 5, comm_type=ALL_GATHER)
    written(tmp_path, first, second, rank=1)

    with pytest.raises(TraceError, match="collectives in different orders"):
        read_folder(tmp_path)


def test_nodes_and_dependencies_are_limited(tmp_path):
    written(tmp_path, node(1, 5), node(2, 5, after=[1, 1, 1]))

    with pytest.raises(TraceError, match="more than 5 nodes and dependencies"):
        read_folder(tmp_path, limits=replace(STANDARD_LIMITS, event_count=5))


def test_files_of_several_ranks_have_their_rank_in_their_name(tmp_path):
    written(tmp_path, node(1, 5))
    (tmp_path / "job.0.et").rename(tmp_path / "job.et")
    assert [trace.rank for trace in read_folder(tmp_path).ranks] == [0]

    written(tmp_path, node(1, 5), rank=1)
    with pytest.raises(TraceError, match=r"job\.et: has no rank in its name"):
        read_folder(tmp_path)


def test_graphs_next_to_a_profile_are_left_out(tmp_path):
    written(tmp_path, node(1, 5))
    (tmp_path / "rank0.json.gz").symlink_to(SYNTHETIC / "rank0_trace.json.gz")

    traces = read_folder(tmp_path, use_cache=False)

    assert traces.ranks[0].source == "kineto"
    assert "left out: job.0.et is a Chakra trace next to a profiler's" in traces.remarks


SOUND = b"".join(
    map(
        delimited,
        (
            text(1, "0.0.4") + text(2, text(1, "device") + text(29, "H100")),
            number(1, 0) + text(2, "## process_group:init ##") + number(3, 1)
            + text(8, text(1, '["[{"pg_name": "0", "ranks": [0, 1]}]"]')),
            node(1, 10, is_cpu_op=True),
            node(2, 30, after=[1], stream=7, start_ns=5, end_ns=9, step=1),
            collective(3, 20, after=[2], pg_name="0", sequence=4),
        ),
    )
)  # fmt: skip


@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_and_never_anything_else(tmp_path, data):
    content = bytearray(SOUND[: data.draw(st.integers(9, len(SOUND)))])
    for _ in range(data.draw(st.integers(0, 6))):
        content[data.draw(st.integers(8, len(content) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "job.0.et").write_bytes(content)

    try:
        traces = read_folder(tmp_path)
    except TraceError as error:
        assert "\n" not in str(error)
    else:
        assert traces.ranks[0].has_work


@given(data=st.data())
def test_no_node_starts_before_what_it_waits_for_and_no_stream_runs_two(tmp_path, data):
    count = data.draw(st.integers(1, 12))
    waits = [data.draw(st.sets(st.integers(0, one - 1))) if one else set() for one in range(count)]
    lanes = [data.draw(st.integers(0, 2)) for _ in range(count)]
    durations = [data.draw(st.integers(1, 9)) for _ in range(count)]
    nodes = zip(range(count), durations, waits, lanes, strict=True)
    written(
        tmp_path,
        *(node(i, us, name=str(i), after=w, stream=lane) for i, us, w, lane in nodes),
    )

    found = {int(name): times for name, *times in spans(read_folder(tmp_path).ranks[0])}

    assert all(found[w][1] <= found[i][0] for i in range(count) for w in waits[i])
    assert [end - start for _, (start, end) in sorted(found.items())] == durations
    for lane in range(3):
        own = sorted(found[i] for i in range(count) if lanes[i] == lane)
        assert all(one[1] <= other[0] for one, other in pairwise(own))


def test_a_trace_that_pytorch_and_its_converter_wrote_is_read(tmp_path, recorded_data):
    with tarfile.open(recorded_data / "traces/et/chakra_feeder_tests_trace.tar.gz") as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # from 3.11.4 on
        packed.extractall(tmp_path)

    traces = read_folder(tmp_path)
    (trace,) = traces.ranks

    assert SCHEDULED in traces.caveats
    assert trace.collectives.kind.tolist().count(CollectiveKind.ALL_REDUCE) == 5
    assert trace.spans.doing(Activity.COMPUTE, Activity.COPY, Activity.COMMUNICATION).sum() == 1216
    assert trace.communicating().total_ns == 36_715_000


def test_an_execution_trace_of_pytorch_is_refused_with_what_to_read(recorded_data):
    with pytest.raises(TraceError, match=r"cclsearch trace breakdown PROFILE\.json"):
        read_folder(recorded_data / "traces/et/resnet_2gpu_et.json.gz")
