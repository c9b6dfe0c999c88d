"""The built-in trainer, except that each step is drawn out by a fixed share of what it took.

Every rank keeps its core busy for the share of its own step, device work included, so that the
whole job is slower by exactly that. By 0 % it is the same job, the same code included. Runs inside
the ranks of `decision_quality.py`.
"""

import time
from functools import partial

from evaluator.rank.main import RankContext
from evaluator.rank.steps import Wait, Work, time_work, waiting_for
from evaluator.workloads import training


class Slowed:
    """Work whose steps take longer by a fraction of themselves."""

    def __init__(self, work: Work, fraction: float, wait: Wait) -> None:
        self._work = work
        self._fraction = fraction
        self._wait = wait

    def step(self, index: int) -> int:
        """Do the step, then keep the core busy."""
        start_ns, end_ns, tokens = time_work(lambda: self._work.step(index), self._wait)
        until_ns = end_ns + round(self._fraction * (end_ns - start_ns))
        while time.perf_counter_ns() < until_ns:
            pass
        return tokens

    def global_losses(self) -> list[float]:
        """Mean loss of every step so far."""
        return self._work.global_losses()


def train(percent: int, context: RankContext) -> Work:
    return Slowed(training.train(context), percent / 100, waiting_for(context.device))


by_0_percent = partial(train, 0)
by_3_percent = partial(train, 3)
by_5_percent = partial(train, 5)
by_10_percent = partial(train, 10)
