"""What a benchmark is asked for: every misuse by its own code, and all of them at once."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.collective_bench.record import size_bytes, size_chain
from evaluator.collective_bench.request import BenchContext, BenchPlan, read_plan
from evaluator.rank.protocol import RankNumbers
from evaluator.workloads.collectives.operations import AdapterName, Collective, DType, ReduceOp

VALID = {"collective": "all_reduce"}
HERE = BenchContext()


def ranks(count):
    return RankNumbers(rank=0, local_rank=0, world_size=count)


def codes(asked, here=HERE):
    found = read_plan(asked, here)
    assert isinstance(found, tuple)
    return [fault.code for fault in found]


def plan(here=HERE, **changes):
    found = read_plan({**VALID, **changes}, here)
    assert isinstance(found, BenchPlan), [str(fault) for fault in found]
    return found


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"collective": "all_redcue"}, "collective", "did you mean 'all_reduce'?"),
        ({"adapters": ("cd10",)}, "comm-adapter", "did you mean 'c10d'?"),
        ({"adapters": ("c10d", "mpi")}, "comm-adapter", "c10d and mpi are several adapters"),
        ({"all_adapters": True, "backend": "gloo"}, "backend", "leave it out"),
        ({"device": "gpu"}, "device", "did you mean 'cpu'?"),
        ({"device": "cuda"}, "device", "there is no GPU here; give cpu"),
        ({"min_size": "0"}, "min-size", "give bytes above 0"),
        ({"min_size": "64", "max_size": "32"}, "max-size", "below --min-size 64"),
        ({"max_size": "96"}, "size-chain", "give 64 or 128"),
        ({"min_size": "6", "max_size": "12"}, "element-size", "--min-size is 6"),
        ({"min_size": "4", "max_size": "32", "dtype": "int64"}, "element-size", "8 bytes"),
        ({"size_scaling_factor": "1"}, "size-scaling-factor", "greater than or equal to 2"),
        ({"reduce_op": "sum", "collective": "all"}, "reduce-op", "not for all; name all_reduce"),
        ({"reduce_op": "sum", "collective": "gather"}, "reduce-op", "no effect on gather"),
        ({"reduce_op": "avg", "dtype": "int"}, "average", "whole numbers such as int32"),
        ({"iters": "0"}, "iters", "greater than or equal to 1"),
        ({"sync_interval": "11", "iters": "10"}, "sync-interval", "more than the 10 of --iters"),
        ({"timeout": "0"}, "timeout", "greater than 0"),
        ({"timeout": "nan"}, "timeout", "finite number"),
        ({"bw_convention": "nccl-test"}, "bw-convention", "did you mean 'nccl-tests'?"),
        ({"rank_count": "0"}, "nproc-per-node", "greater than or equal to 1"),
        ({"collective": "send_recv", "rank_count": "1"}, "ranks", "send_recv needs two ranks"),
        ({"quiet": True}, "quiet", "add --csv"),
        ({"quiet": True, "csv": True, "as_json": True}, "quiet", "exclude each other"),
        ({"output_dir": "x"}, "output-dir", "add --csv"),
    ],
)
def test_each_misuse_has_its_code_and_says_what_to_do(changes, code, words):
    found = read_plan({**VALID, **changes}, HERE)

    assert isinstance(found, tuple)
    assert [fault.code for fault in found] == [code]
    assert words in found[0].message
    assert str(found[0]) == f"E-{code}: {found[0].message}"
    assert "\n" not in str(found[0])


@pytest.mark.parametrize(
    ("here", "changes", "code", "words"),
    [
        (BenchContext(numbers=ranks(4)), {"rank_count": "2"}, "nproc-per-node", "these 4 were"),
        (BenchContext(numbers=ranks(4)), {"rounds": "2"}, "rounds", "start the command once"),
        (BenchContext(numbers=ranks(1)), {"collective": "send_recv"}, "ranks", "needs two ranks"),
        (
            BenchContext(closed={AdapterName.MPI: "cannot join; use mpirun"}),
            {"adapters": ("mpi",)},
            "comm-adapter",
            "mpi cannot join; use mpirun",
        ),
        (BenchContext(gpu_count=2), {"rank_count": "3"}, "nproc-per-node", "at most 2"),
    ],
)
def test_what_the_surroundings_do_not_allow_has_its_code(here, changes, code, words):
    (fault,) = read_plan({**VALID, **changes}, here)

    assert fault.code == code
    assert words in fault.message


def test_every_option_that_cannot_be_read_is_reported():
    asked = dict.fromkeys(("warmup", "iters", "rounds", "collective", "dtype"), "x")
    assert codes(asked) == ["collective", "dtype", "warmup", "iters", "rounds"]


def test_everything_that_does_not_fit_together_is_reported():
    asked = {
        "collective": "gather",
        "adapters": ("c10d", "mpi"),
        "device": "cuda",
        "min_size": "64",
        "max_size": "32",
        "reduce_op": "sum",
        "iters": "1",
        "sync_interval": "2",
        "output_dir": "there",
        "quiet": True,
    }

    assert codes(asked) == [
        *("comm-adapter", "device", "max-size", "sync-interval", "reduce-op"),
        *("quiet", "output-dir"),
    ]


@pytest.mark.parametrize(
    ("alias", "dtype"),
    [("fp32", DType.FLOAT32), ("half", DType.FLOAT16), ("double", DType.FLOAT64)],
)
def test_number_formats_have_the_names_of_other_tools(alias, dtype):
    found = plan(dtype=alias, min_size="8", max_size="8", reduce_op="SUM")
    assert {(each.dtype, each.reduce_op) for each in found.operations} == {(dtype, ReduceOp.SUM)}


def test_without_options_it_is_a_sum_of_four_bytes_to_64_mebibytes():
    found = plan()

    assert [operation.size_bytes for operation in found.operations] == [4 << n for n in range(25)]
    assert {operation.reduce_op for operation in found.operations} == {ReduceOp.SUM}
    assert (found.rank_count, found.adapters, found.file_names) == (2, (), ("all_reduce.csv",))


def test_all_collectives_come_in_their_order_and_a_barrier_once():
    found = plan(collective="all", max_size="8")

    order = list(dict.fromkeys(operation.collective for operation in found.operations))
    assert order == list(Collective)
    assert [o.message_bytes for o in found.operations if o.collective is Collective.BARRIER] == [0]
    assert found.file_names == tuple(f"{collective}.csv" for collective in Collective)


def test_each_reduction_has_its_file_and_averages_of_whole_numbers_are_left_out():
    swept = plan(collective="reduce", reduce_op="ALL", max_size="4")
    whole = plan(reduce_op="all", dtype="int", max_size="4")

    assert (swept.file_names, swept.left_out) == (tuple(f"reduce_{op}.csv" for op in ReduceOp), ())
    assert plan(reduce_op="min").file_names == ("all_reduce_min.csv",)
    assert ReduceOp.AVG not in {operation.reduce_op for operation in whole.operations}
    assert whole.left_out == ("avg is left out: whole numbers have none",)


def test_ranks_are_the_gpus_if_there_are_any_and_those_of_a_launcher_above_all():
    assert plan(BenchContext(gpu_count=4)).rank_count == 4
    assert plan(BenchContext(gpu_count=4), device="cpu").rank_count == 2
    assert plan(BenchContext(gpu_count=4, numbers=ranks(3))).rank_count == 3


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("4096", 4096), ("64K", 65536), ("1M", 1 << 20), ("64MB", 64 << 20), ("2 gib", 2 << 30)),
        *((text, None) for text in ("", "K", "-4", "4.5", "4X", "0x10", "٤", "1" * 16)),
    ],
)
def test_sizes_are_read_with_units_of_1024(text, size):
    assert size_bytes(text) == size


@given(st.integers(1, 10_000), st.integers(2, 9), st.integers(0, 12))
def test_a_chain_of_sizes_ends_where_a_power_of_the_factor_ends(least, factor, power):
    sizes = size_chain(least, least * factor**power, factor)

    assert sizes[0] == least
    assert sizes[-1] == least * factor**power
    assert all(later == sooner * factor for sooner, later in pairwise(sizes))


@settings(max_examples=40)
@given(st.text())
def test_no_text_in_any_place_is_an_error_of_ours(text):
    places = ("collective", "min_size", "max_size", "dtype", "iters", "timeout")
    asked = dict.fromkeys(places, text)

    assert all("\n" not in str(fault) for fault in read_plan(asked, HERE))
