"""The steps of a Kineto trace, as the host and as the device saw them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluator.intervals import Nanoseconds
from evaluator.readers.kineto.kinds import ENGINE_STEP, ITERATION, PROFILER_STEP, EventKind
from evaluator.traces.steps import StepKind, StepWindows

_KIND_OF_ITERATION = {
    "DECODE": StepKind.DECODE,
    "EXTEND": StepKind.PREFILL,
    "PREFILL": StepKind.PREFILL,
    "MIXED": StepKind.PREFILL,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Marks:
    """Spans that mark steps; arrays of shape (marks,)."""

    kind: NDArray[np.int8]
    name_id: NDArray[np.int32]
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    names: Sequence[str]

    def named(self, kind: EventKind) -> list[tuple[str, int, int]]:
        """Name, start and end of the marks of a kind, by start."""
        chosen = np.flatnonzero(self.kind == kind)
        chosen = chosen[np.argsort(self.start_ns[chosen], kind="stable")]
        columns = (self.name_id[chosen], self.start_ns[chosen], self.end_ns[chosen])
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [(self.names[name_id], start, end) for name_id, start, end in rows]


def host_steps(marks: Marks) -> StepWindows:
    """The steps on the host's side.

    `ProfilerStep#k` where the profiler was told of steps; else what vLLM and SGLang call theirs:
    `execute_..context_n(..)_generation_m(..)`, `step[EXTEND ..]`, or calls of the function that is
    one step. Those have no numbers: they count from 0, the outer of two where they are nested.
    """
    if told := marks.named(EventKind.HOST_STEP):
        return _numbered(told)
    for kind in (EventKind.ENGINE_STEP, EventKind.ITERATION, EventKind.FRAME_STEP):
        if told := marks.named(kind):
            return _counted(told)
    return StepWindows.none()


def device_steps(
    marks: Marks, host: StepWindows, launched_ns: Nanoseconds, work: tuple[Nanoseconds, Nanoseconds]
) -> StepWindows:
    """The steps on the device's side: windows from the first work of a step to its last.

    That is the work which the host launched within its step (it lags behind it), and what the
    profiler recorded as `ProfilerStep#k` on streams. The latter alone does not do: work within a
    range that has another name inside the step is not part of it. Nor does the host's window, but
    it stands for all steps where nothing tells of any on the device.
    `work` holds starts and ends, `launched_ns` the start of the launch of each, of shape (spans,).
    """
    launched = _launched(host, launched_ns, work)
    recorded = _numbered(marks.named(EventKind.DEVICE_STEP))
    number = np.union1d(launched.number, recorded.number)
    if not number.size:
        return host
    first = np.full(number.size, np.iinfo(np.int64).max)
    last = np.full(number.size, np.iinfo(np.int64).min)
    kind = np.zeros(number.size, np.int8)
    for steps in (launched, recorded):
        place = np.searchsorted(number, steps.number)
        first[place] = np.minimum(first[place], steps.start_ns)
        last[place] = np.maximum(last[place], steps.end_ns)
        kind[place] = np.maximum(kind[place], steps.kind)
    return StepWindows(number=number, start_ns=first, end_ns=last, kind=kind)


def _launched(
    host: StepWindows, launched_ns: Nanoseconds, work: tuple[Nanoseconds, Nanoseconds]
) -> StepWindows:
    """Windows of the steps in which any work is known to have been launched."""
    if not host.count:
        return host
    order = np.argsort(host.start_ns, kind="stable")
    step = order[np.searchsorted(host.start_ns[order], launched_ns, side="right") - 1]
    inside = (launched_ns >= host.start_ns[step]) & (launched_ns < host.end_ns[step])
    first = np.full(host.count, np.iinfo(np.int64).max)
    last = np.full(host.count, np.iinfo(np.int64).min)
    np.minimum.at(first, step[inside], work[0][inside])
    np.maximum.at(last, step[inside], work[1][inside])
    found = np.unique(step[inside])
    return StepWindows(
        number=host.number[found],
        start_ns=first[found],
        end_ns=last[found],
        kind=host.kind[found],
    )


def _numbered(told: Sequence[tuple[str, int, int]]) -> StepWindows:
    """One window per step number, over all streams that recorded the step."""
    windows: dict[int, tuple[int, int]] = {}
    for name, start, end in told:
        match = PROFILER_STEP.fullmatch(name)
        assert match is not None  # what else is no step
        number = int(match[1])
        first, last = windows.get(number, (start, end))
        windows[number] = min(first, start), max(last, end)
    rows = np.array([(n, *windows[n]) for n in sorted(windows)], np.int64).reshape(-1, 3)
    return StepWindows.plain(*rows.T.copy())


def _counted(told: Sequence[tuple[str, int, int]]) -> StepWindows:
    outer: list[tuple[str, int, int]] = []
    for name, start, end in told:
        if not outer or start >= outer[-1][2]:
            outer.append((name, start, end))
    return StepWindows(
        number=np.arange(len(outer)),
        start_ns=np.array([start for _, start, _ in outer], np.int64),
        end_ns=np.array([end for _, _, end in outer], np.int64),
        kind=np.array([_kind(name) for name, _, _ in outer], np.int8),
    )


def _kind(name: str) -> StepKind:
    """A step that reads any prompt is a prefill, also when it decodes for others beside that."""
    if match := ENGINE_STEP.fullmatch(name):
        prompts, answers = int(match[1]), int(match[2])
        return StepKind.PREFILL if prompts else StepKind.DECODE if answers else StepKind.PLAIN
    iteration = ITERATION.fullmatch(name)
    return _KIND_OF_ITERATION.get(iteration[1], StepKind.PLAIN) if iteration else StepKind.PLAIN
