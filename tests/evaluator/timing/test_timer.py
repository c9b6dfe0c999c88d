"""Blocks grow until reading the clock costs nothing, and everything else is left as it was."""

import gc
import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
import torch
from torch.utils import benchmark

from evaluator.rank import steps as rank_clock
from evaluator.timing.timer import Timer
from evaluator.timing.timing import Task, Timing
from records.codec import from_json, to_json


@dataclass
class Clock:
    """Time passes by what a statement says that it takes, and by reading the clock."""

    reading_ns: int = 0
    now_ns: int = 0
    costs_ns: Iterable[int] = field(default_factory=lambda: itertools.repeat(0))

    def __post_init__(self):
        self.costs_ns = iter(self.costs_ns)

    def work(self):
        self.now_ns += next(self.costs_ns)

    def read_ns(self):
        self.now_ns += self.reading_ns
        return self.now_ns

    def read_s(self):
        return self.read_ns() / 1e9

    def timed(self, work, wait):
        wait()
        start_ns = self.read_ns()
        result = work()
        wait()
        return start_ns, self.read_ns(), result


def two_clocks(costs_ns: Iterable[int], reading_ns: int) -> tuple[Timer, benchmark.Timer]:
    """Ours and that of torch, under clocks that run alike."""
    ours, theirs = (
        Clock(reading_ns=reading_ns, costs_ns=costs) for costs in itertools.tee(costs_ns, 2)
    )
    return (
        Timer("clock.work()", globals={"clock": ours}, timed=ours.timed),
        benchmark.Timer("clock.work()", globals={"clock": theirs}, timer=theirs.read_s),
    )


@pytest.mark.parametrize(
    ("cost_ns", "reading_ns", "min_run_time_s", "calls"),
    [
        # 25 ns of 100 us would be too much: 0.01 % is asked for, not 0.1 %.
        (1_000, 25, 0.01, 1_000),
        (10, 1, 0.001, 1_000),
        # A block of a thousandth of the time would do for the clock, but not for the blocks.
        (1_000_000, 0, 2.0, 10),
        (10_000_000, 500, 0.2, 1),
        # One call alone takes longer than all blocks may.
        (10**9, 10**8, 0.2, 1),
    ],
)
def test_blocks_grow_as_those_of_torch(cost_ns, reading_ns, min_run_time_s, calls):
    timer, torch_timer = two_clocks(itertools.repeat(cost_ns), reading_ns)
    told, torch_told = [], []

    ours = timer.blocked_autorange(lambda *block: told.append(block), min_run_time_s=min_run_time_s)
    theirs = torch_timer.blocked_autorange(
        lambda *block: torch_told.append(block), min_run_time=min_run_time_s
    )

    assert ours.number_per_run == theirs.number_per_run == calls
    (group,) = ours.launches
    assert group.raw_times_s == pytest.approx(theirs.raw_times)
    assert told == [(calls, time) for time in group.raw_times_s]
    assert [number for number, _ in told] == [number for number, _ in torch_told]


def test_blocks_stop_growing_before_two_billion_calls():
    # Reading the clock takes all of the time, and the time to fill is far away.
    stuck = Clock(reading_ns=10**17)
    timer = Timer(timed=lambda _, wait: stuck.timed(wait, wait))

    assert timer.blocked_autorange(min_run_time_s=1e9).number_per_run == 10**9


def test_under_a_clock_that_stands_still_a_call_takes_a_nanosecond():
    still = Clock()
    told = Timer(timed=still.timed).blocked_autorange(min_run_time_s=1e-4)

    assert set(told.times) == {1e-9}


SETTLING = [100_000, 900_000, 100_000, 900_000, *[500_000] * 40]
RESTLESS = [100_000, 900_000] * 40


@pytest.mark.parametrize(
    ("costs_ns", "limits_s", "blocks", "met"),
    [
        ([500_000] * 10, (0.0, 1.0), 4, True),
        ([500_000] * 100, (0.01, 1.0), 20, True),
        (SETTLING, (0.001, 1.0), 9, True),
        (RESTLESS, (0.001, 0.01), 21, False),
        # Three blocks tell nothing, however alike they are.
        ([500_000] * 10, (0.001, 0.001), 3, False),
    ],
)
def test_adaptive_timing_ends_when_that_of_torch_does_and_says_if_it_was_in_vain(
    costs_ns, limits_s, blocks, met
):
    # The first call is the block that is tried for its size.
    timer, torch_timer = two_clocks([500_000, *costs_ns], reading_ns=0)
    least_s, most_s = limits_s

    ours = timer.adaptive_autorange(min_run_time_s=least_s, max_run_time_s=most_s)
    theirs = torch_timer.adaptive_autorange(min_run_time=least_s, max_run_time=most_s)

    assert ours.number_per_run == theirs.number_per_run == 1
    assert ours.times == pytest.approx(theirs.times)
    assert len(ours.times) == blocks
    assert ours.unmet_threshold == (None if met else 0.1)
    assert any("time was up" in words for words in ours.warnings) is not met


def test_a_number_of_calls_is_timed_once_after_a_hundredth_of_them():
    clock = Clock(costs_ns=[*[10**9] * 3, *[7] * 300])

    told = Timer("clock.work()", globals={"clock": clock}, timed=clock.timed).timeit(300)

    assert told.times == pytest.approx((7e-9,))
    assert told.number_per_run == 300


def test_setup_runs_before_every_block_outside_of_its_time():
    clock, setups = Clock(costs_ns=itertools.repeat(10)), []
    timer = Timer(
        "n += 1; clock.work()",
        "n = 0; clock.now_ns += 10**9; setups.append(n)",
        globals={"clock": clock, "setups": setups},
        timed=clock.timed,
    )

    assert timer.timeit(5).times == (1e-8,)
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
            text = '''a
          b'''
            found.append(text)
        """,
        globals={"found": found},
    ).timeit(1)

    assert found == ["a\n  b"] * 3


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


@pytest.mark.parametrize("run", [Timer.timeit, Timer.blocked_autorange, Timer.adaptive_autorange])
def test_an_error_in_the_statement_comes_out_and_leaves_all_as_it_was(run):
    before = torch.get_num_threads()

    with pytest.raises(ZeroDivisionError):
        run(Timer("1 / 0", num_threads=before + 1))

    assert torch.get_num_threads() == before
    assert gc.isenabled()


def test_garbage_is_not_collected_while_time_runs():
    found = []
    Timer("found.append(gc.isenabled())", globals={"found": found, "gc": gc}).timeit(1)

    assert found == [False] * 3
    assert gc.isenabled()


def test_the_accelerator_has_done_its_work_before_the_clock_is_read(monkeypatch):
    done = []
    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: device)
    monkeypatch.setattr(rank_clock.torch.cuda, "synchronize", done.append)

    Timer("done.append('call')", globals={"done": done}).timeit(1)

    assert done == [device, "call", "call", device, device, "call", device]


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
        ({"stmt": 3}, "stmt is a int; give Python as text, or a function"),
        ({"setup": None}, "setup is a NoneType; give Python as text, or a function"),
        ({"stmt": "x ="}, "stmt is not Python .*; correct it"),
        ({"stmt": "break"}, "stmt is not Python .*outside loop.*; correct it"),
        ({"stmt": "yield"}, "stmt is not Python .*outside function.*; correct it"),
        ({"setup": "return"}, "setup is not Python .*outside function.*; correct it"),
        ({"global_setup": "("}, "global_setup is not Python .*; correct it"),
        ({"stmt": "from os import *"}, "stmt and setup do not make one function"),
        ({"num_threads": 0}, "num_threads is 0; give 1 or more"),
    ],
)
def test_what_cannot_be_timed_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Timer(**arguments)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda timer: timer.timeit(0), "number is 0"),
        (
            lambda timer: timer.blocked_autorange(min_run_time_s=-1),
            "-1 s to inf s is no time",
        ),
        (lambda timer: timer.blocked_autorange(min_run_time_s=float("nan")), "is no time"),
        (lambda timer: timer.blocked_autorange(min_run_time_s=float("inf")), "is no time"),
        (
            lambda timer: timer.adaptive_autorange(min_run_time_s=2, max_run_time_s=1),
            "2 s to 1 s is no time",
        ),
        (lambda timer: timer.adaptive_autorange(0.0), "threshold is 0.0"),
    ],
)
def test_times_that_cannot_be_run_are_refused(run, message):
    with pytest.raises(ValueError, match=message):
        run(Timer())
