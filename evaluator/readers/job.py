"""Reads the traces of all ranks of one job."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from evaluator.analysis.alignment import aligned
from evaluator.readers.files import STANDARD_LIMITS, ReadLimits
from evaluator.readers.formats import read_file
from evaluator.traces.collectives import Group
from evaluator.traces.errors import TraceError
from evaluator.traces.job import TraceSet
from evaluator.traces.rank import RankTrace
from evaluator.traces.spans import Activity

_NAMELESS = Group("")
_TWO = 2
_APART = "read each run from a folder of its own"


def read_traces(
    paths: Sequence[Path], limits: ReadLimits = STANDARD_LIMITS, only_rank: int | None = None
) -> TraceSet:
    """The traces in these files of one job, in any order, their clocks aligned; at least one.

    A file that names no rank is of `only_rank`, the one rank of a job of one. Nothing that lies
    beside the files is looked at. Raises TraceError when a file is refused, lacks the device work
    of a job that ran on devices, two hold the same rank, or they do not agree on the size of the
    job.
    """
    read = [(path, read_file(path, limits, only_rank)) for path in paths]
    for path, traces in read:
        if any(trace.on_device and not trace.has_work for trace in traces):
            raise TraceError(path, "holds no device work, though the job ran on devices")
    return joined(read)


def joined(
    files: Iterable[tuple[Path, Sequence[RankTrace]]], remarks: Sequence[str] = ()
) -> TraceSet:
    """What was read from files, as one job; what is in one file is on one clock already.

    Raises TraceError when two hold the same rank, or they do not agree on the size of the job.
    """
    read: dict[int, tuple[Path, RankTrace]] = {}
    clocks: dict[Path, int] = {}
    for path, traces in files:
        clocks[path] = len(clocks)
        for trace in map(of_main_device, traces):
            if trace.rank in read:
                raise TraceError(
                    path, f"holds rank {trace.rank}, and so does {read[trace.rank][0]}; {_APART}"
                )
            read[trace.rank] = path, trace
    _refuse_other_sizes(read.values())
    ranks = [read[rank] for rank in sorted(read)]
    job = TraceSet(ranks=tuple(trace for _, trace in ranks), remarks=tuple(remarks))
    return aligned(_with_the_whole_job(job), [clocks[path] for path, _ in ranks])


def by_device(trace: RankTrace) -> tuple[RankTrace, ...]:
    """The trace of a process that is the whole job as one of each device, numbered from 0.

    Steps are those of the process: a device idles while another one works. What the allocator
    handed out is of all devices, and left out.
    """
    devices = sorted(_busy_ns(trace), key=lambda name: (len(name), name))
    if len(devices) < _TWO or trace.world_size not in {None, 1}:
        return (trace,)
    return tuple(
        replace(
            _on(trace, device, [other for other in devices if other != device]),
            rank=number,
            world_size=None,
            caveats=(*trace.caveats, f"is device {device} of {len(devices)} that one process uses"),
        )
        for number, device in enumerate(devices)
    )


def of_main_device(trace: RankTrace) -> RankTrace:
    """The trace without the work of all devices but the busiest one, as a caveat then says."""
    busy_ns = _busy_ns(trace)
    if len(busy_ns) < _TWO:
        return trace
    main, *others = sorted(busy_ns, key=lambda name: -busy_ns[name])
    share = sum(busy_ns[name] for name in others) / max(1, sum(busy_ns.values()))
    caveat = (
        f"device {', '.join(sorted(others))} is left out with {share:.1%} of the device time: what "
        f"counts is device {main}"
    )
    return replace(_on(trace, main, others), caveats=(*trace.caveats, caveat))


def _busy_ns(trace: RankTrace) -> dict[str, int]:
    """How long each device of a process worked, spans added up; empty where the host did."""
    spans = trace.spans
    if not trace.on_device or trace.source != "kineto":
        return {}
    work = spans.doing(Activity.COMPUTE, Activity.COPY, Activity.FILL)
    lane_ns = np.bincount(spans.lane_id[work], spans.duration_ns[work], len(spans.lanes))
    count = np.bincount(spans.lane_id[work], minlength=len(spans.lanes))
    busy_ns = Counter[str]()
    for lane in np.flatnonzero(count).tolist():
        busy_ns[spans.lanes[lane].process] += int(lane_ns[lane])
    return dict(busy_ns)


def _on(trace: RankTrace, device: str, others: Sequence[str]) -> RankTrace:
    """The trace without work on other devices, and without what launched nothing else."""
    spans, table = trace.spans, trace.collectives
    process = np.array([lane.process for lane in spans.lanes])[spans.lane_id]
    away = np.isin(process, others)
    launched = np.setdiff1d(spans.correlation[away], spans.correlation[process == device])
    away |= spans.doing(Activity.LAUNCH) & np.isin(spans.correlation, launched[launched != 0])
    number = np.cumsum(~away) - 1
    here = ~away[table.span]
    return replace(
        trace,
        spans=spans.kept(~away),
        collectives=replace(
            table,
            span=number[table.span[here]],
            kind=table.kind[here],
            group_id=table.group_id[here],
            bytes=table.bytes[here],
            sequence=table.sequence[here],
        ),
        memory=None,
    )


def _with_the_whole_job(job: TraceSet) -> TraceSet:
    """The job with collectives that name no group as those of all ranks, if all left a trace.

    Profilers before torch 2.3 record neither group nor number. Of one rank alone nothing follows;
    of all, that order, counts and sizes agree, which matching then looks at. Two ranks make one
    group only, so that nothing is taken for granted there.
    """
    size = job.world_size
    counts = [_groupless_count(trace) for trace in job.ranks]
    if size is None or size != len(job.ranks) or size == _TWO or not any(counts):
        return job
    everyone = Group(_NAMELESS.name, tuple(range(size)), size)
    ranks = (
        replace(
            trace,
            collectives=replace(
                trace.collectives,
                groups=tuple(
                    everyone if group == _NAMELESS else group for group in trace.collectives.groups
                ),
            ),
        )
        for trace in job.ranks
    )
    remark = (
        f"{sum(counts)} collectives name no group and are taken to be of all {size} ranks; they "
        "are matched in order where counts and sizes agree"
    )
    return replace(job, ranks=tuple(ranks), remarks=(*job.remarks, remark))


def _groupless_count(trace: RankTrace) -> int:
    """Collectives of which nothing says who takes part."""
    table = trace.collectives
    nameless = [place for place, group in enumerate(table.groups) if group == _NAMELESS]
    return int(np.isin(table.group_id, nameless).sum())


def _refuse_other_sizes(read: Collection[tuple[Path, RankTrace]]) -> None:
    sized = [(path, trace.world_size) for path, trace in read if trace.world_size is not None]
    for path, size in sized:
        if size != sized[0][1]:
            raise TraceError(
                path,
                f"is of a job of {size} ranks, {sized[0][0]} of one of {sized[0][1]}; {_APART}",
            )
    for path, trace in read:
        if sized and trace.rank >= sized[0][1]:
            raise TraceError(
                path, f"is of rank {trace.rank}, {sized[0][0]} of a job of {sized[0][1]} ranks"
            )
