"""What is true of a generated job, in exact nanoseconds: found by sweeping over edges.

It shares no code with what it judges, and sees the simulated work, never a file.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from generated_job import RankStep, Run
from numpy.typing import NDArray

KINDS = ("compute", "communication", "copy", "fill")
NAMES = {
    "_allgather_base": "allgather",
    "_reduce_scatter_base": "reducescatter",
    "allreduce": "allreduce",
    "all_to_allv": "alltoall",
}


@dataclass(slots=True)
class Instance:
    """One collective over all ranks: how long it took on each, and its bytes over the bus."""

    collective: str
    bus_bytes: float
    durations_ns: dict[int, int] = field(default_factory=dict)


class Truth:
    """Gathers what ranks did, step by step; `told` gives everything at the end."""

    def __init__(self) -> None:
        self._ranks: dict[int, _RankTruth] = {}
        self._instances: dict[tuple[str, tuple[int, ...], int], Instance] = {}

    def add(self, steps: Iterable[RankStep]) -> None:
        """One step of every rank that leaves a trace."""
        for step in steps:
            rank = self._ranks.setdefault(step.rank, _RankTruth())
            rank.add(step)
            for run in step.runs:
                if run.message:
                    key = run.message.group_name, run.message.ranks, run.sequence
                    bus_bytes = run.message.bytes * run.message.factor
                    kind = NAMES[run.message.collective]
                    instance = self._instances.setdefault(key, Instance(kind, bus_bytes))
                    instance.durations_ns[step.rank] = run.end_ns - run.start_ns

    def told(self) -> dict[str, object]:
        """Per rank, and over matched collectives: bandwidth and who came last."""
        by_kind: dict[str, list[tuple[float, int]]] = defaultdict(list)
        last: Counter[int] = Counter()
        wait_ns: Counter[int] = Counter()
        for instance in self._instances.values():
            durations = instance.durations_ns
            least_ns = min(durations.values())
            by_kind[instance.collective].append((instance.bus_bytes, least_ns))
            if len(durations) > 1:
                last[min(durations, key=lambda rank: durations[rank])] += 1
            for rank, duration_ns in durations.items():
                wait_ns[rank] += duration_ns - least_ns
        return {
            "ranks": {str(rank): truth.told() for rank, truth in self._ranks.items()},
            "matched": {
                kind: {
                    "count": len(values),
                    "busbw_GBps_median": median(size / least_ns for size, least_ns in values),
                    "busbw_GBps": sum(size for size, _ in values)
                    / sum(least_ns for _, least_ns in values),
                }
                for kind, values in by_kind.items()
            },
            "last_arrivals": {str(rank): last[rank] for rank in self._ranks},
            "excess_wait": {str(rank): wait_ns[rank] for rank in self._ranks},
        }


class _RankTruth:
    """One rank."""

    def __init__(self) -> None:
        self._windows: list[tuple[int, int, int, int, int]] = []
        self._runs: list[NDArray[np.int64]] = []
        self._name_ns: Counter[str] = Counter()
        self._covered_ns = 0.0
        self._memory = [0, 0]
        self._own: dict[str, list[tuple[int, int, float]]] = defaultdict(list)

    def add(self, step: RankStep) -> None:
        first = min(run.start_ns for run in step.runs)
        last = max(run.end_ns for run in step.runs)
        self._windows.append((step.number, first, last, step.host_start_ns, step.host_end_ns))
        edges = [(run.start_ns, run.end_ns, KINDS.index(run.work.kind)) for run in step.runs]
        self._runs.append(np.array(edges, np.int64))
        for run in step.runs:
            self._note(run)

    def _note(self, run: Run) -> None:
        duration_ns = run.end_ns - run.start_ns
        if run.work.kind in {"compute", "communication"}:
            self._name_ns[run.work.name] += duration_ns
            self._covered_ns += duration_ns * min(1.0, run.work.blocks_per_sm)
        if run.work.kind == "copy":
            self._memory[0] += run.work.bytes
            self._memory[1] += duration_ns
        if run.message:
            message = run.message
            self._own[NAMES[message.collective]].append(
                (message.bytes, duration_ns, message.bytes * message.factor)
            )

    def told(self) -> dict[str, object]:
        sweep = Sweep(np.concatenate(self._runs))
        kernel_ns = sum(self._name_ns.values())
        top, top_ns = max(self._name_ns.items(), key=lambda item: item[1])
        inner = [end - start for *_, start, end in self._windows[1:-1]]
        return {
            "clock_skew": 0,
            "gpu_window": sweep.parts(self._windows[0][1], self._windows[-1][2]),
            "steps": [self._step(sweep, window) for window in self._windows],
            "avg_step_time_inner": sum(inner) / len(inner) if inner else None,
            "kernel_time_sum": kernel_ns,
            "top_kernel": top,
            "top_kernel_fraction": top_ns / kernel_ns,
            "sm_coverage_dur_weighted": self._covered_ns / kernel_ns,
            "moe_time": sum(ns for name, ns in self._name_ns.items() if "moe" in name),
            "memcpy_GBps": self._memory[0] / self._memory[1],
            "collectives": {kind: _own(rows) for kind, rows in self._own.items()},
        }

    @staticmethod
    def _step(sweep: "Sweep", window: tuple[int, int, int, int, int]) -> dict[str, object]:
        number, first, last, host_start, host_end = window
        device = {f"gpu_{name}": value for name, value in sweep.parts(first, last).items()}
        in_cpu_window = sweep.parts(host_start, host_end)
        return {
            "id": number,
            "cpu_step": host_end - host_start,
            **device,
            "in_cpu_window": in_cpu_window,
        }


def _own(rows: Sequence[tuple[int, int, float]]) -> dict[str, float]:
    bandwidths = [bus_bytes / duration_ns for _, duration_ns, bus_bytes in rows]
    return {
        "count": len(rows),
        "total_bytes": sum(row[0] for row in rows),
        "total_dur": sum(row[1] for row in rows),
        "busbw_GBps_median": median(bandwidths),
        "busbw_GBps_max": max(bandwidths),
    }


class Sweep:
    """Between any two edges of one rank's work: which kinds were under way."""

    def __init__(self, runs: NDArray[np.int64]) -> None:
        starts, ends, kinds = runs.T
        times = np.concatenate((starts, ends))
        order = np.argsort(times, kind="stable")
        self._times = times[order]
        change = np.concatenate((np.ones_like(starts), -np.ones_like(ends)))[order]
        kind = np.concatenate((kinds, kinds))[order]
        self._under_way = [np.cumsum(np.where(kind == k, change, 0)) > 0 for k in range(4)]

    def parts(self, start_ns: int, end_ns: int) -> dict[str, int]:
        """Nanoseconds of a window by what was under way."""
        first = int(np.searchsorted(self._times, start_ns, side="right"))
        behind = int(np.searchsorted(self._times, end_ns, side="left"))
        edges = np.concatenate(([start_ns], self._times[first:behind], [end_ns]))
        lengths = np.diff(edges)
        # what is under way before the first edge inside is what the edge before it left
        compute, communication, copy, fill = (
            np.concatenate(([False], kind))[first : behind + 1] for kind in self._under_way
        )

        def total(chosen: NDArray[np.bool_]) -> int:
            return int(lengths[chosen].sum())

        return {
            "wall": end_ns - start_ns,
            "compute_busy": total(compute),
            "comm_busy": total(communication),
            "overlap": total(compute & communication),
            "exposed_comm": total(communication & ~compute),
            "memcpy_busy": total(copy),
            "exposed_memcpy": total(copy & ~compute & ~communication),
            "memset_only": total(fill & ~compute & ~communication & ~copy),
            "busy": total(compute | communication | copy | fill),
            "idle": total(~(compute | communication | copy | fill)),
        }
