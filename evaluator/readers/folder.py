"""Reads the traces that lie in a folder as those of one run, whatever wrote them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from evaluator.readers.discovery import found_at, some
from evaluator.readers.files import LARGE_LIMITS, ReadLimits
from evaluator.readers.formats import Format
from evaluator.readers.job import by_device, joined
from evaluator.readers.several import OnFile, read_files
from evaluator.traces.collectives import Collectives
from evaluator.traces.errors import TraceError
from evaluator.traces.job import TraceSet
from evaluator.traces.rank import RankTrace

# Clocks of one job may be seconds apart; a second run starts later than that.
_FARTHEST_APART_NS = 60 * 10**9
_IN_1973_NS = 10**17


def read_folder(
    path: Path,
    *,
    limits: ReadLimits = LARGE_LIMITS,
    use_cache: bool = True,
    on_file: OnFile | None = None,
) -> TraceSet:
    """The traces of one run, by rank, their clocks aligned: all in a folder, or one file.

    Looks at `*.json`, `*.sqlite` and `*.xplane.pb`, packed or not, in the folder or else in the one
    folder below it that holds any; what no profiler wrote is left out, and so is the export of a
    profile that is there itself, as `TraceSet.remarks` then say. A trace
    that lies alone and names no rank is of rank 0. What was read from large files is kept beside
    them and read from there the next time, unless `use_cache` is False.

    Raises TraceError when there is no trace, one is damaged, or they are not of one run.
    """
    found = found_at(path, limits)
    remarks = [f"left out: {some(found.others)}"] if found.others else []
    if found.folder not in {path, path.parent}:
        remarks.append(f"read from {found.folder}")
    formats = {format_: file.name for file, format_ in found.files}
    if len(formats) > 1:
        named = some([f"{name} ({format_})" for format_, name in sorted(formats.items())])
        raise TraceError(found.folder, f"holds traces of several profilers, {named}; name one file")
    files = [file for file, _ in found.files]
    read = read_files(files, limits, use_cache=use_cache, on_file=on_file)
    if len(files) == 1:
        read = [tuple(part for trace in read[0] for part in by_device(trace))]
    if len(files) > 1 and Format.KINETO not in formats:
        read = _numbered(found.folder, read)
        remarks.append("devices of several files are numbered in the order of the files' names")
    _refuse_two_runs(files, read)
    return joined(list(zip(files, read, strict=True)), remarks)


def _numbered(folder: Path, read: Sequence[tuple[RankTrace, ...]]) -> list[tuple[RankTrace, ...]]:
    """Devices of all files numbered on, where each file counts its own from 0."""
    names = sorted({trace.device.name if trace.device else "CPU" for own in read for trace in own})
    if len(names) > 1:
        raise TraceError(folder, f"holds traces of different devices, {some(names)}; name one file")
    numbered, count = [], 0
    for traces in read:
        numbered.append(
            tuple(
                replace(
                    trace,
                    rank=count + place,
                    world_size=None,
                    collectives=_counted_on(trace.collectives, count),
                )
                for place, trace in enumerate(traces)
            )
        )
        count += len(traces)
    return numbered


def _counted_on(told: Collectives, count: int) -> Collectives:
    """With the ranks of groups numbered like those of the file's devices."""
    groups = (
        replace(group, ranks=tuple(rank + count for rank in group.ranks)) if group.ranks else group
        for group in told.groups
    )
    return replace(told, groups=tuple(groups))


def _refuse_two_runs(files: Sequence[Path], read: Sequence[tuple[RankTrace, ...]]) -> None:
    """Tell runs apart by a pause between them that is longer than either."""
    times = sorted(
        (*_extent_ns(trace), file)
        for file, traces in zip(files, read, strict=True)
        for trace in traces
        if trace.spans.count and _extent_ns(trace)[0] > _IN_1973_NS
    )
    for place in range(1, len(times)):
        start_ns, _, file = times[place]
        _, end_ns, other = max(times[:place], key=lambda each: each[1])
        longest_ns = max(end - start for start, end, _ in times)
        apart_ns = start_ns - end_ns
        if apart_ns > max(longest_ns, _FARTHEST_APART_NS):
            raise TraceError(
                file,
                f"begins {apart_ns / 1e9:.0f} s after {other.name} ended: they are of different "
                "runs; read each run from a folder of its own",
            )


def _extent_ns(trace: RankTrace) -> tuple[int, int]:
    return int(trace.spans.start_ns[0]), int(trace.spans.end_ns.max())
