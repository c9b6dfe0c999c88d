"""Open files that a person or a study named, and limit how much is read."""

import json
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import NoReturn

MOST_TEXT_BYTES = 8 << 20
"""No study, card or policy that a person wrote is larger."""
MOST_JSON_VALUES = 4_000_000
"""Of one document; each takes some 64 bytes, however short its text is."""


class NotRegularError(OSError):
    """The path is a folder, a device or a pipe."""


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file, without waiting for the writer of a pipe.

    Raises `OSError`, as `NotRegularError` when it is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise NotRegularError("it is not a regular file")


def read_text(path: Path, most_bytes: int = MOST_TEXT_BYTES) -> str:
    """The text of a regular file; raises `OSError`, also for one that is larger, or `ValueError`.

    The latter, a `UnicodeDecodeError`, is for a file that is not UTF-8.
    """
    return _content(path, most_bytes).decode().replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path, most_bytes: int) -> object:
    """The JSON of a regular file; raises as `read_text`, also `RecursionError` for its depth."""
    content = _content(path, most_bytes)
    check_value_count(content)
    return json.loads(content.decode(), parse_constant=_refuse)


def check_value_count(content: bytes | bytearray) -> None:
    """Raise `ValueError` for JSON that would take far more memory than its text.

    Commas and brackets are counted wherever they stand, so that there are no more values than that.
    """
    if sum(map(content.count, (b",", b"[", b"{"))) > MOST_JSON_VALUES:
        raise ValueError(f"it holds more than {MOST_JSON_VALUES} values")


def _content(path: Path, most_bytes: int) -> bytes:
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(f"it holds more than {most_bytes >> 20} MiB")
    return content


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")
