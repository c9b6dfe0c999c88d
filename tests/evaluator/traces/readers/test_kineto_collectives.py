"""What a Kineto trace tells of its collectives: kind, size, group and number, never a guess."""

import pytest

from evaluator.traces.analysis.collectives import match
from evaluator.traces.model import CollectiveKind, RankGroup
from evaluator.traces.readers.marks import collective_kind
from evaluator.traces.readers.read import read_traces
from tests.support.kineto import GLOO_THREAD, NCCL, kernel, launch, span, trace_of, write
from tests.support.traces import named_cases, value_of

GROUP = {
    "Group size": 2,
    "dtype": "BFloat16",
    "Process Group Name": "3",
    "Process Group Ranks": "[0, 4]",
}


def nccl(name, puts, gets, ts=0, kernel_name="ncclDevKernel_Generic(x)", **args):
    told = {"Collective name": name, "In msg nelems": puts, "Out msg nelems": gets, **GROUP, **args}
    return kernel(kernel_name, ts, 5, **told)


def only(trace):
    columns = trace.collectives
    assert columns.count == 1
    return CollectiveKind(columns.kind[0]), int(columns.bytes[0])


@pytest.mark.parametrize(
    ("name", "puts", "gets", "kind", "elements"),
    [
        ("allreduce", 100, 100, CollectiveKind.ALL_REDUCE, 100),
        ("_allgather_base", 100, 200, CollectiveKind.ALL_GATHER, 200),
        ("allgather_into_tensor_coalesced", 100, 200, CollectiveKind.ALL_GATHER, 200),
        ("_reduce_scatter_base", 200, 100, CollectiveKind.REDUCE_SCATTER, 200),
        ("all_to_allv", 150, 300, CollectiveKind.ALL_TO_ALL, 150),
        ("broadcast", 100, 100, CollectiveKind.BROADCAST, 100),
        ("send", 100, 0, CollectiveKind.SEND, 100),
        ("recv", 0, 100, CollectiveKind.RECV, 100),
    ],
)
def test_arguments_tell_what_a_kernel_does_and_how_much(tmp_path, name, puts, gets, kind, elements):
    trace = trace_of(tmp_path, nccl(name, puts, gets, Seq=7), distributed=NCCL)
    assert only(trace) == (kind, 2 * elements)
    assert trace.collectives.groups == (RankGroup("3", (0, 4), 2),)
    assert trace.collectives.sequence.tolist() == [7]


def test_what_is_not_told_is_not_made_up(tmp_path):
    silent = kernel("ncclDevKernel_AllReduce_Sum_f32", 0, 5)
    trace = trace_of(tmp_path, silent, distributed=NCCL)
    assert only(trace) == (CollectiveKind.ALL_REDUCE, 0)
    assert trace.collectives.groups == (RankGroup("", None, None),)
    assert trace.collectives.sequence.tolist() == [-1]
    strange = trace_of(tmp_path, nccl("allreduce", 9, 9, dtype="Posit16"), distributed=NCCL)
    assert only(strange) == (CollectiveKind.ALL_REDUCE, 0)


@pytest.mark.parametrize("ranks", ["[0, 1, ..., 7]", "[0, 1, 2", "", "[0, 1]", "[-1, 0]"])
def test_a_list_of_ranks_cut_short_is_taken_from_the_header_or_none(tmp_path, ranks):
    event = nccl("allreduce", 9, 9, **{"Process Group Ranks": ranks, "Group size": 3})
    known = {"pg_name": "3", "pg_size": 3, "ranks": [0, 4, 8]}
    told = trace_of(tmp_path, event, distributed={**NCCL, "pg_config": [known]})
    assert told.collectives.groups == (RankGroup("3", (0, 4, 8), 3),)
    untold = trace_of(tmp_path, event, distributed=NCCL)
    assert untold.collectives.groups == (RankGroup("3", None, 3),)


def test_the_call_around_the_launch_tells_of_a_kernel_that_does_not(tmp_path):
    call = {"Input Dims": [[100, 3]], "Input type": ["float"]}
    trace = trace_of(
        tmp_path,
        span("user_annotation", "nccl:all_to_all", 0, 10, **call),
        launch(3, 5),
        launch(12, 6),
        kernel("ncclKernel_SendRecv_RING", 20, 5, correlation=5),
        kernel("ncclKernel_SendRecv_RING", 30, 5, correlation=6),
        distributed=NCCL,
    )
    told = trace.collectives
    assert told.kind.tolist() == [CollectiveKind.ALL_TO_ALL, CollectiveKind.SEND_RECV]
    assert told.bytes.tolist() == [1200, 0]


@pytest.mark.parametrize(
    ("call", "kernel_name", "size"),
    [
        ("all_reduce", "ncclKernel_AllReduce_RING_LL_Sum_float", 1600),
        ("_reduce_scatter_base", "ncclKernel_ReduceScatter_RING_LL_Sum_float", 1600),
        ("_all_gather_base", "ncclKernel_AllGather_RING_LL_Sum_int8_t", 0),
        ("broadcast", "ncclKernel_AllReduce_RING_LL_Sum_float", 0),
    ],
)
def test_a_kernel_without_arguments_has_the_bytes_of_its_call(tmp_path, call, kernel_name, size):
    inputs = {"Input Dims": [[100, 3], [100]], "Input type": ["float", "float"]}
    trace = trace_of(
        tmp_path,
        span("user_annotation", f"nccl:{call}", 0, 10, **inputs),
        launch(3, 5),
        kernel(kernel_name, 20, 5, correlation=5),
        distributed=NCCL,
    )
    assert trace.collectives.bytes.tolist() == [size]


def test_the_bytes_of_a_call_are_of_none_of_its_several_kernels(tmp_path):
    name, inputs = "ncclKernel_AllReduce_RING_LL_Sum_float", [[100], [200]]
    told = {"Input Dims": inputs, "Input type": ["float", "float"]}
    trace = trace_of(
        tmp_path,
        span("user_annotation", "nccl:all_reduce", 0, 10, **told),
        *(launch(3, 5), launch(6, 6)),
        *(kernel(name, ts, 5, correlation=call) for ts, call in ((20, 5), (30, 6))),
        distributed=NCCL,
    )
    assert trace.collectives.bytes.tolist() == [0, 0]


def test_annotations_of_nccl_are_not_counted_beside_their_kernels(tmp_path):
    trace = trace_of(
        tmp_path,
        span("user_annotation", "nccl:all_reduce", 0, 10),
        nccl("allreduce", 9, 9, ts=20),
        span("gpu_user_annotation", "nccl:all_reduce", 20, 5),
        distributed=NCCL,
    )
    assert trace.collectives.count == 1


def nameless_job(folder, *sizes_of_rank, world_size=None):
    """One all-reduce of 10 us each 100 us, of so many floats."""
    paths = []
    for rank, sizes in enumerate(sizes_of_rank):
        events = []
        for i, size in enumerate(sizes):
            told = {"Input Dims": [[size]], "Input type": ["float"]}
            events += [
                span("user_annotation", "nccl:all_reduce", 100 * i, 10, **told),
                launch(100 * i + 3, i + 1),
                kernel("ncclKernel_AllReduce_RING", 100 * i + 20, 10, correlation=i + 1),
            ]
        told = NCCL | {"rank": rank, "world_size": world_size or len(sizes_of_rank)}
        document = {"distributedInfo": told, "traceEvents": events}
        paths.append(write(folder, document, f"rank{rank}.json"))
    return read_traces(paths)


def test_nameless_collectives_of_all_ranks_are_matched_in_order_with_a_caveat(tmp_path):
    traces = nameless_job(tmp_path, [1000, 2000], [1000, 2000], [1000, 2000])
    found = match(traces)
    assert found.row.tolist() == [[0, 0, 0], [1, 1, 1]]
    assert found.bytes.tolist() == [4000, 8000]
    assert found.complete.all()
    assert traces.remarks[0].startswith("6 collectives name no group and are taken to be of all 3")
    assert value_of("bw_allreduce", traces) == pytest.approx(12_000 * 4 / 3 / 20_000)


def test_nameless_collectives_of_other_counts_or_sizes_are_not_matched_and_say_why(tmp_path):
    fewer = nameless_job(tmp_path, [1000, 2000], [1000, 2000], [1000])
    assert match(fewer).count == 0
    assert "5 are not equally many on all ranks" in value_of("bw_allreduce", fewer)
    smaller = nameless_job(tmp_path, [1000], [1000], [500])
    assert "3 are not of one size on all ranks" in value_of("bw_allreduce", smaller)
    untraced = nameless_job(tmp_path, [1000], [1000], world_size=3)
    assert match(untraced).count == 0
    assert "do not say which ranks take part" in value_of("bw_allreduce", untraced)


def gloo(name, ts, elements, number, thread=GLOO_THREAD):
    told = {"Input Dims": [[elements]], "Input type": ["float"], "Record function id": number}
    return span("user_annotation", f"gloo:{name}", ts, 5, tid=thread, **told)


def c10d(name, ts, sizes, number):
    told = {
        "Input Dims": [[size] for size in sizes],
        "Input type": ["float"] * len(sizes),
        "Record function id": number,
    }
    return span("cpu_op", f"c10d::{name}", ts, 1, **told)


ONE_GROUP = {
    "backend": "gloo",
    "rank": 0,
    "world_size": 2,
    "pg_config": [{"pg_name": "0", "pg_size": 2, "ranks": [0, 1]}],
}


REDUCE, SCATTER = CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER
GATHER, SEND = CollectiveKind.ALL_GATHER, CollectiveKind.SEND


def in_turn(numbers):
    """An all-reduce, a reduce-scatter and an all-gather with these numbers."""
    return [
        c10d("allreduce_", 0, [], numbers[0]),
        gloo("all_reduce", 2, 300, numbers[1]),
        c10d("_reduce_scatter_base_", 3, [100, 200], numbers[2]),
        gloo("all_reduce", 9, 200, numbers[3], thread=3),
        c10d("_allgather_base_", 10, [200, 100], numbers[4]),
        gloo("all_gather", 20, 100, numbers[5]),
    ]


ONE_SCATTER = [c10d("_reduce_scatter_base_", 3, [100, 200], 2), gloo("all_reduce", 9, 200, 3)]


@named_cases(
    ("events", "kinds", "sizes"),
    {
        "numbered": (in_turn(range(10, 16)), [REDUCE, SCATTER, GATHER], [1200, 800, 800]),
        "without numbers": (in_turn([0] * 6), [REDUCE, SCATTER, GATHER], [1200, 800, 800]),
        "spans of calls before the profile do not shift the others": (
            [gloo("all_reduce", 0, 300, 1), *ONE_SCATTER],
            [REDUCE, SCATTER],
            [1200, 800],
        ),
        "of a job on devices": ([kernel("gemm", 0, 1), *ONE_SCATTER], [SCATTER], [800]),
    },
)
def test_reduce_scatters_of_gloo_are_told_from_its_all_reduces(tmp_path, events, kinds, sizes):
    trace = trace_of(tmp_path, *events, distributed=ONE_GROUP)
    assert trace.collectives.kind.tolist() == kinds
    assert trace.collectives.bytes.tolist() == sizes
    assert trace.collectives.groups == (RankGroup("0", (0, 1), 2),)


def test_a_gather_in_an_unknown_group_has_no_size(tmp_path):
    trace = trace_of(tmp_path, gloo("all_gather", 0, 300, 1), gloo("send", 9, 10, 2))
    assert trace.collectives.kind.tolist() == [GATHER, SEND]
    assert trace.collectives.bytes.tolist() == [0, 40]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)", CollectiveKind.REDUCE_SCATTER),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(x)", CollectiveKind.REDUCE),
        ("ncclDevKernel_SendRecv(x)", CollectiveKind.SEND_RECV),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<x>(y)", CollectiveKind.ALL_REDUCE),
        ("void vllm::cross_device_reduce_1stage<half, 2>(x)", CollectiveKind.ALL_REDUCE),
        ("deep_ep::intranode::dispatch<4>", CollectiveKind.ALL_TO_ALL),
        ("ncclDevKernel_Generic(all_reduce)", CollectiveKind.OTHER),
        ("alltoall_base", CollectiveKind.ALL_TO_ALL),
        ("c10d::_allgather_base_", CollectiveKind.ALL_GATHER),
        ("reduce-scatter", CollectiveKind.REDUCE_SCATTER),
        ("gloo:barrier", CollectiveKind.BARRIER),
        ("scatter", CollectiveKind.SCATTER),
        ("gather", CollectiveKind.GATHER),
    ],
)
def test_names_say_what_a_collective_does(name, kind):
    assert collective_kind(name) is kind
