"""Lets TorchTitan train on CPU and gloo: what it takes from an accelerator comes from torch.cpu."""

import importlib.abc
import sys
import types
from typing import Any


class _Shim(importlib.abc.MetaPathFinder):
    """Changes torch when torchtitan is imported first."""

    def find_spec(self, name, *_):
        if name == "torchtitan":
            sys.meta_path.remove(self)
            change_torch()


def change_torch():
    import torch
    import torch._utils
    from torch.distributed.fsdp import FSDPModule

    cpu: Any = torch.cpu
    distributed: Any = torch.distributed
    module: Any = FSDPModule
    torch._utils._get_available_device_type = lambda: "cpu"
    card = types.SimpleNamespace(total_memory=8 << 30, name="cpu")
    cpu.current_device = lambda: 0
    for name, found in {
        "memory_stats": lambda *_: {},
        "reset_peak_memory_stats": lambda *_: None,
        "reset_accumulated_memory_stats": lambda *_: None,
        "empty_cache": lambda: None,
        "get_device_name": lambda *_: "cpu",
        "manual_seed": torch.manual_seed,
        "get_device_properties": lambda *_: card,
    }.items():
        if not hasattr(cpu, name):
            setattr(cpu, name, found)
    if not hasattr(distributed, "set_timeout"):  # in nightly builds, which 0.3.0 is made for
        distributed.set_timeout = lambda *_, **__: None

    divide = module.set_gradient_divide_factor

    def divide_by_sum(self, factor):
        self.set_force_sum_reduction_for_comms(True)  # gloo cannot scale while it adds up
        divide(self, factor)

    module.set_gradient_divide_factor = divide_by_sum


sys.meta_path.insert(0, _Shim())
