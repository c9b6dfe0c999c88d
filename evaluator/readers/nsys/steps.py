"""Steps of an Nsight Systems export: NVTX ranges that look like steps, on host and devices."""

import re
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from evaluator.intervals import Nanoseconds
from evaluator.readers.distinct import distinct_rows
from evaluator.readers.nsys.host import Ranges, process_of
from evaluator.readers.step_marks import MarkedSteps, longest_steps
from evaluator.traces.steps import StepWindows

# `ProfilerStep#3`, `step 3`, `Step: 3`, `train_step[3]`, `iteration 3`, `iter_3`, `global step 3/9`
# or a bare `step`, `train_step`, `iteration`; torch adds `, op_id = 7` or `, seq = 7` to ranges.
_STEP = re.compile(
    r"(?P<label>(?:(?:profiler|train|training|global|model|eval)[ _-]?)?(?:step|iteration|iter))"
    r"(?:[ _#:=\[-]{1,3}(?P<number>\d{1,18})(?:/\d{1,18})?\]?)?(?:, (?:op_id|seq) = .*)?",
    re.IGNORECASE,
)
_LONGEST_LABEL = 200


def host_steps(ranges: Ranges, processes: Iterable[int]) -> Mapping[int, MarkedSteps]:
    """The steps of each of these processes that marked any, by the global id of the process.

    Of several sets of ranges, by thread and by what stands before the number, the one that covers
    most time is the steps.
    """
    labels, numbers = _steps_of(ranges.labels.texts)
    chosen = np.flatnonzero(labels[ranges.labels.index] >= 0)
    text = ranges.labels.index[chosen]
    _, source = distinct_rows(ranges.thread[chosen], labels[text])
    process = process_of(ranges.thread[chosen])
    found = {}
    for number in np.intersect1d(process, list(processes)).tolist():
        own = process == number
        rows = chosen[own]
        found[number] = longest_steps(
            source[own], numbers[text[own]], ranges.start_ns[rows], ranges.end_ns[rows]
        )
    return found


def device_steps(
    steps: StepWindows, launched_ns: Nanoseconds, start_ns: Nanoseconds, end_ns: Nanoseconds
) -> StepWindows:
    """The same steps on a device: from the first work launched in each to the end of the last.

    The times of the work are in order of its launch. A step that launched nothing stays as the
    host saw it.
    """
    first = np.searchsorted(launched_ns, steps.start_ns, side="left")
    behind = np.searchsorted(launched_ns, steps.end_ns, side="left")
    window_ns = np.stack((steps.start_ns, steps.end_ns))
    for step in np.flatnonzero(first < behind):
        work = slice(first[step], behind[step])
        window_ns[:, step] = start_ns[work].min(), end_ns[work].max()
    return StepWindows.plain(steps.number, window_ns[0], window_ns[1])


def _steps_of(texts: tuple[str, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The label of each text that names a step, as a number (-1: none), and the step's number."""
    labels: dict[str, int] = {}
    found = np.full((2, len(texts)), -1, np.int64)
    for index, text in enumerate(texts):
        match = _STEP.fullmatch(text) if len(text) <= _LONGEST_LABEL else None
        if match:
            numbered = match["number"] is not None
            label = f"{match['label'].lower()} {numbered}"
            found[0, index] = labels.setdefault(label, len(labels))
            found[1, index] = int(match["number"]) if numbered else -1
    return found[0], found[1]
