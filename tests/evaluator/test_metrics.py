"""Metrics against answers worked out by hand, the generator's truth, and their own identities."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.metrics.base import Evidence, Metric, MetricError
from evaluator.metrics.breakdown import breakdown, job_split, parts_ns
from evaluator.metrics.registry import measure_all, metric, metric_names
from evaluator.readers.job import read_traces
from evaluator.traces import Activity, RankTrace, StepWindows, TraceSet
from records.trial import Breakdown

SYNTHETIC = Path(__file__).parents[1] / "data" / "traces" / "synth_fsdp_4rank_straggler2"
COMPUTE, COMMUNICATION, COPY = Activity.COMPUTE, Activity.COMMUNICATION, Activity.COPY


def rank_trace(spans, steps=((0, 0, 100),), rank=0, world_size=None):
    """A trace from (activity, start, end[, thread]) and (step, start, end), all in ns."""
    rows = np.array([(*row, 0)[:4] for row in spans], np.int64).reshape(-1, 4)
    number, start_ns, end_ns = np.array(steps, np.int64).reshape(-1, 3).T
    return RankTrace(
        rank=rank,
        world_size=world_size,
        backend=None,
        start_ns=rows[:, 1],
        end_ns=rows[:, 2],
        name_id=np.zeros(len(rows), np.int32),
        thread_id=rows[:, 3].astype(np.int32),
        activity=rows[:, 0].astype(np.int8),
        names=("span",),
        steps=StepWindows(number=number, start_ns=start_ns, end_ns=end_ns),
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
    return {value.name: value.value for value in measure_all(evidence(*ranks, **changed))}


# From the timed steps.


def test_without_traces_only_the_timed_steps_speak():
    assert measured() == {
        "step_time": 0.2,
        "tokens_per_s": 5000,
        "peak_memory": 9,
        "rank_count": 2,
    }


def test_what_was_not_measured_has_no_value():
    assert measured(step_times_s=(), peak_memory_bytes=()) == {"rank_count": 2}


# From traces, by hand.


def test_communication_under_compute_is_hidden():
    values = measured(rank_trace([(COMPUTE, 0, 100), (COMMUNICATION, 20, 60)]))
    assert values["exposed_communication_fraction"] == 0
    assert values["overlap_fraction"] == 1
    assert values["communication_fraction"] == pytest.approx(0.4)


def test_communication_alone_is_exposed():
    values = measured(rank_trace([(COMPUTE, 0, 40), (COMMUNICATION, 50, 80)]))
    assert values["exposed_communication_fraction"] == pytest.approx(0.3)
    assert values["overlap_fraction"] == 0
    assert values["exposed_communication"] == pytest.approx(30e-9)
    assert values["idle_fraction"] == pytest.approx(0.3)


def test_two_collectives_at_once_are_one_time_of_communication():
    values = measured(rank_trace([(COMMUNICATION, 0, 40, 1), (COMMUNICATION, 10, 50, 2)]))
    assert values["communication_fraction"] == pytest.approx(0.5)


def test_overlap_has_no_answer_without_communication():
    values = measured(rank_trace([(COMPUTE, 0, 40)]))
    assert "overlap_fraction" not in values
    assert values["communication_fraction"] == 0


def test_copies_count_only_where_nothing_else_runs():
    trace = rank_trace([(COMPUTE, 0, 40), (COMMUNICATION, 50, 60), (COPY, 30, 70)])
    assert parts_ns(trace, trace.steps).tolist() == [[100, 40, 10, 0, 20, 30]]


def test_spans_count_only_inside_the_step():
    trace = rank_trace([(COMPUTE, 0, 40), (COMMUNICATION, 95, 300)], steps=[(1, 30, 100)])
    assert parts_ns(trace, trace.steps).tolist() == [[70, 10, 5, 0, 0, 55]]


def test_time_between_steps_belongs_to_none():
    trace = rank_trace([(COMPUTE, 0, 300)], steps=[(1, 0, 100), (2, 200, 300)])
    assert parts_ns(trace, trace.steps)[:, 0].tolist() == [100, 100]


def test_waiting_is_idle_unless_something_communicates():
    trace = rank_trace([(COMPUTE, 0, 100), (Activity.WAIT, 20, 80), (COMMUNICATION, 30, 50, 1)])
    assert parts_ns(trace, trace.steps).tolist() == [[100, 40, 20, 0, 0, 40]]


def test_fractions_are_ratios_of_sums_over_ranks_and_steps():
    long_step = rank_trace([(COMMUNICATION, 0, 30)], steps=[(1, 0, 300), (2, 300, 400)])
    short_step = rank_trace([(COMMUNICATION, 0, 90)], steps=[(1, 0, 100), (2, 100, 200)], rank=1)
    values = measured(long_step, short_step)
    assert values["communication_fraction"] == pytest.approx((30 + 90) / (400 + 200))


def test_only_steps_that_every_rank_profiled_count():
    both = [(1, 0, 100), (2, 100, 200)]
    split = job_split(TraceSet(ranks=(rank_trace([], both), rank_trace([], [(2, 50, 90)], rank=1))))
    assert split.step_numbers == (2,)
    assert split.mean.window_s == pytest.approx((100 + 40) / 2 * 1e-9)
    assert [rank for rank, _ in split.by_rank] == [0, 1]


def test_traces_without_a_common_step_have_no_answer():
    traces = rank_trace([], [(1, 0, 100)]), rank_trace([], [(2, 0, 100)], rank=1)
    assert "idle_fraction" not in measured(*traces)
    assert job_split(TraceSet(ranks=traces)) is None


def test_an_empty_step_has_no_fractions():
    assert "idle_fraction" not in measured(rank_trace([], [(1, 5, 5)]))


def test_the_recorded_breakdown_is_the_mean_step():
    trace = rank_trace([(COMPUTE, 0, 40), (COMMUNICATION, 30, 60)])
    assert breakdown(job_split(TraceSet(ranks=(trace,)))) == Breakdown(
        compute_s=pytest.approx(40e-9),
        exposed_communication_s=pytest.approx(20e-9),
        hidden_communication_s=pytest.approx(10e-9),
        other_s=0.0,
        idle_s=pytest.approx(40e-9),
    )


# From traces, against the truth of their generator.


def test_every_step_of_every_rank_splits_as_the_generator_knew():
    truth = json.loads((SYNTHETIC / "truth.json").read_text())["ranks"]
    columns = ["wall", "compute_busy", "exposed_comm", "overlap", "exposed_memcpy", "idle"]
    traces = read_traces(sorted(SYNTHETIC.glob("*.gz")))
    for trace in traces.ranks:
        steps = truth[str(trace.rank)]["steps"]
        expected = [[step[f"gpu_{column}"] for column in columns] for step in steps]
        assert trace.steps.number.tolist() == [step["id"] for step in steps]
        assert parts_ns(trace, trace.steps).tolist() == expected


def test_job_fractions_are_the_generators_sums():
    truth = json.loads((SYNTHETIC / "truth.json").read_text())["ranks"].values()
    steps = [step for rank in truth for step in rank["steps"]]
    total = {key: sum(step[key] for step in steps) for key in steps[0] if key.startswith("gpu_")}
    values = measured(*read_traces(sorted(SYNTHETIC.glob("*.gz"))).ranks)
    assert values["communication_fraction"] == pytest.approx(
        total["gpu_comm_busy"] / total["gpu_wall"]
    )
    assert values["overlap_fraction"] == pytest.approx(
        total["gpu_overlap"] / total["gpu_comm_busy"]
    )


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
    trace = rank_trace(given_spans, steps)
    window, compute, exposed, hidden, other, idle = parts_ns(trace, trace.steps).T
    assert np.array_equal(compute + exposed + other + idle, window)
    assert (np.minimum.reduce([compute, exposed, hidden, other, idle]) >= 0).all()
    assert (hidden <= compute).all()


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
    waiting = instants_of(given_spans, Activity.WAIT)
    compute = {instant for instant, _ in instants_of(given_spans, COMPUTE) - waiting} & step
    comm = {instant for instant, _ in instants_of(given_spans, COMMUNICATION)} & step
    copies = {instant for instant, _ in instants_of(given_spans, COPY, Activity.FILL)} & step
    trace = rank_trace(given_spans)
    assert parts_ns(trace, trace.steps).tolist() == [
        [
            100,
            len(compute),
            len(comm - compute),
            len(comm & compute),
            len(copies - comm - compute),
            len(step - compute - comm - copies),
        ]
    ]


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


# The registry.


def install(monkeypatch, folder, *lines, module=""):
    """Make an installed package that declares metrics, as pip would leave it."""
    (folder / "theirs.py").write_text(module)
    package = folder / "theirs-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("\n".join(["[cclsearch.metrics]", *lines]))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "theirs", raising=False)


THEIR_METRIC = """
from evaluator.metrics.base import Formula
{name} = Formula(
    name="{name}", unit="s", better="lower", version=3, description="Theirs.",
    formula=lambda evidence: {value},
)
"""


@pytest.mark.parametrize("name", metric_names())
def test_a_metric_is_found_under_its_own_name(name):
    found = metric(name)
    assert isinstance(found, Metric)
    assert found.name == name
    assert found.description.endswith(".")


def test_a_misspelt_metric_is_answered_with_the_nearest():
    with pytest.raises(MetricError, match="no metric is called 'step_tme'; did you mean 'step_tim"):
        metric("step_tme")


def test_a_name_like_no_metric_is_answered_with_all():
    with pytest.raises(MetricError, match="known are communication_fraction, compute_fraction"):
        metric("zzz")


def test_an_installed_package_adds_a_metric(monkeypatch, tmp_path):
    module = THEIR_METRIC.format(name="joules", value="evidence.rank_count * 1.5")
    install(monkeypatch, tmp_path, "joules = theirs:joules", module=module)
    assert "joules" in metric_names()
    assert measured()["joules"] == 3
    assert metric("joules").version == 3


def test_two_metrics_of_one_name_are_refused(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "step_time = theirs:step_time")
    with pytest.raises(MetricError, match=r"throughput:step_time and by theirs:step_time"):
        metric_names()


def test_a_metric_that_gives_no_number_is_refused(monkeypatch, tmp_path):
    module = THEIR_METRIC.format(name="joules", value="float('nan')")
    install(monkeypatch, tmp_path, "joules = theirs:joules", module=module)
    with pytest.raises(MetricError, match=r"'joules' \(theirs:joules\) gave nan"):
        measured()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("joules = theirs:missing", "cannot be loaded"),
        ("joules = nowhere:joules", "cannot be loaded"),
        ("joules = theirs:__doc__", "no metric of the name 'joules'"),
        ("joules = evaluator.metrics.memory:peak_memory", "no metric of the name 'joules'"),
    ],
)
def test_a_broken_metric_is_refused(monkeypatch, tmp_path, line, message):
    install(monkeypatch, tmp_path, line)
    with pytest.raises(MetricError, match=message):
        metric("joules")
