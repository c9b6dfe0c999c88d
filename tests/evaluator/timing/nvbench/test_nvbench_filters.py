"""Filters mean what their order on the command line says, and a wrong one is told in one line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.timing.nvbench.compare import AxisFilter, DeviceChoice, Filters
from evaluator.timing.nvbench.read import AxisValue, NvbenchBenchmark, NvbenchState
from evaluator.timing.screening.estimate import TimeSummary
from records.errors import StudyError


def run(**axes):
    values = tuple(
        AxisValue(name=name, type="string", value=text.split("~")[0], shown=text.split("~")[-1])
        for name, text in axes.items()
    )
    return NvbenchState(name="", device=0, axes=values, summary=TimeSummary())


def bench(name, *states):
    return NvbenchBenchmark(name=name, device_ids=(0,), axis_names=(), states=states)


INT, FLOAT = run(T="I32", n="256~2^8"), run(T="F32", n="512~2^9")
BENCHMARKS = [bench("copy", INT, FLOAT), bench("fill", run(T="I32"))]


def admitted(words):
    filters = Filters.of(words)
    return [
        (each.name, state.axes[0].value)
        for each in BENCHMARKS
        for state in each.states
        if filters.admits(each.name, state)
    ]


ALL = [("copy", "I32"), ("copy", "F32"), ("fill", "I32")]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ALL),
        ([("benchmark", "copy")], ALL[:2]),
        ([("benchmark", "fill"), ("benchmark", "copy")], ALL),
        ([("axis", "T=I32")], [ALL[0], ALL[2]]),
        ([("axis", " T = [F32, I32] ")], ALL),
        ([("axis", "n[pow2]=8")], [ALL[0]]),
        ([("axis", "n[pow2]=[8,9]")], ALL[:2]),
        ([("axis", "n=256")], [ALL[0]]),
        ([("axis", "n=2^8")], [ALL[0]]),
        ([("axis", "T=I32"), ("benchmark", "copy")], [ALL[0]]),
        ([("benchmark", "fill"), ("benchmark", "copy"), ("axis", "T=F32")], ALL[1:]),
        (
            [("benchmark", "copy"), ("axis", "n=256"), ("benchmark", "copy"), ("axis", "n=512")],
            ALL[:2],
        ),
        ([("axis", "T=I32"), ("benchmark", "copy"), ("axis", "n=512")], []),
    ],
)
def test_filters_admit_what_their_order_says(words, expected):
    assert admitted(words) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "T", "T=", "=I32", "[pow2]=3", "T=[]", "T=[I32,]", "T=[,]"),
        *("n[pow2]=63", "n[pow2]=x", "n[pow2]=-1", "n[pow2]=1e1", "n[pow2]=²"),
    ],
)
def test_what_is_no_filter_is_refused(text):
    with pytest.raises(StudyError, match="-a "):
        AxisFilter.of(text)


def test_filters_that_exclude_each_other_are_refused():
    for words in (
        [("axis", "T=I32"), ("axis", "T=F32")],
        [("axis", "T=I32"), ("benchmark", "copy"), ("axis", "T=[F32,F64]")],
    ):
        with pytest.raises(StudyError, match="exclude each other"):
            Filters.of(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([("benchmark", "move")], "-b 'move': .*known: 'copy', 'fill'"),
        ([("axis", "U=1")], "-a 'U=1': .*no such axis; known: 'T', 'n'"),
        ([("axis", "T=[I32,I99]")], "no state is at 'I99'; known: 'I32', 'F32'"),
        ([("benchmark", "fill"), ("axis", "n=256")], "no such axis; known: 'T'"),
    ],
)
def test_a_name_that_nothing_has_is_told_with_those_there_are(words, message):
    with pytest.raises(StudyError, match=message):
        Filters.of(words).check(BENCHMARKS)


TEXTS = st.text(alphabet="ab=[], pow2^8²\n", max_size=12)
WORDS = st.lists(st.tuples(st.sampled_from(["benchmark", "axis"]), TEXTS), max_size=5)


@given(WORDS)
def test_any_options_are_filters_or_one_line(words):
    try:
        filters = Filters.of(words)
    except StudyError as error:
        assert "\n" not in str(error)
    else:
        asked = {text for kind, text in words if kind == "benchmark"}
        assert filters.selects("copy") == (not asked or "copy" in asked)


@pytest.mark.parametrize(
    ("text", "ids"), [("all", None), (" ALL ", None), ("2", (2,)), ("1, 0,1", (1, 0, 1))]
)
def test_devices_keep_their_order_and_may_repeat(text, ids):
    assert DeviceChoice.of(text).reference == ids
    assert DeviceChoice.of(candidate=text).candidate == ids


@pytest.mark.parametrize("text", ["", "-1", "0,", "one", "1.0", "0;1", "²", "9" * 5000])
def test_what_is_no_list_of_devices_is_refused(text):
    with pytest.raises(StudyError, match="--candidate-devices"):
        DeviceChoice.of("all", text)
