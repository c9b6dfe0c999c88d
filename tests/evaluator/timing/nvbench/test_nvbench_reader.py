"""Result files become values, and one that is malformed is named, never a crash."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.timing.nvbench.read import NvbenchDocument, read_document
from evaluator.timing.screening.estimate import TimeSummary
from records.errors import StudyError
from tests.support.nvbench import (
    benchmark,
    device,
    number,
    sample_reference,
    samples,
    state,
    times,
    write_result,
)

GPU = "nv/cold/time/gpu/"
ALL = ("min", "max", "mean", "q1", "median", "q3")
SPREADS = ("stdev/absolute", "stdev/relative", "iqr/absolute", "iqr/relative")


def read_state(path, summaries, **told):
    write_result(path, [benchmark("copy", [state(summaries, **told)])])
    return read_document(path).benchmarks[0].states[0]


def test_every_statistic_of_a_state_is_read(tmp_path):
    named = {GPU + name: place + 1.0 for place, name in enumerate((*ALL, *SPREADS))}
    told = [number(tag, value) for tag, value in named.items()]
    told.append(number("nv/cold/sm_clock_rate/mean", 1.5e9))
    told.append(number("nv/cold/time/cpu/mean", 99.0))

    found = read_state(tmp_path / "a.json", told)

    assert found.summary == TimeSummary(
        minimum=1.0,
        maximum=2.0,
        mean=3.0,
        first_quartile=4.0,
        median=5.0,
        third_quartile=6.0,
        stdev=7.0,
        stdev_relative=8.0,
        iqr=9.0,
        iqr_relative=10.0,
        clock_hz=1.5e9,
    )


@pytest.mark.parametrize(
    ("summaries", "summary"),
    [
        (None, TimeSummary()),
        ([], TimeSummary()),
        # Null is infinite noise, and no time.
        (
            [number(GPU + "stdev/relative", None), number(GPU + "mean", None)],
            TimeSummary(stdev_relative=math.inf),
        ),
        # The older name of the interquartile range.
        (
            [number(GPU + "ir/absolute", 2.0), number(GPU + "ir/relative", 0.5)],
            TimeSummary(iqr=2.0, iqr_relative=0.5),
        ),
        # A file of samples that nvbench could not write.
        ([{"tag": "nv/json/bin:nv/cold/sample_times", "data": []}], TimeSummary()),
    ],
)
def test_what_was_not_measured_is_not_there(tmp_path, summaries, summary):
    found = read_state(tmp_path / "a.json", summaries)
    assert (found.summary, found.times) == (summary, None)
    assert read_state(tmp_path / "a.json", None, skipped=True).summary.skipped


def test_a_state_is_named_without_its_device_and_shows_exponents(tmp_path):
    found = read_state(tmp_path / "a.json", None, axes={"T": "I32", "Size": "2^20"}, device=3)

    assert found.name == "T=I32 Size=2^20"
    assert [(axis.value, axis.shown) for axis in found.axes] == [
        ("I32", "I32"),
        ("1048576", "2^20"),
    ]


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("float64", "0.333333333", "0.33333"),
        ("float64", "many", "many"),
        ("int64", "48", "48"),
        ("int64", "-8", "-8"),
        ("int64", "0", "0"),
        ("int64", "9" * 5000, "9" * 5000),
    ],
)
def test_an_axis_value_that_is_no_power_is_shown_as_it_is(tmp_path, kind, value, shown):
    run = state(None) | {"axis_values": [{"name": "n", "type": kind, "value": value}]}
    told = benchmark("copy", [run]) | {"axes": [{"name": "n", "flags": "pow2"}]}
    path = write_result(tmp_path / "a.json", [told])

    assert read_document(path).benchmarks[0].states[0].axes[0].shown == shown


def test_a_file_of_another_layout_is_read_with_a_warning(tmp_path):
    path = write_result(tmp_path / "a.json", [])
    told = json.loads(path.read_text())
    path.write_text(json.dumps(told | {"meta": {"version": {"json": {"string": "2.0.0"}}}}))
    unnumbered = tmp_path / "b.json"
    unnumbered.write_text(json.dumps({"devices": [], "benchmarks": None}))

    assert "'2.0.0'" in read_document(path).warnings[0]
    assert "no version" in read_document(unnumbered).warnings[0]


@pytest.mark.parametrize(
    ("datum", "place"),
    [
        ({"name": "value", "type": "float64", "value": True}, "benchmarks.0.states.0"),
        ({"name": "value", "type": "float64", "value": [1]}, "benchmarks.0.states.0"),
        ({"name": "value", "type": "int64", "value": "1"}, "type float64"),
        ({"name": "value", "type": "float64", "value": "soon"}, "'soon', not a number"),
        ({"name": "other", "type": "float64", "value": "1"}, "has no value"),
    ],
)
def test_a_wrong_type_is_an_error_that_names_its_place(tmp_path, datum, place):
    told = {"tag": GPU + "mean", "data": [datum]}

    with pytest.raises(StudyError, match=place) as caught:
        read_state(tmp_path / "a.json", [told])

    assert str(tmp_path / "a.json") in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[]", b"{}", b'{"devices": []}', b"[" * 100_000, b"\xff\xfe{}"),
        b'{"devices": 1, "benchmarks": []}',
    ],
)
def test_what_is_no_result_file_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)

    for path in (tmp_path / "a.json", tmp_path, tmp_path / "absent.json"):
        with pytest.raises(StudyError, match="nvbench --json"):
            read_document(path)


@pytest.mark.parametrize("wrong", [device() | {"id": True}, device() | {"name": None}, {}])
def test_a_device_without_a_number_is_refused(tmp_path, wrong):
    write_result(tmp_path / "a.json", [], [device(), wrong])
    with pytest.raises(StudyError, match=r"devices\.1"):
        read_document(tmp_path / "a.json")


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4)
    ),
    max_leaves=20,
)
DATA = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["value", "filename", "size"]) | ANY_JSON,
        "type": st.sampled_from(["float64", "int64", "string"]) | ANY_JSON,
        "value": st.sampled_from(["1.5", "3", "../x", "nan", "1e999"]) | ANY_JSON,
    }
)
TAGS = [GPU + "mean", GPU + "stdev/absolute", "nv/json/bin:nv/cold/sample_times"]
SUMMARIES = st.fixed_dictionaries(
    {"tag": st.sampled_from(TAGS) | ANY_JSON, "data": st.lists(DATA, max_size=3) | ANY_JSON}
)
RESULTS = st.fixed_dictionaries(
    {
        "devices": st.just([device()]) | ANY_JSON,
        "benchmarks": st.builds(
            lambda summaries: [benchmark("copy", [state(summaries)])],
            st.lists(SUMMARIES, max_size=3),
        )
        | ANY_JSON,
    }
)


@given(RESULTS | ANY_JSON)
def test_any_json_is_a_document_or_our_error(tmp_path, told):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(told))

    try:
        found = read_document(path)
    except StudyError as error:
        assert str(path) in str(error)
    else:
        assert isinstance(found, NvbenchDocument)
        for run in (run for each in found.benchmarks for run in each.states):
            run.measured()


def test_raw_samples_are_read_when_they_are_asked_for(tmp_path):
    path = tmp_path / "a.json"
    told = [samples(path, 0, [1.0, 2.0]), samples(path, 0, [3.0, 4.0], clocks=True)]
    found = read_state(path, [*times(1, 1, 1, 1), *told])

    summary, warnings = found.measured()

    assert found.summary.times_s is None
    assert np.array_equal(summary.times_s, [1.0, 2.0])
    assert np.array_equal(summary.clocks_hz, [3.0, 4.0])
    assert warnings == ()


def test_samples_are_found_though_the_file_names_the_folder_of_its_start(tmp_path):
    path = tmp_path / "a.json"
    samples(path, 0, [1.0, 2.0])

    for name in ("/elsewhere/out/a.json-bin/0.bin", "out/a.json-bin/0.bin"):
        summary, _ = read_state(path, [sample_reference(name, 2)]).measured()
        assert np.array_equal(summary.times_s, [1.0, 2.0])
