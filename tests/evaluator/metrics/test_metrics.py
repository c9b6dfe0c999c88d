"""Metrics against answers worked out by hand, the generator's truth, and their own identities."""

import json
from pathlib import Path

import pytest

from evaluator.metrics.base import Evidence
from evaluator.metrics.registry import measure_all
from evaluator.traces.analysis.breakdown import job_split
from evaluator.traces.model import Activity, TraceSet
from evaluator.traces.readers.read import read_traces
from evaluator.traces.testing import Span
from evaluator.traces.testing import rank_trace as by_hand

SYNTHETIC = Path(__file__).parents[2] / "data" / "traces" / "synth_fsdp_4rank_straggler2"
COMPUTE, COMMUNICATION, COPY = Activity.COMPUTE, Activity.COMMUNICATION, Activity.COPY


def rank_trace(spans, steps=((0, 0, 100),), rank=0, world_size=None):
    """A trace from (activity, start, end[, thread]) and (step, start, end), all in ns."""
    rows = [(*row, 0)[:4] for row in spans]
    return by_hand(
        [Span(Activity(what), start, end, lane=lane) for what, start, end, lane in rows],
        steps=steps,
        rank=rank,
        world_size=world_size,
    )


def evidence(*ranks, **changed):
    given_values = {
        "step_times_s": (0.2, 0.1, 0.4),
        "tokens_per_step": 1000,
        "rank_count": 2,
        "peak_memory_bytes": (5, 9),
        "traces": TraceSet(ranks=ranks) if ranks else None,
    }
    return Evidence(**(given_values | changed))


def measured(*ranks, **changed):
    return {value.name: value.value for value in measure_all(evidence(*ranks, **changed)).values}


# From the timed steps.


def test_without_traces_only_the_timed_steps_speak():
    assert measured() == {
        "step_time": 0.2,
        "tokens_per_s": 5000,
        "peak_memory": 9,
        "rank_count": 2,
        "rank_seconds": 0.4,
        "rank_seconds_per_token": 0.0004,
        "tokens_per_s_per_rank": 2500,
    }


def test_what_was_not_measured_has_no_value():
    assert measured(step_times_s=(), peak_memory_bytes=()) == {"rank_count": 2}


# From traces, by hand.


def test_communication_under_compute_is_hidden():
    values = measured(rank_trace([(COMPUTE, 0, 100), (COMMUNICATION, 20, 60)]))
    assert values["exposed_communication_fraction"] == 0
    assert values["compute_comm_overlap"] == 1
    assert values["communication_fraction"] == pytest.approx(0.4)


def test_communication_alone_is_exposed():
    values = measured(rank_trace([(COMPUTE, 0, 40), (COMMUNICATION, 50, 80)]))
    assert values["exposed_communication_fraction"] == pytest.approx(0.3)
    assert values["compute_comm_overlap"] == 0
    assert values["total_communication_time"] == pytest.approx(30e-9)
    assert values["idle_fraction"] == pytest.approx(0.3)


def test_two_collectives_at_once_are_one_time_of_communication():
    values = measured(rank_trace([(COMMUNICATION, 0, 40, 1), (COMMUNICATION, 10, 50, 2)]))
    assert values["communication_fraction"] == pytest.approx(0.5)


def test_overlap_has_no_answer_without_communication():
    values = measured(rank_trace([(COMPUTE, 0, 40)]))
    assert "compute_comm_overlap" not in values
    assert values["communication_fraction"] == 0


def test_fractions_are_ratios_of_sums_over_ranks_and_steps():
    long_step = rank_trace([(COMMUNICATION, 0, 30)], steps=[(1, 0, 300), (2, 300, 400)])
    short_step = rank_trace([(COMMUNICATION, 0, 90)], steps=[(1, 0, 100), (2, 100, 200)], rank=1)
    values = measured(long_step, short_step)
    assert values["communication_fraction"] == pytest.approx((30 + 90) / (400 + 200))


def test_traces_without_a_common_step_have_no_answer():
    traces = rank_trace([], [(1, 0, 100)]), rank_trace([], [(2, 0, 100)], rank=1)
    assert "idle_fraction" not in measured(*traces)
    assert job_split(TraceSet(ranks=traces)) is None


def test_an_empty_step_has_no_fractions():
    assert "idle_fraction" not in measured(rank_trace([], [(1, 5, 5)]))


# From traces, against the truth of their generator.


def test_job_fractions_are_the_generators_sums():
    truth = json.loads((SYNTHETIC / "truth.json").read_text())["ranks"].values()
    steps = [step for rank in truth for step in rank["steps"]]
    total = {key: sum(step[key] for step in steps) for key in steps[0] if key.startswith("gpu_")}
    values = measured(*read_traces(sorted(SYNTHETIC.glob("*.gz"))).ranks)
    assert values["communication_fraction"] == pytest.approx(
        total["gpu_comm_busy"] / total["gpu_wall"]
    )
    assert values["compute_comm_overlap"] == pytest.approx(
        total["gpu_overlap"] / total["gpu_comm_busy"]
    )


# Sets of traces.


def test_a_set_knows_which_ranks_are_missing():
    traces = TraceSet(ranks=(rank_trace([], world_size=4), rank_trace([], rank=2)))
    assert traces.world_size == 4
    assert traces.missing_ranks == (1, 3)


def test_a_set_of_unknown_size_misses_nothing():
    assert TraceSet(ranks=(rank_trace([], rank=3),)).missing_ranks == ()


@pytest.mark.parametrize(
    "ranks",
    [
        (),
        (rank_trace([], rank=1), rank_trace([], rank=0)),
        (rank_trace([]), rank_trace([])),
        (rank_trace([], world_size=2), rank_trace([], rank=1, world_size=3)),
        (rank_trace([], world_size=1), rank_trace([], rank=1)),
    ],
)
def test_a_set_that_is_no_job_is_refused(ranks):
    with pytest.raises(ValueError, match="ranks"):
        TraceSet(ranks=ranks)
