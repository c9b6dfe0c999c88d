"""Steps from marked ranges, which may nest and count from 0 repeatedly; collectives by name."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import SupportsInt

import numpy as np
from numpy.typing import NDArray

from evaluator.traces.intervals import Nanoseconds
from evaluator.traces.model import CollectiveKind, StepWindows

RENUMBERED = "step numbers do not rise: steps are counted in order of time instead"
"""The caveat of steps whose own numbers could not be kept."""


@dataclass(frozen=True, slots=True)
class MarkedSteps:
    """Steps as they were marked, and whether numbers that they had were not kept."""

    windows: StepWindows
    renumbered: bool

    @property
    def marked_ns(self) -> int:
        """Time that the steps cover."""
        return int(self.windows.duration_ns.sum())


NO_STEPS = MarkedSteps(StepWindows.none(), False)


def outermost(start_ns: Nanoseconds, end_ns: Nanoseconds) -> NDArray[np.bool_]:
    """Which of these ranges, in order of start, begin within no earlier one."""
    reach = np.maximum.accumulate(end_ns)
    return np.append(True, start_ns[1:] >= reach[:-1])[: start_ns.size]


def marked_steps(
    number: NDArray[np.int64], start_ns: Nanoseconds, end_ns: Nanoseconds
) -> MarkedSteps:
    """Of ranges in order of start the outer ones, with their numbers; -1: a range has none.

    Where numbers are missing or do not rise (every epoch counts from 0) steps are counted from 0.
    """
    outer = outermost(start_ns, end_ns)
    number, start_ns, end_ns = number[outer], start_ns[outer], end_ns[outer]
    numbered = bool(np.all(number >= 0))
    rising = bool(np.all(number[1:] > number[:-1]))
    if not (numbered and rising):
        number = np.arange(number.size)
    return MarkedSteps(StepWindows.plain(number, start_ns, end_ns), numbered and not rising)


def longest_steps(
    source: NDArray[np.int64],
    number: NDArray[np.int64],
    start_ns: Nanoseconds,
    end_ns: Nanoseconds,
) -> MarkedSteps:
    """The steps of the source whose ranges cover most time; ranges in order of start."""
    order = np.argsort(source, kind="stable")
    bounds = np.flatnonzero(np.diff(source[order])) + 1
    found = (
        marked_steps(number[rows], start_ns[rows], end_ns[rows]) for rows in np.split(order, bounds)
    )
    return max(found, key=lambda steps: steps.marked_ns)


def counted(counts: Mapping[str, SupportsInt]) -> list[str]:
    """The caveats of what occurred, such as `3 events are left out`."""
    return [f"{int(count)} {what}" for what, count in counts.items() if int(count)]


# Libraries first, then the collectives custom kernels are named after. Never a bare send, recv,
# broadcast or p2p: ordinary elementwise and copy kernels carry those words.
_COMMUNICATION = re.compile(
    r"nccl|rccl|oneccl|msccl|nvshmem|deep_ep|multimem|quickreduce|cross_device_reduce|sendrecv"
    r"|all[_-]?reduce|all[_-]?gather|reduce[_-]?scatter|all[_-]?to[_-]?all",
    re.IGNORECASE,
)
# In this order: `all_reduce_scatter` is none of `all_reduce`, `psum_scatter` none of `psum`,
# `reduce_scatter` none of `reduce`, `sendrecv` none of `send`.
_KINDS = (
    (r"(?:reduce|psum)_?scatter", CollectiveKind.REDUCE_SCATTER),
    (
        r"all_?reduce|quick_?reduce|cross_?device_?reduce|psum|pmax|pmin",
        CollectiveKind.ALL_REDUCE,
    ),
    (r"all_?gather", CollectiveKind.ALL_GATHER),
    (r"all_?to_?all|deep_?ep\b.{0,200}(dispatch|combine)", CollectiveKind.ALL_TO_ALL),
    (r"send_?recv|permute", CollectiveKind.SEND_RECV),
    (r"broadcast|bcast", CollectiveKind.BROADCAST),
    (r"barrier", CollectiveKind.BARRIER),
    (r"gather", CollectiveKind.GATHER),
    (r"scatter", CollectiveKind.SCATTER),
    (r"(?<!all_)reduce(?!_?scatter)", CollectiveKind.REDUCE),
    (r"(?:nccl|(?<![a-z]))i?send(?![a-z])", CollectiveKind.SEND),
    (r"(?:nccl|(?<![a-z]))i?recv(?![a-z])", CollectiveKind.RECV),
)
_NAMELESS = "(anonymous namespace)::"
_KIND_OF = tuple((re.compile(pattern), kind) for pattern, kind in _KINDS)


def communicates(kernel_name: str) -> bool:
    """Whether a kernel of this name is a collective or a transfer between ranks."""
    return _COMMUNICATION.search(kernel_name) is not None


@lru_cache(maxsize=10_000)
def collective_kind(name: str) -> CollectiveKind:
    """What a collective of this name does: a kernel, or an operation of torch, XLA or NCCL."""
    plain = name.replace(_NAMELESS, "").partition("(")[0].lower().replace("-", "_")
    return next((kind for form, kind in _KIND_OF if form.search(plain)), CollectiveKind.OTHER)
