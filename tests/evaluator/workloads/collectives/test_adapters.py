"""What adapters promise before, beside and after their calls, in one process."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

from evaluator.machine import mpi_library
from evaluator.workloads.collectives.adapters import CommAdapter
from evaluator.workloads.collectives.operations import (
    AdapterName,
    Collective,
    Operation,
    Setup,
    Tensors,
    UnavailableError,
    UnsupportedError,
)
from evaluator.workloads.collectives.sweep import availability, new_adapter

CPU = torch.device("cpu")
ALL_REDUCE = Operation(collective=Collective.ALL_REDUCE, size_bytes=4)
NOTHING = Tensors()
VERBS: dict[str, Callable[[CommAdapter], object]] = {
    "membership": lambda adapter: adapter.membership,
    "get_backend_version": lambda adapter: adapter.get_backend_version(),
    "get_reduce_op": lambda adapter: adapter.get_reduce_op("sum"),
    "check": lambda adapter: adapter.check(ALL_REDUCE),
    "resolve_collective": lambda adapter: adapter.resolve_collective(ALL_REDUCE, NOTHING),
    "resolve_start": lambda adapter: adapter.resolve_start(ALL_REDUCE, NOTHING),
    "run_collective": lambda adapter: adapter.run_collective(ALL_REDUCE, NOTHING),
}


@pytest.fixture
def meeting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A meeting place for a group of one."""
    monkeypatch.setenv("CCLSEARCH_INIT_METHOD", f"file://{tmp_path}/store")


@pytest.fixture
def alone(meeting: None) -> Iterator[CommAdapter]:  # noqa: ARG001 - where it is joined
    """The only rank of a group of torch.distributed."""
    adapter = new_adapter(AdapterName.C10D)
    adapter.init("gloo", CPU, 0, 1)
    yield adapter
    adapter.finalize()


@pytest.fixture
def unstartable_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """An mpi4py which can be loaded and no more."""
    package, library = ModuleType("mpi4py"), ModuleType("mpi4py.MPI")
    package.rc = ModuleType("rc")
    library.Get_library_version = lambda: "Some MPI 1.0"
    monkeypatch.setitem(sys.modules, "mpi4py", package)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", library)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", AdapterName)
def test_before_init_nothing_works_but_leaving(name, verb):
    adapter = new_adapter(name)
    adapter.finalize()

    with pytest.raises(RuntimeError, match=f"{name} is in no group: call init first"):
        VERBS[verb](adapter)


@pytest.mark.usefixtures("meeting")
@pytest.mark.parametrize("setup", [None, Setup(gloo_threads=1, gloo_interfaces="lo")])
def test_a_group_that_init_made_ends_with_finalize_and_can_be_joined_again(setup):
    adapter = new_adapter(AdapterName.C10D, setup)
    for _ in range(2):
        adapter.init("gloo", CPU, 0, 1)
        assert (adapter.membership.rank, adapter.membership.size) == (0, 1)
        tensor = torch.ones(1)
        adapter.run_collective(ALL_REDUCE, Tensors(inputs=(tensor,), outputs=(tensor,)))
        assert tensor.item() == 1

        adapter.finalize()
        adapter.finalize()

        assert not dist.is_initialized()
        with pytest.raises(RuntimeError, match="call init first"):
            _ = adapter.membership


@pytest.mark.usefixtures("meeting")
def test_gloo_has_the_threads_of_its_setup():
    more = []
    for threads in (1, 4):
        before = len(list(Path("/proc/self/task").iterdir()))
        adapter = new_adapter(AdapterName.C10D, Setup(gloo_threads=threads))
        adapter.init("gloo", CPU, 0, 1)
        more.append(len(list(Path("/proc/self/task").iterdir())) - before)
        adapter.finalize()

    assert more[1] - more[0] == 3


def test_the_blocking_call_is_the_library_function_itself(alone):
    tensor = torch.ones(1)

    call = alone.resolve_collective(ALL_REDUCE, Tensors(inputs=(tensor,), outputs=(tensor,)))

    assert call.func is dist.all_reduce
    assert call.args == (tensor, dist.ReduceOp.SUM)
    assert call.keywords == {}


@pytest.mark.parametrize(
    ("collective", "older_name"),
    [
        ("all_gather_single", "all_gather_into_tensor"),
        ("reduce_scatter_single", "reduce_scatter_tensor"),
    ],
)
def test_an_older_torch_has_other_names(alone, monkeypatch, collective, older_name):
    monkeypatch.delattr(dist, collective)
    tensors = Tensors(inputs=(torch.ones(1),), outputs=(torch.zeros(1),))

    operation = Operation(collective=Collective(collective), size_bytes=4)
    call = alone.resolve_collective(operation, tensors)

    assert call.func is getattr(dist, older_name)


def test_an_unknown_reduction_and_a_collective_that_the_library_lacks_are_named(alone, monkeypatch):
    with pytest.raises(ValueError, match="c10d has no reduction 'mean', only sum, min, max"):
        alone.get_reduce_op("mean")
    monkeypatch.delattr(dist, "all_reduce")
    with pytest.raises(UnsupportedError, match=r"c10d has no all_reduce sum float32 4 B: "):
        alone.check(ALL_REDUCE)


@pytest.mark.usefixtures("unstartable_mpi")
@pytest.mark.parametrize(
    ("name", "backend", "device", "complaint"),
    [
        ("c10d", "nccl", "cpu", "nccl"),
        ("c10d", "smoke_signals", "cpu", "no backend 'smoke_signals'"),
        ("mpi", "gloo", "cpu", "mpi has no backend 'gloo', only 'mpi'"),
        ("mpi", "mpi", "cuda:0", "not on cuda:0; use the device 'cpu'"),
        ("torchcomms", "gloo", "cpu", "torchcomms cannot be loaded"),
        ("c10d_torchcomms", "gloo", "cpu", "c10d_torchcomms cannot be used: torchcomms cannot"),
    ],
)
def test_what_cannot_be_used_here_is_refused_with_a_reason(
    name, backend, device, complaint, monkeypatch
):
    monkeypatch.setitem(sys.modules, "torchcomms", None)
    adapter = new_adapter(AdapterName(name))

    with pytest.raises(UnavailableError, match=complaint):
        adapter.init(backend, torch.device(device), 0, 1)

    assert dist.config.use_torchcomms is False
    assert not dist.is_initialized()


@pytest.mark.usefixtures("meeting")
@pytest.mark.parametrize("setup", [{"gloo_interfaces": "no_such_interface"}, {"gloo_threads": 1}])
def test_an_unknown_interface_of_the_setup_or_the_environment_is_an_error(setup, monkeypatch):
    if "gloo_interfaces" not in setup:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no_such_interface")

    with pytest.raises(RuntimeError, match="no_such_interface"):
        new_adapter(AdapterName.C10D, Setup(**setup)).init("gloo", CPU, 0, 1)

    assert not dist.is_initialized()


def test_a_placeholder_package_does_not_count_as_torchcomms(tmp_path, monkeypatch):
    package = tmp_path / "torchcomms" / "__init__.py"
    package.parent.mkdir()
    package.write_text("raise ImportError('this is\\na placeholder')")
    monkeypatch.delitem(sys.modules, "torchcomms", raising=False)
    monkeypatch.syspath_prepend(tmp_path)

    reason = availability(AdapterName.TORCHCOMMS)

    assert reason is not None
    assert "this is a placeholder" in reason
    assert "PyTorch's own package index" in reason


@pytest.fixture
def torchcomms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that can be loaded."""
    library = ModuleType("torchcomms")
    library.CommOptions = object
    monkeypatch.setitem(sys.modules, "torchcomms", library)


@pytest.mark.usefixtures("torchcomms")
def test_a_torch_that_would_not_route_its_calls_is_found_out():
    assert availability(AdapterName.TORCHCOMMS) is None
    assert "cannot route" in (availability(AdapterName.C10D_TORCHCOMMS) or "")


@pytest.mark.usefixtures("torchcomms")
def test_calls_are_routed_through_torchcomms_until_the_group_is_left(monkeypatch):
    routed = []
    monkeypatch.setattr(dist.distributed_c10d, "_TORCHCOMM_AVAILABLE", True)
    monkeypatch.setattr(
        dist,
        "init_process_group",
        lambda backend, **_: routed.append((backend, dist.config.use_torchcomms)),
    )
    adapter = new_adapter(AdapterName.C10D_TORCHCOMMS, Setup(gloo_threads=2))

    adapter.init("gloo", CPU, 0, 1)
    adapter.finalize()
    adapter.finalize()

    assert routed == [("gloo", True)]
    assert dist.config.use_torchcomms is False


def test_mpi_without_its_library_is_unavailable_and_torch_distributed_always_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)

    assert "install mpi4py and an MPI library" in (availability(AdapterName.MPI) or "")
    assert availability(AdapterName.C10D) is None


LIBRARY = mpi_library()
needs_mpi = pytest.mark.skipif(
    LIBRARY is None or LIBRARY.mpirun is None, reason="no MPI library with its mpirun is installed"
)
IMPORTS = """
import json
import weakref
import torch
from evaluator.workloads.collectives.operations import Tensors
from evaluator.workloads.collectives.sweep import new_adapter
from evaluator.workloads.collectives.operations import Collective, Operation

CPU = torch.device("cpu")
adapter = new_adapter("mpi")
"""
ALONE = """
def answer(call, *given):
    try:
        return call(*given)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def join(rank, size):
    return answer(adapter.init, "mpi", CPU, rank, size)

def gather(collective, inputs, outputs):
    operation = Operation(collective=collective, size_bytes=4)
    tensors = Tensors(inputs=inputs, outputs=outputs)
    return answer(adapter.run_collective, operation, tensors)

def kept_alive():
    tensor = torch.ones(1000)
    all_reduce = Operation(collective=Collective.ALL_REDUCE, size_bytes=4000)
    tensors = Tensors(inputs=(tensor,), outputs=(tensor,))
    return weakref.ref(tensor), adapter.resolve_collective(all_reduce, tensors)

parts = torch.zeros(3).unbind()
seen = {
    "of two": join(1, 2),
    "of one": join(0, 1),
    "apart": gather(Collective.ALL_GATHER, parts[:1], parts[::2]),
    "too long": gather(Collective.ALL_GATHER_SINGLE, (torch.zeros(4),), (torch.zeros(2),)),
    "kept": (lambda reference, call: reference() is not None)(*kept_alive()),
    "unknown": answer(adapter.get_reduce_op, "mean"),
    "leave": [adapter.finalize(), adapter.finalize()],
    "again": join(0, 1),
}
print(json.dumps(seen))
"""


@pytest.fixture
def printed(warm_ranks, tmp_path) -> Callable[[str], str]:
    """What a process prints that no mpirun started: MPI gives it a world of its own."""

    def run(program: str) -> str:
        (tmp_path / "program.py").write_text(program)
        (status,) = warm_ranks.run(tmp_path, 1, (str(tmp_path / "program.py"),))
        log = (tmp_path / "rank0.log").read_text()
        assert status == 0, log
        return log

    return run


@needs_mpi
def test_a_rank_of_its_own_joins_calls_refuses_and_ends_as_mpi_allows(printed):
    seen = json.loads(printed(IMPORTS + ALONE))

    assert str(seen["of two"]).startswith(
        "UnavailableError: MPI is rank 0 of 1 where the launcher started rank 1 of 2; "
        "start the ranks with the mpirun of "
    )
    assert seen["of one"] is None
    assert str(seen["apart"]).startswith(
        "ValueError: MPI takes tensors of a list that lie side by side in memory, in order"
    )
    assert seen["kept"] is True
    assert "truncated" in str(seen["too long"])
    assert seen["unknown"] == (
        "ValueError: mpi has no reduction 'mean', only sum, min, max, avg, product"
    )
    assert seen["leave"] == [None, None]
    assert str(seen["again"]).startswith("UnavailableError: MPI has ended in this process")


@needs_mpi
def test_mpi_that_somebody_else_started_is_left_running(printed):
    program = (
        f"from mpi4py import MPI\n{IMPORTS}adapter.init('mpi', CPU, 0, 1)\n"
        "adapter.finalize()\nprint(MPI.Is_finalized())"
    )

    assert printed(program) == "False\n"
