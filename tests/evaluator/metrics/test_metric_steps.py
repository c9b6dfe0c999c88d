"""Step times, times of tokens, memory and cost out of traces, against hand-made answers."""

import numpy as np
import pytest

from evaluator.metrics.base import Absent, Evidence
from evaluator.metrics.registry import measure, metric
from evaluator.traces.model import MemoryUse, RankTrace, StepKind, TraceSet
from evaluator.traces.testing import rank_trace
from records.study import Environment
from records.workload import Workload

PREFILL, DECODE = StepKind.PREFILL, StepKind.DECODE
CARD = Workload(name="w", global_batch=4, sequence_length=25)


def answer(name, *ranks, **given):
    traces = TraceSet(ranks=ranks) if ranks else None
    found = measure(metric(name), Evidence(traces=traces, **given))
    return found.reason if isinstance(found, Absent) else found.value


def test_the_first_and_last_of_many_profiled_steps_do_not_count():
    trace = rank_trace([], steps=[(1, 0, 900), (2, 900, 1000), (3, 1000, 1300), (4, 1300, 1999)])
    assert answer("avg_step_time", trace) == pytest.approx(200e-9)


def test_of_two_profiled_steps_both_count():
    trace = rank_trace([], steps=[(1, 0, 100), (2, 100, 400)])
    assert answer("avg_step_time", trace) == pytest.approx(200e-9)


def test_a_job_is_as_slow_as_its_slowest_rank():
    ranks = [rank_trace([], steps=[(1, 0, 100 * (1 + r))], rank=r) for r in range(3)]
    assert answer("avg_step_time", *ranks) == pytest.approx(300e-9)


def test_the_hosts_steps_count_where_they_are_told():
    trace = rank_trace([], steps=[(1, 0, 100)], host_steps=[(1, 0, 140)])
    assert answer("avg_step_time", trace) == pytest.approx(140e-9)
    assert answer("avg_step_time", rank_trace([], steps=[(1, 0, 100)], host_steps=())) == (
        pytest.approx(100e-9)
    )


def test_a_period_is_from_start_to_start_of_steps_in_a_row():
    trace = rank_trace([], steps=[(2, 0, 80), (3, 100, 180)])
    assert answer("step_period", trace) == pytest.approx(100e-9)
    more = [(1, 0, 80), (2, 500, 580), (3, 600, 680), (7, 900, 980), (8, 1050, 1100)]
    assert answer("step_period", rank_trace([], steps=more)) == pytest.approx(125e-9)
    assert answer("step_period", rank_trace([])) == "no two steps in a row were profiled"


def test_without_steps_there_is_no_step_time():
    assert answer("avg_step_time", rank_trace([], steps=())) == "no step was profiled"
    assert answer("avg_step_time") == "nothing was profiled"
    assert answer("step_time", rank_trace([])) == "no step was timed"


def test_traces_and_a_card_tell_throughput_and_cost():
    trace = rank_trace([], steps=[(1, 0, 10**9)], world_size=2)
    assert answer("tokens_per_s", trace, workload=CARD) == pytest.approx(100)
    assert answer("tokens_per_s_per_rank", trace, workload=CARD) == pytest.approx(50)
    assert answer("rank_seconds", trace) == pytest.approx(2)
    assert answer("rank_seconds_per_token", trace, workload=CARD) == pytest.approx(0.02)


def test_a_host_that_runs_ahead_does_not_make_a_job_fast():
    device, host = [(1, 0, 80), (2, 100, 180)], [(1, 0, 10), (2, 10, 20)]
    trace = rank_trace([], steps=device, host_steps=host, world_size=2)
    assert answer("rank_seconds", trace) == pytest.approx(200e-9)


def test_the_card_tells_the_ranks_where_nothing_else_does():
    card = Environment(name="m", device="cuda", accelerator="x", world_size=4, ranks_per_node=4)
    assert answer("rank_count", rank_trace([]), environment=card) == 4
    assert answer("rank_count", rank_trace([], world_size=2), environment=card) == 2
    assert answer("rank_count", rank_trace([])) == "it is unknown how many ranks the job had"


def test_timed_steps_win_over_profiled_ones():
    trace = rank_trace([], steps=[(1, 0, 10**9)], world_size=2)
    assert answer("tokens_per_s", trace, step_times_s=(0.5,), tokens_per_step=100) == 200


def test_a_step_that_took_no_time_has_no_rate():
    assert answer("tokens_per_s", step_times_s=(0.0,), tokens_per_step=9) == "a step took no time"


# Servers.


def test_the_first_prefill_is_the_time_to_the_first_token():
    steps = [(1, 0, 50), (2, 60, 160), (3, 200, 900)]
    ranks = [
        rank_trace([], steps=steps, kinds=(DECODE, PREFILL, PREFILL)),
        rank_trace([], steps=[(1, 0, 30)], kinds=(PREFILL,), rank=1),
    ]
    assert answer("ttft", *ranks) == pytest.approx(100e-9)


def test_tokens_come_at_the_period_of_decode_steps_in_a_row():
    steps = [(1, 0, 9), (2, 100, 109), (3, 120, 129), (4, 160, 169), (5, 300, 309), (7, 400, 409)]
    kinds = (PREFILL, DECODE, DECODE, DECODE, PREFILL, DECODE)
    assert answer("tpot", rank_trace([], steps=steps, kinds=kinds)) == pytest.approx(30e-9)


def test_what_a_server_did_not_do_has_no_time():
    prefills = rank_trace([], steps=[(1, 0, 9), (2, 10, 19)], kinds=(PREFILL, PREFILL))
    decodes = rank_trace([], steps=[(1, 0, 9), (3, 10, 19)], kinds=(DECODE, DECODE))
    assert answer("tpot", prefills) == "no two decode steps in a row were profiled"
    assert answer("tpot", decodes) == "no two decode steps in a row were profiled"
    assert answer("ttft", decodes) == "no prefill was profiled"
    assert answer("ttft", rank_trace([])) == "no prefill was profiled"
    assert answer("ttft") == "nothing was served"


# Memory.


def remembering(rank: int, *allocated: int) -> RankTrace:
    trace = rank_trace([], rank=rank)
    memory = MemoryUse(
        time_ns=np.arange(len(allocated), dtype=np.int64),
        allocated_bytes=np.array(allocated, np.int64),
    )
    return RankTrace(
        **{name: getattr(trace, name) for name in trace.__slots__} | {"memory": memory}
    )


def test_traces_tell_the_peak_of_the_rank_that_needs_most():
    ranks = remembering(0, 5, 9, 2), remembering(1, 7), remembering(2)
    assert answer("peak_memory", *ranks) == 9
    assert answer("peak_memory", *ranks, peak_memory_bytes=(4, 3)) == 4
    assert answer("peak_memory", remembering(0)) == "it is unknown how much memory ranks took"
