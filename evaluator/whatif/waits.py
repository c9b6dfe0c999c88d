"""Which work waits for work on another stream, where no trace says so.

Programs make one stream wait for another by events, which profilers leave out unless asked for. A
wait holds for all that was enqueued on the other stream until then. So of each sort of work (a
kernel of one name on one stream) it is asked: how many of the last works launched on the other
stream before it were, at most, not done when it started? All before those it may wait for. That it
does is shown where a work of the sort that neither its stream nor its launch held back started as
the other ended. It is also taken for sure of a collective that sends what was computed, where all
compute launched before was always done: such a wait is never seen where links are the bottleneck,
and comes to bind when they are faster. Other waits are only never contradicted.
"""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from evaluator.traces.intervals import Nanoseconds
from evaluator.traces.model import Table, distinct_rows

OVERLAP_NS: Final = 1_000
"""How far work may reach into what waits for it: clocks of devices are no finer."""
_UNEXPLAINED_NS: Final = 2_000
_WAIT_NS: Final = 25_000
"""From the end of what is waited for to the start, at most: AMD's devices take 15 us and more."""
_MOST_OPEN: Final = 8
_MOST_SOURCES: Final = 64
_USUAL: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Streams(Table):
    """Work of one rank, by stream and start; columns of shape (works,).

    `explained_ns` is when it would have started but for other streams.
    """

    lane: NDArray[np.int64]
    name: NDArray[np.int64]
    communicates: NDArray[np.bool_]
    sends_results: NDArray[np.bool_]
    """Whether it is a collective of what was computed, as of gradients; a gather need not be."""
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    launched_ns: Nanoseconds
    explained_ns: Nanoseconds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waits(Table):
    """Work `target` starts `slack_ns` after the end of work `source`; shape (waits,)."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    slack_ns: Nanoseconds
    proven: NDArray[np.bool_]
    """Whether it is sure; else it is only never contradicted."""

    @classmethod
    def between(
        cls, source: NDArray[np.int64], target: NDArray[np.int64], slack_ns: int, *, proven: bool
    ) -> Self:
        """Waits of one slack."""
        return cls(
            source=source,
            target=target,
            slack_ns=np.full(source.size, slack_ns),
            proven=np.full(source.size, proven),
        )


def infer_waits(streams: Streams) -> Waits:
    """Every wait between streams of a rank that its trace shows, or never contradicts."""
    none = np.empty(0, np.int64)
    found = [Waits.between(none, none, 0, proven=True)]
    _, sort = distinct_rows(streams.lane, streams.name)
    # Of collectives those of one kind are waited for apart: others may be enqueued between.
    _, origin = distinct_rows(streams.lane, np.where(streams.communicates, streams.name, -1))
    sizes = np.bincount(origin)
    for number in np.argsort(-sizes, kind="stable")[:_MOST_SOURCES].tolist():
        found.extend(_waits_for(streams, np.flatnonzero(origin == number), sort))
    found.append(_seen(streams))
    return Waits.concatenate(found)


def _waits_for(
    streams: Streams, own: NDArray[np.int64], sort: NDArray[np.int64]
) -> tuple[Waits, Waits]:
    """The proven and the possible waits of other streams for these works of one stream."""
    others = np.flatnonzero(streams.lane != streams.lane[own[0]])
    launched_ns = np.maximum.accumulate(streams.launched_ns[own])
    ended_ns = np.maximum.accumulate(streams.end_ns[own])
    launched = np.searchsorted(launched_ns, streams.launched_ns[others], side="left")
    done = np.searchsorted(ended_ns, streams.start_ns[others] + OVERLAP_NS, side="right")
    most_open = np.zeros(sort.max(initial=0) + 1, np.int64)
    np.maximum.at(most_open, sort[others], launched - done)
    place = launched - 1 - most_open[sort[others]]
    kept = (place >= 0) & (most_open[sort[others]] <= _MOST_OPEN)
    target, place = others[kept], place[kept]
    source = own[place]
    since_ns = streams.start_ns[target] - ended_ns[place]
    held = streams.start_ns[target] - streams.explained_ns[target] > _UNEXPLAINED_NS
    binds = held & (since_ns <= _WAIT_NS)
    is_proven = np.zeros(most_open.size, np.bool_)
    is_proven[sort[target[binds]]] = True
    if not streams.communicates[own[0]]:
        sends = np.zeros(most_open.size, np.bool_)
        sends[sort[target[streams.sends_results[target]]]] = True
        is_proven |= sends & (most_open == 0)
    proven = is_proven[sort[target]]
    usual_ns = int(np.quantile(np.maximum(since_ns[binds], 0), _USUAL)) if binds.any() else 0
    rows = [
        chosen[_first(streams.lane[target[chosen]], place[chosen])]
        for chosen in (np.flatnonzero(proven), np.flatnonzero(~proven))
    ]
    return (
        Waits.between(source[rows[0]], target[rows[0]], usual_ns, proven=True),
        Waits.between(source[rows[1]], target[rows[1]], 0, proven=False),
    )


def _first(lane: NDArray[np.int64], place: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows that wait for later work than all before them on their stream.

    For the others it is enough that their stream goes on.
    """
    if not lane.size:
        return np.empty(0, np.int64)
    code = lane * (int(place.max()) + 1) + place
    before = np.append(np.int64(-1), np.maximum.accumulate(code)[:-1])
    return np.flatnonzero(code > before)


def _seen(streams: Streams) -> Waits:
    """Single works that nothing on their stream held back, right after work of another ended."""
    held = np.flatnonzero(streams.start_ns - streams.explained_ns > _UNEXPLAINED_NS)
    order = np.argsort(streams.end_ns, kind="stable")
    moment_ns = streams.start_ns[held] + OVERLAP_NS
    last = np.searchsorted(streams.end_ns, moment_ns, side="right", sorter=order) - 1
    held, last = held[last >= 0], last[last >= 0]
    source = order[last]
    seen = (
        (streams.lane[source] != streams.lane[held])
        & (streams.start_ns[held] - streams.end_ns[source] <= _WAIT_NS)
        & (streams.launched_ns[source] <= streams.launched_ns[held])
        & (streams.start_ns[source] < streams.start_ns[held])
    )
    return Waits.between(source[seen], held[seen], 0, proven=True)
