"""Files are read piece by piece, or refused with their name; what they are is told by content."""

import gzip
import json
import os
import tarfile
from contextlib import closing
from io import BytesIO
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from evaluator.traces.readers.files import ReadLimits, pieces, read_bytes
from evaluator.traces.readers.formats import Format, NoTraceError, format_of, read_file
from records.errors import TraceError

LIMITS = ReadLimits()
TEXT = json.dumps([{"name": f"kernel {number * 7919 % 100_003}"} for number in range(20_000)])
PACK = {"plain": bytes, "gzip": gzip.compress, "zstd": zstandard.compress}
packed = pytest.mark.parametrize("pack", PACK.values(), ids=PACK)
archived = pytest.mark.parametrize(
    "pack", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"]
)


def open_file_count():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def write(folder, content, name="trace.json"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@packed
@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
def test_pieces_are_the_content_whatever_it_is_packed_with(tmp_path, pack, size):
    content = TEXT.encode()[:50_000]
    found = list(pieces(write(tmp_path, pack(content)), LIMITS, size))
    assert b"".join(found) == content
    assert 0 < min(map(len, found)) <= max(map(len, found)) <= size + (1 << 17)  # a zstd block
    assert list(pieces(write(tmp_path, pack(b"")), LIMITS)) == []


@archived
def test_archives_of_several_parts_are_read_whole_and_nothing_else_behind_them(tmp_path, pack):
    path = write(tmp_path, pack(b"one ") + pack(b"") + pack(b"two"))
    assert read_bytes(path, LIMITS) == b"one two"
    with pytest.raises(TraceError, match="cannot be read"):
        read_bytes(write(tmp_path, pack(b"a trace") + b"and more"), LIMITS)


def test_frames_that_zstd_skips_are_skipped(tmp_path):
    skipped = b"\x50\x2a\x4d\x18\x04\x00\x00\x00size"
    content = zstandard.compress(b"a trace")
    assert read_bytes(write(tmp_path, skipped + content + skipped), LIMITS) == b"a trace"


@archived
def test_a_truncated_archive_is_refused_wherever_it_ends(tmp_path, pack):
    whole = pack(TEXT.encode()[:5000])
    for length in range(4, len(whole), 37):
        path = write(tmp_path, whole[:length])
        with pytest.raises(TraceError, match=r"trace\.json: cannot be read: .*truncated"):
            read_bytes(path, LIMITS)


@given(place=st.integers(min_value=0), bit=st.integers(0, 7))
def test_a_damaged_gzip_file_never_gives_other_content(tmp_path_factory, place, bit):
    damaged = bytearray(gzip.compress(TEXT.encode()[:5000]))
    damaged[place % len(damaged)] ^= 1 << bit
    path = write(tmp_path_factory.mktemp("damaged"), bytes(damaged))
    try:
        content = read_bytes(path, LIMITS)
    except TraceError:
        return
    # Flags and time of the header do not concern the content; without its magic it is plain.
    assert bytes(content) in {TEXT.encode()[:5000], bytes(damaged)}


@given(
    content=st.binary(max_size=200), magic=st.sampled_from([b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"])
)
def test_whatever_looks_like_an_archive_is_read_or_refused(tmp_path_factory, content, magic):
    path = write(tmp_path_factory.mktemp("random"), magic + content)
    with pytest.raises(TraceError):
        read_bytes(path, LIMITS)


@archived
def test_a_bomb_is_refused_when_it_has_unfolded_a_little(tmp_path, pack):
    path = write(tmp_path, pack(b" " * (112 << 20)))
    seen = 0
    with pytest.raises(TraceError, match="unfolds more than 250-fold"):
        for piece in pieces(path, LIMITS):
            seen += len(piece)
    assert seen <= 100 << 20


@pytest.mark.parametrize("pack", PACK.values(), ids=PACK)
def test_limits_are_of_the_bytes_on_disk_and_of_those_unpacked(tmp_path, pack):
    path = write(tmp_path, pack(TEXT.encode()))
    size = path.stat().st_size
    assert read_bytes(path, ReadLimits(file_bytes=size)) == TEXT.encode()
    with pytest.raises(TraceError, match=f"more than {size - 1} bytes on disk"):
        read_bytes(path, ReadLimits(file_bytes=size - 1))
    if pack is not bytes:
        with pytest.raises(TraceError, match="more than 1000 bytes decompressed"):
            read_bytes(path, ReadLimits(decompressed_bytes=1000))


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "dangling.json").symlink_to(tmp_path / "nothing")
    for name in ("pipe.json", "dangling.json", "none.json", "."):
        with pytest.raises(TraceError, match="is not a regular file"):
            read_bytes(tmp_path / name, LIMITS)


def test_a_file_that_is_still_written_is_refused_and_one_replaced_read_as_opened(tmp_path):
    path = write(tmp_path, TEXT)
    some = pieces(path, LIMITS, 1000)
    first = next(some)
    write(tmp_path, TEXT, "new").replace(path)
    assert first + b"".join(some) == TEXT.encode()
    some = pieces(path, LIMITS, 1000)
    next(some)
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(TraceError, match="changed while it was read"):
        list(some)


def test_a_reader_that_stops_leaves_no_open_file(tmp_path):
    path = write(tmp_path, gzip.compress(TEXT.encode()))
    before = open_file_count()
    with closing(pieces(path, LIMITS, 1000)) as some:
        next(some)
    assert open_file_count() == before


def chrome(*events, **top):
    return json.dumps({**top, "traceEvents": list(events)})


OPERATOR = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
DEVICE = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/device:TPU:0"}}
OTHER = {"ph": "X", "cat": "request", "name": "GET", "pid": 1, "tid": 1, "ts": 1, "dur": 1}


@pytest.mark.parametrize("pack", PACK.values(), ids=PACK)
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (chrome(schemaVersion=1), Format.KINETO),
        (chrome(OPERATOR), Format.KINETO),
        (json.dumps([OPERATOR]), Format.KINETO),
        (json.dumps([OTHER | {"cat": "Kernel"}]), Format.KINETO),
        (chrome(OPERATOR, DEVICE), Format.KINETO),
        (chrome(DEVICE, OPERATOR), Format.XLA),
        (chrome(metadata={"highres-ticks": True}), Format.XLA),
        (chrome(*[OTHER] * 10_000, OPERATOR), Format.KINETO),
        ("\n  " + json.dumps([DEVICE], indent=2), Format.XLA),
        ("\ufeff" + chrome(OPERATOR), Format.KINETO),
        ("SQLite format 3\0" + "x" * 100, Format.NSYS),
        ("\n\x20\x12\x0e/host:metadata", Format.XLA),
        ("\n\x20\x08\x07\x12\x0d/device:TPU:0", Format.XLA),
    ],
)
def test_the_content_tells_who_wrote_a_trace(tmp_path, pack, content, expected):
    path = write(tmp_path, pack(content.encode()), "anything.txt")
    assert format_of(path, LIMITS) is expected


def tar(name, content):
    with BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
        return file.getvalue()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"step,time\n1,2\n", "is text, but no JSON"),
        (b"PAR1\x15\x04", "is a Parquet file"),
        (b"PK\x03\x04...", "is a zip archive"),
        (tar("trace.json", b"{}"), "is a tar archive"),
        (b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [{}]}', "is an execution trace"),
        (b"[[-1, 1, 37888, 7], [-1, 1, 512, 7]]", "is a timeline of memory"),
        (b'{"step_time": 3}', "is JSON without trace events"),
        (b"\0\1\2\3", "is of an unknown kind"),
        (chrome(OTHER).encode(), "holds no event that PyTorch's profiler or XLA writes"),
    ],
)
def test_a_file_of_another_kind_is_told_what_it_is_and_what_is_read(tmp_path, content, what):
    path = write(tmp_path, content)
    with pytest.raises(
        NoTraceError, match=f"{what}.*; what is read is Chrome JSON of PyTorch"
    ) as told:
        read_file(path, LIMITS)
    assert str(told.value).startswith(f"{path}: ")
    report = write(tmp_path, b"\x4e\x56\0report", "report.nsys-rep")
    with pytest.raises(NoTraceError, match="nsys export"):
        format_of(report, LIMITS)
