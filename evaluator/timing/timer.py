"""Time a statement in blocks of calls with the timer of `torch.utils.benchmark`."""

import os
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import TypeAlias
from uuid import uuid4

import torch
from torch.utils.benchmark import Measurement
from torch.utils.benchmark import Timer as TorchTimer
from torch.utils.benchmark.utils.timer import timer as synchronized_clock

from evaluator.timing.timing import FLUCTUATION, LaunchTimes, Task, Timing

Code: TypeAlias = str | Callable[[], object]
"""Python, or a function without arguments."""

LEAST_BLOCKS = 4
"""Fewer blocks show nothing about how much times fluctuate."""


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
        clock: Callable[[], float] = synchronized_clock,
    ) -> None:
        self._launch = launch or _this_process(os.getpid())
        self.task = Task(
            stmt=_name(stmt),
            setup=_name(setup),
            global_setup=textwrap.dedent(global_setup).strip(),
            label=label,
            sub_label=sub_label,
            description=description,
            env=env,
            num_threads=num_threads,
        )
        scope = {"_stmt": stmt, "_setup": setup, "torch": torch, **(globals or {})}
        try:
            exec(self.task.global_setup, scope)
            self._timer = TorchTimer(
                stmt if isinstance(stmt, str) else "_stmt()",
                setup if isinstance(setup, str) else "_setup()",
                timer=clock,
                globals=scope,
                num_threads=num_threads,
            )
        except SyntaxError as error:
            raise ValueError(f"stmt, setup or global_setup is not Python ({error})") from error

    def timeit(self, number: int = 1_000_000) -> Timing:
        """Time one block of `number` calls, after a hundredth of them to warm up."""
        return self._timing(self._timer.timeit(number))

    def blocked_autorange(self, *, min_run_time_s: float = 0.2) -> Timing:
        """Time blocks until they add up to a time; reading the clock is 0.01 % of a block."""
        return self._timing(self._timer.blocked_autorange(min_run_time=min_run_time_s))

    def adaptive_autorange(
        self,
        threshold: float = FLUCTUATION,
        *,
        min_run_time_s: float = 0.01,
        max_run_time_s: float = 10.0,
    ) -> Timing:
        """Time blocks until their interquartile range is below a share of their median.

        Where the time is up first, the timing says so.
        """
        found = self._timer.adaptive_autorange(
            threshold, min_run_time=min_run_time_s, max_run_time=max_run_time_s
        )
        timing = self._timing(found)
        met = len(timing.times) >= LEAST_BLOCKS and timing.relative_iqr < threshold
        return timing if met else replace(timing, unmet_threshold=threshold)

    def _timing(self, found: Measurement) -> Timing:
        return Timing(
            task=self.task,
            number_per_run=found.number_per_run,
            launches=(LaunchTimes(launch=self._launch, raw_times_s=tuple(found.raw_times)),),
        )


def _name(code: object) -> str:
    if isinstance(code, str):
        return textwrap.dedent(code).lstrip("\n").rstrip()
    if not callable(code):
        kind = type(code).__name__
        raise ValueError(f"a {kind} cannot be timed; give Python as text, or a function")
    return str(getattr(code, "__qualname__", type(code).__qualname__))


@cache
def _this_process(process_id: int) -> str:  # noqa: ARG001 - a forked process is another launch
    return uuid4().hex
