"""XLA's own profile says what its export to JSON says, and damaged ones are refused."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.traces.analysis.breakdown import job_split
from evaluator.traces.model import Activity, TraceSet
from evaluator.traces.readers.files import LARGE_LIMITS, STANDARD_LIMITS
from evaluator.traces.readers.read import read_folder
from evaluator.traces.readers.xla import events as xla_events
from evaluator.traces.readers.xla import xplane
from evaluator.traces.readers.xla.reader import read_devices
from records.errors import TraceError
from tests.support.traces import DATA
from tests.support.xla import named, number, span, text, xspace

JAX_CPU = DATA / "xla" / "jax_cpu_4dev.trace.json.gz"
RECORDED = ["vllm_tpu_2chip_a", "mi300_jax_conv_8gpu"]


TPU = [named("process", "/device:TPU:0"), named("thread", "XLA Ops", tid=3)]
HOST = [named("process", "/host:CPU", 701), named("thread", "python", 701, 3)]
GROUP = "%all-reduce.1 = f32[64] all-reduce(f32[64] %x), replica_groups={{0}}"
JOB = [
    *HOST,
    *TPU,
    named("thread", "Steps", tid=1),
    span("7", 0, 40, tid=1),
    span("fusion.1", 1, 10.5, hlo_category="loop fusion", model_flops="900"),
    span("all-reduce.1", 10, 20, hlo_category="all-reduce", long_name=GROUP),
    span("train", 0, 45, pid=701, step_num="7"),
]


def write(folder, content, name="host.xplane.pb"):
    path = folder / name
    path.write_bytes(content)
    return path


def equal(ours, others):
    """Whether traces have the same spans, collectives and steps, to the nanosecond of rounding."""
    for one, other in zip(ours, others, strict=True):
        for rows in ("spans", "steps", "host_steps"):
            here, there = (getattr(trace, rows) for trace in (one, other))
            assert here.count == there.count
            assert np.abs(here.start_ns - there.start_ns).max(initial=0) <= 1
            assert np.abs(here.end_ns - there.end_ns).max(initial=0) <= 1
        np.testing.assert_array_equal(one.spans.activity, other.spans.activity)
        np.testing.assert_array_equal(one.spans.flops, other.spans.flops)
        np.testing.assert_array_equal(one.collectives.kind, other.collectives.kind)
        np.testing.assert_array_equal(one.collectives.bytes, other.collectives.bytes)
        np.testing.assert_array_equal(one.steps.number, other.steps.number)
        assert one.collectives.groups == other.collectives.groups
    one, other = (job_split(TraceSet(ranks=traces)) for traces in (ours, others))
    assert one.step_numbers == other.step_numbers
    assert one.mean.compute_s == pytest.approx(other.mean.compute_s, abs=1e-8)
    exposed_s = other.mean.exposed_communication_s
    assert one.mean.exposed_communication_s == pytest.approx(exposed_s, abs=1e-8)
    return True


def test_a_profile_reads_like_its_export(tmp_path, recorded_data):
    folder = recorded_data / "traces" / "xla"
    for path in (JAX_CPU, *(folder / f"{name}.trace.json.gz" for name in RECORDED)):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        assert equal(read_devices(write(tmp_path, xspace(events))), read_devices(path))


NAMES = ("fusion.1", "all-reduce.2", "copy-start.1", "copy-done.1", "while.1", "all_gather.4")
SPANS = st.builds(
    lambda name, ts, dur, category, text: span(
        name, ts / 1000, dur / 1000, hlo_category=category, long_name=text, bytes_accessed="8"
    ),
    st.sampled_from(NAMES),
    st.integers(0, 10**6),
    st.integers(0, 10**4),
    st.sampled_from(["loop fusion", "all-reduce", "custom-call"]),
    st.sampled_from(["", GROUP, "%k = f32[8] custom-call(f32[8] %a)"]),
)


@settings(max_examples=60)
@given(st.lists(SPANS, min_size=1, max_size=10))
def test_any_job_reads_alike_in_both_forms(tmp_path, spans):
    events = [*HOST, *TPU, *spans, span("fusion.9", 0, 1)]
    export = write(tmp_path, json.dumps({"traceEvents": events}).encode(), "host.trace.json")
    assert equal(read_devices(write(tmp_path, xspace(events))), read_devices(export))


def test_only_the_export_ends_at_a_number_of_events(tmp_path, monkeypatch):
    monkeypatch.setattr(xla_events, "_MOST_EVENTS", 3)
    export = write(tmp_path, json.dumps({"traceEvents": JOB}).encode(), "host.trace.json")
    assert "read the .xplane.pb" in read_devices(export)[0].caveats[0]
    assert read_devices(write(tmp_path, xspace(JOB)))[0].caveats == ()


def test_times_since_the_epoch_keep_their_nanoseconds(tmp_path):
    start_ns = 1_790_000_000_123_456_789
    [trace] = read_devices(write(tmp_path, profile(event(offset_ps=2_000), start_ns=start_ns)))
    assert trace.spans.start_ns.tolist() == [start_ns + 2]


def profile(*events, start_ns=0, stats=(), plane="/device:TPU:0"):
    """A plane with a line of these events, which all are of metadata 1, `fusion.1`."""
    metadata = text(4, number(1, 1) + text(2, number(1, 1) + text(2, "fusion.1")))
    names = [number(1, at) + text(2, number(1, at) + text(2, name)) for at, name in stats]
    line = text(2, "XLA Ops") + number(3, start_ns) + b"".join(text(4, each) for each in events)
    return text(1, text(2, plane) + text(3, line) + metadata + b"".join(text(5, n) for n in names))


def event(offset_ps=0, duration_ps=5_000, stat=b""):
    return number(1, 1) + number(2, offset_ps) + number(3, duration_ps) + stat


@pytest.mark.parametrize(
    ("more", "count"),
    [
        (event(duration_ps=-1), 1),
        (event(offset_ps=1 << 62) + number(2, 7_000), 2),  # the last of a field counts
        (number(1, 1) + number(5, 12) + number(3, 5_000), 1),  # a sum of 12 events
        (event(stat=text(4, number(1, 9) + text(5, "told"))), 2),  # of metadata that is nowhere
        (event() + text(77, "later") + number(88, 3), 2),
        (event() + b"\x69" + bytes(8) + b"\x6d" + bytes(4), 2),  # 13: eight bytes, and four
        (number(1, 5) + number(3, 5_000), 2),  # without a name
    ],
)
def test_what_is_not_known_or_at_no_time_is_passed_over(tmp_path, more, count):
    [trace] = read_devices(write(tmp_path, profile(event(), more)))
    assert trace.spans.count == count
    assert np.all(trace.spans.activity == Activity.COMPUTE)


def test_arguments_are_numbers_texts_and_references(tmp_path):
    double = number(1, 1) + b"\x11" + np.float64(6.5).tobytes()
    stats = text(4, double) + text(4, number(1, 2) + number(7, 3))
    found = profile(
        event(stat=stats), stats=[(1, "model_flops"), (2, "hlo_category"), (3, "all-reduce")]
    )
    [trace] = read_devices(write(tmp_path, found))
    assert trace.spans.flops.tolist() == [6.5]
    assert trace.spans.activity.tolist() == [Activity.COMMUNICATION]


@pytest.mark.parametrize("count", [1, 8192, 8193])
def test_lines_of_any_length_are_read_whole(tmp_path, count):
    events = (event(offset_ps=at * 10_000) for at in range(count))
    [trace] = read_devices(write(tmp_path, profile(*events)))
    assert trace.spans.start_ns.tolist() == [at * 10 for at in range(count)]


def test_planes_of_other_tools_are_passed_over(tmp_path):
    other = text(1, text(2, "/host:metadata") + text(4, text(2, b"hlo")))
    custom = profile(event(), plane="/device:CUSTOM:3")
    [trace] = read_devices(write(tmp_path, other + custom + profile(event())))
    assert trace.device.name == "TPU"


def test_a_packed_profile_is_read(tmp_path):
    path = write(tmp_path, gzip.compress(xspace(JOB)), "host.xplane.pb.gz")
    assert equal(read_devices(path), read_devices(write(tmp_path, xspace(JOB))))


@pytest.mark.parametrize(
    "damage",
    [
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a number of more than 64 bits
        b"\x0a\x05",  # longer than the file
        b"\x0b",  # a group, which no schema of today has
        text(1, text(2, "/device:TPU:1") + text(3, text(4, b"\x22\x7f"))),  # past its event
        text(1, text(2, "/device:TPU:1") + text(3, text(4, b"\x23"))),  # a group in an event
        text(1, text(2, "/device:TPU:1") + text(3, text(4, b"\x20" + b"\xff" * 11))),
        text(1, text(2, "/device:TPU:1") + text(3, text(4, text(4, b"") * 251))),  # 251 stats
        text(1, text(2, "/device:TPU:1") + text(3, text(4, b"\x20") * 3)),
    ],
)
def test_damage_is_refused(tmp_path, damage):
    path = write(tmp_path, xspace(JOB) + damage)
    with pytest.raises(TraceError, match="damaged or truncated XLA profile"):
        read_devices(path)


@given(st.integers(1, len(xspace(JOB)) - 1))
def test_a_truncated_profile_is_read_to_the_end_of_a_plane_or_refused(tmp_path, length):
    path = write(tmp_path, xspace(JOB)[:length])
    try:
        assert len(read_devices(path)) == 1
    except TraceError:
        assert path.stat().st_size == length


@given(
    st.lists(st.tuples(st.integers(0, len(xspace(JOB)) - 1), st.integers(0, 255)), max_size=6),
    st.binary(max_size=6),
)
def test_changed_bytes_are_read_or_refused(tmp_path, changes, more):
    content = bytearray(xspace(JOB))
    for place, byte in changes:
        content[place] = byte
    path = write(tmp_path, bytes(content) + more)
    try:
        assert read_folder(path, use_cache=False).ranks
    except TraceError as error:
        assert str(path) in str(error)


def test_events_and_bytes_are_limited(tmp_path):
    path = write(tmp_path, profile(*[event()] * 3))
    with pytest.raises(TraceError, match="more than 2 events"):
        read_devices(path, replace(STANDARD_LIMITS, event_count=2))
    with pytest.raises(TraceError, match="more than 8 bytes"):
        read_devices(path, replace(LARGE_LIMITS, file_bytes=8))


@pytest.mark.parametrize(("limit", "what"), [("_MOST_NAMES", "names"), ("_MOST_LINES", "lines")])
def test_names_and_lines_are_limited(tmp_path, monkeypatch, limit, what):
    monkeypatch.setattr(xplane, limit, 1)
    with pytest.raises(TraceError, match=f"more than 1 {what}"):
        read_devices(write(tmp_path, profile(event(), stats=[(1, "a"), (2, "b")])))


def test_a_profile_is_read_and_its_exports_are_not(tmp_path):
    document = json.dumps({"traceEvents": JOB}).encode()
    write(tmp_path, xspace(JOB), "a.xplane.pb")
    write(tmp_path, gzip.compress(document), "a.trace.json.gz")
    write(tmp_path, gzip.compress(document), "perfetto_trace.json.gz")
    traces = read_folder(tmp_path, use_cache=False)
    assert [trace.rank for trace in traces.ranks] == [0]
    assert traces.remarks == (
        "left out: a.trace.json.gz is the export of a.xplane.pb, perfetto_trace.json.gz is an "
        "export of the profiles here",
    )


def test_the_export_of_another_host_is_read_as_well(tmp_path):
    write(tmp_path, xspace(JOB), "a.xplane.pb")
    write(tmp_path, json.dumps({"traceEvents": JOB}).encode(), "b.trace.json")
    assert [trace.rank for trace in read_folder(tmp_path, use_cache=False).ranks] == [0, 1]
