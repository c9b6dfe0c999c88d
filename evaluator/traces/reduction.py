"""Reduce the traces of a node's ranks to what is compared over all ranks of a large job.

As a program this module runs on a node of a cluster, once its ranks have ended: it reads their
traces, keeps those of some ranks as they are, and puts one file of columns in the place of the
others, which is about 1/200 of their size. Nothing is removed before that file is whole.
"""

import gzip
import json
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evaluator.traces.intervals import Intervals
from evaluator.traces.model import Activity, Lane, MemoryUse, RankGroup, RankTrace, Spans
from evaluator.traces.readers.column_file import write_columns
from evaluator.traces.readers.files import LARGE_LIMITS
from evaluator.traces.readers.formats import read_file
from evaluator.traces.readers.read import of_main_device
from records.errors import TraceError

_UNITED = (Activity.COPY, Activity.FILL)


def reduced(trace: RankTrace) -> RankTrace:
    """The trace with each collective, what launched it, and when other work of each kind ran.

    Where the time of each step went, who waits for whom, and the volume and speed of collectives
    are the same to the nanosecond; the names of kernels, and who launched them, are lost.
    """
    trace = of_main_device(trace)
    spans, table = trace.spans, trace.collectives
    talks = spans.doing(Activity.COMMUNICATION)
    talks[table.span] = True
    correlations = spans.correlation[talks]
    launches = spans.doing(Activity.LAUNCH)
    launches &= np.isin(spans.correlation, correlations[correlations != 0])
    kept = np.flatnonzero(talks | launches)
    times = [(Activity.COMPUTE, trace.computing())]
    times += [(activity, trace.covered(activity)) for activity in _UNITED]
    shortened, row = _with_intervals(spans.select(kept), times)
    groups = tuple(_unlisted(group, trace.world_size) for group in table.groups)
    return replace(
        trace,
        spans=shortened,
        collectives=replace(table, span=row[np.searchsorted(kept, table.span)], groups=groups),
        memory=trace.memory and _peak(trace.memory),
        waits=None,
        reduced=True,
    )


def _with_intervals(
    kept: Spans, times: Sequence[tuple[Activity, Intervals]]
) -> tuple[Spans, NDArray[np.int64]]:
    """The spans and one for each interval, without names; and the new row of each span."""
    added = [np.full(each.start_ns.size, activity) for activity, each in times]
    count = kept.count + sum(each.size for each in added)
    start_ns = np.concatenate([kept.start_ns, *(each.start_ns for _, each in times)])
    correlation = np.zeros(count, np.int64)
    correlation[: kept.count] = kept.correlation
    shortened = Spans.build(
        start_ns=start_ns,
        end_ns=np.concatenate([kept.end_ns, *(each.end_ns for _, each in times)]),
        activity=np.concatenate([kept.activity, *added]),
        correlation=correlation,
        name_id=np.zeros(count, np.int32),
        lane_id=np.zeros(count, np.int32),
        names=("",),
        lanes=kept.lanes[:1] or (Lane("", ""),),
    )
    row = np.empty(count, np.int64)
    row[np.argsort(start_ns, kind="stable")] = np.arange(count)
    return shortened, row[: kept.count]


def _unlisted(group: RankGroup, world_size: int | None) -> RankGroup:
    """The group without a list of its ranks where they are all ranks of the job."""
    if world_size is None or group.ranks != tuple(range(world_size)):
        return group
    return replace(group, ranks=None, size=world_size)


def _peak(memory: MemoryUse) -> MemoryUse | None:
    """The moment of the most memory."""
    if not memory.count:
        return None
    return memory.select(np.array([memory.allocated_bytes.argmax()], np.int64))


def write_reduced(traces: Sequence[RankTrace], target: Path) -> None:
    """Write reduced traces into one file, which gets its name when it is whole."""
    unfinished = target.with_name(f".{target.name}-part")
    try:
        with unfinished.open("wb") as out, gzip.GzipFile("", "wb", 1, out, mtime=0) as packed:
            write_columns(packed, traces)
        unfinished.replace(target)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """What became of the traces of a node: sizes in bytes, and what could not be read, with why."""

    reduced_count: int
    whole_count: int
    bytes_before: int
    bytes_after: int
    unread: tuple[str, ...]


def reduce_files(files: Sequence[Path], target: Path, whole_ranks: Collection[int]) -> Reduction:
    """Replace the traces of all but some ranks by one file; what cannot be read stays as it is.

    Raises OSError where the file cannot be written; then nothing is removed.
    """
    replaced, traces, unread = list[Path](), list[RankTrace](), list[str]()
    before = sum(file.stat().st_size for file in files)
    for file in files:
        try:
            found = read_file(file, LARGE_LIMITS)
        except TraceError as error:
            unread.append(str(error))
            continue
        if not any(trace.rank in whole_ranks for trace in found):
            replaced.append(file)
            traces += map(reduced, found)
    if traces:
        write_reduced(traces, target)
    for file in replaced:
        file.unlink(missing_ok=True)
    kept = [file for file in files if file not in replaced]
    after = sum(file.stat().st_size for file in (*kept, *([target] if traces else [])))
    return Reduction(
        reduced_count=len(replaced),
        whole_count=len(kept) - len(unread),
        bytes_before=before,
        bytes_after=after,
        unread=tuple(unread),
    )


_RANK = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)


def files_of_ranks(folder: Path, patterns: Sequence[str], ranks: range) -> list[Path]:
    """Return the files of some ranks, by their names: nodes may share the folder.

    A file whose name has no rank is another node's as well as ours, and left alone.
    """
    found = {file for pattern in patterns for file in folder.glob(pattern)}
    named = ((file, _RANK.search(file.name)) for file in sorted(found))
    return [
        file
        for file, rank in named
        if rank and int(rank[1]) in ranks and file.is_file() and not file.is_symlink()
    ]


def main() -> None:
    """Reduce the traces of a node's ranks in a folder; print what became of them as JSON.

    The arguments are the folder, the name of the file to write, the ranks whose traces stay whole,
    the first rank of the node and how many it has, and patterns of names.
    """
    folder, name, whole_ranks, first, count, *patterns = sys.argv[1:]
    ranks = range(int(first), int(first) + int(count))
    files = files_of_ranks(Path(folder), patterns, ranks)
    whole = [int(rank) for rank in whole_ranks.split(",") if rank]
    sys.stdout.write(json.dumps(asdict(reduce_files(files, Path(folder, name), whole))))


if __name__ == "__main__":
    main()
