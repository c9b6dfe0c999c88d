"""Reads the traces of all ranks of one job."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from evaluator.analysis.alignment import aligned
from evaluator.readers.files import STANDARD_LIMITS, ReadLimits
from evaluator.readers.formats import read_file
from evaluator.traces.errors import TraceError
from evaluator.traces.job import TraceSet
from evaluator.traces.rank import RankTrace

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
        for trace in traces:
            if trace.rank in read:
                raise TraceError(
                    path, f"holds rank {trace.rank}, and so does {read[trace.rank][0]}; {_APART}"
                )
            read[trace.rank] = path, trace
    _refuse_other_sizes(read.values())
    ranks = [read[rank] for rank in sorted(read)]
    job = TraceSet(ranks=tuple(trace for _, trace in ranks), remarks=tuple(remarks))
    return aligned(job, [clocks[path] for path, _ in ranks])


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
