"""What torchcomms is asked for: it is not installed here, so a recorder stands in its place."""

import sys
from enum import Enum
from functools import partial
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

from evaluator.workloads.collectives.adapters import CommAdapter, tensors_for
from evaluator.workloads.collectives.operations import (
    AdapterName,
    Collective,
    Operation,
    ReduceOp,
    UnavailableError,
    UnsupportedError,
)
from evaluator.workloads.collectives.sweep import new_adapter

CPU = torch.device("cpu")
METHODS = (
    *("all_reduce", "all_gather", "all_gather_single", "reduce_scatter", "reduce_scatter_single"),
    *("all_to_all", "all_to_all_single", "broadcast", "reduce", "scatter", "gather", "barrier"),
    *("send", "recv"),
)
OUT, IN, OUTS, INS = "out", "in", ["out"] * 3, ["in"] * 3
ROOT = 0


class RecordedOp(Enum):
    """The reductions of the library."""

    SUM = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    AVG = 5


class RecordedWork:
    """A started call that notes when it is waited for."""

    def __init__(self, calls: list[tuple[object, ...]], name: str) -> None:
        self.calls, self.name = calls, name

    def wait(self) -> None:
        self.calls.append(("wait", self.name))


class RecordedCommunicator:
    """Notes each call with its arguments by position; keywords would be an error."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.calls: list[tuple[object, ...]] = []
        for name in METHODS:
            setattr(self, name, partial(self.call, name))

    def call(self, name: str, *given: object) -> RecordedWork:
        self.calls.append((name, *given))
        return RecordedWork(self.calls, name)

    def get_rank(self) -> int:
        return self.rank

    def get_size(self) -> int:
        return 3

    def get_backend_version(self) -> str:
        return "2.28.9"

    def finalize(self) -> None:
        self.calls.append(("finalize",))


class Recorder(ModuleType):
    """The library as far as it is used, seen from one rank."""

    CommOptions = object
    ReduceOp = RecordedOp

    def __init__(self, rank: int) -> None:
        super().__init__("torchcomms")
        self.communicator = RecordedCommunicator(rank)
        self.made: list[tuple[object, ...]] = []

    def new_comm(self, *given: object, **named: object) -> RecordedCommunicator:
        self.made.append((*given, named))
        return self.communicator


def joined(monkeypatch: pytest.MonkeyPatch, rank: int) -> tuple[CommAdapter, Recorder]:
    library = Recorder(rank)
    monkeypatch.setitem(sys.modules, "torchcomms", library)
    adapter = new_adapter(AdapterName.TORCHCOMMS)
    adapter.init("gloo", CPU, rank, 3)
    return adapter, library


def asked(
    monkeypatch: pytest.MonkeyPatch, operation: Operation, *, rank: int, async_op: bool
) -> list[tuple[object, ...]]:
    """The calls of one collective on one rank of three, with its tensors by their names."""
    adapter, library = joined(monkeypatch, rank)
    tensors = tensors_for(operation, rank, 3, CPU)

    adapter.run_collective(operation, tensors, async_op=async_op)

    names = {id(tensor): IN for tensor in tensors.inputs}
    names |= {id(tensor): OUT for tensor in tensors.outputs}

    def named(given: object) -> object:
        if isinstance(given, list):
            return [named(one) for one in given]
        return names[id(given)] if isinstance(given, torch.Tensor) else given

    return [tuple(map(named, call)) for call in library.communicator.calls]


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize(
    ("collective", "at_root", "elsewhere"),
    [
        ("all_reduce", (OUT, RecordedOp.MAX), (OUT, RecordedOp.MAX)),
        ("all_gather", (OUTS, IN), (OUTS, IN)),
        ("all_gather_single", (OUT, IN), (OUT, IN)),
        ("reduce_scatter", (OUT, INS, RecordedOp.MAX), (OUT, INS, RecordedOp.MAX)),
        ("reduce_scatter_single", (OUT, IN, RecordedOp.MAX), (OUT, IN, RecordedOp.MAX)),
        ("all_to_all", (OUTS, INS), (OUTS, INS)),
        ("all_to_all_single", (OUT, IN), (OUT, IN)),
        ("broadcast", (OUT, ROOT), (OUT, ROOT)),
        ("reduce", (OUT, ROOT, RecordedOp.MAX), (OUT, ROOT, RecordedOp.MAX)),
        ("scatter", (OUT, INS, ROOT), (OUT, [], ROOT)),
        ("gather", (OUTS, IN, ROOT), ([], IN, ROOT)),
        ("barrier", (), ()),
    ],
)
def test_arguments_go_by_position_in_the_order_of_the_library(
    monkeypatch, collective, at_root, elsewhere, async_op
):
    operation = Operation(collective=Collective(collective), size_bytes=8, reduce_op=ReduceOp.MAX)
    waits = [("wait", collective)] if async_op else []

    for rank, given in ((0, at_root), (1, elsewhere)):
        calls = asked(monkeypatch, operation, rank=rank, async_op=async_op)

        assert calls == [(collective, *given, async_op), *waits]


@pytest.mark.parametrize(
    ("rank", "async_op", "calls"),
    [
        (0, False, [("send", IN, 1, False), ("recv", OUT, 1, False)]),
        (1, False, [("recv", OUT, 0, False), ("send", IN, 0, False)]),
        (2, False, []),
        (
            0,
            True,
            [("send", IN, 1, True), ("recv", OUT, 1, True), ("wait", "send"), ("wait", "recv")],
        ),
        (
            1,
            True,
            [("recv", OUT, 0, True), ("wait", "recv"), ("send", IN, 0, True), ("wait", "send")],
        ),
        (2, True, []),
    ],
)
def test_the_answer_of_a_ping_pong_follows_the_message(monkeypatch, rank, async_op, calls):
    operation = Operation(collective=Collective.SEND_RECV, size_bytes=8)

    assert asked(monkeypatch, operation, rank=rank, async_op=async_op) == calls


def test_the_communicator_is_closed_once_and_has_the_reductions_of_the_library(monkeypatch):
    adapter, library = joined(monkeypatch, 0)
    assert adapter.get_backend_version() == "2.28.9"
    assert [adapter.get_reduce_op(op).name for op in ReduceOp] == [op.name for op in ReduceOp]

    adapter.finalize()
    adapter.finalize()

    assert library.made == [("gloo", CPU, {"name": "cclsearch"})]
    assert library.communicator.calls == [("finalize",)]


def test_ranks_meet_in_the_store_of_a_process_group_that_is_there(monkeypatch, tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        _, library = joined(monkeypatch, 0)
    finally:
        dist.destroy_process_group()

    named = library.made[0][-1]
    assert isinstance(named["store"], dist.PrefixStore)
    assert named["hints"] == {"persistent_store": "true"}


def test_another_rank_and_a_backend_that_is_not_installed_are_refused(monkeypatch):
    library = Recorder(rank=0)
    monkeypatch.setitem(sys.modules, "torchcomms", library)
    adapter = new_adapter(AdapterName.TORCHCOMMS)

    with pytest.raises(UnavailableError, match="rank 0 of 3 where the launcher started rank 1"):
        adapter.init("gloo", CPU, 1, 3)
    assert library.communicator.calls == [("finalize",)]

    def new_comm(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("failed to find backend")

    monkeypatch.setattr(library, "new_comm", new_comm)
    with pytest.raises(UnavailableError, match="no backend 'ncclx'"):
        adapter.init("ncclx", CPU, 0, 3)


def test_a_collective_of_a_newer_version_is_named(monkeypatch):
    adapter, library = joined(monkeypatch, 0)
    del library.communicator.gather

    with pytest.raises(UnsupportedError, match="torchcomms has no gather float32 8 B"):
        adapter.check(Operation(collective=Collective.GATHER, size_bytes=8))
