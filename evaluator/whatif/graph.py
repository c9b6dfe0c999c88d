"""What each piece of device work of a traced job waited for.

It waits for the work before it on its stream, for the host's launch, for work on other streams
(see `waits`), and a collective for all its ranks; the host waits for the device where it
synchronises. Of these the one that came last bound it: what was recorded between that one and the
start is kept as slack. Others keep the least slack that is usual, so that they may bind in a
replay.
"""

from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from evaluator.traces.analysis.breakdown import WORK
from evaluator.traces.analysis.collectives import Matches
from evaluator.traces.analysis.kernels import launch_pairs
from evaluator.traces.intervals import Nanoseconds, latest_window
from evaluator.traces.model import (
    SYNCHRONISING,
    Activity,
    CollectiveKind,
    RankTrace,
    Table,
    TraceSet,
)
from evaluator.whatif.waits import Streams, Waits, infer_waits

UNKNOWN: Final = -1
NEVER: Final = -(1 << 60)
"""A moment before all others, which adding any duration leaves so."""
_JOINING: Final = (*SYNCHRONISING, CollectiveKind.SEND, CollectiveKind.SEND_RECV)
"""Kinds that end on all ranks once the last one has come and the message is through."""
_OF_RESULTS: Final = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.REDUCE,
    CollectiveKind.SEND,
)
"""Kinds that send what was just computed; parameters are gathered and spread ahead."""
_USUAL: Final = 0.1
"""The quantile of gaps that counts as the least that is usual."""
_MOST_USUAL_NS: Final = 5_000
"""A stream that is free goes on sooner: what is usual where gaps are longer is waiting."""
_TAIL_NS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Works(Table):
    """Device work of all ranks: rank by rank, stream by stream, by start; shape (works,).

    Times are ns since the first work of the job, on the clock of each rank.
    """

    rank: NDArray[np.int32]
    """Place of the rank in its trace set."""
    span: NDArray[np.int64]
    """Row among the spans of the rank."""
    call: NDArray[np.int64]
    """Row of its launch among the spans of the rank; -1: unknown."""
    lane: NDArray[np.int64]
    """Number of the stream, over all ranks."""
    step: NDArray[np.int64]
    """Number of the step that launched it; -1: none."""
    activity: NDArray[np.int8]
    name: NDArray[np.int64]
    """Indexes `names`."""
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    launched_ns: Nanoseconds
    """When the host's call began; `NEVER` where that is unknown."""
    pause: NDArray[np.int64]
    """The last time that the host had waited for the device before that call; -1: none."""
    instance: NDArray[np.int64]
    """The collective that several ranks are in together; -1: none, or its ranks are not known."""
    gap_ns: Nanoseconds
    """Slack after the work before it on its stream."""
    latency_ns: Nanoseconds
    """Slack after its launch."""
    unexplained_ns: Nanoseconds
    """How much later it started than all that is known to hold it back would have had it."""
    names: tuple[str, ...]

    @property
    def duration_ns(self) -> Nanoseconds:
        """How long each took."""
        return self.end_ns - self.start_ns

    @property
    def follows(self) -> NDArray[np.bool_]:
        """Whether other work came before on the same stream."""
        return np.append(False, self.lane[1:] == self.lane[:-1])[: self.count]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pauses(Table):
    """When hosts waited for their devices, rank by rank, by end; shape (pauses,).

    `shortest_ns` is what the call takes when it need not wait.
    """

    rank: NDArray[np.int32]
    span: NDArray[np.int64]
    """Row among the spans of the rank."""
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    shortest_ns: Nanoseconds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PauseEnds(Table):
    """What ended pauses: work, and what passed from its end to that of the pause."""

    pause: NDArray[np.int64]
    work: NDArray[np.int64]
    tail_ns: Nanoseconds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """A job's work with what it waits for.

    `instances` has the rows of the matches that `Works.instance` numbers.
    """

    works: Works
    waits: Waits
    pauses: Pauses
    pause_ends: PauseEnds
    instances: NDArray[np.int64]

    @classmethod
    def of(cls, traces: TraceSet, matches: Matches) -> Self:
        """The graph of a job whose work ran on devices."""
        zero_ns = min(int(trace.spans.start_ns[0]) for trace in traces.ranks if trace.has_work)
        numbers: dict[str, int] = {}
        parts = [
            _RankGraph.of(place, trace.shifted(-zero_ns), numbers)
            for place, trace in enumerate(traces.ranks)
        ]
        bases = np.cumsum([0, *(part.works.count for part in parts)])
        pause_bases = np.cumsum([0, *(part.pauses.count for part in parts)])
        lane_bases = np.cumsum([0, *(len(trace.spans.lanes) for trace in traces.ranks)])
        placed = [
            part.moved(*base)
            for part, *base in zip(
                parts, bases[:-1], pause_bases[:-1], lane_bases[:-1], strict=True
            )
        ]
        works = Works.concatenate([part.works for part in placed])
        instance, instances = _joint(traces, matches, works)
        works = replace(works, instance=instance, names=tuple(numbers))
        return cls(
            works=works,
            waits=Waits.concatenate([part.waits for part in placed]),
            pauses=Pauses.concatenate([part.pauses for part in placed]),
            pause_ends=PauseEnds.concatenate([part.pause_ends for part in placed]),
            instances=instances,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _RankGraph:
    """The part of one rank, numbered from 0."""

    works: Works
    waits: Waits
    pauses: Pauses
    pause_ends: PauseEnds

    @classmethod
    def of(cls, place: int, trace: RankTrace, numbers: dict[str, int]) -> Self:
        spans = trace.spans
        rows = np.flatnonzero(spans.doing(*WORK))
        rows = rows[np.lexsort((spans.start_ns[rows], spans.lane_id[rows]))]
        call = np.full(spans.count, UNKNOWN)
        launched, calls = launch_pairs(spans)
        call[launched] = calls
        call = call[rows]
        called_ns = np.where(call >= 0, spans.start_ns[call], NEVER)
        names = [numbers.setdefault(name, len(numbers)) for name in spans.names]
        works = Works(
            rank=np.full(rows.size, place, np.int32),
            span=rows,
            call=call,
            lane=spans.lane_id[rows].astype(np.int64),
            step=_steps(trace, spans.start_ns[rows], called_ns),
            activity=spans.activity[rows],
            name=np.array(names, np.int64)[spans.name_id[rows]],
            start_ns=spans.start_ns[rows],
            end_ns=spans.end_ns[rows],
            launched_ns=called_ns,
            pause=np.full(rows.size, UNKNOWN),
            instance=np.full(rows.size, UNKNOWN),
            gap_ns=np.zeros(rows.size, np.int64),
            latency_ns=np.zeros(rows.size, np.int64),
            unexplained_ns=np.zeros(rows.size, np.int64),
            names=(),
        )
        pauses, ends = _pauses(trace, place, works, call)
        works = replace(works, pause=np.searchsorted(pauses.end_ns, called_ns, side="right") - 1)
        sends_results = np.zeros(spans.count, np.bool_)
        sends_results[trace.collectives.span[np.isin(trace.collectives.kind, _OF_RESULTS)]] = True
        works, waits = _with_slacks(works, sends_results[rows], _known_waits(trace, works))
        return cls(works=works, waits=waits, pauses=pauses, pause_ends=ends)

    def moved(self, work: int, pause: int, lane: int) -> Self:
        """The same numbered on from those of the ranks before."""
        works, waits, ends = self.works, self.waits, self.pause_ends
        own = works.pause >= 0
        return replace(
            self,
            works=replace(
                works, lane=works.lane + lane, pause=np.where(own, works.pause + pause, UNKNOWN)
            ),
            waits=replace(waits, source=waits.source + work, target=waits.target + work),
            pause_ends=replace(ends, pause=ends.pause + pause, work=ends.work + work),
        )


def _steps(trace: RankTrace, start_ns: Nanoseconds, called_ns: Nanoseconds) -> NDArray[np.int64]:
    """The step of each work: that of its launch, else the window on the device it starts in."""
    host, device = trace.host_steps, trace.steps
    window = latest_window(device.start_ns, device.end_ns, start_ns)
    step = np.append(device.number, UNKNOWN)[window]
    if not host.count:
        return step
    window = latest_window(host.start_ns, host.end_ns, called_ns)
    return np.where(called_ns > NEVER, np.append(host.number, UNKNOWN)[window], step)


def _known_waits(trace: RankTrace, works: Works) -> Waits | None:
    """The waits between streams that a trace states."""
    if trace.waits is None:
        return None
    place = np.full(trace.spans.count, UNKNOWN)
    place[works.span] = np.arange(works.count)
    source, target = place[trace.waits.source], place[trace.waits.target]
    kept = (source >= 0) & (target >= 0)
    source, target = source[kept], target[kept]
    apart = works.lane[source] != works.lane[target]
    return Waits.between(source[apart], target[apart], 0, proven=True)


def _with_slacks(
    works: Works, sends_results: NDArray[np.bool_], known_waits: Waits | None
) -> tuple[Works, Waits]:
    """Find what binds each work, and how long it took to start after that.

    Waits between streams are inferred where they are not known.
    """
    start_ns, follows = works.start_ns, works.follows
    previous_ns = np.append(NEVER, works.end_ns[:-1])[: works.count]
    previous_ns = np.where(follows, previous_ns, NEVER)
    gap_ns, latency_ns = start_ns - previous_ns, start_ns - works.launched_ns
    usual_gap_ns = _usual_gaps(works.lane, gap_ns, follows)
    known = works.launched_ns > NEVER
    usual_latency_ns = (
        int(np.quantile(np.maximum(latency_ns[known], 0), 0.01)) if known.any() else 0
    )
    explained_ns = np.maximum(previous_ns + usual_gap_ns, works.launched_ns + usual_latency_ns)
    streams = Streams(
        lane=works.lane,
        name=works.name,
        communicates=works.activity == Activity.COMMUNICATION,
        sends_results=sends_results,
        start_ns=start_ns,
        end_ns=works.end_ns,
        launched_ns=np.where(known, works.launched_ns, start_ns),
        explained_ns=explained_ns,
    )
    waits = infer_waits(streams) if known_waits is None else known_waits
    proven = np.flatnonzero(waits.proven)
    ready_ns = works.end_ns[waits.source] + waits.slack_ns
    bound_ns = explained_ns.copy()
    np.maximum.at(bound_ns, waits.target[proven], ready_ns[proven])
    recorded_ns = start_ns[waits.target] - works.end_ns[waits.source]
    binds = waits.proven & (ready_ns == bound_ns[waits.target])
    waits = replace(
        waits, slack_ns=np.where(binds, recorded_ns, np.minimum(waits.slack_ns, recorded_ns))
    )
    follows_last = follows & (previous_ns + usual_gap_ns == bound_ns)
    launched_last = known & (works.launched_ns + usual_latency_ns == bound_ns)
    return (
        replace(
            works,
            gap_ns=np.where(follows_last, gap_ns, np.minimum(gap_ns, usual_gap_ns)),
            latency_ns=np.where(
                launched_last, latency_ns, np.minimum(latency_ns, usual_latency_ns)
            ),
            unexplained_ns=np.where(follows | known, np.maximum(start_ns - bound_ns, 0), 0),
        ),
        waits,
    )


def _usual_gaps(
    lane: NDArray[np.int64], gap_ns: Nanoseconds, follows: NDArray[np.bool_]
) -> Nanoseconds:
    """The least gap that is usual between works of the lane of each work."""
    usual_ns = np.zeros(lane.size, np.int64)
    for number in np.unique(lane).tolist():
        own = lane == number
        gaps = gap_ns[own & follows]
        # Works may overlap by design; that is not what a stream that is free takes.
        usual_ns[own] = int(np.quantile(np.maximum(gaps, 0), _USUAL)) if gaps.size else 0
    return np.minimum(usual_ns, _MOST_USUAL_NS)


_DEVICE_WIDE: Final = ("DeviceSynchronize", "CtxSynchronize")


def _pauses(
    trace: RankTrace, place: int, works: Works, call: NDArray[np.int64]
) -> tuple[Pauses, PauseEnds]:
    """The calls in which the host waited, or would wait, and for which work.

    A call for the whole device waits for all that was launched before. Of other calls it is not
    recorded for what: it is the last work that ended while it lasted, if there is any. A copy whose
    call lasts until it has ended is one as well.
    """
    spans = trace.spans
    order = np.argsort(works.end_ns, kind="stable")
    sync = np.flatnonzero(spans.activity == Activity.SYNC)
    wide_names = [name.endswith(_DEVICE_WIDE) for name in spans.names]
    is_wide = np.array([*wide_names, False], np.bool_)[spans.name_id[sync]]
    last = np.searchsorted(works.end_ns, spans.end_ns[sync], side="right", sorter=order) - 1
    work = np.append(order, UNKNOWN)[last]
    ended_ns = np.append(works.end_ns, NEVER)[work]
    launched_ns = np.append(works.launched_ns, 0)[work]
    waited = (ended_ns >= spans.start_ns[sync]) & (launched_ns <= spans.start_ns[sync])
    copy = np.flatnonzero((works.activity == Activity.COPY) & (call >= 0))
    copy = copy[works.end_ns[copy] <= spans.end_ns[call[copy]]]
    row = np.concatenate((sync[waited | is_wide], call[copy]))
    source = np.concatenate((np.where(waited, work, UNKNOWN)[waited | is_wide], copy))
    wide = np.concatenate((is_wide[waited | is_wide], np.zeros(copy.size, np.bool_)))
    by_end = np.lexsort((spans.start_ns[row], spans.end_ns[row]))
    row, source, wide = row[by_end], source[by_end], wide[by_end]
    start_ns, end_ns = spans.start_ns[row], spans.end_ns[row]
    took_ns = end_ns - start_ns
    shortest_ns = np.where(source >= 0, np.minimum(took_ns, took_ns.min(initial=_TAIL_NS)), took_ns)
    pauses = Pauses(
        rank=np.full(row.size, place, np.int32),
        span=row,
        start_ns=start_ns,
        end_ns=end_ns,
        shortest_ns=shortest_ns,
    )
    return pauses, _pause_ends(pauses, works, source, wide)


def _pause_ends(
    pauses: Pauses, works: Works, source: NDArray[np.int64], wide: NDArray[np.bool_]
) -> PauseEnds:
    """The work that each pause waits for: what was found, and the last of every stream."""
    found = np.flatnonzero(source >= 0)
    parts = [(found, source[found])]
    wide_rows = np.flatnonzero(wide)
    for lane in np.unique(works.lane).tolist():
        own = np.flatnonzero(works.lane == lane)
        called_ns = np.maximum.accumulate(works.launched_ns[own])
        last = np.searchsorted(called_ns, pauses.start_ns[wide_rows], side="right") - 1
        work = np.append(own, UNKNOWN)[last]
        ended_ns = np.append(works.end_ns, 0)[work]
        kept = (work >= 0) & (ended_ns <= pauses.end_ns[wide_rows]) & (work != source[wide_rows])
        parts.append((wide_rows[kept], work[kept]))
    pause = np.concatenate([rows for rows, _ in parts])
    work = np.concatenate([rows for _, rows in parts])
    tail_ns = pauses.end_ns[pause] - works.end_ns[work]
    least_ns = pauses.end_ns - pauses.start_ns
    np.minimum.at(least_ns, pause, tail_ns)
    waited = works.end_ns[work] >= pauses.start_ns[pause]
    return PauseEnds(
        pause=pause,
        work=work,
        tail_ns=np.where(
            waited, np.minimum(tail_ns, least_ns[pause]), np.minimum(tail_ns, _TAIL_NS)
        ),
    )


def _joint(
    traces: TraceSet, matches: Matches, works: Works
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The joint collective of each work, numbered from 0, and its row among the matches."""
    joins = matches.doing(*_JOINING) & (matches.shown_count > 1)
    instances = np.flatnonzero(joins)
    number = np.full(matches.count + 1, UNKNOWN)
    number[instances] = np.arange(instances.size)
    calls = matches.calls
    of_work = np.full(works.count, UNKNOWN)
    bounds = np.searchsorted(works.rank, np.arange(len(traces.ranks) + 1))
    call_bounds = np.searchsorted(calls.rank, np.arange(len(traces.ranks) + 1))
    for place, trace in enumerate(traces.ranks):
        by_span = np.full(trace.spans.count, UNKNOWN)
        own = slice(bounds[place], bounds[place + 1])
        by_span[works.span[own]] = np.arange(bounds[place], bounds[place + 1])
        rows = slice(call_bounds[place], call_bounds[place + 1])
        work = by_span[trace.collectives.span[calls.row[rows]]]
        found = number[matches.instance[rows]]
        of_work[work[work >= 0]] = found[work >= 0]
    return of_work, instances
