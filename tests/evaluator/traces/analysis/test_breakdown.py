"""Where profiled time went, against answers by hand, the generator's truth and a slow model."""

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.traces.analysis.breakdown import UNMARKED, breakdown, job_split, step_parts
from evaluator.traces.model import Activity, CollectiveKind, TraceSet
from evaluator.traces.testing import Span, rank_trace
from records.trial import Breakdown
from tests.support.traces import communication

COMPUTE, COMMUNICATION, COPY, FILL, WAIT = (
    Activity.COMPUTE,
    Activity.COMMUNICATION,
    Activity.COPY,
    Activity.FILL,
    Activity.WAIT,
)
COLUMNS = (
    *("window", "compute", "exposed_communication", "hidden_communication"),
    *("exposed_copy", "fill", "idle"),
)


def parts_of(trace):
    """The columns of each step."""
    return step_rows(step_parts(trace, trace.steps))


def step_rows(parts):
    return np.stack([getattr(parts, f"{name}_ns") for name in COLUMNS], axis=1).tolist()


def trace_of(*spans, steps=((0, 0, 100),), rank=0):
    """A trace from (activity, start, end[, thread]), all in ns."""
    rows = [(*row, 0)[:4] for row in spans]
    return rank_trace(
        [Span(what, start, end, lane=lane) for what, start, end, lane in rows],
        steps=steps,
        rank=rank,
    )


def split_of(*ranks):
    return job_split(TraceSet(ranks=ranks))


def test_spans_count_only_inside_their_steps_which_may_overlap():
    trace = trace_of((COMPUTE, -50, 20), (COMMUNICATION, 75, 500), steps=[(3, 10, 80)])
    assert parts_of(trace) == [[70, 10, 5, 0, 0, 0, 55]]
    trace = trace_of((COMPUTE, 40, 60), (COPY, 30, 70), steps=[(1, 0, 50), (2, 45, 100)])
    assert parts_of(trace) == [[50, 10, 0, 0, 10, 0, 30], [55, 15, 0, 0, 10, 0, 30]]


def test_only_steps_that_every_rank_profiled_count():
    split = split_of(
        trace_of((COMPUTE, 0, 50), steps=[(1, 0, 50), (2, 50, 100)]),
        trace_of((COMPUTE, 0, 200), steps=[(2, 0, 100), (3, 100, 200)], rank=1),
    )
    assert split.step_numbers == (2,)
    assert split.mean.compute_s == pytest.approx(50e-9)
    assert [rank for rank, _ in split.by_rank] == [0, 1]
    assert split.caveats == (
        "rank 0: 1 of 2 steps are left out, which not every rank profiled",
        "rank 1: 1 of 2 steps are left out, which not every rank profiled",
    )


def test_without_marked_steps_all_the_work_of_a_rank_is_one_window():
    split = split_of(trace_of((COMPUTE, 1000, 1040), (COPY, 1080, 1100), steps=()))
    assert split.step_numbers == ()
    assert split.mean.window_s == pytest.approx(100e-9)
    assert split.mean.idle_s == pytest.approx(40e-9)
    assert split.caveats == (UNMARKED,)


def test_ranks_that_did_nothing_or_have_no_common_step_have_no_split():
    one, other = trace_of(steps=[(1, 0, 100)]), trace_of(steps=[(2, 0, 100)], rank=1)
    assert split_of(one, other) is None
    assert split_of(trace_of(steps=())) is None


def test_the_recorded_breakdown_is_the_mean_step():
    split = split_of(trace_of((COMPUTE, 0, 40), (COMMUNICATION, 30, 60), (FILL, 60, 65)))
    assert breakdown(split) == Breakdown(
        compute_s=pytest.approx(40e-9),
        exposed_communication_s=pytest.approx(20e-9),
        hidden_communication_s=pytest.approx(10e-9),
        other_s=pytest.approx(5e-9),
        idle_s=pytest.approx(35e-9),
    )


def stage(*rows, rank=0, size=8):
    spans = [
        Span(COMPUTE, start, end) if kind is None else communication(kind, start, end, size=size)
        for kind, start, end in rows
    ]
    return rank_trace(spans, rank=rank)


@pytest.mark.parametrize(
    ("rows", "size", "bubble_s"),
    [
        ([(CollectiveKind.RECV, 0, 30), (None, 30, 100)], 8, pytest.approx(30e-9)),
        (
            [
                (CollectiveKind.SEND_RECV, 0, 70),
                (None, 10, 40),
                (CollectiveKind.ALL_REDUCE, 50, 60),
            ],
            8,
            pytest.approx(30e-9),
        ),
        ([(CollectiveKind.ALL_REDUCE, 0, 30)], 8, None),
        ([(CollectiveKind.SEND_RECV, 0, 30)], 0, None),
    ],
    ids=[
        "waiting for a neighbour is bubble",
        "a transfer beside compute or a collective is no bubble",
        "without transfers there is no bubble at all",
        "a kernel that may be an all-to-all is no transfer",
    ],
)
def test_a_bubble_is_a_transfer_alone(rows, size, bubble_s):
    assert split_of(stage(*rows, size=size)).mean.pipeline_bubble_s == bubble_s


def test_a_rank_that_transfers_nothing_has_no_bubble_in_a_job_that_has_one():
    split = split_of(
        stage((CollectiveKind.SEND, 0, 30), (None, 30, 100)), stage((None, 0, 100), rank=1)
    )
    assert split.mean.pipeline_bubble_s == pytest.approx(15e-9)
    assert [each.pipeline_bubble_s for _, each in split.by_rank] == [pytest.approx(30e-9), None]


spans = st.lists(
    st.builds(
        lambda activity, start, length, thread: (activity, start, start + length, thread),
        st.sampled_from(list(Activity)),
        st.integers(-50, 250),
        st.integers(0, 80),
        st.integers(0, 2),
    ),
    max_size=15,
)


@given(spans)
def test_the_mean_step_adds_up(given_spans):
    split = split_of(trace_of(*given_spans, steps=[(1, 0, 70), (2, 70, 103), (3, 110, 150)]))
    window, compute, exposed, _hidden, copy, fill, idle, _bubble = astuple(split.mean)
    assert compute + exposed + copy + fill + idle == pytest.approx(window, rel=1e-12)


def instants_of(given_spans, *activities):
    return {
        (instant, thread)
        for activity, start, end, thread in given_spans
        if activity in activities
        for instant in range(start, end)
    }


@given(spans)
def test_every_instant_of_a_step_is_counted_once_and_right(given_spans):
    step = set(range(100))
    waiting = instants_of(given_spans, WAIT)
    compute = {instant for instant, _ in instants_of(given_spans, COMPUTE) - waiting} & step
    comm = {instant for instant, _ in instants_of(given_spans, COMMUNICATION)} & step
    copies = {instant for instant, _ in instants_of(given_spans, COPY)} & step
    fills = {instant for instant, _ in instants_of(given_spans, FILL)} & step
    assert parts_of(trace_of(*given_spans)) == [
        [
            100,
            len(compute),
            len(comm - compute),
            len(comm & compute),
            len(copies - comm - compute),
            len(fills - copies - comm - compute),
            len(step - compute - comm - copies - fills),
        ]
    ]
