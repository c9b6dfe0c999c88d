"""Work is attributed to operators, modules, ranges and phases: made up, profiled, recorded."""

import gzip
import json
import warnings
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint

from evaluator.traces.analysis.breakdown import WORK
from evaluator.traces.analysis.operators import Phase, Scope, attribute
from evaluator.traces.host_ranges import HostRanges, Nesting, RangeKind
from evaluator.traces.model import Lane
from evaluator.traces.readers.files import STANDARD_LIMITS
from evaluator.traces.readers.formats import read_host_ranges
from evaluator.traces.readers.kineto.ranges import work_of
from evaluator.traces.readers.read import read_folder, read_traces
from tests.support.kineto import NCCL, kernel, launch, span, write

AUTOGRAD = 3
H100 = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]


def attributed(path):
    """What the work in a file is attributed to."""
    traces = read_folder(path, use_cache=False)
    ranges = read_host_ranges(path, STANDARD_LIMITS)
    return attribute((trace, ranges) for trace in traces.ranks)


def totals_us(rows):
    return {row.name: pytest.approx(1e6 * row.total_s, abs=1e-3) for row in rows}


def operator(name, ts, dur, tid=1, sequence=None, forward_thread=0, dims=(), dtype="float"):
    stated = {"Sequence number": sequence, "Fwd thread id": forward_thread}
    shapes = {"Input Dims": list(dims), "Input type": [dtype] * len(dims)}
    return span("cpu_op", name, ts, dur, tid, **(stated if sequence else {}), **shapes)


def launched(ts, correlation, dur, tid=1, name="k"):
    return [
        launch(ts, correlation) | {"tid": tid},
        kernel(name, ts + 100, dur, correlation=correlation),
    ]


@pytest.fixture
def training(tmp_path):
    """One step: a product in a module, its backward pass on autograd's thread, the optimizer."""
    size = [[64, 32], [32, 16]]
    events = [
        span("user_annotation", "ProfilerStep#1", 0, 1000),
        span("user_annotation", "loss", 0, 30),
        span("python_function", "nn.Module: Net_0", 1, 28),
        span("python_function", "net.py(3): forward", 2, 26),
        span("python_function", "nn.Module: Linear_7", 3, 20),
        operator("aten::linear", 4, 18, sequence=5, dims=size),
        operator("aten::mm", 5, 10, sequence=5, dims=size),
        *launched(6, 11, 8),
        span("user_annotation", "backward", 40, 60),
        operator(
            "autograd::engine::evaluate_function: MmBackward0",
            *(50, 20, AUTOGRAD),
            sequence=5,
            forward_thread=1,
        ),
        operator("aten::mm", 51, 5, AUTOGRAD, dims=size),
        *launched(52, 12, 16, AUTOGRAD),
        operator("aten::mul", 60, 5, AUTOGRAD, sequence=9),
        *launched(61, 13, 2, AUTOGRAD),
        span("user_annotation", "Optimizer.step#Adam.step", 200, 50),
        operator("aten::_foreach_add_", 210, 9),
        *launched(211, 14, 4),
        kernel("graph", 900, 32),
    ]
    fields = {"distributedInfo": NCCL, "deviceProperties": H100, "schemaVersion": 1}
    return write(tmp_path, {**fields, "traceEvents": events})


def test_a_kernel_belongs_to_what_launched_it_wherever_that_was_called(training):
    found = attributed(training)

    assert totals_us(found.operators) == {
        "aten::mm": 24,
        "aten::mul": 2,
        "aten::_foreach_add_": 4,
        None: 32,
    }
    assert totals_us(found.modules) == {"Net/Linear": 26, None: 36}
    # Autograd's thread names no ranges: it works for the thread that waits in one.
    assert totals_us(found.ranges) == {
        "loss": 8,
        "backward": 18,
        "Optimizer.step#Adam.step": 4,
        None: 32,
    }
    assert totals_us(found.phases) == {
        "forward": 8,
        "backward": 16,
        "recomputation": 2,
        "optimizer": 4,
        None: 32,
    }


def test_products_are_placed_below_the_roofline_of_their_device(training):
    mm = next(row for row in attributed(training).operators if row.name == "aten::mm")

    assert mm.flops == 2 * (2 * 64 * 32 * 16)
    assert mm.bytes == 2 * 4 * (64 * 32 + 32 * 16 + 64 * 16)
    assert mm.flops_per_s == pytest.approx(mm.flops / 24e-6)
    assert mm.bound == "memory"
    assert mm.roofline_share == pytest.approx(mm.bytes / 3.35e12 / 24e-6)


def test_without_a_device_that_is_known_there_is_no_roofline(training):
    document = json.loads(training.read_text())
    document["deviceProperties"] = [{"id": 0, "name": "Unheard Of 9000"}]
    training.write_text(json.dumps(document))

    mm = next(row for row in attributed(training).operators if row.name == "aten::mm")

    assert mm.flops_per_s is not None
    assert (mm.roofline_share, mm.bound) == (None, None)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x):
        return checkpoint(self.second, self.first(x), use_reentrant=False)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """A real profile of a step with recomputation, and the FLOP that torch counts in another."""
    net, x = Net(), torch.randn(8, 16)
    optimizer = torch.optim.SGD(net.parameters())

    def step():
        with record_function("all of it"):
            net(x).sum().backward()
        optimizer.step()

    def profiled_step(**options):
        with (
            warnings.catch_warnings(action="ignore"),
            profile(activities=[ProfilerActivity.CPU], record_shapes=True, **options) as recorded,
        ):
            step()
        return recorded

    step()  # what is set up once is not to be in the profile
    path = tmp_path_factory.mktemp("profile") / "rank0_trace.json"
    profiled_step(with_stack=True).export_chrome_trace(str(path))
    # Not of the same one: torch fails to decode some of the frames that pytest has.
    averages = profiled_step(with_flops=True).key_averages()
    return path, {row.key: row.flops for row in averages if row.flops}


def test_a_real_profile_has_its_modules_and_phases(profiled):
    found = attributed(profiled[0])

    modules = {row.name: row for row in found.modules}
    assert {"Net/Block/Linear", "Net/Block"} <= modules.keys()
    # The backward pass of a module that was recomputed is that of the second time.
    assert modules["Net/Block/Linear"].phase_s[Phase.BACKWARD] > 0
    assert {row.name for row in found.phases} >= {each.name.lower() for each in Phase}
    assert {row.name for row in found.ranges} == {"all of it", "Optimizer.step#SGD.step"}


def test_products_have_the_flops_that_torch_counts(profiled):
    path, counted = profiled
    found = {row.name: row.flops for row in attributed(path).operators}

    products = ("aten::addmm", "aten::mm")
    assert all(counted[name] for name in products)
    assert {name: found[name] for name in products} == {name: counted[name] for name in products}


@pytest.mark.parametrize("name", ["h100_2gpu_1s", "h100_2gpu_sp_before"])
def test_ranges_of_nsys_are_operators_without_their_numbers(recorded_data, name):
    path = recorded_data / "traces" / "nsys" / f"{name}.sqlite.gz"
    traces, ranges = read_traces([path]), read_host_ranges(path, STANDARD_LIMITS)

    found = attribute((trace, ranges) for trace in traces.ranks)

    names = {row.name for rows in (found.operators, found.ranges) for row in rows} - {None}
    assert {"aten::mm", "aten::addmm"} & names
    assert not any("op_id" in each for each in names)
    total_ns = sum(
        int(trace.spans.duration_ns[trace.spans.doing(*WORK)].sum()) for trace in traces.ranks
    )
    assert sum(row.total_s for row in found.operators) == pytest.approx(total_ns / 1e9)


@pytest.mark.parametrize(
    "name",
    [
        *("a100_ddp_2rank_rank0", "h100_qwen0.5b", "b200_8rank_rank0_eager", "mi300_ddp8_rank0"),
        *("mi250_minitoy", "mi300_sglang_prefilldecode", "v100_ns_resolution"),
    ],
)
def test_operators_are_those_that_the_profiler_itself_names(recorded_data, name):
    path = recorded_data / "traces" / "kineto" / f"{name}.json.gz"
    events = [
        (event.get("cat"), event["name"], event.get("args", {}).get("External id"))
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        if event["ph"] == "X"
    ]
    names = {number: called for cat, called, number in events if cat == "cpu_op"}
    work = ("kernel", "gpu_memcpy", "gpu_memset")

    found = {row.name: row.count for row in attributed(path).operators}

    assert found == Counter(names.get(number) for cat, _, number in events if cat in work)


@given(st.text(), st.lists(st.text(max_size=9)), st.one_of(st.binary(), st.just(b"[[-1,2],[2,3]]")))
def test_absurd_operands_count_as_unknown(name, types, shapes):
    for operator_name in (name, "aten::mm", "aten::addmm", "aten::mul"):
        flops, moved_bytes, _ = work_of(operator_name, types, shapes)
        assert np.isnan(flops) or flops >= 0
        assert moved_bytes >= 0


@pytest.mark.parametrize("side", [-1, 10**30])
def test_no_side_of_a_matrix_is_absurd(side):
    text = json.dumps([[side, 4], [4, side]]).encode()
    flops, moved_bytes, _ = work_of("aten::mm", ["float", "float"], text)
    assert np.isnan(flops)
    assert moved_bytes == 0


def test_of_ranges_nested_beyond_any_program_the_outer_ones_count():
    count = 50_000
    ranges = HostRanges.build(
        start_ns=np.arange(count),
        end_ns=3 * count - np.arange(count),
        kind=np.full(count, RangeKind.NAMED),
        name_id=np.arange(count),
        names=[str(number) for number in range(count)],
        lanes=[Lane("1", "1")],
    )
    nesting = Nesting(ranges)

    path, texts = nesting.paths(RangeKind.NAMED, ">")

    assert texts[path[2]] == "0>1>2"
    assert path[-1] == -1
    assert nesting.innermost(np.array([0, 0]), np.array([1, 3 * count - 2])).tolist() == [1, -1]


@st.composite
def threads(draw):
    """Nested ranges of two threads."""
    rows = []

    def fill(lane, start, end, depth):
        at = start
        while depth < 4 and at + 1 < end and draw(st.booleans()):
            first = draw(st.integers(at, end - 1))
            last = draw(st.integers(first + 1, end))
            rows.append((first, last, lane))
            fill(lane, first, last, depth + 1)
            at = last

    for lane in (0, 1):
        fill(lane, 0, 30, 0)
    return rows


@pytest.mark.parametrize(
    ("text", "operator", "module", "phase"),
    [
        ("jit(step)/jvp(Net)/Block_0/Dense_1/dot_general", "dot_general", "Net/Block/Dense", 0),
        ("jit(step)/transpose(jvp(Net))/Block_11/mul", "mul", "Net/Block", Phase.BACKWARD),
        (
            "jit(f)/transpose(jvp(Net))/checkpoint/rematted_computation/Block_0/exp",
            *("exp", "Net/Block", Phase.RECOMPUTATION),
        ),
        ("jit(step)/while/body/add", "add", "", None),
        ("jit(f)/Linear/mn,pn->mp/dot_general", "dot_general", "Linear", None),
        ("jit(f)/Norm/aten::mean.dim/reduce_sum", "aten::mean.dim", "Norm", None),
        ("jit(f)/jvp()/sin", "sin", "", Phase.FORWARD),
    ],
)
def test_what_jax_calls_an_operation_says_where_it_comes_from(text, operator, module, phase):
    assert Scope.of(text) == Scope(operator=operator, module=module, phase=phase)


@given(st.text(alphabet="ab_1/()jvptransose:,", max_size=60))
def test_any_name_of_an_operation_is_read(text):
    found = Scope.of(text)
    assert "(" not in found.module


def test_work_of_a_tpu_belongs_to_modules_and_has_a_roofline_where_its_kind_is_known(recorded_data):
    path = recorded_data / "traces" / "xla" / "vllm_tpu_2chip_a.trace.json.gz"
    pairs = [(trace, None) for trace in read_traces([path]).ranks]

    named, unnamed = attribute(pairs, "TPU v6e"), attribute(pairs)

    modules = {row.name: row for row in named.modules}
    assert modules["RowParallelLinear"].phase_s[Phase.FORWARD] > 0
    dots, same = (
        next(r for r in each.operators if r.name == "dot_general") for each in (named, unnamed)
    )
    assert 0.5 < dots.roofline_share < 1
    assert (same.flops_per_s, same.roofline_share) == (dots.flops_per_s, None)


@given(threads(), st.lists(st.tuples(st.integers(-1, 1), st.integers(-2, 32)), max_size=9))
def test_the_innermost_range_is_the_shortest_under_way(rows, asked):
    starts, ends, lanes = np.array(rows, np.int64).reshape(-1, 3).T
    ranges = HostRanges.build(
        start_ns=starts,
        end_ns=ends,
        lane_id=lanes,
        kind=np.full(starts.size, RangeKind.NAMED),
        names=["range"],
        lanes=[Lane("1", "1"), Lane("1", "2")],
    )
    lane_id, moments_ns = np.array(asked, np.int64).reshape(-1, 2).T

    found = Nesting(ranges).innermost(lane_id, moments_ns)

    for row, lane, moment in zip(found.tolist(), lane_id, moments_ns, strict=True):
        lengths = [end - start for start, end, of in rows if start <= moment < end and of == lane]
        length = int(ranges.end_ns[row] - ranges.start_ns[row]) if row >= 0 else None
        assert length == min(lengths, default=None)
