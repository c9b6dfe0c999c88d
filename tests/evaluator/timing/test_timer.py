"""Timings carry their task, launch and threshold, and leave everything else as it was."""

import gc
import itertools
import os
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
import torch

from evaluator.timing.timer import Timer
from evaluator.timing.timing import Task


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


def test_blocks_are_a_number_of_calls_or_add_up_to_a_time():
    clock, steady = Clock([*[10**9] * 3, *[7] * 300]), Clock(itertools.repeat(1_000_000))

    once = Timer("clock.work()", globals={"clock": clock}, clock=clock.read_s).timeit(300)
    timer = Timer("clock.work()", globals={"clock": steady}, clock=steady.read_s)
    blocks = timer.blocked_autorange(min_run_time_s=0.1)

    assert (once.times, once.number_per_run) == (pytest.approx((7e-9,)), 300)
    assert blocks.number_per_run == 1
    assert sum(blocks.times) == pytest.approx(0.1, abs=0.002)


def test_setup_runs_before_every_block_outside_of_its_time_and_global_setup_once():
    clock, setups, calls = Clock(itertools.repeat(10)), [], []
    timer = Timer(
        "n += 1; clock.work()",
        "n = 0; clock.now_ns += 10**9; setups.append(made)",
        global_setup="made = object()",
        globals={"clock": clock, "setups": setups},
        clock=clock.read_s,
    )

    assert timer.timeit(5).times == pytest.approx((1e-8,))
    assert len(setups) == 2
    assert len(set(setups)) == 1
    assert timer.task.global_setup == "made = object()"

    def work():
        calls.append("work")

    told = Timer(work, lambda: calls.append("setup")).timeit(3)
    assert calls == ["setup", "work", "work", "setup", "work", "work", "work"]
    assert told.task.row_name.endswith("work")


@pytest.mark.parametrize(
    ("statement", "names", "expected"),
    [
        ('\n    if True:\n        found.append("a")\n', {}, "a"),
        ("found.append(torch.ones(1).item())", {}, 1.0),
        ("found.append(torch)", {"torch": 1}, 1),
        ("found.append(torch.get_num_threads())", {}, 3),
    ],
)
def test_a_statement_sees_torch_its_names_and_its_threads(statement, names, expected):
    before, found = torch.get_num_threads(), []
    told = Timer(statement, globals={"found": found, **names}, num_threads=3).timeit(1)

    assert found == [expected] * 3
    assert told.task == Task(stmt=textwrap.dedent(statement).strip(), num_threads=3)
    assert torch.get_num_threads() == before


def test_an_error_in_the_statement_comes_out_and_leaves_all_as_it_was():
    before = torch.get_num_threads()

    with pytest.raises(ZeroDivisionError):
        Timer("1 / 0", num_threads=before + 1).blocked_autorange()
    with pytest.raises(ValueError, match="number_per_run is 0; give 1 or more"):
        Timer().timeit(0)

    assert torch.get_num_threads() == before
    assert gc.isenabled()


def test_timers_of_one_process_share_a_launch_and_others_do_not(monkeypatch):
    first, second = (Timer().timeit(1).launches[0].launch for _ in range(2))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    forked = Timer().timeit(1).launches[0].launch

    assert first == second != forked
    assert Timer(launch="round 3").timeit(1).launches[0].launch == "round 3"


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
