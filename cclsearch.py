"""The public Python API: `import cclsearch`, then read what searches recorded and traces tell.

Names are resolved on first use, so that importing costs nothing.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from search.frames import studies, trials
    from search.trace_frames import Trace, trace

__all__ = ["Trace", "studies", "trace", "trials"]

_HOMES = {
    "Trace": "search.trace_frames",
    "studies": "search.frames",
    "trace": "search.trace_frames",
    "trials": "search.frames",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'cclsearch' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
