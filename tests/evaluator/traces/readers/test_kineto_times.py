"""Times of Kineto traces are whole nanoseconds, whatever epoch and spelling they come in."""

import gzip
import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.traces.model import Activity
from evaluator.traces.readers.kineto.reader import read_rank
from tests.support.kineto import NCCL, kernel, launch, span, trace_of, write


@given(start_ns=st.integers(0, 2 * 10**18), duration_ns=st.integers(0, 10**15))
def test_no_nanosecond_is_lost_at_any_epoch(tmp_path_factory, start_ns, duration_ns):
    event = json.dumps(span("cpu_op", "aten::mm", "START", "LENGTH"))
    event = event.replace('"START"', f"{start_ns // 1000}.{start_ns % 1000:03}")
    event = event.replace('"LENGTH"', f"{duration_ns // 1000}.{duration_ns % 1000:03}")
    text = f'{{"traceEvents": [{event}]}}'.encode()
    trace = read_rank(write(tmp_path_factory.getbasetemp(), text))
    assert trace.spans.start_ns.tolist() == [start_ns]
    assert trace.spans.end_ns.tolist() == [start_ns + duration_ns]


def test_relative_times_count_from_the_base(tmp_path):
    base_ns = 1_790_857_026_000_000_000
    event = span("cpu_op", "aten::mm", 4333735370567.171, 3120.146)
    trace = trace_of(tmp_path, event, baseTimeNanoseconds=base_ns)
    assert trace.spans.start_ns.tolist() == [base_ns + 4_333_735_370_567_171]
    assert trace.spans.end_ns.tolist() == [base_ns + 4_333_735_370_567_171 + 3_120_146]


def test_absolute_nanoseconds_of_a_real_trace_are_read_digit_by_digit(recorded_data):
    path = recorded_data / "traces/kineto" / "v100_ns_resolution.json.gz"
    with gzip.open(path) as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    kernels = sorted(int(e["ts"] * 1000) for e in events if e.get("cat") == "kernel")
    trace = read_rank(path)
    computing = (trace.spans.activity == Activity.COMPUTE) | (
        trace.spans.activity == Activity.COMMUNICATION
    )
    assert trace.spans.start_ns[computing].tolist() == kernels


def test_an_epoch_of_mixed_spellings_is_read_digit_by_digit(tmp_path):
    text = b'{"ph":"X","cat":"cpu_op","name":"aten::mm","dur":1,"ts":%b}'
    spelled = (
        b"1712195495505583.017",
        b"1712195495505584",
        b'"1712195495505585.5"',
        b"1.7121954955055861e15",
    )
    events = b",".join(text % ts for ts in spelled)
    trace = read_rank(write(tmp_path, b'{"traceEvents":[%b]}' % events))
    start_ns = 1_712_195_495_505_583_000
    assert (trace.spans.start_ns - start_ns).tolist() == [17, 1_000, 2_500, 3_100]


def test_numbers_may_be_strings(tmp_path):
    events = [
        span("cpu_op", "aten::mm", "10.5", "2.25", tid="thread 3") | {"pid": "7"},
        span("cpu_op", "aten::add", 20, "1", tid="thread 3") | {"pid": "7"},
    ]
    trace = trace_of(tmp_path, *events)
    assert trace.spans.start_ns.tolist() == [10_500, 20_000]
    assert trace.spans.end_ns.tolist() == [12_750, 21_000]
    assert [(lane.process, lane.thread) for lane in trace.spans.lanes] == [("7", "thread 3")]


@pytest.mark.parametrize("where", ["before", "after"])
def test_the_base_time_may_stand_before_or_after_the_events(tmp_path, where):
    base, events = b'"baseTimeNanoseconds":1000000', json.dumps([span("cpu_op", "aten::mm", 1, 1)])
    parts = [base, b'"traceEvents":' + events.encode()]
    text = b"{%b}" % b",".join(parts if where == "before" else parts[::-1])
    assert read_rank(write(tmp_path, text)).spans.start_ns.tolist() == [1_001_000]


def test_what_lasts_less_than_nothing_is_an_instant_and_counted(tmp_path):
    trace = trace_of(tmp_path, span("cpu_op", "aten::mm", 10, -3), span("cpu_op", "aten::mm", 5, 1))
    assert trace.spans.duration_ns.tolist() == [1_000, 0]
    assert trace.caveats == ("1 events have a negative duration: they count as instants",)


def test_durations_that_overflowed_on_rocm_end_where_the_next_kernel_begins(tmp_path):
    trace = trace_of(
        tmp_path,
        kernel("gemm", 0, 5_000_000),
        kernel("gemm", 10, 5),
        kernel("gemm", 12, 100, tid=21),
        kernel("gemm", 20, 30),
        distributed=NCCL,
        roctracer_version=4.1,
    )
    assert trace.spans.duration_ns.tolist() == [10_000, 5_000, 100_000, 30_000]
    assert len(trace.caveats) == 1
    assert trace.caveats[0].startswith("1 spans reached into the next one of their stream")


def test_kernels_that_overlap_a_little_are_left_alone(tmp_path):
    trace = trace_of(tmp_path, kernel("a", 0, 12), kernel("b", 10, 5), distributed=NCCL)
    assert trace.spans.duration_ns.tolist() == [12_000, 5_000]
    assert trace.caveats == ()


def test_work_that_begins_before_its_launch_is_counted(tmp_path):
    trace = trace_of(tmp_path, launch(9, 5), kernel("a", 3, 9, correlation=5), distributed=NCCL)
    assert trace.caveats == ("1 spans begin before they were launched",)
