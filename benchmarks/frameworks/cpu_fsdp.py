"""Lets accelerate shard on CPUs, which it does on accelerators only (accelerate/state.py)."""

from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType

begin = AcceleratorState.__init__


def begin_sharded(self, *words, fsdp_plugin=None, **settings):
    begin(self, *words, fsdp_plugin=fsdp_plugin, **settings)
    if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = DistributedType.FSDP
        self.fsdp_plugin = fsdp_plugin


AcceleratorState.__init__ = begin_sharded
