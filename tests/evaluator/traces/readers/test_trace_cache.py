"""What was read is kept beside the trace, and a cache that does not hold is as good as none."""

import fcntl
import json
import os
import resource
import shutil
import subprocess
import sys
import time
import zlib
from dataclasses import fields, is_dataclass, replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.traces.model import Activity, CollectiveKind, Device, MemoryUse, RankGroup, SpanWaits
from evaluator.traces.readers.cache import (
    FileIdentity,
    cache_path,
    read_and_cache,
    read_cache,
    read_columns,
    read_header,
    write_cache,
    write_columns,
)
from evaluator.traces.readers.files import LARGE_LIMITS
from evaluator.traces.readers.read import read_folder
from evaluator.traces.testing import Span, rank_trace
from tests.support.traces import communication

KERNEL = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7}
COUNT = 12_000


def write_trace(folder, count=COUNT, name="rank0_trace.json", kernel="gemm"):
    events = [KERNEL | {"ts": 10 * at, "dur": 5, "name": kernel} for at in range(count)]
    document = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1}}
    path = folder / name
    path.write_text(json.dumps(document | {"traceEvents": events}))
    return path


def same(one, other):
    if isinstance(one, np.ndarray):
        equal_nan = one.dtype.kind == "f"
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=equal_nan)
    if is_dataclass(one):
        names = [field.name for field in fields(one)]
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    return one == other


def load(path):
    return read_cache(path, LARGE_LIMITS, None)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A trace with its cache, and what is in it."""
    path = write_trace(tmp_path_factory.mktemp("original"))
    traces, kept = read_and_cache(path, LARGE_LIMITS, None)
    assert kept
    return path, traces


@pytest.fixture
def copied(original, tmp_path):
    """A copy of both files, as of a whole folder."""
    path, traces = original
    shutil.copy(path, tmp_path)
    shutil.copy(cache_path(path), tmp_path)
    return tmp_path / path.name, traces


EVERYTHING = rank_trace(
    [
        Span(Activity.COMPUTE, 3, 9, "gemm", lane=1, correlation=4, bytes=5, flops=6.5),
        communication(CollectiveKind.ALL_TO_ALL, 4, 8, RankGroup("tp", (0, 2), 2), 1 << 40),
    ],
    rank=2,
    world_size=4,
    backend="nccl",
    device=Device(name='one "\n\u00e9', multiprocessor_count=108, memory_bytes=1 << 36),
)


EVERYTHING = replace(
    EVERYTHING,
    memory=MemoryUse(time_ns=np.array([1, 2]), allocated_bytes=np.array([0, 1 << 35])),
    waits=SpanWaits(source=np.array([0]), target=np.array([1])),
    caveats=("two spans were clipped",),
)
NOTHING = rank_trace([], steps=(), rank=7)


def test_columns_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "columns"
    with path.open("wb") as file:
        write_columns(file, (EVERYTHING, NOTHING))
    with path.open("rb") as file:
        read = read_columns(file, read_header(file))
    assert same(EVERYTHING, read[0])
    assert same(NOTHING, read[1])


def test_what_is_kept_is_what_was_read_and_can_be_changed(original):
    path, traces = original
    read = load(path)
    assert all(map(same, read, traces))
    read[0].spans.start_ns[0] = 0  # as those of a trace that was parsed
    assert cache_path(path).name == ".rank0_trace.json.cclsearch"


def test_the_cache_is_read_instead_of_the_trace(tmp_path):
    path = write_trace(tmp_path)
    first = read_folder(tmp_path)
    (trace,) = first.ranks
    write_cache(path, FileIdentity.of(path), 0, (replace(trace, caveats=("from the cache",)),))
    assert read_folder(tmp_path).caveats == ("rank 0: from the cache",)
    assert read_folder(tmp_path, use_cache=False).caveats == ()


@pytest.mark.parametrize(("count", "use_cache"), [(COUNT, False), (100, True)])
def test_no_cache_is_left_unasked_or_of_a_small_trace(tmp_path, count, use_cache):
    path = write_trace(tmp_path, count=count)
    read_folder(tmp_path, use_cache=use_cache)
    assert list(tmp_path.iterdir()) == [path]


def test_a_copied_folder_brings_its_cache(copied):
    path, traces = copied
    before = cache_path(path).read_bytes()
    assert all(map(same, load(path), traces))
    # From now on it is known without looking at the content.
    assert cache_path(path).read_bytes() != before
    label = json.loads(cache_path(path).read_bytes().partition(b"\n")[0])["label"]
    assert label["identity"]["inode"] == path.stat().st_ino


def test_a_trace_that_was_replaced_is_read_again(copied):
    path, _ = copied
    before = path.stat()
    write_trace(path.parent, kernel="conv")  # of the same size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert load(path) is None
    assert read_folder(path).ranks[0].spans.names == ("conv",)
    assert read_cache(path, LARGE_LIMITS, 0)[0].spans.names == ("conv",)


def test_a_rank_that_was_given_to_a_lonely_file_is_not_its_own(copied):
    path, traces = copied
    assert read_cache(path, LARGE_LIMITS, 0) is not None
    assert write_cache(path, FileIdentity.of(path), 0, traces)
    assert read_cache(path, LARGE_LIMITS, 0) is not None
    assert load(path) is None
    assert write_cache(path, FileIdentity.of(path), 3, traces)
    assert load(path) is not None


def test_a_trace_that_changes_while_it_is_read_is_not_kept(copied):
    path, traces = copied
    identity = FileIdentity.of(path)
    write_trace(path.parent, kernel="conv")
    cache_path(path).unlink()
    assert not write_cache(path, identity, None, traces)
    assert not cache_path(path).exists()


def test_a_cache_that_cannot_be_written_is_no_matter(tmp_path):
    path = write_trace(tmp_path, name="rank0_" + "x" * 240 + ".json")
    assert read_folder(tmp_path).ranks[0].spans.count == COUNT
    assert list(tmp_path.iterdir()) == [path]
    other = path.rename(tmp_path / "rank0.json")
    cache_path(other).mkdir()
    assert read_folder(tmp_path).ranks[0].spans.count == COUNT
    assert sorted(tmp_path.iterdir()) == sorted([other, cache_path(other)])


def test_a_full_disk_is_no_matter(tmp_path):
    path = write_trace(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        traces = read_folder(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert traces.ranks[0].spans.count == COUNT
    assert list(tmp_path.iterdir()) == [path]


def test_one_process_writes_at_a_time(copied):
    path, traces = copied
    part = cache_path(path).with_name(f"{cache_path(path).name}-part")
    with part.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(b"in work")
        other.flush()
        assert not write_cache(path, FileIdentity.of(path), None, traces)
        assert part.read_bytes() == b"in work"
    assert write_cache(path, FileIdentity.of(path), None, traces)
    assert not part.exists()


@pytest.mark.parametrize("plant", ["hard link", "symbolic link", "pipe"])
def test_nothing_else_is_overwritten(copied, plant):
    path, traces = copied
    part = cache_path(path).with_name(f"{cache_path(path).name}-part")
    precious = path.with_name("precious")
    precious.write_text("my work")
    if plant == "hard link":
        part.hardlink_to(precious)
    elif plant == "symbolic link":
        part.symlink_to(precious)
    else:
        os.mkfifo(part)
    assert not write_cache(path, FileIdentity.of(path), None, traces)
    assert precious.read_text() == "my work"


@given(place=st.integers(min_value=0), value=st.integers(0, 255))
def test_no_changed_byte_changes_what_is_read(original, place, value):
    path, traces = original
    whole = cache_path(path).read_bytes()
    # Every second time within the line that describes the columns.
    end = whole.index(b"\n") + 1 if value % 2 else len(whole)
    damaged = bytearray(whole)
    damaged[place % end] = value
    cache_path(path).write_bytes(damaged)
    read = load(path)
    cache_path(path).write_bytes(whole)
    assert read is None or all(map(same, read, traces))


def cut(part):
    return lambda path: path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])


def of_another_version(path):
    version = json.loads(path.read_bytes().partition(b"\n")[0])["label"]["version"].encode()
    path.write_bytes(path.read_bytes().replace(version, b"0" * len(version)))


def instead(make):
    def replace_cache(path):
        path.unlink()
        make(path)

    return replace_cache


def grow(path):
    with path.open("r+b") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize(
    "spoil",
    [
        *map(cut, (0, 0.0005, 0.01, 0.5, 0.999999)),
        *(
            lambda path, content=content: path.write_bytes(content)
            for content in (
                b"\n",
                b"{}\n",
                b"null\n",
                b"[" * 100_000 + b"\n",
                b'{"label": ' + b"[" * 100_000 + b"\n",
                b"\xff" * 1000,
                b"x" * 1_000_000,
                b'{"label": {}, "checksum": 0, "traces": []}\n',
                b'{"label": null, "checksum": "0", "traces": {}}\n',
            )
        ),
        of_another_version,
        instead(os.mkfifo),
        instead(lambda path: path.symlink_to("/dev/zero")),
        grow,
    ],
)
def test_a_cache_that_is_cut_foreign_outdated_or_no_file_is_ignored_and_rewritten(copied, spoil):
    path, traces = copied
    spoil(cache_path(path))
    assert load(path) is None
    if cache_path(path).is_file():
        assert read_and_cache(path, LARGE_LIMITS, None)[1]
        assert all(map(same, load(path), traces))


def described(path, change):
    """Rewrite what the cache says of its first trace, with the checksum that fits."""
    header, _, columns = cache_path(path).read_bytes().partition(b"\n")
    told = json.loads(header)
    change(told["traces"][0])
    text = json.dumps(told["traces"][0], separators=(",", ":"), ensure_ascii=False)
    told["checksum"] = zlib.crc32(columns, zlib.crc32(text.encode()))
    header = json.dumps(told, separators=(",", ":"), ensure_ascii=False)
    cache_path(path).write_bytes(header.encode() + b"\n" + columns)


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        *((None, {"rank": rank}) for rank in ("0", -1, 1)),
        *((None, {"spans": value}) for value in (None, [])),
        (None, {"steps": {}}),
        (None, {"memory": {"time_ns": 0, "allocated_bytes": -1}}),
        (None, {"device": "x"}),
        ("spans", {"names": []}),
        *(("spans", {"lanes": value}) for value in ([], [3])),
        *(("spans", {"start_ns": value}) for value in (-1, 1 << 60, "many", COUNT - 1)),
        ("spans", {"end_ns": None}),
    ],
)
def test_a_description_that_does_not_fit_is_ignored(copied, part, changed):
    path, _ = copied
    described(path, lambda told: told.update(caveats=["forged"]))
    assert load(path)[0].caveats == ("forged",)  # for its checksum is right
    described(path, lambda told: (told[part] if part else told).update(changed))
    assert load(path) is None


LATEST, EARLIEST = np.iinfo(np.int64).max, np.iinfo(np.int64).min


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("spans", "name_id", 2),
        ("spans", "name_id", -1),
        ("spans", "lane_id", 2),
        ("spans", "activity", 100),
        ("spans", "end_ns", LATEST),
        ("collectives", "span", 2),
        ("collectives", "kind", 100),
        ("collectives", "group_id", 1),
        ("steps", "kind", 100),
        ("host_steps", "end_ns", LATEST),
        ("memory", "time_ns", EARLIEST),
    ],
)
def test_a_cache_whose_numbers_lead_nowhere_is_ignored(tmp_path, part, name, value):
    path = write_trace(tmp_path, count=1)
    identity = FileIdentity.of(path)
    assert write_cache(path, identity, None, (EVERYTHING,))
    assert load(path) is not None
    table = getattr(EVERYTHING, part)
    column = getattr(table, name).copy()
    column[-1] = value
    wrong = replace(EVERYTHING, **{part: replace(table, **{name: column})})
    for traces in ((wrong,), ()):
        assert write_cache(path, identity, None, traces)
        assert load(path) is None


WRITES_FOR_EVER = """
import sys
from pathlib import Path
from evaluator.traces.readers.cache import FileIdentity, read_cache, write_cache
from evaluator.traces.readers.files import LARGE_LIMITS
path = Path(sys.argv[1])
traces = read_cache(path, LARGE_LIMITS, None)
print("ready", flush=True)
while write_cache(path, FileIdentity.of(path), None, traces):
    pass
"""


def test_a_kill_leaves_a_whole_cache_or_none(copied):
    path, traces = copied
    random = Random(5)
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", WRITES_FOR_EVER, path], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(random.uniform(0, 0.02))
            writer.kill()
        assert all(map(same, load(path), traces))
    assert write_cache(path, FileIdentity.of(path), None, traces)
    assert list(path.parent.glob(".*-part")) == []
