"""The public Python API: what searches recorded, services, what traces tell, timing of code.

`import cclsearch` costs nothing: names are resolved on first use.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evaluator.timing.fuzzing.fuzzer import Fuzzer
    from evaluator.timing.fuzzing.parameters import FuzzedParameter, ParameterAlias
    from evaluator.timing.fuzzing.tensors import FuzzedTensor
    from evaluator.timing.timer import Timer
    from evaluator.timing.timing import Timing
    from search.frames import studies, trials
    from search.remote.client import Client
    from search.timing_tables import print_timings
    from search.traces.frames import Trace, trace

__all__ = [
    "Client",
    "FuzzedParameter",
    "FuzzedTensor",
    "Fuzzer",
    "ParameterAlias",
    "Timer",
    "Timing",
    "Trace",
    "print_timings",
    "studies",
    "trace",
    "trials",
]

_HOMES = {
    "Client": "search.remote.client",
    "FuzzedParameter": "evaluator.timing.fuzzing.parameters",
    "FuzzedTensor": "evaluator.timing.fuzzing.tensors",
    "Fuzzer": "evaluator.timing.fuzzing.fuzzer",
    "ParameterAlias": "evaluator.timing.fuzzing.parameters",
    "Timer": "evaluator.timing.timer",
    "Timing": "evaluator.timing.timing",
    "Trace": "search.traces.frames",
    "print_timings": "search.timing_tables",
    "studies": "search.frames",
    "trace": "search.traces.frames",
    "trials": "search.frames",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'cclsearch' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
