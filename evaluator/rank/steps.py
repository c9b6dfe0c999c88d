"""The step clock: the one loop that warms up, times and profiles whatever a rank works on."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Protocol, runtime_checkable

import torch
import torch.distributed as dist

from evaluator.rank.clock import timed, waiting_for
from evaluator.rank.job import Measure
from evaluator.rank.progress import Phase, Progress
from evaluator.rank.sampling import Stop, next_block, reason_to_stop
from evaluator.rank.turns import Gate

Window = tuple[int, ...]
"""Start, marks and end of one step, nanoseconds of this machine's monotonic clock."""


class Work(Protocol):
    """What an entry gives back: steps that can be repeated, and what they computed."""

    def step(self, index: int) -> int:
        """Do step `index`; return the tokens this rank fed, each token counted on one rank.

        May return before the device is done.
        """

    def global_losses(self) -> list[float]:
        """Mean loss of each step so far over the whole batch; every rank must call it.

        Empty on a rank that does not see the loss, equal on all that do.
        """


@runtime_checkable
class MarkedWork(Work, Protocol):
    """Work whose steps have parts that are timed by themselves."""

    def marks_ns(self) -> list[int]:
        """When each part of the latest step ended, by `time.perf_counter_ns`, but for the last."""


@runtime_checkable
class ClosedWork(Work, Protocol):
    """Work that holds on to something beyond the default group, such as a group of its own."""

    def close(self) -> None:
        """Let go of it; every rank must call it, once, when all have done their steps."""


class UnequalStepsError(RuntimeError):
    """Two steps of one run fed different token counts, so their times do not compare."""


class LossError(RuntimeError):
    """The training went wrong: a loss is no longer a number."""


def finite_losses(work: Work) -> list[float]:
    """Ask the work for its losses; every rank must call it. Raises `LossError`."""
    losses = work.global_losses()
    for step, loss in enumerate(losses):
        if not math.isfinite(loss):
            raise LossError(f"the loss of step {step} is {loss}")
    return losses


class StepClock:
    """Drives the work and keeps when each step began and ended."""

    def __init__(self, work: Work, *, device: torch.device, progress: Progress) -> None:
        self._work = work
        self._device = device
        self._wait = waiting_for(device)
        self._progress = progress
        self._next_step = 0
        self._tokens_per_step: int | None = None

    @property
    def tokens_per_step(self) -> int:
        """Tokens that this rank fed in each step; raises before the first step."""
        if self._tokens_per_step is None:
            raise RuntimeError("no step was run yet")
        return self._tokens_per_step

    def run(self, phase: Phase, step_count: int) -> list[Window]:
        """Run steps and return when each began and ended, device work included.

        In the profile phase each step is marked as the trace readers expect it.
        """
        windows: list[Window] = []
        for _ in range(step_count):
            step = self._next_step
            self._next_step += 1
            self._progress.beat(phase, step)
            profiled = phase is Phase.PROFILE
            with (
                torch.profiler.record_function(f"ProfilerStep#{step}")
                if profiled
                else nullcontext()
            ):
                windows.append(self._run_one(step))
        self._progress.beat(phase)
        return windows

    def sample(self, measure: Measure) -> tuple[list[Window], Stop | None]:
        """Time as many steps as are asked for, and tell why not more; None where it was fixed.

        Every rank must call it: between blocks of steps all look at the same times.
        """
        if measure.is_fixed:
            return self.run(Phase.TIMED, measure.timed_steps), None
        windows: list[Window] = []
        times_s: list[float] = []
        stopped = None
        while stopped is None:
            block = self.run(Phase.TIMED, next_block(measure, len(windows)))
            windows += block
            times_s += self._slowest_s(block)
            stopped = reason_to_stop(measure, times_s)
        return windows, stopped

    def take_turns(self, measure: Measure, gate: Gate) -> tuple[list[Window], list[Window]]:
        """Warm up in the first turn, and time steps in each that follows; give both.

        The first step of a turn is not kept: others have used the caches since the last one.
        """
        if not gate.wait():
            return [], []
        warmup, windows = self.run(Phase.WARMUP, measure.warmup_steps), list[Window]()
        while gate.wait():
            self.run(Phase.WARMUP, 1)
            windows += self.run(Phase.TIMED, measure.timed_steps)
        return warmup, windows

    def _slowest_s(self, block: Sequence[Window]) -> list[float]:
        """Each step's time on the rank that took longest, the same on all ranks."""
        own_s = [(window[-1] - window[0]) / 1e9 for window in block]
        times_s = torch.tensor(own_s, dtype=torch.float64, device=self._device)
        dist.all_reduce(times_s, op=dist.ReduceOp.MAX)
        slowest_s: list[float] = times_s.tolist()
        return slowest_s

    def _run_one(self, step: int) -> Window:
        start_ns, end_ns, tokens = timed(lambda: self._work.step(step), self._wait)
        if self._tokens_per_step not in (None, tokens):
            raise UnequalStepsError(
                f"step {step} fed {tokens} tokens, the one before {self._tokens_per_step}"
            )
        self._tokens_per_step = tokens
        marks_ns = self._work.marks_ns() if isinstance(self._work, MarkedWork) else []
        return start_ns, *marks_ns, end_ns
