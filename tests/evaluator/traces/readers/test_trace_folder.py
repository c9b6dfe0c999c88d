"""A folder of traces is read as one run, and what is not one run is told apart."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from select import select

import numpy as np
import pytest

from evaluator.traces.readers.cache import cache_path
from evaluator.traces.readers.files import LARGE_LIMITS, ReadLimits
from evaluator.traces.readers.formats import NoTraceError
from evaluator.traces.readers.read import read_folder, read_in_processes
from records.errors import TraceError
from tests.support.processes import await_unread
from tests.support.traces import GLOO, SYNTHETIC, named_cases, read

KERNEL = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "dur": 100}
NOW_NS = 1_790_000_000_000_000_000


def write(folder, name, *, rank=None, world_size=None, base_ns=NOW_NS, **told):
    """A Kineto trace of three kernels, a second apart."""
    told = {"baseTimeNanoseconds": base_ns, "deviceProperties": [{"id": 0, "name": "H100"}]} | told
    if rank is not None:
        told["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world_size}
    events = [KERNEL | {"ts": at * 1e6} for at in range(3)]
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told | {"traceEvents": events}))
    return path


def read_here(path):
    return read_folder(path, use_cache=False)


def ranks(path):
    return [trace.rank for trace in read_here(path).ranks]


def test_every_rank_of_a_folder_is_read_in_order_and_told_after_each_file():
    told = []
    traces = read_folder(SYNTHETIC, use_cache=False, on_file=lambda *each: told.append(each))
    assert [trace.rank for trace in traces.ranks] == [0, 1, 2, 3]
    assert (traces.world_size, traces.alignment.offsets_ns) == (4, (0, 0, 0, 0))
    for one, other in zip(traces.ranks, read(SYNTHETIC).ranks, strict=True):
        assert np.array_equal(one.spans.start_ns, other.spans.start_ns)
    assert [(done, total) for done, total, _ in told] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert {path.name for _, _, path in told} == {f"rank{rank}_trace.json.gz" for rank in range(4)}


def test_one_file_is_a_run_of_its_own():
    traces = read_here(SYNTHETIC / "rank2_trace.json.gz")
    assert [trace.rank for trace in traces.ranks] == [2]
    assert traces.caveats[0] == "3 of 4 ranks left no trace"


def test_devices_of_one_file_and_ranks_of_gloo_keep_their_clocks(recorded_data):
    # Here one device leaves every exchange 22 us after the other.
    one_file = recorded_data / "traces/nsys/h100_2gpu_sp_before.sqlite.gz"
    assert {read_here(path).alignment for path in (one_file, GLOO)} == {None}


def test_ranks_are_in_order_of_their_numbers_not_of_their_names(tmp_path):
    for rank in (*range(5), *range(6, 12)):
        write(tmp_path, f"rank{rank}_trace.json", rank=rank, world_size=12)
    cache_path(tmp_path / "rank0_trace.json").write_text("{}")  # which is no trace
    traces = read_here(tmp_path)
    assert [trace.rank for trace in traces.ranks] == [*range(5), *range(6, 12)]
    assert traces.missing_ranks == (5,)
    assert traces.caveats == ("1 of 12 ranks left no trace",)


def test_what_is_no_trace_is_left_out_and_told(tmp_path):
    write(tmp_path, "rank0.json", rank=0, world_size=1)
    (tmp_path / "truth.json").write_text('{"step_ns": 3}')
    (tmp_path / "et_rank0.json").write_text('{"schema": "1.1.1-chakra.0.0.4", "nodes": []}')
    (tmp_path / "notes.txt").write_text("of no concern")
    (tmp_path / "report.nsys-rep").write_bytes(b"\0binary")
    (tmp_path / ".hidden.json").write_text("[]")
    (told,) = read_here(tmp_path).caveats
    assert told.startswith("left out: ")
    assert "truth.json is JSON without trace events" in told
    assert "et_rank0.json is an execution trace" in told
    assert "report.nsys-rep is a report of Nsight Systems; export it" in told
    assert "notes.txt" not in told
    assert ".hidden" not in told


def test_links_whose_targets_are_missing_are_left_out_and_named(tmp_path):
    write(tmp_path, "rank0.json", rank=0, world_size=1)
    (tmp_path / "rank1.json").symlink_to(tmp_path / "scratch" / "rank1.json")
    (tmp_path / "rank2.json").symlink_to("rank2.json")
    traces = read_here(tmp_path)
    assert [trace.rank for trace in traces.ranks] == [0]
    assert traces.caveats == (
        "left out: rank1.json is a link whose target is missing, "
        "rank2.json is a link whose target is missing",
    )


def test_a_rank_that_the_trace_has_not_comes_from_its_name_or_is_0_where_it_is_alone(tmp_path):
    write(tmp_path, "trace.json")
    (tmp_path / "truth.json").write_text("{}")
    assert ranks(tmp_path) == ranks(tmp_path / "trace.json") == [0]
    write(tmp_path, "rank-12.json")
    with pytest.raises(TraceError, match="names no rank"):
        read_here(tmp_path)
    (tmp_path / "trace.json").rename(tmp_path / "rank-3.json")
    assert ranks(tmp_path) == [3, 12]


def test_traces_below_the_folder_are_found_where_they_are_in_one_place(tmp_path):
    write(tmp_path, "plugins/profile/2026_01_11/rank0.json", rank=0, world_size=1)
    write(tmp_path, ".cache/rank0.json", rank=0, world_size=1)
    traces = read_here(tmp_path)
    assert traces.caveats == (f"read from {tmp_path / 'plugins/profile/2026_01_11'}",)


def test_traces_in_several_places_are_refused_by_name(tmp_path):
    for iteration in (10, 20, 9):
        write(tmp_path, f"iteration_{iteration}/rank0.json", rank=0, world_size=1)
    with pytest.raises(TraceError, match="iteration_9, iteration_10, iteration_20; name one"):
        read_here(tmp_path)
    assert ranks(tmp_path / "iteration_10") == [0]


def test_a_folder_without_traces_says_what_is_there_instead(tmp_path):
    with pytest.raises(TraceError, match=r"holds no .*that a profiler wrote$"):
        read_here(tmp_path)
    (tmp_path / "profile.xplane.pb").write_bytes(b"\0")
    with pytest.raises(TraceError, match=r"profile\.xplane\.pb is of an unknown kind"):
        read_here(tmp_path)
    with pytest.raises(TraceError, match="no file has this name"):
        read_here(tmp_path / "nothing")
    (tmp_path / "table.csv").write_text("step,time\n")
    with pytest.raises(NoTraceError, match="is text, but no JSON"):
        read_here(tmp_path / "table.csv")


HOUR_NS = 3600 * 10**9


@named_cases(
    ("one", "other", "message"),
    {
        "one rank twice": (
            ("a.json", {"rank": 0, "world_size": 2}),
            ("b.json", {"rank": 0, "world_size": 2}),
            r"b\.json: holds rank 0, and so does .*a\.json.*separate",
        ),
        "other sizes": (
            ("a.json", {"rank": 0, "world_size": 2}),
            ("b.json", {"rank": 1, "world_size": 4}),
            r"b\.json: is of a job of 4 ranks, .*a\.json of one of 2",
        ),
        "a rank that the job cannot have": (
            ("rank0.json", {"rank": 0, "world_size": 2}),
            ("rank7.json", {}),
            r"rank7\.json: is of rank 7, .*of a job of 2 ranks",
        ),
        "other times": (
            ("rank0.json", {"rank": 0, "world_size": 2}),
            ("rank1.json", {"rank": 1, "world_size": 2, "base_ns": NOW_NS + HOUR_NS}),
            r"rank1\.json: begins 3598 s after rank0\.json ended",
        ),
    },
)
def test_what_is_no_single_run_is_refused(tmp_path, one, other, message):
    for name, told in (one, other):
        write(tmp_path, name, **told)
    with pytest.raises(TraceError, match=message):
        read_here(tmp_path)


def test_clocks_may_be_seconds_apart_and_one_damaged_trace_is_told_by_name(tmp_path):
    write(tmp_path, "rank0.json", rank=0, world_size=2)
    path = write(tmp_path, "rank1.json", rank=1, world_size=2, base_ns=NOW_NS + 50 * 10**9)
    assert ranks(tmp_path) == [0, 1]
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(TraceError, match=r"rank1\.json: .*truncated"):
        read_here(tmp_path)


def test_traces_of_different_profilers_or_devices_are_refused(tmp_path, recorded_data):
    write(tmp_path, "rank0.json", rank=0, world_size=1)
    xla = {"metadata": {"highres-ticks": True}, "traceEvents": []}
    (tmp_path / "host.trace.json").write_text(json.dumps(xla))
    with pytest.raises(TraceError, match=r"several profilers, rank0\.json \(kineto\), host"):
        read_here(tmp_path)
    with pytest.raises(TraceError, match="different devices"):
        read_here(recorded_data / "traces/xla")


def test_devices_of_several_files_are_numbered_on(recorded_data, tmp_path):
    source = recorded_data / "traces/xla/vllm_tpu_2chip_a.trace.json.gz"
    for host in (10, 9):
        shutil.copy(source, tmp_path / f"host-{host}.trace.json.gz")
    traces = read_here(tmp_path)
    assert [trace.rank for trace in traces.ranks] == [0, 1, 2, 3]
    assert any("numbered in the order of the files' names" in told for told in traces.caveats)


def test_large_files_are_read_side_by_side_where_there_are_processors(tmp_path):
    for rank in (0, 1):
        path = write(tmp_path, f"rank{rank}.json.gz", rank=rank, world_size=2)
        # By its name as much as 67 MB of text; what it holds is told by its content.
        path.write_bytes(path.read_bytes() + b" " * 5_200_000)
    told = []
    traces = read_folder(tmp_path, use_cache=False, on_file=lambda *each: told.append(each[:2]))
    assert [trace.rank for trace in traces.ranks] == [0, 1]
    assert [trace.spans.count for trace in traces.ranks] == [3, 3]
    assert told == [(1, 2), (2, 2)]


def test_processes_leave_caches(tmp_path):
    events = [KERNEL | {"ts": at} for at in range(12_000)]
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"traceEvents": events}))
    files = sorted(tmp_path.iterdir())
    found = dict(read_in_processes(files, LARGE_LIMITS, use_cache=True, count=2))
    assert [found[file][0].spans.count for file in files] == [12_000, 12_000]
    assert all(cache_path(file).is_file() for file in files)


def test_a_refusal_of_a_process_is_that_of_the_file(tmp_path):
    files = [write(tmp_path, f"rank{rank}.json", rank=rank, world_size=2) for rank in (0, 1)]
    files[1].write_text(files[1].read_text()[:-20])
    with pytest.raises(TraceError) as told:
        dict(read_in_processes(files, LARGE_LIMITS, use_cache=False, count=2))
    with pytest.raises(TraceError) as expected:
        read_here(files[1])
    assert str(told.value) == str(expected.value)
    with pytest.raises(TraceError, match="more than 100 bytes on disk"):
        dict(read_in_processes(files[:1], ReadLimits(file_bytes=100), use_cache=False, count=1))


def children():
    return {int(pid) for pid in Path("/proc/thread-self/children").read_text("ascii").split()}


def one_at_a_time(folder):
    """Three files being read by one process, the first of which is read."""
    files = [write(folder, f"rank{rank}.json", rank=rank, world_size=3) for rank in (2, 1, 0)]
    reading = read_in_processes(files, LARGE_LIMITS, use_cache=False, count=1)
    assert next(reading)[0].name == "rank0.json"
    return reading


def test_a_process_that_is_killed_is_told_with_the_file_it_read(tmp_path):
    before = children()
    reading = one_at_a_time(tmp_path)
    (process,) = children() - before
    os.kill(process, signal.SIGKILL)
    # It may have read one more file, but not the one that it is asked for afterwards.
    with pytest.raises(TraceError, match=r"rank[12]\.json: the process that read it was killed"):
        list(reading)
    assert children() == before


def test_a_process_killed_before_its_next_file_is_told_with_that_file(tmp_path):
    before = children()
    reading = one_at_a_time(tmp_path)
    (process,) = children() - before
    await_unread(process, 1)
    os.kill(process, signal.SIGKILL)
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    assert next(reading)[0].name == "rank1.json"
    with pytest.raises(TraceError, match=r"rank2\.json: the process that read it was killed"):
        next(reading)
    assert children() == before


def test_processes_end_with_whoever_asked_them(tmp_path):
    before = children()
    reading = one_at_a_time(tmp_path)
    assert children() != before
    reading.close()
    assert children() == before


READS_AND_TELLS = """
import sys
from pathlib import Path
from evaluator.traces.readers.files import LARGE_LIMITS
from evaluator.traces.readers.read import read_in_processes
reading = read_in_processes(
    [Path(name) for name in sys.argv[1:]], LARGE_LIMITS, use_cache=False, count=1
)
next(reading)
print(*Path("/proc/thread-self/children").read_text().split(), flush=True)
sys.stdin.read()
"""


def test_processes_die_with_a_killed_parent(tmp_path):
    files = [write(tmp_path, f"rank{rank}.json", rank=rank, world_size=2) for rank in (1, 0)]
    with subprocess.Popen(
        [sys.executable, "-c", READS_AND_TELLS, *files],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        (reader,) = map(int, parent.stdout.readline().split())
        ended = os.pidfd_open(reader)
        parent.kill()
    assert select([ended], [], [], 60)[0] == [ended]
    os.close(ended)
