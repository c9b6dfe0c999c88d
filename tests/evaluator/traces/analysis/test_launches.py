"""Launch statistics and queues against answers worked out by hand."""

import numpy as np
import pytest

from evaluator.metrics.base import Absent, Evidence
from evaluator.metrics.registry import metric
from evaluator.traces.analysis.kernels import launch_statistics, stream_queues
from evaluator.traces.model import Activity, Device, TraceSet
from evaluator.traces.testing import Span, rank_trace

COMPUTE, COPY, LAUNCH = Activity.COMPUTE, Activity.COPY, Activity.LAUNCH


def call(start, end, correlation):
    return Span(LAUNCH, start, end, correlation=correlation, lane=9)


def work(start, end, correlation, lane=0, activity=COMPUTE):
    return Span(activity, start, end, correlation=correlation, lane=lane)


def traced(*spans, **changed):
    return rank_trace(spans, device=Device(name="GPU"), **changed)


def statistics(*spans, **changed):
    return launch_statistics(TraceSet(ranks=(traced(*spans, **changed),))).job


def measured(name, *spans, **changed):
    evidence = Evidence(traces=TraceSet(ranks=(traced(*spans, **changed),)))
    return metric(name).measure(evidence)


def test_a_delay_lasts_from_the_call_to_its_work():
    told = statistics(call(0, 5, 1), work(12, 20, 1), call(10, 14, 2), work(50, 60, 2))
    assert told.launch_count == 2
    assert told.delay_median_s == pytest.approx(26e-9)
    assert told.call_median_s == pytest.approx(4.5e-9)
    assert told.call_total_s == pytest.approx(9e-9)


def test_a_graph_is_one_launch_whose_first_work_counts():
    told = statistics(
        call(0, 5, 1), work(7, 9, 1), work(40, 50, 1), call(10, 14, 2), work(60, 61, 2)
    )
    assert (told.launch_count, told.graph_launch_count, told.kernel_count) == (2, 1, 3)
    assert told.delay_median_s == pytest.approx((7 + 50) / 2 * 1e-9)


def test_work_before_its_launch_shows_clocks_and_is_no_delay():
    told = statistics(call(10, 15, 1), work(4, 9, 1), call(20, 25, 2), work(26, 30, 2))
    assert told.early_share == pytest.approx(0.5)
    assert told.delay_median_s == pytest.approx(6e-9)


def test_where_all_work_seems_early_there_is_no_delay():
    spans = (call(10, 15, 1), work(4, 9, 1))
    assert statistics(*spans).delay_median_s is None
    assert isinstance(measured("kernel_launch_delay", *spans), Absent)


def test_launches_without_their_work_and_work_without_its_launch_do_not_count():
    told = statistics(
        call(0, 5, 1), work(12, 20, 1), call(20, 25, 7), work(30, 40, 8), work(50, 60, 0)
    )
    assert told.launch_count == 1
    assert told.kernel_count == 3


def test_launches_are_counted_in_the_steps_of_the_host():
    spans = [
        span
        for i in range(6)
        for span in (call(10 * i, 10 * i + 2, i + 1), work(10 * i + 5, 10 * i + 9, i + 1))
    ]
    told = statistics(*spans, host_steps=[(1, 10, 20), (2, 20, 50)])
    assert told.launches_per_step == pytest.approx(2)


def test_without_steps_there_are_no_launches_per_step():
    spans = (call(0, 5, 1), work(12, 20, 1))
    assert statistics(*spans, steps=()).launches_per_step is None
    assert measured("launches_per_step", *spans, steps=()) == Absent("the host marks no step")


def test_short_kernels_are_a_share_of_kernels_not_of_copies():
    told = statistics(
        call(0, 5, 1),
        work(10, 10_009, 1),
        work(20_000, 30_000, 0),
        work(40_000, 40_010, 0, activity=COPY),
    )
    assert told.short_kernel_share == pytest.approx(0.5)


def test_ranks_that_tell_no_launch_are_left_out():
    traces = TraceSet(ranks=(traced(work(0, 5, 0)), traced(call(0, 5, 1), work(6, 9, 1), rank=1)))
    assert [each.rank for each in launch_statistics(traces).by_rank] == [1]


def test_without_launches_there_are_no_statistics():
    assert launch_statistics(TraceSet(ranks=(traced(work(0, 5, 0)),))) is None
    assert measured("kernel_launch_delay", work(0, 5, 0)) == Absent(
        "no trace says which call launched what"
    )


# Queues.


def test_a_queue_holds_what_was_handed_over_and_has_not_started():
    (queue,) = stream_queues(
        traced(
            call(0, 2, 1),
            work(3, 50, 1),
            call(4, 6, 2),
            work(50, 70, 2),
            call(8, 10, 3),
            work(70, 80, 3),
        )
    )
    segments = zip(
        queue.start_ns.tolist(), queue.end_ns.tolist(), queue.waiting_count.tolist(), strict=True
    )
    assert list(segments) == [(2, 3, 1), (6, 10, 1), (10, 50, 2), (50, 70, 1)]
    assert queue.longest_count == 2
    assert queue.mean_count == pytest.approx((1 + 4 + 80 + 20) / 65)


def test_each_stream_has_its_queue():
    queues = stream_queues(
        traced(call(0, 2, 1), work(5, 9, 1, lane=3), call(2, 4, 2), work(9, 12, 2, lane=7))
    )
    assert [queue.lane.thread for queue in queues] == ["3", "7"]


def test_work_that_starts_while_its_call_lasts_never_waits():
    assert stream_queues(traced(call(0, 9, 1), work(5, 20, 1))) == ()


def test_queues_agree_with_counting_at_every_instant():
    random = np.random.default_rng(3)
    called = np.sort(random.integers(0, 60, 30))
    begun = called + random.integers(-5, 20, 30)
    lanes = random.integers(0, 3, 30)
    spans = [call(start, start + 2, i + 1) for i, start in enumerate(called.tolist())]
    spans += [
        work(start, start + 1, i + 1, lane)
        for i, (start, lane) in enumerate(zip(begun.tolist(), lanes.tolist(), strict=True))
    ]
    for queue in stream_queues(traced(*spans)):
        own = lanes == int(queue.lane.thread)
        for instant in range(-5, 90):
            inside = (queue.start_ns <= instant) & (instant < queue.end_ns)
            waiting = own & (called + 2 <= instant) & (instant < begun)
            assert queue.waiting_count[inside].sum() == waiting.sum()
