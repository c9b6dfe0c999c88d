"""Where profiled time went, against answers by hand, the generator's truth and a slow model."""

import json
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.traces.analysis.breakdown import UNMARKED, breakdown, job_split, step_parts
from evaluator.traces.model import Activity, CollectiveKind, TraceSet
from evaluator.traces.readers.read import read_traces
from evaluator.traces.testing import Span, rank_trace
from records.trial import Breakdown

SYNTHETIC = Path(__file__).parents[3] / "data" / "traces" / "synth_fsdp_4rank_straggler2"
GLOO = Path(__file__).parents[3] / "data" / "traces" / "gloo_ddp_2rank"
COMPUTE, COMMUNICATION, COPY, FILL, WAIT = (
    Activity.COMPUTE,
    Activity.COMMUNICATION,
    Activity.COPY,
    Activity.FILL,
    Activity.WAIT,
)


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


def parts_of(trace):
    """Window, compute, exposed and hidden communication, exposed copies, fills, idle, by step."""
    return step_rows(step_parts(trace, trace.steps))


def step_rows(parts):
    columns = (
        parts.window_ns,
        parts.compute_ns,
        parts.exposed_communication_ns,
        parts.hidden_communication_ns,
        parts.exposed_copy_ns,
        parts.fill_ns,
        parts.idle_ns,
    )
    return np.stack(columns, axis=1).tolist()


# By hand.


def test_copies_count_only_where_nothing_else_runs():
    trace = trace_of((COMPUTE, 0, 40), (COMMUNICATION, 40, 50), (COPY, 30, 70))
    assert parts_of(trace) == [[100, 40, 10, 0, 20, 0, 30]]


def test_fills_count_only_where_not_even_copies_run():
    trace = trace_of((COPY, 0, 40), (FILL, 30, 60))
    assert parts_of(trace) == [[100, 0, 0, 0, 40, 20, 40]]


def test_spans_count_only_inside_the_step():
    trace = trace_of((COMPUTE, -50, 20), (COMMUNICATION, 75, 500), steps=[(3, 10, 80)])
    assert parts_of(trace) == [[70, 10, 5, 0, 0, 0, 55]]


def test_steps_may_overlap():
    trace = trace_of((COMPUTE, 40, 60), steps=[(1, 0, 50), (2, 45, 100)])
    assert [row[:2] for row in parts_of(trace)] == [[50, 10], [55, 15]]


def test_waiting_is_idle_unless_something_communicates():
    trace = trace_of((COMPUTE, 0, 60), (WAIT, 20, 60), (COMMUNICATION, 30, 50))
    assert parts_of(trace) == [[100, 20, 20, 0, 0, 0, 60]]


def test_a_thread_that_waits_takes_nothing_from_another_that_computes():
    trace = trace_of((COMPUTE, 0, 60, 0), (WAIT, 20, 60, 0), (COMPUTE, 30, 40, 1))
    assert parts_of(trace) == [[100, 30, 0, 0, 0, 0, 70]]


# The job.


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


def test_ranks_that_did_nothing_have_no_split():
    assert split_of(trace_of(steps=())) is None


def test_ranks_without_a_common_step_have_no_split():
    one, other = trace_of(steps=[(1, 0, 100)]), trace_of(steps=[(2, 0, 100)], rank=1)
    assert split_of(one, other) is None


def test_the_recorded_breakdown_is_the_mean_step():
    split = split_of(trace_of((COMPUTE, 0, 40), (COMMUNICATION, 30, 60), (FILL, 60, 65)))
    assert breakdown(split) == Breakdown(
        compute_s=pytest.approx(40e-9),
        exposed_communication_s=pytest.approx(20e-9),
        hidden_communication_s=pytest.approx(10e-9),
        other_s=pytest.approx(5e-9),
        idle_s=pytest.approx(35e-9),
    )


# The pipeline bubble.


def stage(*rows, rank=0, payload_bytes=8):
    return rank_trace(
        [
            Span(
                COMPUTE if kind is None else COMMUNICATION,
                start,
                end,
                lane=i,
                collective=kind,
                payload_bytes=payload_bytes,
            )
            for i, (kind, start, end) in enumerate(rows)
        ],
        rank=rank,
    )


def test_waiting_for_a_neighbour_is_bubble():
    split = split_of(stage((CollectiveKind.RECV, 0, 30), (None, 30, 100)))
    assert split.mean.pipeline_bubble_s == pytest.approx(30e-9)
    assert split.mean.exposed_communication_s == pytest.approx(30e-9)


def test_a_transfer_beside_compute_or_a_collective_is_no_bubble():
    split = split_of(
        stage(
            (CollectiveKind.SEND_RECV, 0, 70),
            (None, 10, 40),
            (CollectiveKind.ALL_REDUCE, 50, 60),
        )
    )
    assert split.mean.pipeline_bubble_s == pytest.approx(30e-9)
    assert split.mean.exposed_communication_s == pytest.approx(40e-9)


def test_a_rank_that_transfers_nothing_has_no_bubble_in_a_job_that_has_one():
    split = split_of(
        stage((CollectiveKind.SEND, 0, 30), (None, 30, 100)), stage((None, 0, 100), rank=1)
    )
    assert split.mean.pipeline_bubble_s == pytest.approx(15e-9)
    assert [each.pipeline_bubble_s for _, each in split.by_rank] == [pytest.approx(30e-9), None]


def test_without_transfers_there_is_no_bubble_at_all():
    split = split_of(stage((CollectiveKind.ALL_REDUCE, 0, 30)))
    assert split.mean.pipeline_bubble_s is None


def test_a_kernel_that_may_be_an_all_to_all_is_no_transfer():
    split = split_of(stage((CollectiveKind.SEND_RECV, 0, 30), payload_bytes=0))
    assert split.mean.pipeline_bubble_s is None


# Against the truth of the generator.


def test_every_step_of_every_rank_splits_as_the_generator_knew():
    truth = json.loads((SYNTHETIC / "truth.json").read_text())["ranks"]
    columns = ["wall", "compute_busy", "exposed_comm", "overlap", "exposed_memcpy"]
    for trace in read_traces(sorted(SYNTHETIC.glob("*.gz"))).ranks:
        steps = truth[str(trace.rank)]["steps"]
        expected = [
            [*(step[f"gpu_{column}"] for column in columns), 0, step["gpu_idle"]] for step in steps
        ]
        assert trace.steps.number.tolist() == [step["id"] for step in steps]
        assert parts_of(trace) == expected


@pytest.mark.parametrize("folder", [SYNTHETIC, GLOO], ids=["synthetic", "gloo"])
def test_the_parts_of_real_steps_make_up_the_steps(folder):
    for parts in job_split(read_traces(sorted(folder.glob("*.gz")))).parts:
        window, *rest = np.array(step_rows(parts)).T
        assert np.array_equal(sum(rest) - rest[2], window)
        assert np.min(rest) >= 0


# Identities.

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
windows = st.lists(st.tuples(st.integers(-20, 220), st.integers(0, 60)), max_size=4)


@given(spans, windows)
def test_the_parts_of_a_step_make_up_the_step(given_spans, given_windows):
    steps = [(k, start, start + length) for k, (start, length) in enumerate(given_windows)]
    rows = parts_of(trace_of(*given_spans, steps=steps))
    window, compute, exposed, hidden, copy, fill, idle = np.array(rows, np.int64).reshape(-1, 7).T
    assert np.array_equal(compute + exposed + copy + fill + idle, window)
    assert (np.minimum.reduce([compute, exposed, hidden, copy, fill, idle]) >= 0).all()
    assert (hidden <= compute).all()


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
