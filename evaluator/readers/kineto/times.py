"""Microseconds as profilers write them, to whole nanoseconds that lose none."""

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from evaluator.intervals import Nanoseconds
from evaluator.readers.kineto.events import Number
from evaluator.traces.errors import TraceError

# Below 2^43 us a float64 is at most 0.49 ns from the decimal text, so rounding restores it.
_FLOAT_EXACT_BELOW_US = float(1 << 43)
# In nanoseconds a quarter of what int64 holds: base + start + duration cannot overflow.
_LARGEST_US = float(1 << 51)
_EPOCH_DIGITS, _FRACTION_DIGITS = 16, 3
_SPACE, _POINT, _ZERO = b" .0"


class _Start(msgspec.Struct, gc=False):
    """The start of an event, digit by digit."""

    ts: msgspec.Raw = msgspec.Raw(b"0")


_STARTS = msgspec.json.Decoder(list[_Start])
_Numbers: TypeAlias = Sequence[Number | None]


def rounded_ns(path: Path, values_us: _Numbers, what: str) -> Nanoseconds:
    """Durations and the like, int64 ns, shape (events,).

    Raises TraceError when one is absent or absurd, calling it what it is.
    """
    return _rounded(_numbers(path, values_us, what))


def is_time(value: Number | None) -> bool:
    """Whether the two functions of this module take it for a time."""
    try:
        return value is not None and abs(float(value)) < _LARGEST_US
    except (ValueError, OverflowError):
        return False


def starts_ns(
    path: Path, starts_us: _Numbers, text: bytes, chosen: NDArray[np.int64]
) -> Nanoseconds:
    """Starts, int64 ns, shape (events,): those of the `chosen` events of the list `text`.

    Fractions of a microsecond since 1970 do not fit a float64: they are read from the text again.
    Raises TraceError when one is absent or absurd.
    """
    values = _numbers(path, starts_us, "start")
    far = np.abs(values) >= _FLOAT_EXACT_BELOW_US
    if not far.any() or not {type(value) for value in starts_us} - {int}:
        return _rounded(values)
    texts = [bytes(start.ts).strip(b'"') for start in _STARTS.decode(text)]
    return _exact(path, [texts[i] for i in chosen.tolist()])


def _numbers(path: Path, values: _Numbers, what: str) -> NDArray[np.float64]:
    try:
        numbers = np.array(values, np.float64)
    except (ValueError, OverflowError) as error:
        raise TraceError(path, f"an event has an absurd {what}: {error}") from error
    if not np.all(np.abs(numbers) < _LARGEST_US):
        raise TraceError(path, f"an event has no {what} or an absurd one")
    return numbers


def _rounded(microseconds: NDArray[np.float64]) -> Nanoseconds:
    whole = np.floor(microseconds)
    fraction_ns = np.rint((microseconds - whole) * 1000)
    return whole.astype(np.int64) * 1000 + fraction_ns.astype(np.int64)


def _exact(path: Path, texts: Sequence[bytes]) -> Nanoseconds:
    """By the columns of digits where all look like 1712195495505583.017, else one by one."""
    digits = np.array(texts, "S").view(np.uint8).reshape(len(texts), -1)
    width = _EPOCH_DIGITS + 1 + _FRACTION_DIGITS
    if digits.shape[1] == width and np.all(digits[:, _EPOCH_DIGITS] == _POINT):
        values = np.delete(digits, _EPOCH_DIGITS, axis=1).astype(np.int64) - _ZERO
        if np.all((values >= 0) & (values <= 9)):
            return values @ 10 ** np.arange(width - 2, -1, -1, dtype=np.int64)
    try:
        return np.array([_nanoseconds(text) for text in texts], np.int64)
    except (InvalidOperation, ValueError) as error:
        raise TraceError(path, "an event has an absurd start") from error


def _nanoseconds(text: bytes) -> int:
    return int((Decimal(text.decode("ascii")) * 1000).to_integral_value())
