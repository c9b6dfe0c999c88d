"""Read the traces of all ranks of one job: files of a folder, in parallel, cached.

As a program this module reads files for another process: one request a line, one reply a line.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from tempfile import TemporaryDirectory
from typing import TypeAlias

import msgspec
import numpy as np

from evaluator.rank.protocol import die_with
from evaluator.traces.analysis.stragglers import align_clocks
from evaluator.traces.model import Activity, RankGroup, RankTrace, TraceSet
from evaluator.traces.readers.cache import cache_path, read_and_cache, read_cache
from evaluator.traces.readers.chakra.reader import read_job
from evaluator.traces.readers.column_file import read_columns, read_header, write_columns
from evaluator.traces.readers.files import LARGE_LIMITS, STANDARD_LIMITS, ReadLimits
from evaluator.traces.readers.formats import Format, find_traces, read_file, shorten_list
from records.errors import TraceError

_NAMELESS = RankGroup("")
_TWO = 2
_APART = "read each run from a separate folder"


def read_traces(
    paths: Sequence[Path], limits: ReadLimits = STANDARD_LIMITS, only_rank: int | None = None
) -> TraceSet:
    """The traces in these files of one job, in any order, their clocks aligned; at least one.

    A file that names no rank is of `only_rank`, the one rank of a job of one. No other file is
    read. Raises TraceError when a file is refused, lacks the device work
    of a job that ran on devices, two hold the same rank, or they do not agree on the size of the
    job.
    """
    return join_ranks((path, _with_work(path, limits, only_rank)) for path in paths)


def _with_work(path: Path, limits: ReadLimits, only_rank: int | None) -> tuple[RankTrace, ...]:
    traces = read_file(path, limits, only_rank)
    if any(trace.on_device and not trace.has_work for trace in traces):
        raise TraceError(path, "holds no device work, though the job ran on devices")
    return traces


def join_ranks(
    files: Iterable[tuple[Path, Sequence[RankTrace]]],
    remarks: Sequence[str] = (),
    *,
    one_clock: bool = False,
) -> TraceSet:
    """What was read from files, as one job; what is in one file is on one clock already.

    So are all files where `one_clock` is set.
    Raises TraceError when two hold the same rank, or they do not agree on the size of the job.
    """
    read: dict[int, tuple[Path, RankTrace]] = {}
    clocks: dict[Path, int] = {}
    groups: dict[RankGroup, RankGroup] = {}
    for path, traces in files:
        clocks[path] = len(clocks)
        for own in map(of_main_device, traces):
            # Thousands of ranks that list the thousands of their group hold one list.
            trace = _regroup(own, lambda group: groups.setdefault(group, group))
            if trace.rank in read:
                raise TraceError(
                    path, f"holds rank {trace.rank}, and so does {read[trace.rank][0]}; {_APART}"
                )
            read[trace.rank] = path, trace
    _refuse_other_sizes(read.values())
    ranks = [read[rank] for rank in sorted(read)]
    job = TraceSet(
        ranks=tuple(trace for _, trace in ranks),
        remarks=tuple(remarks),
        files=tuple(path for path, _ in ranks),
    )
    job = _with_whole_job_groups(job)
    return job if one_clock else align_clocks(job, [clocks[path] for path, _ in ranks])


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
        spans=spans.select(~away),
        collectives=replace(table.select(here), span=number[table.span[here]]),
        memory=None,
    )


def _with_whole_job_groups(job: TraceSet) -> TraceSet:
    """The job with collectives that name no group as those of all ranks, if all left a trace.

    Profilers before torch 2.3 record neither group nor number. Of one rank alone nothing follows;
    of all, that order, counts and sizes agree, which matching then looks at. Two ranks make one
    group only, so that nothing is taken for granted there.
    """
    size, count = job.world_size, 0
    for trace in job.ranks:
        nameless = np.array([group == _NAMELESS for group in trace.collectives.groups], bool)
        count += int(nameless[trace.collectives.group_id].sum())
    if size is None or size != len(job.ranks) or size == _TWO or not count:
        return job
    everyone = RankGroup(_NAMELESS.name, tuple(range(size)), size)
    ranks = (
        _regroup(trace, lambda group: everyone if group == _NAMELESS else group)
        for trace in job.ranks
    )
    remark = (
        f"{count} collectives name no group and are taken to be of all {size} ranks; they "
        "are matched in order where counts and sizes agree"
    )
    return replace(job, ranks=tuple(ranks), remarks=(*job.remarks, remark))


def _regroup(trace: RankTrace, change: Callable[[RankGroup], RankGroup]) -> RankTrace:
    """The trace with other groups in the places of its groups."""
    table = trace.collectives
    groups = tuple(change(group) for group in table.groups)
    return replace(trace, collectives=replace(table, groups=groups))


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


class ReadRequest(msgspec.Struct):
    """Read a file, leave its cache if that is wanted and worth it, else write `columns`."""

    path: bytes
    limits: ReadLimits
    use_cache: bool
    columns: bytes


class ReadReply(msgspec.Struct):
    """Where the columns of the file are, or why there are none."""

    columns: bytes | None = None
    refusal: str = ""


def answer_request(request: ReadRequest) -> ReadReply:
    """Do what is requested."""
    path, columns = Path(os.fsdecode(request.path)), Path(os.fsdecode(request.columns))
    try:
        if request.use_cache:
            traces, kept = read_and_cache(path, request.limits, None)
            if kept:
                return ReadReply(columns=os.fsencode(cache_path(path)))
        else:
            traces = read_file(path, request.limits, None)
        with columns.open("wb") as file:
            write_columns(file, traces)
    except TraceError as error:
        return ReadReply(refusal=_printable(str(error).removeprefix(f"{path}: ")))
    except OSError as error:
        return ReadReply(refusal=_printable(f"cannot be handed over: {error}"))
    return ReadReply(columns=request.columns)


def _printable(text: str) -> str:
    """File names need not be text."""
    return text.encode(errors="replace").decode()


def main() -> None:
    """Answer requests until input ends; die with the requesting process, or of low memory."""
    die_with(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the requesting process
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    for line in sys.stdin.buffer:
        reply = answer_request(msgspec.json.decode(line, type=ReadRequest))
        sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
        sys.stdout.buffer.flush()


def read_in_processes(
    files: Sequence[Path], limits: ReadLimits, *, use_cache: bool, count: int
) -> Generator[tuple[Path, tuple[RankTrace, ...]], None, None]:
    """Each file with its traces, the last ones first. Every process ends with this iterator.

    Raises TraceError for the first file that is refused, or whose process ends on its own.
    """
    waiting = list(files)
    with ExitStack() as opened, DefaultSelector() as selector:
        try:
            folder = Path(opened.enter_context(TemporaryDirectory(prefix="cclsearch-")))
            for number in range(min(count, len(files))):
                process = _ReaderProcess(folder / str(number), limits, use_cache)
                opened.callback(process.end)
                selector.register(process.replies, EVENT_READ, process)
        except OSError as error:
            raise TraceError(
                waiting[-1], f"no process can be started to read it: {error}"
            ) from error
        for key in selector.get_map().values():
            key.data.begin(waiting.pop())
        while selector.get_map():
            for key, _ in selector.select():
                process = key.data
                file, traces = process.finish()
                if waiting:
                    process.begin(waiting.pop())
                else:
                    selector.unregister(process.replies)
                yield file, traces


class _ReaderProcess:
    """A process that reads files on request; it dies with this one."""

    def __init__(self, place: Path, limits: ReadLimits, use_cache: bool) -> None:
        self._columns = place.with_suffix(".columns")
        self._log = place.with_suffix(".log")
        self._limits = limits
        self._use_cache = use_cache
        self._file = place
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "evaluator.traces.readers.read", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self.replies = self._process.stdin, self._process.stdout

    def begin(self, file: Path) -> None:
        """Have a file read; its reply can be read when it is."""
        self._file = file
        request = ReadRequest(
            os.fsencode(file), self._limits, self._use_cache, os.fsencode(self._columns)
        )
        with suppress(BrokenPipeError):  # the missing reply reports it
            self._requests.write(msgspec.json.encode(request) + b"\n")
            self._requests.flush()

    def finish(self) -> tuple[Path, tuple[RankTrace, ...]]:
        """The traces of the file."""
        line = self.replies.readline()
        if not line.endswith(b"\n"):
            raise TraceError(self._file, f"the process that read it {self._end_in_words()}")
        reply = msgspec.json.decode(line, type=ReadReply)
        if reply.columns is None:
            raise TraceError(self._file, reply.refusal)
        try:
            with Path(os.fsdecode(reply.columns)).open("rb") as columns:
                return self._file, read_columns(columns, read_header(columns))
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise TraceError(self._file, f"what was read of it is lost: {error}") from error
        finally:
            self._columns.unlink(missing_ok=True)

    def end(self) -> None:
        """Kill it, whatever it does."""
        self._process.kill()
        self._process.wait()
        with suppress(BrokenPipeError):  # a request it never took is written once more
            self._requests.close()
        self.replies.close()

    def _end_in_words(self) -> str:
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return "was killed, as happens when memory runs out"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        said = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"failed: {said[-1] if said else f'exit code {code}'}"


OnFile: TypeAlias = Callable[[int, int, Path], None]
"""Called after each file: how many are read, of how many, and which one it was."""

# What is read in the time that a process takes to start.
_WORTH_A_PROCESS_BYTES = 64 << 20
_USUAL_RATIO = 13
_MOST_PROCESSES = 16


def read_files(
    files: Sequence[Path], limits: ReadLimits, *, use_cache: bool, on_file: OnFile | None = None
) -> list[tuple[RankTrace, ...]]:
    """The traces of each file, in the same order; a file that lies alone may name no rank.

    Raises TraceError when one is refused, or a process that reads one is killed.
    """
    only_rank = 0 if len(files) == 1 else None
    read: dict[Path, tuple[RankTrace, ...]] = {}

    def done(file: Path, traces: tuple[RankTrace, ...]) -> None:
        read[file] = traces
        if on_file:
            on_file(len(read), len(files), file)

    for file in files if use_cache else ():
        traces = read_cache(file, limits, only_rank)
        if traces is not None:
            done(file, traces)
    rest = sorted((file for file in files if file not in read), key=_text_bytes)
    count = _process_count(rest)
    if count > 1:
        with closing(read_in_processes(rest, limits, use_cache=use_cache, count=count)) as reading:
            for file, traces in reading:
                done(file, traces)
        rest = []
    for file in rest:
        if use_cache:
            traces, _ = read_and_cache(file, limits, only_rank)
        else:
            traces = read_file(file, limits, only_rank)
        done(file, traces)
    return [read[file] for file in files]


def _process_count(files: Sequence[Path]) -> int:
    """How many processes pay, files by rising size; 1 where all but the last are read quickly."""
    if sum(_text_bytes(file) for file in files[:-1]) < _WORTH_A_PROCESS_BYTES:
        return 1
    return min(len(files), len(os.sched_getaffinity(0)), _MOST_PROCESSES)


def _text_bytes(file: Path) -> int:
    """About how much there is to read; whether it can be read shows when it is."""
    try:
        return file.stat().st_size * (_USUAL_RATIO if file.suffix in {".gz", ".zst"} else 1)
    except OSError:
        return 0


# Clocks of one job may differ by seconds; a second run starts later than that.
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

    Looks at `*.json`, `*.sqlite`, `*.xplane.pb` and `*.et`, packed or not, in the folder or else in
    the one folder below it that holds any; what no profiler wrote is left out, and so are the
    export of a profile and Chakra traces where there is a profile, as `TraceSet.remarks` then say.
    A trace that lies alone and names no rank is of rank 0. What was read from large files is cached
    next to them and read from there the next time, unless `use_cache` is False.

    Raises TraceError when there is no trace, one is damaged, or they are not of one run.
    """
    found = find_traces(path, limits)
    remarks = [f"left out: {shorten_list(found.others)}"] if found.others else []
    if found.folder not in {path, path.parent}:
        remarks.append(f"read from {found.folder}")
    formats = {format_: file.name for file, format_ in found.files if format_ != Format.COLUMNS}
    if len(formats) > 1:
        named = shorten_list([f"{name} ({format_})" for format_, name in sorted(formats.items())])
        raise TraceError(found.folder, f"holds traces of several profilers, {named}; name one file")
    files = [file for file, _ in found.files]
    if Format.CHAKRA in formats:
        ranks, scheduled = read_job(files, limits)
        return join_ranks(
            [(file, [rank]) for file, rank in zip(files, ranks, strict=True)],
            [*remarks, *scheduled],
            one_clock=True,
        )
    read = read_files(files, limits, use_cache=use_cache, on_file=on_file)
    if len(files) == 1:
        read = [tuple(part for trace in read[0] for part in by_device(trace))]
    if len(files) > 1 and formats and Format.KINETO not in formats:
        read = _number_devices(found.folder, read)
        remarks.append("devices of several files are numbered in the order of the files' names")
    _refuse_two_runs(files, read)
    return join_ranks(list(zip(files, read, strict=True)), remarks)


def _number_devices(
    folder: Path, read: Sequence[tuple[RankTrace, ...]]
) -> list[tuple[RankTrace, ...]]:
    """Devices of all files numbered on, where each file counts its own from 0."""
    names = sorted({trace.device.name if trace.device else "CPU" for own in read for trace in own})
    if len(names) > 1:
        raise TraceError(
            folder, f"holds traces of different devices, {shorten_list(names)}; name one file"
        )
    count = 0

    def shifted(group: RankGroup) -> RankGroup:
        return replace(group, ranks=group.ranks and tuple(rank + count for rank in group.ranks))

    numbered = []
    for traces in read:
        own = (replace(trace, rank=count + trace.rank, world_size=None) for trace in traces)
        numbered.append(tuple(_regroup(trace, shifted) for trace in own))
        count += len(traces)
    return numbered


def _refuse_two_runs(files: Sequence[Path], read: Sequence[tuple[RankTrace, ...]]) -> None:
    """Separate runs by a pause between them that is longer than either."""
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
                "runs; read each run from a separate folder",
            )


def _extent_ns(trace: RankTrace) -> tuple[int, int]:
    return int(trace.spans.start_ns[0]), int(trace.spans.end_ns.max())


if __name__ == "__main__":
    main()
