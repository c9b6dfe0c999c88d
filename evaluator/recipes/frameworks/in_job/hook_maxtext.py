"""Reports the steps of MaxText's training loop: a step ends when its metrics are buffered.

The times that MaxText prints are those at which a step was handed to the devices, not its end.
"""

import hook  # first: it makes what the launch line can import importable
from maxtext.common.metric_logger import MetricLogger
from maxtext.common.profiler import Profiler

import cclsearch

_start_step = Profiler.maybe_activate_profiler
_end_step = MetricLogger.buffer_and_write_metrics


def start_step(self, step, state):
    """Begin the first step; each other one begins where the one before it ends."""
    _start_step(self, step, state)
    cclsearch._first_mark()


def end_step(self, metrics, step, *rest, **more):
    """Report loss, norm and tokens of a step, and end it."""
    _end_step(self, metrics, step, *rest, **more)
    scalars = metrics["scalar"]
    cclsearch.log(
        loss=scalars.get("learning/loss"),
        grad_norm=scalars.get("learning/raw_grad_norm"),  # before it is clipped
        tokens=self.config.global_batch_size_to_train_on * self.config.max_target_length,
    )
    cclsearch._next_mark()


Profiler.maybe_activate_profiler = start_step
MetricLogger.buffer_and_write_metrics = end_step
hook.run_program()
