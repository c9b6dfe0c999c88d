"""Pace, needs, price and shares of a step out of samples and traces, worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from evaluator.metrics.base import Evidence
from evaluator.metrics.registry import measure_all
from evaluator.recipes.builtin import counts_ranks
from evaluator.traces.model import Activity, MemoryUse, StepKind, TraceSet
from evaluator.traces.testing import Span, rank_trace
from records.errors import StudyError
from records.study import Environment, Objective
from records.workload import Workload
from tests.support import records as testing
from tests.support.traces import value_of

PREFILL, DECODE = StepKind.PREFILL, StepKind.DECODE
CARD = Workload(name="w", global_batch=4, sequence_length=25)


def answer(name, *ranks, **given):
    return value_of(name, TraceSet(ranks=ranks) if ranks else None, **given)


def steps(*windows, **given):
    return rank_trace([], steps=windows, **given)


IN_A_ROW = ((1, 0, 80), (2, 500, 580), (3, 600, 680), (7, 900, 980), (8, 1050, 1100))
AHEAD = {"host_steps": [(1, 0, 10), (2, 10, 20)], "world_size": 2}
SERVED = ((1, 0, 9), (2, 100, 109), (3, 120, 129), (4, 160, 169), (5, 300, 309), (7, 400, 409))
PREFILLS = steps((1, 0, 9), (2, 10, 19), kinds=(PREFILL, PREFILL))
DECODES = steps((1, 0, 9), (3, 10, 19), kinds=(DECODE, DECODE))
ANSWERING = steps(*SERVED, kinds=(PREFILL, DECODE, DECODE, DECODE, PREFILL, DECODE))


@pytest.mark.parametrize(
    ("name", "ranks", "value"),
    [
        ("avg_step_time", [steps((1, 0, 900), (2, 900, 1000), (3, 1000, 1300), (4, 0, 9))], 200),
        ("avg_step_time", [steps((1, 0, 100), (2, 100, 400))], 200),
        ("avg_step_time", [steps((1, 0, 100 * (1 + r)), rank=r) for r in range(3)], 300),
        ("avg_step_time", [steps((1, 0, 100), host_steps=[(1, 0, 140)])], 140),
        ("avg_step_time", [steps((1, 0, 100), host_steps=())], 100),
        ("avg_step_time", [steps()], "no step was profiled"),
        ("avg_step_time", [], "nothing was profiled"),
        ("step_time", [steps()], "no step was timed"),
        ("step_period", [steps((2, 0, 80), (3, 100, 180))], 100),
        ("step_period", [steps(*IN_A_ROW)], 125),
        ("step_period", [steps((1, 0, 9))], "no two steps in a row were profiled"),
        ("rank_seconds", [steps((1, 0, 80), (2, 100, 180), **AHEAD)], 200),
        (
            "ttft",
            [
                steps((1, 0, 50), (2, 60, 160), (3, 200, 900), kinds=(DECODE, PREFILL, PREFILL)),
                steps((1, 0, 30), kinds=(PREFILL,), rank=1),
            ],
            100,
        ),
        ("ttft", [DECODES], "no prefill was profiled"),
        ("ttft", [steps((1, 0, 9))], "no prefill was profiled"),
        ("ttft", [], "nothing was served"),
        ("tpot", [ANSWERING], 30),
        ("tpot", [PREFILLS], "no two decode steps in a row were profiled"),
        ("tpot", [DECODES], "no two decode steps in a row were profiled"),
    ],
    ids=[
        "the first and last of many profiled steps do not count",
        "of two profiled steps both count",
        "a job is as slow as its slowest rank",
        "the hosts steps count where they are told",
        "those of the device where the host has none",
        "without steps there is no step time",
        "without traces there is no step time",
        "profiled steps are not timed",
        "a period is from start to start",
        "a period is of steps in a row without the first",
        "one step has no period",
        "a host that runs ahead does not make a job fast",
        "the first prefill is the time to the first token",
        "without prefills there is no first token",
        "steps that do not say what they do are no prefills",
        "without traces nothing was served",
        "tokens come at the period of decode steps in a row",
        "prefills give no tokens",
        "decode steps that are not in a row have no period",
    ],
)
def test_times_of_steps_are_those_of_the_slowest_rank(name, ranks, value):
    expected = value if isinstance(value, str) else pytest.approx(value / 1e9)
    assert answer(name, *ranks) == expected


def test_traces_and_a_card_tell_throughput_and_cost():
    trace = steps((1, 0, 10**9), world_size=2)
    assert answer("tokens_per_s", trace, workload=CARD) == pytest.approx(100)
    assert answer("tokens_per_s_per_rank", trace, workload=CARD) == pytest.approx(50)
    assert answer("rank_seconds", trace) == pytest.approx(2)
    assert answer("rank_seconds_per_token", trace, workload=CARD) == pytest.approx(0.02)
    assert answer("tokens_per_s", trace, step_times_s=(0.5,), tokens_per_step=100) == 200
    assert answer("tokens_per_s", step_times_s=(0.0,), tokens_per_step=9) == "a step took no time"


def test_the_card_tells_the_ranks_where_nothing_else_does():
    card = Environment(name="m", device="cuda", accelerator="x", world_size=4, ranks_per_node=4)
    assert answer("rank_count", steps(), environment=card) == 4
    assert answer("rank_count", steps(world_size=2), environment=card) == 2
    assert answer("rank_count", steps()) == "it is unknown how many ranks the job had"


def remembering(rank, *allocated):
    memory = MemoryUse(
        time_ns=np.arange(len(allocated)), allocated_bytes=np.array(allocated, np.int64)
    )
    return replace(rank_trace([], rank=rank), memory=memory)


def test_traces_tell_the_peak_of_the_rank_that_needs_most():
    ranks = remembering(0, 5, 9, 2), remembering(1, 7), remembering(2)
    assert answer("peak_memory", *ranks) == 9
    assert answer("peak_memory", *ranks, peak_memory_bytes=(4, 3)) == 4
    assert answer("peak_memory", remembering(0)) == "it is unknown how much memory ranks took"


PRICED = replace(testing.ENVIRONMENT, accelerator_usd_per_hour=3.6)
TIMED = {"step_times_s": (0.5, 0.5, 0.5), "tokens_per_step": 2000, "rank_count": 4}


@pytest.mark.parametrize(
    ("name", "changed", "expected"),
    [
        ("cost_per_step", {}, 0.5 * 4 * 3.6 / 3600),
        ("cost_per_million_tokens", {}, 0.002 / 2000 * 1e6),
        ("cost_per_step", {"step_times_s": ()}, "no step was timed"),
        ("cost_per_million_tokens", {"tokens_per_step": 0}, "a step processes no tokens"),
    ],
)
def test_a_step_costs_its_time_on_all_ranks(name, changed, expected):
    found = value_of(name, environment=PRICED, **(TIMED | changed))
    assert found == (expected if isinstance(expected, str) else pytest.approx(expected))


@pytest.mark.parametrize("name", ["cost_per_step", "cost_per_million_tokens"])
@pytest.mark.parametrize("environment", [None, testing.ENVIRONMENT])
def test_without_a_price_there_is_none_and_it_says_where_to_give_it(name, environment):
    told = value_of(name, environment=environment, **TIMED)
    assert "accelerator_usd_per_hour under [environment]" in told


@pytest.mark.parametrize("price", [0.0, -1.0])
def test_a_price_is_above_zero(price):
    with pytest.raises(StudyError, match="accelerator_usd_per_hour"):
        replace(testing.ENVIRONMENT, accelerator_usd_per_hour=price)


@pytest.mark.parametrize(
    ("main", "more", "counts"),
    [
        ("step_time", (), False),
        ("cost_per_million_tokens", (), True),
        ("16/gpus", (), True),
        ("step_time", ("gpus",), True),
        ("step_time", ("peak_memory",), False),
    ],
)
def test_fewer_ranks_may_be_better_where_any_objective_counts_them(main, more, counts):
    study = replace(
        testing.study(),
        objective=Objective(expression=main),
        more_objectives=tuple(Objective(expression=text) for text in more),
    )
    assert counts_ranks(study) is counts


def values(*ranks, **given):
    traces = TraceSet(ranks=ranks) if ranks else None
    measures = measure_all(Evidence(traces=traces, **given))
    return {value.name: value.value for value in measures.values}


def test_without_traces_only_the_timed_steps_speak():
    timed = {"step_times_s": (0.2, 0.1, 0.4), "peak_memory_bytes": (5, 9)}
    assert values(tokens_per_step=1000, rank_count=2, **timed) == {
        "step_time": 0.2,
        "tokens_per_s": 5000,
        "peak_memory": 9,
        "rank_count": 2,
        "rank_seconds": 0.4,
        "rank_seconds_per_token": 0.0004,
        "tokens_per_s_per_rank": 2500,
    }
    assert values(tokens_per_step=1000, rank_count=2) == {"rank_count": 2}


def computing(start, end):
    return Span(Activity.COMPUTE, start, end)


def communicating(start, end):
    return Span(Activity.COMMUNICATION, start, end)


@pytest.mark.parametrize(
    ("spans", "steps", "expected"),
    [
        (
            [computing(0, 100), communicating(20, 60)],
            [(0, 0, 100)],
            {"exposed": 0, "overlap": 1, "share": 0.4, "seconds": 0, "idle": 0},
        ),
        (
            [computing(0, 40), communicating(50, 80)],
            [(0, 0, 100)],
            {"exposed": 0.3, "overlap": 0, "share": 0.3, "seconds": 30e-9, "idle": 0.3},
        ),
        (
            [computing(0, 40)],
            [(0, 0, 100)],
            {"exposed": 0, "overlap": None, "share": 0, "seconds": 0, "idle": 0.6},
        ),
        ([], [(1, 5, 5)], {"seconds": 0, "exposed": None, "overlap": None, "idle": None}),
    ],
    ids=["hidden under compute", "alone", "none at all", "an empty step"],
)
def test_communication_is_hidden_or_exposed(spans, steps, expected):
    names = {
        "exposed": "exposed_communication_fraction",
        "overlap": "compute_comm_overlap",
        "share": "communication_fraction",
        "seconds": "total_communication_time",
        "idle": "idle_fraction",
    }
    found = values(rank_trace(spans, steps=steps))
    assert {key: found.get(names[key]) for key in expected} == pytest.approx(expected)


def test_fractions_are_ratios_of_sums_over_ranks_and_steps():
    long_steps = rank_trace([communicating(0, 30)], steps=[(1, 0, 300), (2, 300, 400)])
    short_steps = rank_trace([communicating(0, 90)], steps=[(1, 0, 100), (2, 100, 200)], rank=1)
    found = values(long_steps, short_steps)
    assert found["communication_fraction"] == pytest.approx((30 + 90) / (400 + 200))


def test_a_set_knows_which_ranks_are_missing_where_its_size_is_known():
    traces = TraceSet(ranks=(rank_trace([], world_size=4), rank_trace([], rank=2)))
    assert (traces.world_size, traces.missing_ranks) == (4, (1, 3))
    assert TraceSet(ranks=(rank_trace([], rank=3),)).missing_ranks == ()


@pytest.mark.parametrize("numbers", [(), (1, 0), (0, 0)])
def test_a_set_of_ranks_that_do_not_rise_is_refused(numbers):
    with pytest.raises(ValueError, match="ranks"):
        TraceSet(ranks=tuple(rank_trace([], rank=number) for number in numbers))
