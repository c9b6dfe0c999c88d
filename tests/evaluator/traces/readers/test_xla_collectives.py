"""What operations of XLA do, how much they move and between whom, told by their text."""

import pytest

from evaluator.traces.model import Activity, CollectiveKind, RankGroup
from evaluator.traces.readers.marks import collective_kind
from evaluator.traces.readers.read import read_folder
from evaluator.traces.readers.xla.reader import activity_of, participants, result_bytes


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
            {"name": "c.1", "pid": 1 + number, "tid": 3, "ts": 1, "dur": 1}
            | {"ph": "X", "args": {"hlo_category": "reduce-scatter", "long_name": text}}
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
