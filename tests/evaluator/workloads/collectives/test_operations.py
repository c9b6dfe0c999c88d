"""What setups make of the messages of a step, as plain arithmetic."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.workloads.collectives.operations import (
    Collective,
    Compression,
    DType,
    Operation,
    ReduceOp,
    Setup,
    carriers,
    sent_as,
)

KIB = 1024


def all_reduce(size_bytes, **changed):
    return Operation(collective=Collective.ALL_REDUCE, size_bytes=size_bytes, **changed)


BARRIER = Operation(collective=Collective.BARRIER, size_bytes=0)
OPERATIONS = st.builds(
    Operation,
    collective=st.sampled_from([Collective.ALL_REDUCE, *Collective]),
    size_bytes=st.integers(1, 5_000),
    dtype=st.sampled_from(DType),
    reduce_op=st.sampled_from(ReduceOp),
)
SETUPS = st.builds(
    Setup,
    fusion_bytes=st.integers(0, 20_000),
    chunk_count=st.integers(1, 9),
    compression=st.sampled_from(Compression),
)


@given(st.lists(OPERATIONS, max_size=20), SETUPS)
def test_every_message_is_carried_whole_once_and_in_order_with_equal_ones_alone(messages, setup):
    found = carriers(messages, setup)

    assert [carrier.first for carrier in found[:1]] == [0][: len(messages)]
    assert all(before.end == after.first for before, after in pairwise(found))
    assert [carrier.end for carrier in found[-1:]] == [len(messages)][: len(messages)]
    for carrier in found:
        own = messages[carrier.first : carrier.end]
        assert sum(part.element_count for part in carrier.parts) == sum(
            message.element_count for message in own
        )
        if len(own) > 1:
            assert {message.collective for message in own} == {Collective.ALL_REDUCE}
            assert len({(message.dtype, message.reduce_op) for message in own}) == 1
            assert sum(message.message_bytes for message in own) <= setup.fusion_bytes
        if own[0].collective is not Collective.ALL_REDUCE:
            assert carrier.parts == (own[0],)
            assert not carrier.is_copied


def test_by_default_each_message_is_a_call_on_its_own_tensor():
    found = carriers([all_reduce(KIB), all_reduce(KIB), BARRIER], Setup())

    assert [carrier.parts for carrier in found] == [
        (all_reduce(KIB),),
        (all_reduce(KIB),),
        (BARRIER,),
    ]
    assert not any(carrier.is_copied for carrier in found)


@pytest.mark.parametrize(
    ("sizes", "setup", "calls"),
    [
        ([KIB] * 5, {"fusion_bytes": 2 * KIB}, [[2 * KIB], [2 * KIB], [KIB]]),
        ([KIB, 3 * KIB, KIB], {"fusion_bytes": 2 * KIB}, [[KIB], [3 * KIB], [KIB]]),
        ([40], {"chunk_count": 4}, [[12, 12, 8, 8]]),
        ([8], {"chunk_count": 5}, [[4, 4]]),
        (
            [40] * 2,
            {"fusion_bytes": 80, "chunk_count": 2, "compression": Compression.FP16},
            [[20, 20]],
        ),
    ],
    ids=["until one does not fit", "too large", "equal parts", "few elements", "all together"],
)
def test_neighbours_are_put_together_cut_and_made_smaller_as_the_setup_says(sizes, setup, calls):
    found = carriers([all_reduce(size) for size in sizes], Setup(**setup))

    assert [[part.size_bytes for part in carrier.parts] for carrier in found] == calls


@pytest.mark.parametrize(
    "between",
    [BARRIER, all_reduce(4, dtype=DType.INT32), all_reduce(4, reduce_op=ReduceOp.MAX)],
    ids=str,
)
def test_what_differs_parts_its_neighbours(between):
    found = carriers([all_reduce(4), between, all_reduce(4)], Setup(fusion_bytes=KIB))

    assert len(found) == 3


@pytest.mark.parametrize(
    ("message", "sent"),
    [
        (all_reduce(8), all_reduce(4, dtype=DType.BFLOAT16)),
        (all_reduce(8, dtype=DType.FLOAT64), all_reduce(2, dtype=DType.BFLOAT16)),
        (all_reduce(8, dtype=DType.FLOAT16), all_reduce(8, dtype=DType.FLOAT16)),
        (all_reduce(8, dtype=DType.INT64), all_reduce(8, dtype=DType.INT64)),
        (Operation(collective=Collective.REDUCE, size_bytes=8),) * 2,
    ],
    ids=str,
)
def test_only_wide_floating_point_numbers_of_all_reduces_are_compressed(message, sent):
    assert sent_as(message, Compression.BF16) == sent
    assert sent_as(message, Compression.NONE) == message
