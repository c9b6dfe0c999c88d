"""Timings carry their task, launch and threshold, and leave everything else as it was."""

import gc
import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
import torch

from evaluator.timing.timer import Timer
from evaluator.timing.timing import Task, Timing
from records.codec import from_json, to_json


@dataclass
class Clock:
    """Time passes by what a statement says that it takes."""

    costs_ns: Iterable[int]
    now_ns: int = 0

    def __post_init__(self):
        self.costs_ns = iter(self.costs_ns)

    def work(self):
        self.now_ns += next(self.costs_ns)

    def read_s(self):
        return self.now_ns / 1e9


def test_blocks_are_timed_until_they_add_up_to_a_time():
    clock = Clock(itertools.repeat(1_000_000))
    told = Timer("clock.work()", globals={"clock": clock}, clock=clock.read_s).blocked_autorange(
        min_run_time_s=0.1
    )

    assert told.number_per_run == 1
    assert sum(told.times) == pytest.approx(0.1, abs=0.002)


SETTLING = [100_000, 900_000, 100_000, 900_000, *[500_000] * 40]
RESTLESS = [100_000, 900_000] * 40


@pytest.mark.parametrize(
    ("costs_ns", "limits_s", "blocks", "met"),
    [
        ([500_000] * 10, (0.0, 1.0), 4, True),
        ([500_000] * 100, (0.01, 1.0), 20, True),
        (SETTLING, (0.001, 1.0), 9, True),
        (RESTLESS, (0.001, 0.01), 21, False),
        # Three blocks show nothing, however alike they are.
        ([500_000] * 10, (0.001, 0.001), 3, False),
    ],
)
def test_adaptive_timing_reports_whether_the_threshold_was_met(costs_ns, limits_s, blocks, met):
    # The first call is the block that is tried for its size.
    clock = Clock([500_000, *costs_ns])
    least_s, most_s = limits_s

    timer = Timer("clock.work()", globals={"clock": clock}, clock=clock.read_s)
    told = timer.adaptive_autorange(min_run_time_s=least_s, max_run_time_s=most_s)

    assert told.number_per_run == 1
    assert len(told.times) == blocks
    assert told.unmet_threshold == (None if met else 0.1)
    assert any("time was up" in words for words in told.warnings) is not met


def test_a_number_of_calls_is_timed_once_after_a_hundredth_of_them():
    clock = Clock([*[10**9] * 3, *[7] * 300])

    told = Timer("clock.work()", globals={"clock": clock}, clock=clock.read_s).timeit(300)

    assert told.times == pytest.approx((7e-9,))
    assert told.number_per_run == 300


def test_setup_runs_before_every_block_outside_of_its_time():
    clock, setups = Clock(itertools.repeat(10)), []
    timer = Timer(
        "n += 1; clock.work()",
        "n = 0; clock.now_ns += 10**9; setups.append(n)",
        globals={"clock": clock, "setups": setups},
        clock=clock.read_s,
    )

    assert timer.timeit(5).times == pytest.approx((1e-8,))
    assert setups == [0, 0]


def test_global_setup_runs_once_for_all_blocks():
    made = []
    timer = Timer("made[0]", global_setup="made.append(torch.ones(1))", globals={"made": made})

    timer.timeit(2)
    timer.timeit(2)

    assert len(made) == 1
    assert timer.task.global_setup == "made.append(torch.ones(1))"


def test_functions_are_timed_like_statements():
    calls = []

    def work():
        calls.append("work")

    told = Timer(work, lambda: calls.append("setup")).timeit(3)

    assert calls == ["setup", "work", "work", "setup", "work", "work", "work"]
    assert told.task.row_name.endswith("work")


def test_a_statement_may_be_indented_and_span_lines():
    found = []
    Timer(
        """
        if True:
            found.append("a")
        """,
        globals={"found": found},
    ).timeit(1)

    assert found == ["a"] * 3


def test_torch_is_there_unless_the_name_means_something_else():
    Timer("torch.ones(1)").timeit(1)
    found = []
    Timer("found.append(torch)", globals={"found": found, "torch": 1}).timeit(1)

    assert found == [1, 1, 1]


def test_threads_are_those_of_the_task_and_as_before_afterwards():
    before, found = torch.get_num_threads(), []
    timer = Timer("found.append(torch.get_num_threads())", globals={"found": found}, num_threads=3)

    timer.timeit(1)

    assert found == [3, 3, 3]
    assert torch.get_num_threads() == before


def test_an_error_in_the_statement_comes_out_and_leaves_all_as_it_was():
    before = torch.get_num_threads()

    with pytest.raises(ZeroDivisionError):
        Timer("1 / 0", num_threads=before + 1).blocked_autorange()

    assert torch.get_num_threads() == before
    assert gc.isenabled()


def test_timers_of_one_process_share_a_launch_and_others_do_not(monkeypatch):
    first, second = (Timer().timeit(1).launches[0].launch for _ in range(2))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    forked = Timer().timeit(1).launches[0].launch

    assert first == second != forked
    assert Timer(launch="round 3").timeit(1).launches[0].launch == "round 3"


def test_what_a_timer_gives_tells_its_task_and_survives_storing():
    told = Timer("x + 1", "x = 1", label="add", description="py", env="here").timeit(5)

    assert told.task == Task(stmt="x + 1", setup="x = 1", label="add", description="py", env="here")
    assert from_json(Timing, to_json(told)) == told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stmt": 3}, "a int cannot be timed; give Python as text, or a function"),
        ({"setup": None}, "a NoneType cannot be timed; give Python as text, or a function"),
        ({"stmt": "x ="}, "is not Python"),
        ({"stmt": "break"}, "is not Python .*outside loop"),
        ({"stmt": "yield"}, "is not Python .*outside function"),
        ({"setup": "return"}, "is not Python .*outside function"),
        ({"global_setup": "("}, "is not Python"),
        ({"stmt": "from os import *"}, "is not Python"),
        ({"num_threads": 0}, "num_threads is 0; give 1 or more"),
    ],
)
def test_what_cannot_be_timed_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Timer(**arguments)


def test_a_number_of_no_calls_is_refused():
    with pytest.raises(ValueError, match="number_per_run is 0; give 1 or more"):
        Timer().timeit(0)
