"""Open files that a person or a study named, and limit how much is read."""

import os
import stat
from io import BufferedReader
from pathlib import Path

MOST_TEXT_BYTES = 8 << 20
"""No study, card or policy that a person wrote is larger."""


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
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(f"it holds more than {most_bytes >> 20} MiB")
    return content.decode().replace("\r\n", "\n").replace("\r", "\n")
