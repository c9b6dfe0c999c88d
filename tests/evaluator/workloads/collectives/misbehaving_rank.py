"""Runs a rank of a sweep that goes wrong in the way that the first argument names."""

import os
import signal
import sys
import time
from dataclasses import replace

from evaluator.workloads.collectives import sweep
from evaluator.workloads.collectives import sweep as main
from evaluator.workloads.collectives.operations import Collective
from evaluator.workloads.collectives.sweep import new_adapter

VICTIM = 1
BAD = Collective.BROADCAST


class Misbehaving:
    """An adapter that passes everything on, but for what one rank does with a broadcast."""

    def __init__(self, adapter, misdeed):
        self._adapter = adapter
        self._misdeed = misdeed

    def __getattr__(self, name):
        return getattr(self._adapter, name)

    def resolve_collective(self, operation, tensors):
        call = self._adapter.resolve_collective(operation, tensors)
        if operation.collective is not BAD or self.membership.rank != VICTIM:
            return call
        return lambda: self._misdeed(call, tensors)

    def run_collective(self, operation, tensors, **_):
        self.resolve_collective(operation, tensors)()


def die(_call, _tensors):
    os.kill(os.getpid(), signal.SIGKILL)


def fail(_call, _tensors):
    raise ValueError("the cable is loose")


def sleep(_call, _tensors):
    time.sleep(99)


def corrupt(call, tensors):
    call()
    tensors.outputs[0][-1] += 1


def without_room(tensors_for):
    def allocate(operation, rank, world_size, device):
        if rank == VICTIM and operation.collective is BAD:
            operation = replace(operation, size_bytes=1 << 60)
        return tensors_for(operation, rank, world_size, device)

    return allocate


if __name__ == "__main__":
    misdeed = sys.argv[1]
    if misdeed == "take_all_memory":
        sweep.tensors_for = without_room(sweep.tensors_for)
    else:
        main.new_adapter = lambda name: Misbehaving(new_adapter(name), globals()[misdeed])
    os._exit(main.main(sys.argv[2]))
