"""Tensors of a call, judged against exchanges worked out in one process."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from evaluator.workloads.collectives.adapters import mismatch, refill, tensors_for
from evaluator.workloads.collectives.operations import (
    REDUCING,
    Collective,
    DType,
    Operation,
    ReduceOp,
    Tensors,
)

CPU = torch.device("cpu")
SINGLE = tuple(collective for collective in Collective if collective.value.endswith("_single"))
TAKES_LISTS = (Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)
GIVES_LISTS = (Collective.ALL_GATHER, Collective.ALL_TO_ALL)
COMBINE: dict[ReduceOp, Callable[[Tensor], Tensor]] = {
    ReduceOp.SUM: lambda all_: all_.sum(0),
    ReduceOp.MIN: lambda all_: all_.amin(0),
    ReduceOp.MAX: lambda all_: all_.amax(0),
    ReduceOp.AVG: lambda all_: all_.mean(0),
    ReduceOp.PRODUCT: lambda all_: all_.prod(0),
}
OPERATIONS = st.builds(
    Operation,
    collective=st.sampled_from(Collective),
    size_bytes=st.integers(0, 40_000),
    dtype=st.sampled_from(DType),
    reduce_op=st.sampled_from(ReduceOp),
)


def made(operation: Operation, size: int, *, refilled: bool = True) -> list[Tensors]:
    """What every rank passes."""
    ranks = [tensors_for(operation, rank, size, CPU) for rank in range(size)]
    if refilled:
        for rank, tensors in enumerate(ranks):
            refill(operation, tensors, rank)
    return ranks


def wrong(operation: Operation, ranks: list[Tensors]) -> list[str | None]:
    return [mismatch(operation, tensors, rank, len(ranks)) for rank, tensors in enumerate(ranks)]


def exchange(operation: Operation, ranks: list[Tensors]) -> None:
    """Do to the tensors of all ranks what the collective promises."""
    sent = [torch.cat(tensors.inputs) if tensors.inputs else None for tensors in ranks]
    sent = [None if tensor is None else tensor.clone() for tensor in sent]
    for rank, tensors in enumerate(ranks):
        if tensors.outputs:
            out = _outcome(operation, sent, rank)
            for part, value in zip(
                tensors.outputs, out.split(len(tensors.outputs[0])), strict=True
            ):
                part.copy_(value)


def _outcome(operation: Operation, sent: list[Tensor], rank: int) -> Tensor:
    own = slice(rank * operation.element_count, (rank + 1) * operation.element_count)
    match operation.collective:
        case Collective.ALL_REDUCE:
            return _combined(operation, sent)
        case Collective.REDUCE:
            return _combined(operation, sent) if rank == 0 else sent[rank]
        case Collective.REDUCE_SCATTER | Collective.REDUCE_SCATTER_SINGLE:
            return _combined(operation, sent)[own]
        case Collective.ALL_TO_ALL | Collective.ALL_TO_ALL_SINGLE:
            return torch.cat([tensor[own] for tensor in sent])
        case Collective.BROADCAST:
            return sent[0]
        case Collective.SCATTER:
            return sent[0][own]
        case Collective.SEND_RECV:
            return sent[rank ^ 1]
        case _:
            return torch.cat(sent)


def _combined(operation: Operation, sent: list[Tensor]) -> Tensor:
    exact = torch.stack(sent).double()
    return COMBINE[operation.reduce_op](exact).to(operation.dtype.torch)


def meaningful(operation: Operation) -> bool:
    averages = operation.reduces and operation.reduce_op is ReduceOp.AVG
    return not (averages and operation.dtype.is_integer)


@given(operation=OPERATIONS, size=st.integers(1, 9))
def test_a_right_exchange_is_found_right_on_every_rank(operation, size):
    assume(meaningful(operation))
    ranks = made(operation, size)

    exchange(operation, ranks)

    assert wrong(operation, ranks) == [None] * size


@given(operation=OPERATIONS, size=st.integers(2, 9), choice=st.randoms(use_true_random=False))
def test_one_wrong_element_is_found_on_its_rank(operation, size, choice):
    assume(meaningful(operation) and operation.collective is not Collective.BARRIER)
    ranks = made(operation, size)
    exchange(operation, ranks)
    judged = [
        rank
        for rank in range(1 if operation.collective is Collective.REDUCE else size)
        if ranks[rank].outputs
    ]
    rank = choice.choice(judged)
    part = choice.choice(ranks[rank].outputs)
    part[choice.randrange(len(part))] *= 2

    found = wrong(operation, ranks)

    assert [number for number, line in enumerate(found) if line is not None] == [rank]


@given(operation=OPERATIONS, size=st.integers(2, 9))
def test_an_exchange_that_did_not_happen_is_found(operation, size):
    assume(meaningful(operation) and operation.collective is not Collective.BARRIER)
    # The least over ranks may be what the root has already.
    assume(operation.collective is not Collective.REDUCE or operation.element_count >= 10)

    ranks = made(operation, size)

    assert any(wrong(operation, ranks))


@given(
    collective=st.sampled_from(REDUCING),
    dtype=st.sampled_from(DType),
    size_bytes=st.integers(0, 4000),
    forgotten=st.integers(0, 8),
)
def test_a_sum_that_lacks_one_rank_is_found(collective, dtype, size_bytes, forgotten):
    operation = Operation(collective=collective, size_bytes=size_bytes, dtype=dtype)
    ranks = made(operation, 9)
    for part in ranks[forgotten].inputs:
        part.zero_()

    exchange(operation, ranks)

    assert wrong(operation, ranks)[0] is not None


@settings(max_examples=40)
@given(operation=OPERATIONS, size=st.integers(1, 9))
def test_calls_in_a_row_change_nothing_after_the_first(operation, size):
    assume(meaningful(operation))
    ranks = made(operation, size, refilled=False)
    before = [[part.clone() for part in tensors.inputs] for tensors in ranks]

    for _ in range(3):
        exchange(operation, ranks)

    after = [list(tensors.inputs) for tensors in ranks]
    assert all(
        torch.equal(a, b)
        for old, new in zip(before, after, strict=True)
        for a, b in zip(old, new, strict=True)
    )


@pytest.mark.parametrize("dtype", DType)
def test_elements_have_the_number_format_and_the_bytes_that_were_asked_for(dtype):
    operation = Operation(collective=Collective.ALL_GATHER_SINGLE, size_bytes=4096, dtype=dtype)

    tensors = tensors_for(operation, 0, 4, CPU)

    assert tensors.inputs[0].dtype is dtype.torch
    assert tensors.inputs[0].nbytes == 4096
    assert tensors.outputs[0].nbytes == 4 * 4096


def test_each_rank_passes_the_tensors_that_its_place_in_the_call_asks_for():
    def passed(collective, rank, size=3):
        return tensors_for(Operation(collective=collective, size_bytes=16), rank, size, CPU)

    assert [len(passed(Collective.SCATTER, rank).inputs) for rank in range(3)] == [3, 0, 0]
    assert [len(passed(Collective.GATHER, rank).outputs) for rank in range(3)] == [3, 0, 0]
    side_by_side = passed(Collective.ALL_TO_ALL, 0).outputs
    starts = [tensor.data_ptr() - side_by_side[0].data_ptr() for tensor in side_by_side]
    assert starts == [0, 16, 32]
    in_place = passed(Collective.ALL_REDUCE, 0, size=2)
    assert in_place.inputs[0] is in_place.outputs[0]
    ping_pong = Operation(collective=Collective.SEND_RECV, size_bytes=16)
    assert passed(Collective.SEND_RECV, 2) == Tensors()
    assert mismatch(ping_pong, Tensors(), 2, 3) is None


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32])
def test_rounding_among_many_ranks_is_no_mismatch(dtype):
    operation = Operation(
        collective=Collective.ALL_REDUCE, size_bytes=4096, dtype=dtype, reduce_op=ReduceOp.AVG
    )
    ranks = made(operation, 100)
    added = torch.zeros_like(ranks[0].inputs[0])
    for tensors in ranks:
        added += tensors.inputs[0] / 100

    ranks[0].outputs[0].copy_(added)

    assert mismatch(operation, ranks[0], 0, 100) is None


def test_a_product_of_many_ranks_fits_into_every_format():
    operation = Operation(
        collective=Collective.ALL_REDUCE,
        size_bytes=64,
        dtype=DType.FLOAT16,
        reduce_op=ReduceOp.PRODUCT,
    )
    ranks = made(operation, 20)

    exchange(operation, ranks)

    assert torch.isfinite(ranks[0].outputs[0]).all()
    assert wrong(operation, ranks) == [None] * 20


def test_a_mismatch_says_where_and_what():
    operation = Operation(collective=Collective.ALL_GATHER, size_bytes=16)
    ranks = made(operation, 2)
    exchange(operation, ranks)
    ranks[1].outputs[0][3] = 9.0

    assert mismatch(operation, ranks[1], 1, 2) == (
        "all_gather float32 16 B: rank 1 got 9.0 instead of 4.0 at element 3 of part 0; "
        "1 of its 4 elements are wrong"
    )
