"""Whatever a trace file holds, the Kineto reader gives a trace or a TraceError, within bounds."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.readers.files import ReadLimits
from evaluator.readers.job import read_traces
from evaluator.readers.kineto import read_rank
from evaluator.traces import RankTrace, TraceError

GLOO = Path(__file__).parents[1] / "data" / "traces" / "gloo_ddp_2rank"
RANK_0_OF_2 = {"backend": "gloo", "rank": 0, "world_size": 2}
EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 1, "ts": 1, "dur": 1}


def write(folder, content, name="rank0_trace.json"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def document(**changed):
    return {"distributedInfo": RANK_0_OF_2, "traceEvents": [EVENT]} | changed


def event_with(**changed):
    return document(traceEvents=[EVENT | changed])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated"),
        (b"no json", "is no Kineto trace"),
        (b'{"traceEvents": [{"ph": "X"', "truncated"),
        (b'{"traceEvents": [{"ph": "X"}, ]}', "is no Kineto trace"),
        (b'{"traceEvents": [{"ts": NaN}]}', "is no Kineto trace"),
        (b'{"traceEvents": [{"name": "\xff"}]}', "is no Kineto trace"),
        (b'{"traceEvents": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b"[]", "is no Kineto trace"),
        (b"{}", "traceEvents"),
        (document(traceEvents={}), "not a list"),
        (document(traceEvents=[3]), "another shape"),
        (document(traceEvents=[[]]), "another shape"),
        (document(baseTimeNanoseconds=-1), "absurd base time"),
        (document(baseTimeNanoseconds=1 << 80), "absurd base time"),
        (document(baseTimeNanoseconds="soon"), "is no Kineto trace"),
        (document(distributedInfo=[]), "is no Kineto trace"),
        (document(distributedInfo={"rank": -1}), "rank -1"),
        (document(distributedInfo={"rank": 2, "world_size": 2}), "rank 2 in a world of 2"),
        (document(distributedInfo={"rank": 2, "world_size": 1 << 70}), "in a world of"),
        (event_with(name=5), "another shape"),
        (event_with(ts="1"), "another shape"),
        (event_with(ts=None), "no start"),
        (event_with(dur=None), "no duration"),
        (event_with(ts=1e300), "absurd"),
        (event_with(ts=-1e18), "absurd"),
        (event_with(dur=1e18), "absurd"),
        (event_with(dur=-0.5), "less than nothing"),
    ],
)
def test_a_damaged_trace_is_refused_with_its_name_and_reason(tmp_path, content, message):
    path = write(tmp_path, content)
    with pytest.raises(TraceError, match=message) as refusal:
        read_rank(path)
    assert str(refusal.value).startswith(f"{path}: ")


def test_a_number_beyond_float_is_refused(tmp_path):
    text = json.dumps(event_with(ts=12345)).replace("12345", "1e999").encode()
    with pytest.raises(TraceError, match="out of range"):
        read_rank(write(tmp_path, text))


def test_a_trace_without_a_rank_is_refused(tmp_path):
    path = write(tmp_path, {"traceEvents": []}, "trace.json")
    with pytest.raises(TraceError, match="names no rank"):
        read_rank(path)


def test_a_truncated_archive_is_refused(tmp_path):
    whole = (GLOO / "rank0_trace.json.gz").read_bytes()
    with pytest.raises(TraceError, match="cannot be read"):
        read_rank(write(tmp_path, whole[: len(whole) // 2]))


def test_a_damaged_archive_is_refused(tmp_path):
    whole = bytearray((GLOO / "rank0_trace.json.gz").read_bytes())
    whole[len(whole) // 2] ^= 0xFF
    with pytest.raises(TraceError):
        read_rank(write(tmp_path, bytes(whole)))


def test_a_gzip_bomb_is_refused_before_it_unfolds(tmp_path):
    bomb = gzip.compress(b" " * (16 << 20))
    assert len(bomb) < 20_000
    with pytest.raises(TraceError, match="more than 1048576 bytes decompressed"):
        read_rank(write(tmp_path, bomb), ReadLimits(decompressed_bytes=1 << 20))


@pytest.mark.parametrize("content", [b" " * 2000, b"\x1f\x8b" + b" " * 2000])
def test_a_file_over_the_limit_is_refused(tmp_path, content):
    with pytest.raises(TraceError, match="more than 1000 bytes on disk"):
        read_rank(write(tmp_path, content), ReadLimits(file_bytes=1000))


def test_too_many_events_are_refused(tmp_path):
    path = write(tmp_path, document(traceEvents=[{}] * 11))
    with pytest.raises(TraceError, match="more than 10 events"):
        read_rank(path, ReadLimits(event_count=10))


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(TraceError, match="no regular file"):
        read_rank(tmp_path)
    with pytest.raises(TraceError, match="no regular file"):
        read_rank(tmp_path / "rank0_trace.json")


@pytest.mark.parametrize("name", ["memory_timeline.raw.gz", "gloo_ddp_2rank/et_rank0.json.gz"])
def test_other_files_of_the_profiler_are_refused(name, recorded_data):
    with pytest.raises(TraceError, match="is no Kineto trace"):
        read_rank(recorded_data / "traces/kineto" / name)


def test_two_files_of_one_rank_are_refused(tmp_path):
    paths = [write(tmp_path, document(), f"{name}.json") for name in ("one", "other")]
    with pytest.raises(TraceError, match=r"other\.json: holds rank 0, and so does .*one\.json"):
        read_traces(paths)


def test_traces_of_jobs_of_different_size_are_refused(tmp_path):
    small = write(tmp_path, document(), "small.json")
    large = write(tmp_path, document(distributedInfo={"rank": 1, "world_size": 3}), "large.json")
    with pytest.raises(TraceError, match=r"large\.json: is of a job of 3 ranks, .* of one of 2"):
        read_traces([small, large])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
near_events = st.fixed_dictionaries(
    {},
    optional={
        "ph": st.sampled_from(["X", "M", "i"]) | json_values,
        "cat": st.sampled_from(["kernel", "cpu_op", "user_annotation", "gpu_memcpy"]) | json_values,
        "name": st.sampled_from(["aten::mm", "ProfilerStep#3", "gloo:send", "c10d::x"]),
        "ts": st.floats(0, 1e16) | json_values,
        "dur": st.floats(0, 1e6) | json_values,
        "tid": st.integers(0, 3) | json_values,
        "args": st.just({"Collective name": "x"}) | json_values,
    },
)
near_documents = st.fixed_dictionaries(
    {"traceEvents": st.lists(near_events, max_size=5) | json_values},
    optional={
        "baseTimeNanoseconds": st.integers(0, 2**62) | json_values,
        "distributedInfo": st.just(RANK_0_OF_2) | json_values,
        "deviceProperties": json_values,
    },
)


def survives(folder, content):
    try:
        trace = read_rank(write(folder, content))
    except TraceError:
        return
    assert isinstance(trace, RankTrace)
    assert (trace.end_ns >= trace.start_ns).all()


@given(st.binary(max_size=200) | st.binary(max_size=50).map(gzip.compress))
def test_any_bytes_give_a_trace_or_a_trace_error(tmp_path_factory, content):
    survives(tmp_path_factory.getbasetemp(), content)


@settings(max_examples=300)
@given(near_documents)
def test_any_json_gives_a_trace_or_a_trace_error(tmp_path_factory, content):
    survives(tmp_path_factory.getbasetemp(), content)
