"""The public Python API: studies and trials, services, traces, timing of code.

`import cclsearch` costs nothing: names are resolved on first use.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evaluator.timing.timer import Timer
    from evaluator.timing.timing import Timing
    from search.client.client import Client
    from search.compare.timer_view import print_timings
    from search.traces.frames import Trace, trace
    from search.views.frames import studies, trials

__all__ = [
    "Client",
    "Timer",
    "Timing",
    "Trace",
    "print_timings",
    "studies",
    "trace",
    "trials",
]

_HOMES = {
    "Client": "search.client.client",
    "Timer": "evaluator.timing.timer",
    "Timing": "evaluator.timing.timing",
    "Trace": "search.traces.frames",
    "print_timings": "search.compare.timer_view",
    "studies": "search.views.frames",
    "trace": "search.traces.frames",
    "trials": "search.views.frames",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'cclsearch' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
