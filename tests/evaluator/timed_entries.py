"""Work whose steps last as long as a test wants, in which no rank waits for another.

Runs inside ranks, so it knows only the standard library, torch and the rank's own modules.
"""

import time

from evaluator.rank.main import RankContext

SLOW_STEP_S = 0.01  # above what the launch is asked to stop at


class Alone:
    """Steps that last `step_s`, and tokens of which each rank feeds its share."""

    def __init__(self, context: RankContext, step_s: float) -> None:
        workload = context.job.workload
        self._tokens = workload.global_batch * workload.sequence_length // context.job.world_size
        self._step_s = step_s
        self._losses: list[float] = []

    def step(self, index: int) -> int:
        time.sleep(self._step_s)
        self._losses.append(float(index + 1))
        return self._tokens

    def global_losses(self) -> list[float]:
        return self._losses


def one_slow_rank(context: RankContext) -> Alone:
    return Alone(context, SLOW_STEP_S if context.rank else 0.0)
