"""The critical path of a replayed job: the work and the waiting that its time consists of."""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from evaluator.traces.model import Activity
from evaluator.whatif.graph import NEVER, Graph
from evaluator.whatif.replay import Times


class OnPath(StrEnum):
    """What a piece of the critical path is."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    COPY = "copies"
    FILL = "fills"
    HOST = "host"
    """The host prepared and launched work, or noticed that the device was done."""
    GAP = "gaps"
    """Between two works of a stream, or from the end of work to the start of what waits for it."""


_OF_ACTIVITY = {
    Activity.COMPUTE: OnPath.COMPUTE,
    Activity.COMMUNICATION: OnPath.COMMUNICATION,
    Activity.COPY: OnPath.COPY,
    Activity.FILL: OnPath.FILL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of the path, ns since the first work of the job; `work` is None between works."""

    kind: OnPath
    rank: int
    """Place of the rank in its trace set."""
    start_ns: int
    end_ns: int
    work: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The pieces in order of time, one after the other without a break, within all steps."""

    pieces: tuple[Piece, ...]

    def seconds(self) -> dict[OnPath, float]:
        """Time by kind."""
        total = Counter[OnPath]()
        for piece in self.pieces:
            total[piece.kind] += piece.end_ns - piece.start_ns
        return {kind: total[kind] / 1e9 for kind in OnPath}


class _Walk:
    """Goes back from the last work to the first, always to what let it start."""

    def __init__(self, graph: Graph, times: Times) -> None:
        works = graph.works
        self._graph, self._times = graph, times
        self._follows = works.follows
        waits = graph.waits
        order = np.argsort(waits.target, kind="stable")
        self._waits = waits.select(order[waits.proven[order]])
        joint = np.flatnonzero(works.instance >= 0)
        joint = joint[np.lexsort((times.start_ns[joint], works.instance[joint]))]
        instance = works.instance[joint]
        self._last_arrived = joint[np.append(instance[1:] != instance[:-1], True)[: joint.size]]
        ends = graph.pause_ends
        self._ends = ends.select(np.argsort(ends.pause, kind="stable"))

    def pieces(self, first_ns: int, last_ns: int, work: int) -> list[Piece]:
        """The path to the end of a work, later pieces first, within these moments."""
        found: list[Piece] = []
        end_ns = int(self._times.end_ns[work])
        following: int | None = work
        while following is not None and end_ns > first_ns:
            work = following
            if self._graph.works.instance[work] >= 0:
                work = int(self._last_arrived[self._graph.works.instance[work]])
            start_ns = int(self._times.start_ns[work])
            rank = int(self._graph.works.rank[work])
            kind = _OF_ACTIVITY[Activity(int(self._graph.works.activity[work]))]
            found.append(Piece(kind=kind, rank=rank, start_ns=start_ns, end_ns=end_ns, work=work))
            following, by_host = self._before(work)
            if following is None:
                end_ns = first_ns if by_host else start_ns
            else:
                end_ns = min(int(self._times.end_ns[following]), start_ns)
            if end_ns < start_ns:
                between = OnPath.HOST if by_host else OnPath.GAP
                found.append(Piece(kind=between, rank=rank, start_ns=end_ns, end_ns=start_ns))
        return [
            Piece(
                kind=piece.kind,
                rank=piece.rank,
                start_ns=max(piece.start_ns, first_ns),
                end_ns=min(piece.end_ns, last_ns),
                work=piece.work,
            )
            for piece in found
            if piece.end_ns > first_ns and piece.start_ns < last_ns
        ]

    def _before(self, work: int) -> tuple[int | None, bool]:
        """The work whose end let this one start, and whether by way of the host."""
        works, times, waits = self._graph.works, self._times, self._waits
        start_ns = times.start_ns[work]
        rows = slice(*np.searchsorted(waits.target, (work, work + 1)))
        ready_ns = times.end_ns[waits.source[rows]] + waits.slack_ns[rows]
        met = np.flatnonzero(ready_ns == start_ns)
        if met.size:
            return int(waits.source[rows][met[0]]), False
        pause = int(works.pause[work])
        shift_ns = times.shift_ns[pause] if pause >= 0 else 0
        launched_ns = works.launched_ns[work]
        by_host = (
            launched_ns > NEVER and launched_ns + works.latency_ns[work] + shift_ns == start_ns
        )
        if not by_host:
            return (work - 1 if self._follows[work] else None), False
        return self._before_pause(pause), True

    def _before_pause(self, pause: int) -> int | None:
        """The work whose end ended a pause, or one before that the host waited in."""
        pauses, ends, times = self._graph.pauses, self._ends, self._times
        while pause >= 0:
            rows = slice(*np.searchsorted(ends.pause, (pause, pause + 1)))
            ended_ns = times.end_ns[ends.work[rows]] + ends.tail_ns[rows]
            met = np.flatnonzero(ended_ns - pauses.end_ns[pause] == times.shift_ns[pause])
            if met.size:
                return int(ends.work[rows][met[0]])
            same = pause > 0 and pauses.rank[pause - 1] == pauses.rank[pause]
            pause = pause - 1 if same else -1
        return None


def critical_path(graph: Graph, times: Times, start_ns: int, end_ns: int) -> CriticalPath:
    """What the time between two moments of a replay consists of, seen from the last work in it."""
    inside = np.flatnonzero(times.end_ns <= end_ns)
    last = int(inside[np.argmax(times.end_ns[inside])])
    pieces = _Walk(graph, times).pieces(start_ns, end_ns, last)
    return CriticalPath(pieces=tuple(reversed(pieces)))
