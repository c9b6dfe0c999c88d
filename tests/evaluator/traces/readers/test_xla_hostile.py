"""Whatever events an XLA trace holds, its reader gives traces or a TraceError."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluator.traces.errors import TraceError
from evaluator.traces.readers.xla import events as xla_events


@pytest.fixture
def xla_form():
    """Only JSON can hold arguments of any type."""
    return "trace.json"


def span(name, ts, dur, pid=1, tid=3, **args):
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


@pytest.mark.parametrize(
    ("ts", "dur"), [(None, 1), (1, None), ("x", 1), (1, -2), (1e300, 1), (1, "nan"), (1, 1e18)]
)
def test_an_event_without_proper_times_is_left_out_and_told(read_tpus, ts, dur):
    [trace] = read_tpus(span("fusion.1", 10, 5), span("fusion.2", ts, dur))
    assert trace.spans.count == 1
    assert trace.caveats == ("1 events without a proper start and duration were left out",)


def test_a_file_as_long_as_xla_writes_them_at_most_is_told(read_tpus, monkeypatch):
    monkeypatch.setattr(xla_events, "_MOST_EVENTS", 3)
    [trace] = read_tpus(*(span("fusion.1", 10 * at, 5) for at in range(3)))
    assert "the end may be missing" in trace.caveats[0]


def test_a_file_without_operations_is_refused(read_tpus):
    with pytest.raises(TraceError, match="no operation of a device"):
        read_tpus(span("anything", 0, 1, pid=701))


TOLD = (
    st.none()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | st.text(max_size=30)
)
FIELDS = (
    "name",
    "device_offset_ps",
    "device_duration_ps",
    "hlo_category",
    "long_name",
    "hlo_op",
    "model_flops",
    "bytes_accessed",
    "device_ordinal",
    "correlation_id",
    "step_num",
)
EVENTS = st.fixed_dictionaries(
    {
        "ph": st.sampled_from(["X", "X", "X", "M", "i", ""]),
        "name": st.sampled_from(
            ["copy-start", "copy-done.1", "all-reduce", "Rendezvous", "$a step"]
        ),
        "pid": st.sampled_from([1, 2, 701, "1"]),
        "tid": st.integers(0, 5),
    },
    optional={
        "ts": TOLD,
        "dur": TOLD,
        "args": st.dictionaries(st.sampled_from(FIELDS), TOLD, max_size=5),
    },
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(EVENTS, max_size=12))
def test_any_events_are_read_or_refused(read_tpus, events):
    try:
        traces = read_tpus(*events, span("fusion.1", 0, 1), count=2)
    except TraceError:
        return
    assert len(traces) >= 1
