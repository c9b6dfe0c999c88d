"""Reads the traces of all ranks of one job."""

from collections.abc import Sequence
from pathlib import Path

from evaluator.readers.files import STANDARD_LIMITS, ReadLimits
from evaluator.readers.kineto import read_rank
from evaluator.traces import RankTrace, TraceError, TraceSet


def read_traces(
    paths: Sequence[Path], limits: ReadLimits = STANDARD_LIMITS, only_rank: int | None = None
) -> TraceSet:
    """The traces in these files, one rank each, in any order; at least one.

    A file that names no rank is of `only_rank`, the one rank of a job of one.

    Raises TraceError when a file is refused, two hold the same rank, or they do not agree on the
    size of the job.
    """
    read: dict[int, tuple[Path, RankTrace]] = {}
    sized: tuple[Path, int] | None = None
    for path in paths:
        trace = read_rank(path, limits, only_rank)
        if trace.rank in read:
            raise TraceError(path, f"holds rank {trace.rank}, and so does {read[trace.rank][0]}")
        read[trace.rank] = path, trace
        if trace.world_size is None:
            continue
        if sized and sized[1] != trace.world_size:
            raise TraceError(
                path, f"is of a job of {trace.world_size} ranks, {sized[0]} of one of {sized[1]}"
            )
        sized = path, trace.world_size
    return TraceSet(ranks=tuple(read[rank][1] for rank in sorted(read)))
