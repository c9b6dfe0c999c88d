"""The steps of an XLA trace, as devices and the host tell them."""

import re

import numpy as np
from numpy.typing import NDArray

from evaluator.readers.distinct import distinct_rows
from evaluator.readers.step_marks import NO_STEPS, MarkedSteps, longest_steps
from evaluator.readers.xla.events import Events
from evaluator.readers.xla.lines import Role
from evaluator.readers.xla.operations import times_ns

# `jit_step_fun(5120112285394406626)`, `jit_train_step(3)`, `pmap_step(1)`: the compiled function of
# a step, among those that only prepare or finish one.
_STEP_MODULE = re.compile(r"(?:jit|pjit|pmap|xmap)?_*(?:[a-z]+_)*?step(?:_[a-z]+)*(?:[.(].*)?")

_LONGEST_NAME = 200


def host_steps(events: Events, role: NDArray[np.int64]) -> MarkedSteps:
    """Steps that the program marked with a number, else frames of functions that are steps.

    Of several threads or functions, the one that covers most time.
    """
    on_host = role == Role.HOST
    marked = np.flatnonzero(on_host & (events.step >= 0))
    if marked.size:
        return _longest(events, marked, events.step[marked])
    frames = np.array([name.startswith("$") for name in events.names], bool)
    rows = np.flatnonzero(on_host & frames[events.name]) if frames.any() else marked
    return _longest(events, rows, np.full(rows.size, -1))


def device_steps(events: Events, rows: NDArray[np.int64], role: NDArray[np.int64]) -> MarkedSteps:
    """Steps that a device shows: its line of steps, else its runs of the function of a step.

    Runs are counted, for their numbers differ between devices.
    """
    shown = rows[role == Role.STEPS]
    if shown.size:
        texts = [events.names[name] for name in events.name[shown].tolist()]
        told = [int(text) if re.fullmatch(r"\d{1,18}", text) else -1 for text in texts]
        same = np.zeros(shown.size, np.int64)
        return _longest(events, shown, np.array(told, np.int64), same)
    is_step = np.array([_is_step(name) for name in events.names], bool)
    runs = rows[role == Role.MODULES]
    runs = runs[is_step[events.name[runs]]]
    return _longest(events, runs, np.full(runs.size, -1), events.name[runs])


def _is_step(module: str) -> bool:
    return len(module) <= _LONGEST_NAME and _STEP_MODULE.fullmatch(module) is not None


def _longest(
    events: Events,
    rows: NDArray[np.int64],
    number: NDArray[np.int64],
    source: NDArray[np.int64] | None = None,
) -> MarkedSteps:
    if not rows.size:
        return NO_STEPS
    if source is None:
        _, source = distinct_rows(events.line[rows], events.name[rows])
    start_ns, end_ns = times_ns(events, rows)
    order = np.argsort(start_ns, kind="stable")
    return longest_steps(source[order], number[order], start_ns[order], end_ns[order])
