"""Why devices are idle, against answers by hand and a model that looks at every instant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.metrics.base import Evidence
from evaluator.metrics.registry import metric
from evaluator.traces.analysis.breakdown import job_split
from evaluator.traces.analysis.kernels import idle_causes
from evaluator.traces.model import Activity, Device, TraceSet
from evaluator.traces.testing import Span, rank_trace

COMPUTE, LAUNCH, SYNC = Activity.COMPUTE, Activity.LAUNCH, Activity.SYNC


def call(start, end, correlation):
    return Span(LAUNCH, start, end, correlation=correlation, lane=9)


def work(start, end, correlation):
    return Span(COMPUTE, start, end, correlation=correlation)


def job(*spans, **changed):
    return TraceSet(ranks=(rank_trace(spans, device=Device(name="GPU"), **changed),))


def causes(*spans, **changed):
    """Kernel wait, synchronising, host wait and other, by step."""
    (found,) = idle_causes(job(*spans, **changed))
    columns = (found.kernel_wait_ns, found.sync_ns, found.host_wait_ns, found.other_ns)
    return [tuple(step) for step in zip(*(column.tolist() for column in columns), strict=True)]


def test_work_that_was_handed_over_waits():
    assert causes(call(0, 10, 1), work(0, 5, 0), work(40, 100, 1)) == [(30, 0, 5, 0)]


def test_a_device_that_was_handed_nothing_waits_for_the_host():
    assert causes(call(0, 1, 1), work(0, 20, 1), call(60, 70, 2), work(70, 100, 2)) == [
        (0, 0, 50, 0)
    ]


def test_a_device_that_ran_dry_while_the_host_waited_for_it_idles_for_that():
    sync = Span(SYNC, 5, 22, lane=9)
    assert causes(call(0, 1, 1), work(1, 20, 1), sync, call(60, 70, 2), work(75, 100, 2)) == [
        (5, 50, 1, 0)
    ]


def test_idling_before_work_of_unknown_launch_has_no_cause():
    assert causes(call(0, 1, 1), work(1, 20, 1), work(50, 100, 0)) == [(0, 0, 1, 30)]


def test_what_follows_the_last_work_waits_for_the_host():
    assert causes(call(0, 0, 1), work(0, 20, 1)) == [(0, 0, 80, 0)]


def test_causes_are_told_step_by_step():
    found = causes(
        call(0, 1, 1),
        work(1, 20, 1),
        call(60, 70, 2),
        work(80, 100, 2),
        steps=[(1, 0, 50), (2, 50, 100)],
    )
    assert found == [(0, 0, 31, 0), (10, 0, 20, 0)]


def test_a_rank_that_tells_no_launch_has_no_cause():
    traces = TraceSet(
        ranks=(
            rank_trace([call(0, 1, 1), work(1, 20, 1)], device=Device(name="GPU")),
            rank_trace([work(1, 20, 0)], device=Device(name="GPU"), rank=1),
        )
    )
    told, untold = idle_causes(traces)
    assert told.other_ns.tolist() == [0]
    assert untold.other_ns.tolist() == untold.idle_ns.tolist() == [81]


def test_a_job_that_tells_no_launch_has_no_causes():
    assert idle_causes(job(work(0, 20, 0))) is None


def test_waiting_for_the_host_is_a_share_of_the_step():
    traces = job(call(0, 1, 1), work(0, 20, 1), call(60, 70, 2), work(70, 100, 2))
    share = metric("host_wait_fraction").measure(Evidence(traces=traces))
    assert share == pytest.approx(0.5)


launches = st.lists(
    st.tuples(
        st.integers(-10, 100),
        st.integers(0, 8),
        st.integers(-5, 40),
        st.integers(1, 30),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)
syncs = st.lists(st.tuples(st.integers(-10, 100), st.integers(1, 40)), max_size=4)


def slow_causes(given_launches, given_syncs):
    """The same by looking at every instant."""
    runs = sorted(
        (start + delay, start + delay + length, told)
        for start, _, delay, length, told in given_launches
    )
    handed = [(s + c, s + d) for s, c, d, _, told in given_launches if told]
    counts = [0, 0, 0, 0]
    for instant in range(100):
        if any(start <= instant < end for start, end, _ in runs):
            continue
        ended = max((end for start, end, _ in runs if end <= instant), default=0)
        since = max(ended, 0)
        following = [told for start, _, told in runs if start == min_start(runs, instant)]
        if following and not any(following):
            counts[3] += 1
        elif any(start <= instant < end for start, end in handed):
            counts[0] += 1
        elif any(start <= since < start + length for start, length in given_syncs):
            counts[1] += 1
        else:
            counts[2] += 1
    return tuple(counts)


def min_start(runs, instant):
    return min((start for start, _, _ in runs if start > instant), default=None)


@given(launches, syncs)
def test_causes_agree_with_looking_at_every_instant(given_launches, given_syncs):
    spans = [Span(SYNC, start, start + length, lane=9) for start, length in given_syncs]
    for i, (start, lasting, delay, length, told) in enumerate(given_launches):
        begun = start + delay
        spans.append(call(start, start + lasting, i + 1))
        spans.append(work(begun, begun + length, i + 1 if told else 0))
    found = causes(*spans)
    assert sum(found[0]) == round(job_split(job(*spans)).mean.idle_s * 1e9)
    if any(told for *_, told in given_launches):
        assert found == [slow_causes(given_launches, given_syncs)]
