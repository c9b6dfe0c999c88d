"""Chrome JSON of any layout is read in bounded pieces, or refused with the byte where it ends."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.traces.readers import chrome as chrome_text
from evaluator.traces.readers.chrome import ChromeFile
from evaluator.traces.readers.files import STANDARD_LIMITS
from records.errors import TraceError


class Event(msgspec.Struct):
    name: str = ""
    args: msgspec.Raw = msgspec.Raw(b"{}")


def opened(folder, text):
    path = folder / "trace.json"
    path.write_bytes(text)
    return ChromeFile(path, STANDARD_LIMITS, Event)


def names_in(file):
    return [event.name for batch in file.batches() for event in batch]


@pytest.mark.parametrize(
    ("text", "names", "fields"),
    [
        (b"[]", [], []),
        (b' [\n{"name":"a"} ,{"name":"b"}\r\n]\t', ["a", "b"], []),
        (b'\xef\xbb\xbf[{"name":"a"}]', ["a"], []),
        (b'[{"name":"a"},{}]', ["a", ""], []),
        (b'{"traceEvents":[]}', [], []),
        (b'{"x":[{},{}],"traceEvents":[{"name":"a"}]}', ["a"], ["x"]),
        (b'{"traceEvents":[{"name":"a"}],"x":[{},{}],"y":"}],[{"}', ["a"], ["x", "y"]),
        (b'{"x":1.5e3,"traceEvents":[{"name":"a"}],"y":null,"z":"\\u00e9"}', ["a"], [*"xyz"]),
        (b'{"traceEvents":[{"name":"},{\\"","args":{"b":[{},{}]}},{"name":"\\\\"}]}', None, []),
    ],
)
def test_every_layout_gives_its_events_and_fields(tmp_path, text, names, fields):
    file = opened(tmp_path, text)
    assert names_in(file) == (['},{"', "\\"] if names is None else names)
    assert list(file.header) == fields


def test_fields_are_kept_as_they_are_written(tmp_path):
    file = opened(tmp_path, b'{"a":[1, {"b":2}],"traceEvents":[],"c":"d"}')
    assert names_in(file) == []
    assert {name: bytes(value) for name, value in file.header.items()} == {
        "a": b'[1, {"b":2}]',
        "c": b'"d"',
    }


WHOLE = b'{"a":[{"b":1}],"traceEvents":[{"name":"x"},{"name":"y"}],"z":{"c":true}}'


def test_a_text_that_ends_early_is_refused_where_it_ends(tmp_path):
    for length in range(len(WHOLE)):
        file = opened(tmp_path, WHOLE[:length])
        with pytest.raises(TraceError, match=r"at byte \d+ of the text"):
            names_in(file)


def test_control_characters_in_strings_are_read_as_spaces_and_counted(tmp_path):
    file = opened(tmp_path, b'[\n{"name":"a\x01b\x02"},\n{"name":"\xc3\xa9"},{"name":"c\nd"}]')
    assert names_in(file) == ["a b ", "é", "c d"]
    assert file.control_count == 3


def test_an_event_that_never_ends_is_refused(tmp_path):
    text = b'[{"name":"a","args":[' + b"1," * (6 << 20) + b"1]}]"
    with pytest.raises(TraceError, match="an event without end starts at byte 1 "):
        names_in(opened(tmp_path, text))


def test_the_number_of_a_strange_event_is_told(tmp_path):
    with pytest.raises(TraceError, match=r"Expected `str`, got `int` \(event 2\.name\)"):
        names_in(opened(tmp_path, b'[{"name":"a"},{"name":"b"},{"name":3}]'))


TRICKY = st.sampled_from(["a", "},{", '"},{"', "]", "\\", '\\"', "é", "}]", '{"name":"'])
VALUES = st.recursive(
    TRICKY | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TRICKY, inner, max_size=3),
    max_leaves=8,
)


@given(
    events=st.lists(st.fixed_dictionaries({"name": TRICKY, "args": VALUES}), max_size=6),
    before=st.dictionaries(TRICKY, VALUES, max_size=2),
    after=st.dictionaries(st.just("z"), VALUES, max_size=1),
    indent=st.sampled_from([None, 0, 1]),
    piece_bytes=st.integers(1, 90),
)
def test_wherever_pieces_end_the_same_is_read(
    tmp_path, monkeypatch, events, before, after, indent, piece_bytes
):
    monkeypatch.setattr(chrome_text, "_PIECE_BYTES", piece_bytes)
    document = {**before, "traceEvents": events, **after}
    file = opened(tmp_path, json.dumps(document, indent=indent).encode())
    read = [(event.name, json.loads(bytes(event.args))) for b in file.batches() for event in b]
    assert read == [(event["name"], event["args"]) for event in events]
    assert {name: json.loads(bytes(raw)) for name, raw in file.header.items()} == before | after
