"""When the nodes of a job run, from their durations and what they wait for.

As simulators do it: a node starts once all that it waits for has ended and its stream is free; of
several that could, the one with the lowest id goes first. A collective of several ranks, or a
transfer, keeps the stream of each from when that one comes; it ends on all together, after the last
has come and the shortest of their durations has passed: the others' include waiting.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from evaluator.traces.model import Table, rows_by_number


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tasks(Table):
    """What is to be scheduled, the nodes of all ranks; columns of shape (tasks,)."""

    id: NDArray[np.int64]
    lane: NDArray[np.int64]
    """The stream or thread, over all ranks, which runs one after the other."""
    duration_us: NDArray[np.int64]
    together: NDArray[np.int64]
    """Which collective or transfer it is a part of, numbered from 0; -1: none."""


def schedule(
    tasks: Tasks, source: NDArray[np.int64], target: NDArray[np.int64]
) -> tuple[list[int], list[int]]:
    """When each task starts and ends, microseconds; -1 where it never does.

    Task `target` waits for task `source`, arrays of shape (dependencies,).
    """
    run = _Run(tasks, source, target)
    run.until_all_wait()
    return run.starts_us, run.ends_us


class _Run:
    def __init__(self, tasks: Tasks, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        count = tasks.count
        self.starts_us, self.ends_us = [-1] * count, [-1] * count
        order = np.argsort(tasks.id, kind="stable")
        self._task_at: list[int] = order.tolist()
        place = np.empty(count, np.int64)
        place[order] = np.arange(count)
        self._place: list[int] = place.tolist()
        self._lane: list[int] = tasks.lane.tolist()
        self._duration_us: list[int] = tasks.duration_us.tolist()
        self._together: list[int] = tasks.together.tolist()
        by_source = np.argsort(source, kind="stable")
        self._targets: list[int] = target[by_source].tolist()
        self._bounds: list[int] = np.searchsorted(source[by_source], np.arange(count + 1)).tolist()
        self._missing: list[int] = np.bincount(target, minlength=count).tolist()
        part_count = int(tasks.together.max(initial=-1)) + 1
        self._parts = [rows.tolist() for rows in rows_by_number(tasks.together, part_count)]
        self._absent = [len(parts) for parts in self._parts]
        lane_count = int(tasks.lane.max(initial=-1)) + 1
        self._waiting: list[list[int]] = [[] for _ in range(lane_count)]
        self._busy = [False] * lane_count
        self._running: list[tuple[int, int]] = []

    def until_all_wait(self) -> None:
        """Run tasks until none is running."""
        lanes = {self._ready(task) for task, missing in enumerate(self._missing) if not missing}
        self._start(lanes, 0)
        while self._running:
            now_us = self._running[0][0]
            lanes = set()
            while self._running and self._running[0][0] == now_us:
                lanes.update(self._end(heappop(self._running)[1], now_us))
            self._start(lanes, now_us)

    def _ready(self, task: int) -> int:
        lane = self._lane[task]
        heappush(self._waiting[lane], self._place[task])
        return lane

    def _start(self, lanes: Iterable[int], now_us: int) -> None:
        for lane in lanes:
            if self._busy[lane] or not self._waiting[lane]:
                continue
            task = self._task_at[heappop(self._waiting[lane])]
            self._busy[lane], self.starts_us[task] = True, now_us
            joint = self._together[task]
            parts = [task] if joint < 0 else self._parts[joint]
            if joint >= 0:
                self._absent[joint] -= 1
                if self._absent[joint]:
                    continue
            end_us = now_us + min(self._duration_us[part] for part in parts)
            for part in parts:
                heappush(self._running, (end_us, part))

    def _end(self, task: int, now_us: int) -> Iterable[int]:
        """End a task; yields the lanes on which something may start now."""
        lane = self._lane[task]
        self.ends_us[task], self._busy[lane] = now_us, False
        yield lane
        for target in self._targets[self._bounds[task] : self._bounds[task + 1]]:
            self._missing[target] -= 1
            if not self._missing[target]:
                yield self._ready(target)
