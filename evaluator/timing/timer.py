"""Time a statement in blocks of calls, long enough that reading the clock costs nothing.

Modelled on `torch.utils.benchmark.Timer`.
"""

import ast
import gc
import itertools
import math
import os
import statistics
import textwrap
from bisect import insort
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TypeAlias
from uuid import uuid4

import torch

from evaluator.rank.steps import Wait, timed, waiting_for
from evaluator.timing.timing import FLUCTUATION, LaunchTimes, Task, Timing, relative_iqr

Code: TypeAlias = str | Callable[[], object]
"""Python, or a function without arguments."""

Callback: TypeAlias = Callable[[int, float], object]
"""Receives the calls of each block and its seconds."""

Timed: TypeAlias = Callable[[Callable[[], None], Wait], tuple[int, int, None]]

Block: TypeAlias = Callable[[Iterator[None], Code, Code], Iterator[None]]
"""Sets up until its first stop, then calls once for each of the first argument until its second."""

LEAST_CALL_S = 1e-9
OVERHEAD_SHARE = 1e-4
OVERHEAD_READINGS = 5
ADAPTIVE_BLOCKS_S = 0.05
FEWEST_BLOCKS = 4
MOST_CALLS = 2**31 - 1

_TEMPLATE = """
def block(_calls, _stmt, _setup):
    yield
    for _call in _calls:
        pass
    yield
"""


class Timer:
    """Measures a statement, on an idle accelerator where there is one.

    `setup` runs before every block, outside of its time; its names are local to the block.
    `global_setup` runs once, now, and its names are global, like `globals` and `torch`. `launch`
    names the launch or round that this is part of; otherwise it is this process. Timings of equal
    tasks count as replicates: distinguish functions of one name by `sub_label` or `description`.
    """

    def __init__(
        self,
        stmt: Code = "pass",
        setup: Code = "pass",
        *,
        global_setup: str = "",
        globals: Mapping[str, object] | None = None,
        label: str | None = None,
        sub_label: str | None = None,
        description: str | None = None,
        env: str | None = None,
        num_threads: int = 1,
        launch: str | None = None,
        timed: Timed = timed,
    ) -> None:
        self._stmt, self._setup = _tidy(stmt, "stmt"), _tidy(setup, "setup")
        self._timed = timed
        self._launch = launch or _this_process(os.getpid())
        self.task = Task(
            stmt=_name(self._stmt),
            setup=_name(self._setup),
            global_setup=textwrap.dedent(global_setup).strip(),
            label=label,
            sub_label=sub_label,
            description=description,
            env=env,
            num_threads=num_threads,
        )
        scope: dict[str, object] = {"torch": torch, **(globals or {})}
        exec(_checked(self.task.global_setup, "global_setup"), scope)
        self._block = _block(self._stmt, self._setup, scope)
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        self._wait = waiting_for(accelerator or torch.device("cpu"))

    def timeit(self, number: int = 1_000_000) -> Timing:
        """Time one block of `number` calls, after a hundredth of them to warm up."""
        if number < 1:
            raise ValueError(f"number is {number}; give 1 or more")
        with _threads(self.task.num_threads):
            self._seconds(max(number // 100, 2))
            return self._timing(number, [self._seconds(number)])

    def blocked_autorange(
        self, callback: Callback | None = None, *, min_run_time_s: float = 0.2
    ) -> Timing:
        """Time blocks until they add up to a time; reading the clock is 0.01 % of a block."""
        _check_times(min_run_time_s)
        times: list[float] = []
        with _threads(self.task.num_threads):
            number = self._block_size(min_run_time_s)
            while not times or sum(times) < min_run_time_s:
                times.append(self._reported_seconds(number, callback))
        return self._timing(number, times)

    def adaptive_autorange(
        self,
        threshold: float = FLUCTUATION,
        *,
        min_run_time_s: float = 0.01,
        max_run_time_s: float = 10.0,
        callback: Callback | None = None,
    ) -> Timing:
        """Time blocks until their interquartile range is below a share of their median.

        Where the time is up first, the timing says so.
        """
        _check_times(min_run_time_s, max_run_time_s)
        if not threshold > 0:
            raise ValueError(f"threshold is {threshold}; give a share above zero")
        times: list[float] = []
        ordered: list[float] = []
        total_s, met = 0.0, False
        with _threads(self.task.num_threads):
            number = self._block_size(ADAPTIVE_BLOCKS_S)
            while not (met and total_s >= min_run_time_s) and total_s <= max_run_time_s:
                times.append(self._reported_seconds(number, callback))
                insort(ordered, times[-1])
                total_s += times[-1]
                met = len(times) >= FEWEST_BLOCKS and relative_iqr(ordered) < threshold
        return self._timing(number, times, unmet_threshold=None if met else threshold)

    def _block_size(self, min_run_time_s: float) -> int:
        """Calls per block that make reading the clock negligible; warms up on the way."""
        overhead_s = statistics.median(self._seconds(0) for _ in range(OVERHEAD_READINGS))
        number = 1
        while number * 10 <= MOST_CALLS:
            taken_s = self._seconds(number)
            drowned = overhead_s / taken_s <= OVERHEAD_SHARE and taken_s >= min_run_time_s / 1000
            if drowned or taken_s > min_run_time_s:
                break
            number *= 10
        return number

    def _reported_seconds(self, number: int, callback: Callback | None) -> float:
        taken_s = self._seconds(number)
        if callback is not None:
            callback(number, taken_s)
        return taken_s

    def _seconds(self, number: int) -> float:
        """Time `number` calls, without pauses of the garbage collector."""
        block = self._block(itertools.repeat(None, number), self._stmt, self._setup)
        collecting = gc.isenabled()
        gc.disable()
        try:
            next(block)
            start_ns, end_ns, _ = self._timed(lambda: next(block), self._wait)
        finally:
            if collecting:
                gc.enable()
        return max((end_ns - start_ns) / 1e9, max(number, 1) * LEAST_CALL_S)

    def _timing(
        self, number: int, times: list[float], *, unmet_threshold: float | None = None
    ) -> Timing:
        return Timing(
            task=self.task,
            number_per_run=number,
            launches=(LaunchTimes(launch=self._launch, raw_times_s=tuple(times)),),
            unmet_threshold=unmet_threshold,
        )


def _block(stmt: Code, setup: Code, scope: dict[str, object]) -> Block:
    """Compile what sets up, waits to be continued, and then calls the statement in a loop."""
    module = ast.parse(_TEMPLATE)
    function = module.body[0]
    assert isinstance(function, ast.FunctionDef)
    loop = function.body[1]
    assert isinstance(loop, ast.For)
    loop.body = _statements(stmt, "stmt") or loop.body
    function.body[:0] = _statements(setup, "setup")
    try:
        code = compile(module, "<timed statement>", "exec")
    except SyntaxError as error:
        why = f"stmt and setup do not make one function ({error.msg}); use global_setup"
        raise ValueError(why) from error
    found: dict[str, Block] = {}
    exec(code, scope, found)
    return found["block"]


def _statements(code: Code, name: str) -> list[ast.stmt]:
    source = code if isinstance(code, str) else f"_{name}()"
    _checked(source, name)
    return ast.parse(source).body


def _checked(source: str, name: str) -> str:
    """Refuse an incomplete piece of Python: a `break` would end the loop it is put into."""
    try:
        compile(source, f"<{name}>", "exec")
    except SyntaxError as error:
        raise ValueError(f"{name} is not Python ({error}); correct it") from error
    return source


def _tidy(code: object, name: str) -> Code:
    if isinstance(code, str):
        return textwrap.dedent(code).lstrip("\n").rstrip()
    if callable(code):
        return code
    kind = type(code).__name__
    raise ValueError(f"{name} is a {kind}; give Python as text, or a function without arguments")


def _name(code: Code) -> str:
    if isinstance(code, str):
        return code
    return str(getattr(code, "__qualname__", type(code).__qualname__))


def _check_times(min_run_time_s: float, max_run_time_s: float = math.inf) -> None:
    if not 0 <= min_run_time_s <= max_run_time_s or math.isinf(min_run_time_s):
        raise ValueError(
            f"{min_run_time_s} s to {max_run_time_s} s is no time; give 0 or more, less first"
        )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads, then restore the previous count."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _this_process(process_id: int) -> str:  # noqa: ARG001 - a forked process is another launch
    return uuid4().hex
