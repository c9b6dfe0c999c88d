"""Exchanges inside ranks that tell what came out, or go wrong on request."""

import json
import os
import signal
from pathlib import Path

from evaluator.rank.main import Context
from evaluator.workloads.collectives import message_step as module
from evaluator.workloads.collectives.adapters import mismatch
from evaluator.workloads.collectives.c10d import C10dAdapter
from evaluator.workloads.collectives.message_step import Exchange, exchange
from evaluator.workloads.collectives.operations import Collective, ExchangeJob

JOB = ExchangeJob


def tell(context: Context[ExchangeJob]) -> Exchange:
    """Exchange the rank's number plus one once more, and tell what each message became."""
    work = exchange(context)
    for tensors in work._tensors:
        for tensor in tensors.inputs:
            tensor.fill_(context.rank + 1)
    work.step(0)
    outputs = [[tensor.tolist()[-1] for tensor in tensors.outputs] for tensors in work._tensors]
    Path(f"rank{context.rank}.outputs.json").write_text(json.dumps(outputs), encoding="utf-8")
    for tensors in work._tensors:
        for tensor in (*tensors.inputs, *tensors.outputs):
            tensor.zero_()
    return work


def die_in_a_timed_step(context: Context[ExchangeJob]) -> Exchange:
    work = exchange(context)
    plain_step = work.step

    def step(index: int) -> int:
        if index == 3 and context.rank == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        return plain_step(index)

    work.step = step  # type: ignore[method-assign] # a rank that dies in the middle
    return work


def see_wrong_results(context: Context[ExchangeJob]) -> Exchange:
    """Check each message after an element of it was changed, on every rank but the first."""

    def seen(message, tensors, rank, size):
        for output in tensors.outputs[:1]:  # a barrier has none
            output[0] += rank
        return mismatch(message, tensors, rank, size)

    module.mismatch = seen
    return exchange(context)


def lack_broadcasts(context: Context[ExchangeJob]) -> Exchange:
    def lack(self, operation, *_):  # noqa: ARG001 - as it is called
        return "not built in" if operation.collective is Collective.BROADCAST else None

    C10dAdapter._lack = lack
    return exchange(context)
