"""The wire format of protobuf: what is written is read again, and damage is refused in bounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.traces.readers.protobuf import (
    BYTES,
    NUMBER,
    DamagedMessageError,
    bytes_field,
    fields,
    fields_of_many,
    number_field,
    packed_field,
    packed_numbers,
    varint,
)

NUMBERS = st.integers(0, 2**63 - 1)
MESSAGES = st.lists(
    st.tuples(st.integers(1, 2**28), NUMBERS | st.binary(max_size=200)), min_size=1, max_size=5
)


def message(values):
    return b"".join(
        number_field(field, value) if isinstance(value, int) else bytes_field(field, value)
        for field, value in values
    )


def columns(*spans):
    return (np.array(column, np.int64) for column in zip(*spans, strict=True))


@given(MESSAGES)
def test_fields_are_read_as_they_were_written(values):
    data = bytearray(message(values))

    found = [
        (key >> 3, value if key & 7 == NUMBER else bytes(data[value:end]))
        for key, value, end in fields(data, 0, len(data))
    ]

    assert found == values


@given(st.lists(MESSAGES, min_size=1, max_size=4))
def test_many_messages_are_read_together_as_each_by_itself(messages):
    written = [message(values) for values in messages]
    data, ends = bytearray(b"".join(written)), np.cumsum([len(each) for each in written])
    starts = np.append(0, ends[:-1])

    together = fields_of_many(np.frombuffer(data, np.uint8), starts, ends)

    by_row = sorted(zip(*(column.tolist() for column in together), strict=True), key=lambda x: x[0])
    assert by_row == [
        (row, *one)
        for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True))
        for one in fields(data, start, end)
    ]


@given(st.lists(st.lists(NUMBERS, max_size=6), min_size=1, max_size=6))
def test_packed_numbers_are_read_as_they_were_written(lists):
    written = [packed_field(5, numbers) for numbers in lists]
    data = bytearray(b"".join(written))
    spans = [span for key, *span in fields(data, 0, len(data)) if key == 5 << 3 | BYTES]
    filled = [numbers for numbers in lists if numbers]

    row, number = packed_numbers(
        np.frombuffer(data, np.uint8), *columns(*spans) if spans else np.empty((2, 0), np.int64)
    )

    assert number.tolist() == [one for numbers in filled for one in numbers]
    assert row.tolist() == [place for place, numbers in enumerate(filled) for _ in numbers]


@given(st.binary(max_size=60))
def test_any_bytes_are_fields_within_them_or_damaged(content):
    try:
        found = list(fields(bytearray(content), 0, len(content)))
    except (DamagedMessageError, IndexError):
        return
    assert all(end <= len(content) for _, _, end in found)


@pytest.mark.parametrize("content", [b"\xff" * 11, b"\x80" * 12])
def test_a_number_that_never_ends_is_damaged(content):
    data = np.frombuffer(content, np.uint8)

    with pytest.raises(DamagedMessageError):
        varint(bytearray(content), 0)
    with pytest.raises(DamagedMessageError):
        packed_numbers(data, np.array([0]), np.array([len(content)]))


def test_a_length_beyond_its_message_is_damaged():
    data = bytearray(b"\x0a\x7fabc")

    with pytest.raises(DamagedMessageError):
        list(fields(data, 0, len(data)))
    with pytest.raises(DamagedMessageError):
        fields_of_many(np.frombuffer(data, np.uint8), np.array([0]), np.array([len(data)]))
