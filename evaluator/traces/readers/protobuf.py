"""The wire format of protobuf: read fields of messages of any origin, and write fields.

It knows no schema. Nothing here recurses, and every message is read within its bounds.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

NUMBER, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5
"""How a value is written; the key of a field is its number * 8 + one of these."""
_WIDTHS: Final = {EIGHT_BYTES: 8, FOUR_BYTES: 4}
_WIDTH_OF: Final = np.array([0, 8, 0, -1, -1, 4, -1, -1])  # -1: no such field
MOST_FIELDS: Final = 250
"""More fields of one small message are refused."""
_LONGEST_NUMBER: Final = 10


class DamagedMessageError(ValueError):
    """What stands here is not a message of protobuf."""


def fields(data: bytearray, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields of a message: key, then a number and 0, or where the value lies.

    Raises DamagedMessageError, and IndexError at the end of the file.
    """
    while at < end:
        key = data[at]
        at += 1
        if key > 127:
            key, at = varint(data, at - 1)
        how = key & 7
        if how in _WIDTHS:
            value = _WIDTHS[how]
        elif how in {NUMBER, BYTES}:
            value = data[at]
            at += 1
            if value > 127:
                value, at = varint(data, at - 1)
        else:
            raise DamagedMessageError
        if how == NUMBER:
            yield key, value, 0
        elif at + value <= end:
            yield key, at, at + value
            at += value
        else:
            raise DamagedMessageError
    if at > end:
        raise DamagedMessageError


def fields_of_many(
    data: NDArray[np.uint8], at: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """What `fields` gives of many small messages, behind the row of each: first fields first.

    Numbers are as int64. Raises as `fields`, and where a message has very many fields.
    """
    row = np.arange(at.size)
    found = [np.empty((4, 0), np.int64)]
    for _ in range(MOST_FIELDS):
        is_open = at < end
        row, at, end = row[is_open], at[is_open], end[is_open]
        if not row.size:
            return tuple(np.concatenate(found, axis=1))
        key, at = _varints(data, at)
        how = key & 7
        value = _WIDTH_OF[how]
        varied = (how == NUMBER) | (how == BYTES)
        value[varied], at[varied] = _varints(data, at[varied])
        is_number = how == NUMBER
        size = np.where(is_number, 0, value)
        if np.any((size < 0) | (size > end - at) | (at > end)):
            raise DamagedMessageError
        found.append(
            np.stack((row, key, np.where(is_number, value, at), np.where(is_number, 0, at + size)))
        )
        at = at + size
    raise DamagedMessageError


def packed_numbers(
    data: NDArray[np.uint8], at: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers in many packed fields as int64, behind the row of each."""
    sizes = end - at
    behind = np.cumsum(sizes)
    place = np.arange(sizes.sum())
    byte = data[np.repeat(at - behind + sizes, sizes) + place].astype(np.int64)
    is_last = byte < 128
    if not np.all(is_last[behind[sizes > 0] - 1]):
        raise DamagedMessageError
    last = np.flatnonzero(is_last)
    first = np.append(0, last + 1)[: last.size]
    length = last - first + 1
    if np.any(length > _LONGEST_NUMBER):
        raise DamagedMessageError
    number = np.zeros(last.size, np.int64)
    for shift in range(int(length.max(initial=0))):
        longer = length > shift
        number[longer] |= (byte[first[longer] + shift] & 127) << 7 * shift
    return np.repeat(np.arange(at.size), sizes)[last], number


def _varints(
    data: NDArray[np.uint8], at: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What `varint` gives, of many places; numbers as int64."""
    number, at, rows = np.zeros(at.size, np.int64), at.copy(), np.arange(at.size)
    for shift in range(0, 7 * _LONGEST_NUMBER, 7):
        byte = data[at[rows]].astype(np.int64)
        number[rows] |= (byte & 127) << shift
        at[rows] += 1
        rows = rows[byte > 127]
        if not rows.size:
            return number, at
    raise DamagedMessageError


def varint(data: bytearray, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, least first, and what follows it."""
    number = 0
    for shift in range(0, 7 * _LONGEST_NUMBER, 7):
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number & (1 << 64) - 1, at
    raise DamagedMessageError


def number_field(field: int, value: int) -> bytes:
    """A field that holds a number, which is not negative."""
    return _encoded(field << 3 | NUMBER) + _encoded(value)


def text_field(field: int, text: str) -> bytes:
    """A field that holds text; what is not Unicode is replaced."""
    return bytes_field(field, text.encode("utf-8", "replace"))


def bytes_field(field: int, content: bytes) -> bytes:
    """A field that holds bytes, or a message."""
    return _encoded(field << 3 | BYTES) + delimited(content)


def packed_field(field: int, numbers: Iterable[int]) -> bytes:
    """A field that holds numbers; nothing where there is none."""
    content = b"".join(map(_encoded, numbers))
    return bytes_field(field, content) if content else b""


def delimited(message: bytes) -> bytes:
    """A message behind its length."""
    return _encoded(len(message)) + message


def _encoded(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
