"""Whatever a trace file holds, the Kineto reader gives a trace or a TraceError, within bounds."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.traces.model import RankTrace
from evaluator.traces.readers.files import ReadLimits
from evaluator.traces.readers.kineto import columns as kineto_columns
from evaluator.traces.readers.kineto.reader import read_rank
from records.errors import TraceError
from tests.support.kineto import RANK_0_OF_2, write
from tests.support.traces import GLOO, SYNTHETIC

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 1, "ts": 1, "dur": 1}


def document(**changed):
    return {"distributedInfo": RANK_0_OF_2, "traceEvents": [EVENT]} | changed


def event_with(**changed):
    return document(traceEvents=[EVENT | changed])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated"),
        (b"no json", "{ is missing at byte 0"),
        (b'{"traceEvents": [{"ph": "X"', "truncated"),
        (b'{"traceEvents": [{"ph": "X"}, ]}', "trailing comma in array at byte 30"),
        (b'{"traceEvents": [{"name": "a"b"}]}', "at byte 2"),
        (b'{"traceEvents": [{"args":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}", "too deeply"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b',"traceEvents": []}', "too deeply"),
        (b'{"traceEvents": []} []', "more follows after its end at byte 20"),
        (b'{"traceEvents": [], "traceEvents": []}', "a second list of events"),
        (b"{}", "traceEvents"),
        (document(traceEvents={}), "not a list"),
        (document(traceEvents=[3]), "another shape"),
        (document(traceEvents=[[]]), "another shape"),
        (document(baseTimeNanoseconds=-1), "absurd base time"),
        (document(baseTimeNanoseconds=1 << 80), "absurd base time"),
        (document(baseTimeNanoseconds="soon"), "its baseTimeNanoseconds: Expected `int`"),
        (document(distributedInfo=[]), "its distributedInfo: Expected `object`"),
        (document(distributedInfo={"rank": -1}), "rank -1"),
        (document(distributedInfo={"rank": 2, "world_size": 2}), "rank 2 in a world of 2"),
        (document(distributedInfo={"rank": 2, "world_size": 1 << 70}), "in a world of"),
        (event_with(cat="kernel", name=5), "another shape"),
        (event_with(ts="soon"), "no start or an absurd one: 'soon'"),
        (event_with(ts=[1]), "another shape"),
        (event_with(ts=None), "no start"),
        (event_with(dur=None), "no duration"),
        (event_with(ts=1e300), "absurd"),
        (event_with(ts=-1e18), "absurd"),
        (event_with(dur=1e18), "absurd"),
        (json.dumps(event_with(ts=1)).replace("1,", "1e999,").encode(), "out of range"),
    ],
)
def test_a_damaged_trace_is_refused_with_its_name_and_reason(tmp_path, content, message):
    path = write(tmp_path, content)
    with pytest.raises(TraceError, match=message) as refusal:
        read_rank(path)
    assert str(refusal.value).startswith(f"{path}: ")


FRAME = {"ph": "X", "cat": "python_function", "name": "NAME", "pid": 7, "tid": 1, "ts": 1, "dur": 1}


@pytest.fixture(scope="module")
def generated():
    """The text of a generated trace of one rank."""
    return gzip.decompress((SYNTHETIC / "rank0_trace.json.gz").read_bytes())


@pytest.fixture(scope="module")
def whole(generated, tmp_path_factory):
    """That trace as it is read."""
    return read_rank(write(tmp_path_factory.mktemp("whole"), generated))


def with_event(text, event, name=b"NAME"):
    """The trace with one more event, whose name is these bytes."""
    more = json.dumps(event).encode().replace(b"NAME", name)
    return text.replace(b'"traceEvents": [', b'"traceEvents": [' + more + b",", 1)


def assert_same_spans(one, other):
    assert one.spans.start_ns.tolist() == other.spans.start_ns.tolist()
    assert one.spans.end_ns.tolist() == other.spans.end_ns.tolist()
    assert one.spans.correlation.tolist() == other.spans.correlation.tolist()
    assert one.collectives.bytes.tolist() == other.collectives.bytes.tolist()


@pytest.mark.parametrize(
    "name",
    [b"config.py(0): \xff\xfe", rb"C:\Users\me\train.py(3): step", rb"\ud800", b"\xed\xa0\x80"],
    ids=["not UTF-8", "path of Windows", "half a character", "half a character in UTF-8"],
)
def test_a_name_that_is_no_json_is_mended_with_a_caveat(tmp_path, generated, whole, name):
    trace = read_rank(write(tmp_path, with_event(generated, FRAME, name)))
    assert_same_spans(trace, whole)
    assert len(trace.caveats) == 1
    assert trace.caveats[0].startswith("1 events were not valid JSON")


def test_every_path_of_windows_is_read_as_one_with_slashes(tmp_path):
    text = gzip.decompress((GLOO / "rank0_trace.json.gz").read_bytes())
    windows = text.replace(b"torch/", rb"C:\Lib\torch/")
    trace = read_rank(write(tmp_path, windows))
    assert_same_spans(trace, read_rank(write(tmp_path, text)))
    assert int(trace.caveats[0].split()[0]) > 1000
    around = json.dumps(document(traceName="NAME")).encode()
    around = around.replace(b"NAME", rb"C:\Users\me\x.json")
    assert read_rank(write(tmp_path, around)).rank == 0


@pytest.mark.parametrize("number", [b"inf", b"-inf", b"nan", b"NaN", b"Infinity", b"-nan(ind)"])
def test_a_number_that_json_has_not_is_mended_with_a_caveat(tmp_path, generated, whole, number):
    rate = b'"memory bandwidth (GB/s)": '
    start = generated.index(rate) + len(rate)
    end = generated.index(b"\n", start)
    trace = read_rank(write(tmp_path, generated[:start] + number + generated[end:]))
    assert_same_spans(trace, whole)
    assert trace.caveats[0].startswith("1 events were not valid JSON")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"cbid": 211', b'"bytes": 18446744073709551615'),
        (b'"cbid": 211', b'"bytes": "many"'),
        (b'"bytes": 65536', b'"bytes": 18446744073709551615'),
        (b'"blocks per SM": 0.181818', b'"blocks per SM": {}'),
        (b'"blocks per SM": 0.181818', b'"blocks per SM": 1e999'),
    ],
)
def test_an_argument_that_cannot_be_read_counts_as_not_given(tmp_path, generated, whole, old, new):
    assert old in generated
    trace = read_rank(write(tmp_path, generated.replace(old, new, 1)))
    assert_same_spans(trace, whole)
    assert trace.caveats == (
        "1 events have arguments that cannot be read; these count as not given",
    )


def test_an_argument_of_another_shape_costs_no_other(tmp_path):
    told = {"correlation": 5, "bytes": [], "blocks per SM": 2.5}
    trace = read_rank(write(tmp_path, event_with(cat="kernel", args=told)))
    assert (trace.spans.correlation.tolist(), trace.spans.blocks_per_sm.tolist()) == ([5], [2.5])


@pytest.mark.parametrize("damage", [{"ts": None}, {"ts": "soon"}, {"dur": 1e300}, {"pid": []}])
def test_a_damaged_event_that_matters_is_left_out_and_named(tmp_path, generated, whole, damage):
    event = FRAME | {"cat": "kernel"} | damage
    trace = read_rank(write(tmp_path, with_event(generated, event, b"my_gemm")))
    assert_same_spans(trace, whole)
    assert trace.caveats == ("1 damaged events are left out: 1 x kernel my_gemm",)


def test_damaged_events_that_count_for_nothing_are_left_out_whatever_their_number(tmp_path):
    frames = [FRAME | {"name": f'Library("_{i}", "IMPL")'} for i in range(50)]
    text = json.dumps(document(traceEvents=[EVENT, *frames])).replace('\\"', '"').encode()
    trace = read_rank(write(tmp_path, text))
    assert trace.spans.count == 1
    assert trace.caveats == (
        "50 damaged events of kinds that nothing is computed from are left out",
    )


@pytest.mark.parametrize(("damaged", "refused"), [(1, False), (2, False), (3, True)])
def test_a_trace_of_which_more_than_a_hundredth_is_damaged_is_refused(tmp_path, damaged, refused):
    events = [EVENT | {"ts": 10 * i} for i in range(200)]
    for event in events[:damaged]:
        event["ts"] = "soon"
    path = write(tmp_path, document(traceEvents=events))
    if not refused:
        assert read_rank(path).spans.count == 200 - damaged
        return
    with pytest.raises(
        TraceError, match=r"3 of its 200 events are damaged, .*cpu_op aten::mm, has"
    ):
        read_rank(path)


def test_fractions_since_1970_are_those_of_their_own_events_after_a_damaged_one(tmp_path):
    text = json.dumps(document(traceEvents=[FRAME, EVENT | {"ts": "AT0"}, EVENT | {"ts": "AT1"}]))
    text = text.replace('"NAME"', "5").replace('"AT0"', "1712195495505583.017")
    path = write(tmp_path, text.replace('"AT1"', "1712195495505584.019").encode())
    assert read_rank(path).spans.start_ns.tolist() == [1712195495505583017, 1712195495505584019]


def test_too_many_events_are_refused(tmp_path):
    path = write(tmp_path, document(traceEvents=[{}] * 11))
    with pytest.raises(TraceError, match="more than 10 events"):
        read_rank(path, ReadLimits(event_count=10))


def test_too_many_different_names_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(kineto_columns, "_MOST_NAMES", 3)
    events = [EVENT | {"name": f"aten::{i}"} for i in range(4)]
    with pytest.raises(TraceError, match="more than 3 different names"):
        read_rank(write(tmp_path, document(traceEvents=events)))


@given(st.binary(max_size=200) | st.binary(max_size=50).map(gzip.compress))
def test_any_bytes_give_a_trace_or_a_trace_error(tmp_path_factory, content):
    try:
        assert isinstance(read_rank(write(tmp_path_factory.getbasetemp(), content)), RankTrace)
    except TraceError:
        return
