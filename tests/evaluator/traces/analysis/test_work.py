"""Which launches ran equal work: kernels and collectives in the profiled steps, whatever time."""

import pytest

from evaluator.traces.analysis.collectives import match, volume, work_digest
from evaluator.traces.model import Activity, CollectiveKind, TraceSet
from evaluator.traces.testing import Span, rank_trace


def mm(start_ns, name="mm", length_ns=10):
    return Span(Activity.COMPUTE, start_ns, start_ns + length_ns, name)


def reduce(start_ns, payload_bytes=1024):
    return Span(
        Activity.COMMUNICATION,
        start_ns,
        start_ns + 5,
        "all_reduce",
        lane=1,
        collective=CollectiveKind.ALL_REDUCE,
        payload_bytes=payload_bytes,
    )


def digest(*spans, **more):
    traces = TraceSet(ranks=(rank_trace(spans, **more),))
    return work_digest(traces, volume(traces, match(traces)))


SAME = (mm(0), mm(20), reduce(40))


def test_time_and_work_outside_the_profiled_steps_do_not_count():
    assert digest(*SAME) == digest(mm(5, length_ns=3), mm(50), reduce(60), mm(100), mm(-10))


@pytest.mark.parametrize(
    "other",
    [
        (mm(0), reduce(40)),
        (mm(0), mm(20, "other_mm"), reduce(40)),
        (mm(0), mm(20), reduce(40, payload_bytes=512)),
        (mm(0), mm(20), reduce(40), reduce(50)),
    ],
)
def test_other_kernels_collectives_or_bytes_are_other_work(other):
    assert digest(*other) != digest(*SAME)


def test_work_is_unknown_where_nothing_computed():
    assert digest(reduce(40)) is None
